"""Two graphs that message passing cannot distinguish, and an encoding with which it can."""

import networkx as nx
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import from_networkx

from pyg_topomask.expressivity import distinguishes

hexagon, triangles = from_networkx(nx.cycle_graph(6)), from_networkx(nx.disjoint_union(*[nx.cycle_graph(3)] * 2))
print(distinguishes(hexagon, triangles))  # False
print(distinguishes(hexagon, triangles, AddRandomWalkPE(3, attr_name="pe")))  # True
