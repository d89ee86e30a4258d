"""Small random graphs with the attributes of a config's data set, to try a config without data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.nn.encoder.features import AST_SIZES, ATOM_SIZES, BOND_SIZES
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.formats import level_of
from pyg_topomask.run.model.attentions import mask_of
from pyg_topomask.run.model.encoders import base_encoders

Rows = Callable[[Config, int, torch.Generator], Tensor | None]
"""A function of (config, number of rows, generator) that makes an attribute."""

FEATURES = 3
"""Number of columns of node features if it depends on the data set."""


def _categories(*sizes: int) -> Rows:
    def make(config: Config, rows: int, generator: torch.Generator) -> Tensor:
        return torch.stack([torch.randint(size, (rows,), generator=generator) for size in sizes], dim=1)

    return make


def _numbers(columns: int) -> Rows:
    return lambda config, rows, generator: torch.rand(rows, columns, generator=generator)


def _node_types(config: Config, rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(config.dataset.node_encoder_num_types, (rows, 1), generator=generator)


def _edge_types(config: Config, rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(config.dataset.edge_encoder_num_types, (rows,), generator=generator)


NODES: dict[str, Rows] = {
    "Atom": _categories(*ATOM_SIZES),
    "ASTNode": _categories(*AST_SIZES[:2]),
    "PPANode": lambda config, rows, generator: torch.zeros(rows, dtype=torch.long),
    "TypeDictNode": _node_types,
    "VOCNode": _numbers(14),
    "COCONode": _numbers(14),
    "CityNetworkNode": _numbers(37),
}
"""``x`` by node encoder; other encoders get numbers."""

EDGES: dict[str, Rows] = {
    "Bond": _categories(*BOND_SIZES),
    "ASTEdge": _categories(2, 2),
    "PPAEdge": _numbers(7),
    "TypeDictEdge": _edge_types,
    "VOCEdge": _numbers(2),
    "COCOEdge": _numbers(2),
    "LinearEdge": _numbers(1),
    "DummyEdge": lambda config, rows, generator: None,
}
"""``edge_attr`` by edge encoder."""


def fake_graphs(config: Config, count: int = 2) -> list[Data]:
    """Grids of two nodes along each axis in the form of the data set's class, without targets."""
    generator, graphs = torch.Generator().manual_seed(0), []
    node_encoder = next(iter(base_encoders(config)), "LinearNode")
    edge_index, num_nodes = _grid(config)
    num_edges = edge_index.size(1)
    for _ in range(count):
        x = NODES.get(node_encoder, _numbers(FEATURES))(config, num_nodes, generator)
        graph = Data(x=x, edge_index=edge_index)
        if config.dataset.edge_encoder:
            graph.edge_attr = EDGES[config.dataset.edge_encoder_name](config, num_edges, generator)
        if config.topomask.spanning_tree == "minimum":
            graph.edge_weight = torch.ones(num_edges)
        if node_encoder == "ASTNode":
            graph.node_depth = torch.arange(num_nodes).view(-1, 1)
        if level_of(config.dataset) == "edge":
            graph.edge_label_index = torch.tensor([[0, 1, 0], [1, 2, 2]])
            graph.edge_label = torch.tensor([1, 1, 0])
        graphs.append(graph)
    return graphs


def _grid(config: Config) -> tuple[Tensor, int]:
    """Edges ``[2, E]`` and number of nodes of a grid, with as many axes as the grids that the mask is for."""
    mask = mask_of(config)
    shape = getattr(config.value(f"topomask.mask_{mask}"), "grid_shape", None) if mask else None
    axes = len(shape) if shape else 2  # a cycle of four nodes
    node = torch.arange(2**axes).view([2] * axes)
    links = [torch.stack([node.select(axis, 0).flatten(), node.select(axis, 1).flatten()]) for axis in range(axes)]
    edges = torch.cat(links, dim=1)
    return torch.cat([edges, edges.flip(0)], dim=1), node.numel()
