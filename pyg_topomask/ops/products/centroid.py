r"""Products with any function of the hop distance in a forest, by centroid decomposition.

A component is split at its centroid ``c``, whose removal leaves branches of at most half the nodes. Two nodes of
different branches are ``d_i + d_j`` apart, where ``d`` is the distance to ``c``. All such pairs form a Hankel matrix,
which multiplies the sums of ``x`` by distance. Pairs of nodes in the same branch are subtracted; they are counted when
the branch itself is split. A component that is a path is not split: its block is a Toeplitz matrix.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 6, Lemma 6.1 and Appendix A.11.1. The paper bisects
trees at nodes and edges; centroids serve the same purpose.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.products.fft import toeplitz_matrix
from pyg_topomask.ops.products.forest import Forest, build_forest
from pyg_topomask.ops.products.trees import sweep_down, sweep_up
from pyg_topomask.ops.sparse import Pattern, spmm

# Hankel and Toeplitz matrices up to this length are multiplied directly, longer ones by Fourier transforms.
_MOST_DENSE = 64

# Number of sums by distance that are formed at a time, and number of columns that are transformed at a time.
_SLICE_NUMEL = 2**22
_SLICE_COLUMNS = 32


class Terms(NamedTuple):
    """Hankel or Toeplitz matrices of one size ``L``, all of the same function of the distance."""

    is_path: bool
    """Whether nodes are counted along a path (Toeplitz) or from a centre (Hankel)."""
    size: int
    """``L``, a power of two."""
    pattern: Pattern
    """Nodes at each position ``0 … L - 1`` of each matrix, ``T L`` rows and ``N`` columns."""
    sign: Tensor
    """Sign of each entry's matrix: −1 if pairs of one branch are subtracted. In transposed order, shape ``[nnz]``."""

    @property
    def num_multiply_adds(self) -> int:
        """Multiply-adds for one column."""
        per_row = self.size if self.size <= _MOST_DENSE else int(5 * log2(2 * self.size) + 4)
        return 2 * self.pattern.nnz + self.pattern.num_rows * per_row


def distance_product(plan: list[Terms], values: Tensor, x: Tensor) -> Tensor:
    """Product with the mask ``values[dist(i, j)]``, which is 0 between different trees.

    Args:
        plan: Decomposition of the forest.
        values: Function of the distance, shape ``[H, K + 1]``; it is 0 beyond ``K``.
        x: Shape ``[N, H, C]``.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``values`` and ``x``. The backward pass keeps one group of matrices at a
        time.
    """
    out = torch.zeros_like(x)
    for terms in plan:
        step = max(1, _SLICE_NUMEL // max(terms.pattern.num_rows * x.size(1), 1))
        parts = [
            checkpoint(_terms_product, terms, values, part, use_reentrant=False, preserve_rng_state=False)
            for part in x.split(step, dim=2)
        ]
        out = out + torch.cat(parts, dim=2)
    return out


@once_per_batch
def centroid_plan(parent: Tensor) -> list[Terms]:
    """Decomposition of a forest given by each node's parent, computed once per batch. Raises as `build_forest`."""
    forest = build_forest(parent)
    builder = _Builder(forest)
    nodes = torch.arange(parent.numel(), device=parent.device)
    link = (nodes >= forest.num_roots).long()  # whether the edge to the parent is in the node's component
    active = torch.ones_like(link)
    distance: Tensor | None = None  # to the centroid that was removed last
    while bool(active.any()):
        component = _down(forest, torch.where(link == 0, nodes, 0), link)
        if distance is not None:
            builder.add(active > 0, component, distance, sign=-1)
        splits = _splits(forest, component, link)
        done = (active > 0) & ~splits
        builder.add(done, component, _along_path(forest, component, link * done), is_path=True)
        active, link = active * splits, link * splits
        distance, is_centroid = _distance_to_centroid(forest, component, active, link)
        builder.add(active > 0, component, distance)
        active = active * ~is_centroid
        link = link * ~is_centroid * ~is_centroid.index_select(0, forest.parent)
    return builder.finish()


class _Builder:
    """Collects the matrices of all levels by kind and size."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.entries: dict[tuple[bool, int], list[tuple[Tensor, Tensor, int]]] = {}
        self.num_terms: dict[tuple[bool, int], int] = {}

    def add(self, some: Tensor, component: Tensor, position: Tensor, sign: int = 1, is_path: bool = False) -> None:
        """Add one matrix for each component of the nodes ``some``, at the positions ``position`` within it."""
        node = some.nonzero().squeeze(1)
        component, position = component.index_select(0, node), position.index_select(0, node)
        last = torch.zeros_like(some, dtype=position.dtype).scatter_reduce(0, component, position, "amax")
        exponent = torch.frexp(last.index_select(0, component).double()).exponent  # smallest e with last < 2^e
        for power in torch.unique(exponent).tolist():
            chosen, key = exponent == power, (is_path, 2**power)
            label, term = torch.unique(component[chosen], return_inverse=True)
            row = (self.num_terms.get(key, 0) + term) * 2**power + position[chosen]
            self.entries.setdefault(key, []).append((row, self.forest.order.index_select(0, node[chosen]), sign))
            self.num_terms[key] = self.num_terms.get(key, 0) + label.numel()

    def finish(self) -> list[Terms]:
        """Return all matrices, with sorted entries."""
        plan = []
        for (is_path, size), entries in self.entries.items():
            row, order = torch.cat([row for row, _, _ in entries]).sort(stable=True)
            col = torch.cat([col for _, col, _ in entries]).index_select(0, order)
            sign = torch.cat([torch.full_like(row, sign, dtype=torch.int8) for row, _, sign in entries])
            pattern = Pattern(row, col, self.num_terms[is_path, size] * size, self.forest.order.numel())
            plan.append(Terms(is_path, size, pattern, sign.index_select(0, order[pattern.transposed[1]])))
        return plan


def _splits(forest: Forest, component: Tensor, link: Tensor) -> Tensor:
    """Whether each node's component is not a path: it then has a node with more than two neighbours."""
    degree = link.index_add(0, forest.parent, link)
    largest = torch.zeros_like(degree).scatter_reduce(0, component, degree, "amax")
    return largest.index_select(0, component) > 2


def _along_path(forest: Forest, component: Tensor, link: Tensor) -> Tensor:
    """Position of each node along its component, which is a path with one or two arms below its highest node."""
    nodes = torch.arange(link.numel(), device=link.device)
    arm = (link > 0) & (component == forest.parent)  # first nodes of the arms
    last = torch.zeros_like(nodes).scatter_reduce(0, forest.parent, nodes * arm, "amax")
    side = torch.where(last.index_select(0, forest.parent) == nodes, 1, -1) * arm
    side = _down(forest, side, link * ~arm)
    position = side * (forest.depth - forest.depth.index_select(0, component))
    lowest = torch.zeros_like(position).scatter_reduce(0, component, position, "amin")
    return position - lowest.index_select(0, component)


def _distance_to_centroid(forest: Forest, component: Tensor, active: Tensor, link: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of each active node to its component's centroid, and whether the node is the centroid."""
    size = _up(forest, active, link)
    # Nodes with half of the component below them form a path from its highest node down to the centroid.
    heavy = (active > 0) & (2 * size >= size.index_select(0, component))
    has_heavy_child = torch.zeros_like(link).index_add(0, forest.parent, link * heavy) > 0
    is_centroid = heavy & ~has_heavy_child
    meeting = _down(forest, torch.where(heavy, forest.depth, 0), link * ~heavy)  # depth where the paths to c meet
    depth = torch.zeros_like(size).index_add(0, component, forest.depth * is_centroid).index_select(0, component)
    return forest.depth + depth - 2 * meeting, is_centroid


def _up(forest: Forest, x: Tensor, weight: Tensor) -> Tensor:
    return sweep_up(forest, x[:, None, None], weight[:, None])[:, 0, 0]


def _down(forest: Forest, x: Tensor, weight: Tensor) -> Tensor:
    return sweep_down(forest, x[:, None, None], weight[:, None])[:, 0, 0]


def _terms_product(terms: Terms, values: Tensor, x: Tensor) -> Tensor:
    shape, size, pattern = x.shape, terms.size, terms.pattern
    values = pad(values, (0, 2 * size - values.size(1))).to(x.dtype)
    sums = spmm(pattern, x.new_ones(pattern.nnz), x.flatten(1))
    sums = sums.view(-1, size, *shape[1:])  # [T, L, H, C]
    if size <= _MOST_DENSE:
        mirrored = torch.cat([values[:, 1:size].flip(1), values[:, :size]], dim=1)
        matrix = toeplitz_matrix(mirrored, (size,)) if terms.is_path else values[:, : 2 * size - 1].unfold(1, size, 1)
        sums = torch.einsum("hde,tehc->tdhc", matrix, sums)
    else:
        sums = torch.cat([_transformed(terms, values, part) for part in sums.split(_SLICE_COLUMNS, dim=3)], dim=3)
    back, _ = pattern.transposed
    return spmm(back, terms.sign.to(x.dtype), sums.reshape(pattern.num_rows, -1)).view(shape)


def _transformed(terms: Terms, values: Tensor, sums: Tensor) -> Tensor:
    size = terms.size
    if terms.is_path:
        values = torch.cat([values[:, :size], torch.zeros_like(values[:, :1]), values[:, 1:size].flip(1)], dim=1)
    kernel, spectrum = torch.fft.rfft(values).t()[..., None], torch.fft.rfft(sums, 2 * size, dim=1)  # [L + 1, H, 1]
    spectrum = (spectrum if terms.is_path else spectrum.conj()) * kernel
    return torch.fft.irfft(spectrum, 2 * size, dim=1)[:, :size]
