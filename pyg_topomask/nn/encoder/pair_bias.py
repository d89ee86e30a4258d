r"""Encoders of node pairs, ``[P, H]`` with :math:`P = \sum_g n_g^2`, as biases of full softmax attention.

Rows are the pairs (query, key) of each graph in row-major order, graph after graph.
"""

import torch
from torch import Tensor
from torch.nn import Embedding, Parameter
from torch.nn.functional import embedding_bag
from torch.nn.init import normal_
from torch_geometric.data import Data

from pyg_topomask.checks import holds
from pyg_topomask.nn.encoder.base import Encoder
from pyg_topomask.nn.encoder.features import LinearNodeEncoder

_STD = 0.02  # of Graphormer's initial weights


class _NormalEncoder(Encoder):
    def reset_parameters(self) -> None:
        """Initialise all parameters again."""
        for parameter in self.parameters():
            normal_(parameter, std=_STD)


class GraphormerBias(_NormalEncoder):
    r"""Graphormer's bias by distance and by the edges on a shortest path.

    .. math::
        b_{ij} = s_{d(i, j)} + \frac{1}{\max(1, d(i, j))} \sum_{t=1}^{d(i, j)} W_t\, c_{\mathrm{type}(t)}

    with learned :math:`s` and :math:`c` in :math:`\mathbb{R}^H` and :math:`W_t` of shape ``[H, H]``. Pairs that no path
    connects have a separate :math:`s`.

    Reference: Ying et al., *Do Transformers Really Perform Badly for Graph Representation?*, NeurIPS 2021,
    arXiv:2106.05234, Sections 3.1.2 and 3.1.3.

    Args:
        heads: Number of heads ``H``.
        num_spatial_types: Number of distances that are distinguished, from 0 on; 20 by default, as in GraphGPS's
            Graphormer for ZINC.
        num_edge_types: Number of edge types along paths; only distances are used if :obj:`None`.
    """

    requires: tuple[str, ...] = ("pair_shortest_path",)

    def __init__(self, heads: int, num_spatial_types: int = 20, num_edge_types: int | None = None) -> None:
        super().__init__()
        self.channels, self.num_spatial_types = heads, num_spatial_types
        self.transform_settings = {"num_spatial_types": num_spatial_types, "paths": num_edge_types is not None}
        self.spatial = Embedding(num_spatial_types + 1, heads)
        if num_edge_types is not None:
            self.requires += ("pair_shortest_path_types",)
            self.edge = Parameter(torch.empty(num_edge_types, heads))
            self.step = Parameter(torch.empty(num_spatial_types, heads, heads))
        self.reset_parameters()

    def forward(self, graph: Data) -> Tensor:
        """``[P, H]``.

        Raises:
            ValueError: If a distance or an edge type is not one of those that the encoder was built for.
        """
        distance, *paths = self.read(graph)
        distance = distance.long()
        _refuse_above("num_spatial_types", self.num_spatial_types, distance, self.num_spatial_types)
        bias = self.spatial(distance)
        if not paths:
            return bias
        types = paths[0].long()  # [P, T], −1 after the end of the path
        steps, num_types = types.size(1), self.edge.size(0)
        _refuse_above("num_edge_types", num_types, types, num_types - 1)
        table = torch.einsum("eh,thk->tek", self.edge, self.step[:steps]).flatten(0, 1)  # [T types, H]
        row = types + torch.arange(steps, device=types.device) * num_types
        row = row.masked_fill(types < 0, table.size(0))  # a last row of zeros
        table = torch.cat([table, table.new_zeros(1, self.channels)])
        along = embedding_bag(row, table, mode="sum") if row.numel() else bias.new_zeros(bias.shape)
        return bias + along / distance.clamp(min=1).unsqueeze(1)


def _refuse_above(name: str, given: int, value: Tensor, most: int) -> None:
    """Refuse values above ``most``. On CUDA the check fails without its numbers, because reading them would wait."""
    known = value <= most
    if not holds(known.all(), f"GraphormerBias({name}={given}) was given more"):
        raise ValueError(f"GraphormerBias was built for {name}={given}, but the graph has {int(value.max())}")


class RelativeWalkBias(LinearNodeEncoder):
    """Linear map of the probabilities that random walks of given lengths lead from one node to another.

    Reference: Ma et al., *Graph Inductive Biases in Transformers without Message Passing* (GRIT), ICML 2023,
    arXiv:2305.17589, Section 3.1.

    Args:
        heads: Number of heads ``H``.
        in_channels: Number of walk lengths.
    """

    requires = ("pair_relative_walk",)

    def __init__(self, heads: int, in_channels: int) -> None:
        super().__init__(heads, in_channels)


class GraphormerDegrees(_NormalEncoder):
    """Graphormer's centrality encoding: a learned vector for each in-degree and each out-degree, per node.

    Reference: Ying et al., NeurIPS 2021, arXiv:2106.05234, Section 3.1.1.

    Args:
        channels: Width ``C``.
        num_in_degrees, num_out_degrees: Number of degrees that are distinguished, from 0 on. Greater degrees count as
            the last one. 64 by default, as in GraphGPS's Graphormer for ZINC.
    """

    requires = ("shortest_path_in_degree", "shortest_path_out_degree")

    def __init__(self, channels: int, num_in_degrees: int = 64, num_out_degrees: int = 64) -> None:
        super().__init__()
        self.channels = channels
        self.into, self.out = Embedding(num_in_degrees, channels), Embedding(num_out_degrees, channels)
        self.reset_parameters()

    def forward(self, graph: Data) -> Tensor:
        """``[N, C]``."""
        into, out = (degree.long() for degree in self.read(graph))
        into, out = into.clamp(max=self.into.num_embeddings - 1), out.clamp(max=self.out.num_embeddings - 1)
        return self.into(into) + self.out(out)
