r"""Products with any function of the hop distance in a forest, by centroid decomposition.

A component is split at its centroid ``c``, whose removal leaves branches of at most half the nodes. Two nodes of
different branches are ``d_i + d_j`` apart, with ``d`` the distances to ``c``: all such pairs form a Hankel matrix of
the sums of ``x`` by distance. Pairs of one branch are taken out again, and follow when the branch is split. A component
that is a path is not split: its block is a Toeplitz matrix.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 6, Lemma 6.1 and Appendix A.11.1, which
bisects trees at nodes and edges; centroids serve the same end.
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

# Length up to which Hankel and Toeplitz matrices are multiplied as they are; above it, by Fourier transforms.
_MOST_DENSE = 64

# Numbers in the sums by distance that are formed at a time, and columns that are transformed at a time.
_SLICE_NUMEL = 2**22
_SLICE_COLUMNS = 32


class Terms(NamedTuple):
    """Hankel or Toeplitz matrices of one size ``L``, the same function of the distance in all."""

    is_path: bool
    """Whether nodes are counted along a path (Toeplitz), not from a centre (Hankel)."""
    size: int
    """``L``, a power of two."""
    pattern: Pattern
    """Nodes at each place ``0 … L - 1`` of each matrix, ``T L`` rows and ``N`` columns."""
    sign: Tensor
    """Sign of each entry's matrix: −1 where pairs of a branch are taken out. In transposed order, shape ``[nnz]``."""

    @property
    def num_multiply_adds(self) -> int:
        """Multiply-adds for one column."""
        per_row = self.size if self.size <= _MOST_DENSE else int(5 * log2(2 * self.size) + 4)
        return 2 * self.pattern.nnz + self.pattern.num_rows * per_row


def distance_product(plan: list[Terms], values: Tensor, x: Tensor) -> Tensor:
    """Product with the mask ``values[dist(i, j)]``, 0 across trees.

    Args:
        plan: Decomposition of the forest.
        values: Function of the distance, 0 beyond its last, shape ``[H, K + 1]``.
        x: Shape ``[N, H, C]``.

    Returns:
        Shape ``[N, H, C]``, differentiable in both; one group of matrices at a time is kept in the backward pass.
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
    """Decomposition of a forest given by each node's parent, once per batch. Raises as `build_forest`."""
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
    """Collects matrices of all levels by kind and size."""

    def __init__(self, forest: Forest) -> None:
        self.forest = forest
        self.entries: dict[tuple[bool, int], list[tuple[Tensor, Tensor, int]]] = {}
        self.num_terms: dict[tuple[bool, int], int] = {}

    def add(self, some: Tensor, component: Tensor, place: Tensor, sign: int = 1, is_path: bool = False) -> None:
        """One matrix for each component of the nodes ``some``, at ``place`` within it."""
        node = some.nonzero().squeeze(1)
        component, place = component.index_select(0, node), place.index_select(0, node)
        last = torch.zeros_like(some, dtype=place.dtype).scatter_reduce(0, component, place, "amax")
        exponent = torch.frexp(last.index_select(0, component).double()).exponent  # smallest e with last < 2^e
        for power in torch.unique(exponent).tolist():
            mine, key = exponent == power, (is_path, 2**power)
            label, term = torch.unique(component[mine], return_inverse=True)
            row = (self.num_terms.get(key, 0) + term) * 2**power + place[mine]
            self.entries.setdefault(key, []).append((row, self.forest.order.index_select(0, node[mine]), sign))
            self.num_terms[key] = self.num_terms.get(key, 0) + label.numel()

    def finish(self) -> list[Terms]:
        """All matrices, entries sorted."""
        plan = []
        for (is_path, size), entries in self.entries.items():
            row, order = torch.cat([row for row, _, _ in entries]).sort(stable=True)
            col = torch.cat([col for _, col, _ in entries]).index_select(0, order)
            sign = torch.cat([torch.full_like(row, sign, dtype=torch.int8) for row, _, sign in entries])
            pattern = Pattern(row, col, self.num_terms[is_path, size] * size, self.forest.order.numel())
            plan.append(Terms(is_path, size, pattern, sign.index_select(0, order[pattern.transposed[1]])))
        return plan


def _splits(forest: Forest, component: Tensor, link: Tensor) -> Tensor:
    """Whether each node's component is no path: a node of it has more than two neighbours."""
    degree = link.index_add(0, forest.parent, link)
    largest = torch.zeros_like(degree).scatter_reduce(0, component, degree, "amax")
    return largest.index_select(0, component) > 2


def _along_path(forest: Forest, component: Tensor, link: Tensor) -> Tensor:
    """Place of each node along its component, a path that hangs from its highest node by one arm or two."""
    nodes = torch.arange(link.numel(), device=link.device)
    arm = (link > 0) & (component == forest.parent)  # first nodes of the arms
    last = torch.zeros_like(nodes).scatter_reduce(0, forest.parent, nodes * arm, "amax")
    side = torch.where(last.index_select(0, forest.parent) == nodes, 1, -1) * arm
    side = _down(forest, side, link * ~arm)
    place = side * (forest.depth - forest.depth.index_select(0, component))
    lowest = torch.zeros_like(place).scatter_reduce(0, component, place, "amin")
    return place - lowest.index_select(0, component)


def _distance_to_centroid(forest: Forest, component: Tensor, active: Tensor, link: Tensor) -> tuple[Tensor, Tensor]:
    """Distance of each active node to its component's centroid, and whether it is that."""
    size = _up(forest, active, link)
    # Nodes with half of the component below them form a path from its highest node down to the centroid.
    heavy = (active > 0) & (2 * size >= size.index_select(0, component))
    has_heavy_child = torch.zeros_like(link).index_add(0, forest.parent, link * heavy) > 0
    is_centroid = heavy & ~has_heavy_child
    meeting = _down(forest, torch.where(heavy, forest.depth, 0), link * ~heavy)  # depth where the ways to c meet
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
