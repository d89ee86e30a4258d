"""Batches of few different sizes."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Batch, Data

from pyg_topomask.transforms.graph_input import is_table

_TARGETS = {"y", "edge_label"}


class Buckets:
    """Pads batches with dummy graphs, so that their tensors and those of their plans have few different sizes.

    ``torch.compile(model, fullgraph=True, dynamic=False)`` then compiles a model once for each bucket, and a step can
    be captured in a CUDA graph for each. The numbers of nodes, edges, walks and pairs, and the square of the largest
    graph's number of nodes are rounded up to powers of ``step``. The number of graphs follows from that of real ones,
    and takes one of two values.

    .. code-block:: python

        padded = functools.partial(collate, plan=model, buckets=Buckets())
        for batch in torch.utils.data.DataLoader(graphs, batch_size=128, collate_fn=padded):
            real = unpadded(batch)
            out = model(batch.x, batch.edge_index, plan=batch.plan)[: real.num_graphs]
            loss = cross_entropy(out, real.y)

    Dummy graphs are the last ones of a batch; ``batch.real_graphs [B]`` says which graphs are real. Norms of this
    package and auxiliary losses leave dummy graphs out, so that results of real graphs and gradients change by rounding
    only. Dummy graphs have no targets: ``y`` and ``edge_label`` are NaN or −100, which ``cross_entropy`` ignores, and
    masks are False. A padded batch is run with its plan. Sizes that follow values, such as the depth of trees and the
    terms of heat masks, are not padded: each of them is a bucket of its own.

    Args:
        step: Ratio of neighbouring sizes; 1.1, so that at most a tenth is added, and 5 % on average.

    Raises:
        ValueError: If ``step`` is not above 1.
    """

    def __init__(self, step: float = 1.1) -> None:
        if not 1 < step < math.inf:
            raise ValueError(f"'step' must be a number above 1 (got {step})")
        self.step = step

    def size(self, count: int) -> int:
        """The smallest size of the grid that is at least ``count``."""
        power = math.floor(math.log(max(count, 1), self.step))
        sizes = (math.floor(self.step**exponent) for exponent in range(power, power + 9))
        return 0 if count == 0 else next(size for size in sizes if size >= count)

    def check(self, model: Any) -> None:
        """Refuse a model that has no plan, or batch norms that would count dummy graphs. Raises ValueError."""
        if model is None:
            raise ValueError("Buckets need 'plan', the model: by the plan of a batch, a model leaves dummy graphs out")
        if isinstance(model, Module):
            _refuse_norms(model, model)

    def dummies(self, graphs: Sequence[Data]) -> list[Data]:
        """The dummy graphs that follow some graphs; the last one has all edges and further entries of tables.

        Raises:
            ValueError: If an attribute has other rows than those of nodes, edges, pairs of nodes, tables or graphs, or
                the graphs are grids.
        """
        nodes, edges = ([int(getattr(graph, name)) for graph in graphs] for name in ("num_nodes", "num_edges"))
        sizes = self._nodes_of_dummies(nodes)
        like = graphs[edges.index(max(edges))]  # its first rows are repeated
        found = [copy.copy(like) for _ in sizes]
        for dummy, size in zip(found, sizes):
            dummy.num_nodes = size
        given = like.to_dict()
        counts = {name for name in given if name.endswith("_size") and all(_is_one(graph[name]) for graph in graphs)}
        for name in counts:
            if [int(graph[name]) for graph in graphs] == nodes:  # such as `walk_size`
                for dummy, size in zip(found, sizes):
                    dummy[name] = given[name] * 0 + size
        values = {name: x for name, x in given.items() if isinstance(x, Tensor) and name not in counts}
        rows_of = {name: _counts(name, graphs) for name in values}
        tables = {name.removesuffix("index"): rows_of[name] for name, x in values.items() if is_table(name, x)}
        for name, rows in rows_of.items():
            lengths = self._lengths(name, rows, nodes, edges, sizes, tables)
            for dummy, length, size in zip(found, lengths or (), sizes):
                dummy[name] = _filled(name, values[name], length, size, rows in tables.values())
        for dummy in found:
            dummy.update({name: _no_target(dummy[name]) for name in _TARGETS & {*dummy.keys()}})
        return found

    def _nodes_of_dummies(self, nodes: list[int]) -> list[int]:
        """Number of nodes of each dummy graph: none is larger than the largest real one, which decides about blocks.

        The number of graphs is one of two, so that there are few different shapes.
        """
        most = math.ceil(len(nodes) * (self.step - 1) - 1e-9)
        for number in (math.ceil(most / 3), most):
            added = self.size(sum(nodes) + number) - sum(nodes)
            if added <= number * max(nodes):
                break
        return [added * (i + 1) // number - added * i // number for i in range(number)]

    def _lengths(
        self,
        name: str,
        rows: list[int],
        nodes: list[int],
        edges: list[int],
        sizes: list[int],
        tables: dict[str, list[int]],
    ) -> list[int] | None:
        """Rows of an attribute in each dummy graph; None for one of graphs, which stays as it is."""
        *before, last = sizes
        if rows == nodes and not any(start in name and rows == own for start, own in tables.items()):
            return sizes
        if rows == edges:  # norms tell rows of nodes and of edges by their number
            total, of_edges = sum(nodes) + sum(sizes), self.size(sum(edges))
            of_edges = self.size(total + 1) if of_edges == total else of_edges
            return [0] * len(before) + [of_edges - sum(edges)]
        if rows in tables.values():
            least = sum(rows) + sum(sizes)
            return [*before, last + self.size(least) - least]
        if rows == [n * n for n in nodes]:
            return [size * size for size in sizes]
        if len({*rows}) == 1 and name != "grid_shape":
            return None
        reason = "rows are those of nodes, edges or graphs, and a grid has no others"
        raise ValueError(f"Buckets cannot pad {name!r} ({reason}): leave it out, or compile with dynamic=True")


def _filled(name: str, x: Tensor, length: int, nodes: int, in_table: bool) -> Tensor:
    """So many rows of an attribute for a dummy graph of so many nodes.

    A table has each node with itself, at distance 0 and with the number 1. Other rows are copies of the first one, or 0
    in masks and numbers of nodes.
    """
    if name == "edge_index":
        return _edges(length, nodes).to(x)
    if is_table(name, x):
        return (torch.arange(length) * nodes // max(length, 1)).to(x).expand(2, -1).clone()
    row = torch.full_like(x[:1], float(x.is_floating_point())) if in_table else x[:1]
    if "index" in name or x.dtype == torch.bool or not len(x):
        row = x.new_zeros(1, *x.shape[1:])
    return row.expand(length, *x.shape[1:]).clone()


def _is_one(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, Tensor) and value.numel() == 1)


def _no_target(value: Any) -> Any:
    """Targets of that shape that no loss counts silently."""
    if isinstance(value, Tensor):
        missing = math.nan if value.is_floating_point() else -100
        return torch.full_like(value, missing) if value.dtype.is_signed else value
    return -100 if type(value) is int else math.nan if isinstance(value, float) else value


def _counts(name: str, graphs: Sequence[Data]) -> list[int]:
    """Number of rows of an attribute in each graph."""
    first = graphs[0][name]
    if first.layout != torch.strided:
        raise ValueError(f"Buckets cannot pad {name!r}, a sparse tensor: give graphs an 'edge_index'")
    dim = _dim(name, graphs[0], first)
    return [graph[name].size(dim) if first.dim() else 1 for graph in graphs]


def _dim(name: str, graph: Data, value: Tensor) -> int:
    return graph.__cat_dim__(name, value) or 0


def _edges(length: int, nodes: int) -> Tensor:
    """Edges between neighbours in a circle of nodes, in both directions; one loop if there is an odd number."""
    edge, is_back = torch.arange(length) // 2, torch.arange(length) % 2 == 1
    ends = torch.stack([edge, edge + (torch.arange(length) < length // 2 * 2)]) % max(nodes, 1)
    return torch.where(is_back, ends.flip(0), ends)


def _refuse_norms(module: Module, owner: Module) -> None:
    """Refuse batch norms that belong to modules of other packages."""
    for child in module.children():
        if isinstance(child, _BatchNorm) and not type(owner).__module__.startswith("pyg_topomask."):
            name = type(owner).__name__
            raise ValueError(
                f"{name} has a batch norm, which would count dummy graphs: Buckets need another norm there"
            )
        _refuse_norms(child, owner if isinstance(child, ModuleList) else child)


def unpadded(batch: Batch) -> Batch:
    """The real graphs of a padded batch, without copies and without plan; another batch is returned as it is."""
    sizes = getattr(batch._store, "_num_real", None)
    if sizes is None:
        return batch
    out, (graphs, nodes) = copy.copy(batch), sizes
    for name, ends in batch._slice_dict.items():
        out[name] = _first(name, batch, batch[name], ends, graphs)
    out.batch, out.ptr = batch.batch[:nodes], batch.ptr[: graphs + 1]
    out._num_graphs, out._num_real = graphs, None
    if "num_nodes" in out:
        out.num_nodes, out._num_nodes = nodes, out._num_nodes[:graphs]
    del out["real_graphs"], out["plan"]
    return out


def _first(name: str, batch: Batch, value: Any, ends: Any, graphs: int) -> Any:
    """What the first graphs have of a joined value: a tensor, a dictionary or list of some, or a list of others."""
    if isinstance(value, Tensor):
        return value.narrow(_dim(name, batch, value), 0, int(ends[graphs]))
    if isinstance(value, dict):
        return {key: _first(key, batch, part, ends[key], graphs) for key, part in value.items()}
    if isinstance(ends, list):
        return [_first(name, batch, part, end, graphs) for part, end in zip(value, ends)]
    return value[:graphs]
