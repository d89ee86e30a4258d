"""Small random graphs with the attributes of a config's data set, to try a config without data."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_topomask.run.config import Config
from pyg_topomask.run.data.features import CATEGORICAL, CATEGORICAL_EDGES
from pyg_topomask.run.data.formats import level_of
from pyg_topomask.run.model.attentions import masks_of
from pyg_topomask.run.model.encoders import base_encoders
from pyg_topomask.transforms.grid_shape import grid_links

COLUMNS = {
    **{"Atom": 9, "ASTNode": 3, "TypeDictNode": 1, "PPANode": 1, "VOCNode": 14, "COCONode": 14, "CityNetworkNode": 37},
    **{"Bond": 3, "ASTEdge": 2, "TypeDictEdge": 1, "PPAEdge": 7, "VOCEdge": 2, "COCOEdge": 2, "LinearEdge": 1},
}
"""Number of columns of the features that an encoder takes; others take any number, here 3."""


def _features(encoder: str, rows: int, generator: torch.Generator) -> Tensor:
    columns = COLUMNS.get(encoder, 3)
    if encoder in (*CATEGORICAL, *CATEGORICAL_EDGES):
        return torch.randint(2, (rows, columns), generator=generator)  # each has at least two categories
    return torch.rand(rows, columns, generator=generator)


def fake_graphs(config: Config, count: int = 2) -> list[Data]:
    """Grids of two nodes along each axis in the form of the data set's class, without targets."""
    generator, graphs = torch.Generator().manual_seed(0), []
    node_encoder, edge_encoder = next(iter(base_encoders(config)), "LinearNode"), config.dataset.edge_encoder_name
    edge_index, num_nodes = _grid(config)
    for _ in range(count):
        graph = Data(x=_features(node_encoder, num_nodes, generator), edge_index=edge_index)
        if config.dataset.edge_encoder and edge_encoder != "DummyEdge":
            graph.edge_attr = _features(edge_encoder, edge_index.size(1), generator)
        if config.topomask.spanning_tree == "minimum":
            graph.edge_weight = torch.ones(edge_index.size(1))
        if level_of(config.dataset) == "edge":
            graph.edge_label_index = torch.tensor([[0, 1, 0], [1, 2, 2]])
            graph.edge_label = torch.tensor([1, 1, 0])
        graphs.append(graph)
    return graphs


def _grid(config: Config) -> tuple[Tensor, int]:
    """Edges ``[2, E]`` and number of nodes of a grid, with as many axes as the grids that the mask is for."""
    shapes = (getattr(config.value(f"topomask.mask_{mask}"), "grid_shape", None) for mask in masks_of(config))
    axes = len(next(filter(None, shapes), (2, 2)))  # by default a cycle of four nodes
    return to_undirected(grid_links((2,) * axes)), 2**axes
