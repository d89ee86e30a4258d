"""What masks read from a graph: its trees, its grids, its weighted edges."""

from collections.abc import Callable
from itertools import groupby
from math import prod
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import readable, warn_once
from pyg_topomask.nn.graph_attributes import (
    EDGE_MASK,
    check_table,
    count_nodes,
    read_edges,
    transform_text,
    with_attributes,
)
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.operators import BlockDiagonalOperator, MaskOperator
from pyg_topomask.ops.csr import CSR, check_edges, distinct_edges, edge_tensors, edges_of_relation, root_strengths
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.sparse import taken

TREE = ("tree_index", "tree_length", "tree_size")
"""Attributes of a spanning forest that `read_tree` reads."""


def read_tree(mask: Mask, graph: Data) -> tuple[Tensor, Tensor]:
    """Parent of each node, −1 for a root, and the length of the edge to it: both ``[N]``.

    Raises:
        ValueError: If the attributes `TREE` are missing, or are those of another graph.
    """
    index, length, size = mask.read(graph)
    check_table(mask, graph, size, "spanning trees", index)
    return _parents(index), _by_node(index, length)


@once_per_batch
def _parents(index: Tensor) -> Tensor:
    """Parents in the order of the nodes; −1 for a root."""
    node, parent = index.long()
    return _by_node(index, torch.where(parent == node, -1, parent))


@once_per_batch
def _by_node(index: Tensor, values: Tensor) -> Tensor:
    """Values in the order of the nodes, ``[N]``, given in the order of the depth."""
    return torch.empty_like(values).index_copy(0, index[0].long(), values)


def grid_operator(mask: Mask, graph: Data, build: Callable[[tuple[int, ...], int], MaskOperator]) -> MaskOperator:
    """The mask of a batch of grids, from the attribute ``grid_shape`` ``[B, d]``.

    Args:
        mask: The module, for messages.
        graph: The graph or batch.
        build: The mask of a number of equal grids, given their shape and number.

    Raises:
        ValueError: If the attribute is missing, or belongs to another graph.
    """
    (shapes,) = mask.read(graph)
    grids = _grids(shapes, graph.get("ptr"), count_nodes(graph))
    if len(grids) == 1:  # the number of equal grids is a size in compiled code
        shape = tuple(map(index, grids[0][0]))  # for which compiled code is made
        return build(shape, count_nodes(graph) // prod(shape))
    operators = [build(shape, count) for shape, count in grids]
    if not operators:
        return build((1,) * shapes.size(1), 0)
    return BlockDiagonalOperator(operators)


@once_per_batch
def _grids(shapes: Tensor, ptr: Tensor | None, num_nodes: int) -> list[tuple[tuple[int, ...], int]]:
    """Shapes of the grids that are not empty, and the number of equal ones that follow each other."""
    grids = [tuple(shape) for shape in shapes.tolist()]
    sizes = [num_nodes] if ptr is None else ptr.diff().tolist()
    if [prod(shape) for shape in grids] != sizes or sum(sizes) != num_nodes:
        raise ValueError(
            f"the grids on this graph have {sum(prod(shape) for shape in grids)} nodes, but it has {num_nodes}: "
            "samplers and subgraph() copy 'grid_shape' unchanged. Add AddGridShape() after sampling"
        )
    return [(torch.Size(shape), len(list(equal))) for shape, equal in groupby(filter(prod, grids))]


def warn_of_walks(mask: Any, graph: Data, name: str, halt: bool = True) -> None:
    """Warn, once, that checked walks are shorter than the mask's ``max_length``, or halt though they may not."""
    if plans.reading():
        return
    index, length, count = (graph.get(f"{name}_{part}") for part in ("index", "length", "count"))
    if length is None or count is None or count.shape != length.shape or not readable(length):
        return
    if halt and length.numel() and int(length.max()) >= mask.max_length:
        return
    hops, is_cut, halts = _lengths_of_walks(index, length, count)
    kind = type(mask).__name__
    if is_cut and hops < mask.max_length:
        text = f"the walks end after {hops} hops, but {kind} has 'max_length' = {mask.max_length}, where it stays zero"
        remedy = f"draw them by {transform_text(mask)} (in configs, topomask.max_length)"
        warn_once(f"{kind}: short walks", f"{text}: {remedy}")
    if halts and not halt:
        text = f"{kind} is a kernel of walks of equal length, but these walks halt at random"
        remedy = f"draw them by {transform_text(mask)} (in configs, topomask.halt_prob: 0)"
        warn_once(f"{kind}: halting walks", f"{text}: {remedy}")


@once_per_batch
def _lengths_of_walks(index: Tensor, length: Tensor, count: Tensor) -> tuple[int, bool, bool]:
    """The longest walk in hops, whether longer ones were cut, and whether walks halt at nodes that others leave."""
    if length.numel() == 0:
        return 0, False, False
    first, count = length == 1, count.double()
    mass = count.new_zeros(int(length.max()) + 1).index_add(0, length.long(), count)
    leaving = count.new_zeros(int(index.max()) + 1).index_add(0, index[0][first].long(), count[first])
    hops, walkers = mass.numel() - 1, float(mass[-1] / count.min())
    stay = min(float(mass[-1] / mass[0]) ** (1 / max(hops, 1)), 1.0)  # mean probability of a further hop
    return hops, hops > 0 and (1 - stay) ** walkers < 1e-4, bool(((leaving > 0) & (leaving < 0.999)).any())


def read_weighted_edges(mask: Module, graph: Any) -> tuple[Tensor, Tensor | None]:
    """Edges ``[2, E]`` and their weights ``[E]``; :obj:`None` if all are one.

    Raises:
        ValueError: If there is no graph, or it has neither ``edge_index`` nor ``adj_t``.
    """
    edge_index = read_edges(mask, graph)
    weight = edge_tensors(graph.adj_t)[1] if graph.get("edge_index") is None else graph.get("edge_weight")
    # A view is a new tensor in each call, for which no earlier result is found.
    return edge_index, weight.view(-1) if weight is not None and weight.dim() > 1 else weight


def read_normalized_edges(
    mask: Mask, graph: Data, dtype: torch.dtype, relation: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Edges ``[2, E]``, and weights ``[E]`` of :math:`W = D^{-1/2} A D^{-1/2}`, in which equal edges add up.

    With a ``relation``, only edges of its types are read, and ``A`` holds them alone.

    Learned weights get a gradient. They are normalised in each call, because a stored result would refer to an autograd
    graph that is freed by its first backward pass.

    Raises:
        ValueError: If there is no graph, it has neither ``edge_index`` nor ``adj_t``, or the weights of a node add up
            to a negative number.
    """
    factor = None if graph is None else graph.get(EDGE_MASK)
    if factor is None or plans.reading():  # a plan has the weights without an explainer's mask, which is refused
        edge_index, weight = read_weighted_edges(mask, graph)
    else:
        edge_index, weight = read_weighted_edges(mask, with_attributes(graph, **{EDGE_MASK: None}))
        weight = factor if weight is None else weight * factor
    if relation:
        check_edges(edge_index, count_nodes(graph), weight)  # before a part of the weights fits by chance
        kept = edges_of_relation(graph["edge_type"], relation, edge_index.size(1))
        edge_index, weight = taken(edge_index, kept), None if weight is None else taken(weight, kept)
    return edge_index, _normalized(edge_index, weight, count_nodes(graph), dtype)


@once_per_batch
def _normalized(edge_index: Tensor, weight: Tensor | None, num_nodes: int, dtype: torch.dtype) -> Tensor:
    check_edges(edge_index, num_nodes, weight)
    weight = torch.ones_like(edge_index[0], dtype=torch.float64) if weight is None else weight.double()
    pattern, entry = distinct_edges(edge_index, num_nodes)
    root = root_strengths(CSR(pattern, weight.new_zeros(pattern.nnz).index_add(0, entry, weight)))
    row, col = edge_index.long()
    return (weight / root.index_select(0, row) / root.index_select(0, col)).to(dtype)
