r"""Products with any function of the hop distance in a forest, by centroid decomposition.

A component is split at its centroid ``c``, whose removal leaves branches of at most half the nodes. Two nodes of
different branches are ``d_i + d_j`` apart, where ``d`` is the distance to ``c``. All such pairs form a Hankel matrix,
which multiplies the sums of ``x`` by distance. Pairs of nodes in the same branch are subtracted; they are counted when
the branch itself is split. A component that is a path is not split: its block is a Toeplitz matrix.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 6, Lemma 6.1 and Appendix A.11.1. The paper bisects
trees at nodes and edges; centroids serve the same purpose.
"""

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask.limits import limits
from pyg_topomask.ops.functions import Bilinear
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.products.fft import toeplitz_matrix, toeplitz_product
from pyg_topomask.ops.products.forest import Forest, build_forest
from pyg_topomask.ops.products.trees import sweep_down, sweep_up
from pyg_topomask.ops.sparse import Pattern, on_host, spmm

# Hankel and Toeplitz matrices up to this length are multiplied directly, longer ones by Fourier transforms.
_MOST_DENSE = 64


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
        values: Function of the distance, shape ``[H, K + 1]`` with the dtype of ``x``; it is 0 beyond ``K``.
        x: Shape ``[N, H, C]``.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``values`` and ``x``. The backward pass computes the sums by distance
        again.
    """
    return _Product.of(values, x, plan)


class _Product(Bilinear):
    """The product. Its gradients are a product, because the mask is symmetric, and `_PairSums`."""

    @staticmethod
    def forward(values: Tensor, x: Tensor, plan: list[Terms]) -> Tensor:
        parts = [sum((_terms_product(terms, values, part) for terms in plan), 0 * part) for part in _parts(plan, x)]
        return torch.cat(parts, dim=2)

    @staticmethod
    def gradients(
        grad: Tensor, values: Tensor, x: Tensor, needed: tuple[bool, bool], plan: list[Terms]
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_values = _PairSums.of(grad, x, plan, values.size(1)) if needed[0] else None
        return grad_values, _Product.of(values, grad, plan) if needed[1] else None


class _PairSums(Bilinear):
    """Sums ``[H, size]`` of ``y_i x_j`` over all channels and all pairs of nodes at one distance."""

    @staticmethod
    def forward(y: Tensor, x: Tensor, plan: list[Terms], size: int) -> Tensor:
        total, values = x.new_zeros(x.size(1), size), x.new_zeros(x.size(1), size, requires_grad=True)
        for part, grad in zip(_parts(plan, x), _parts(plan, y)):
            for terms in plan:
                with torch.enable_grad():  # the product is linear in the values: its gradient does not depend on them
                    product = _terms_product(terms, values, part)
                total = total + torch.autograd.grad(product, values, grad)[0]
        return total

    @staticmethod
    def gradients(
        grad: Tensor, y: Tensor, x: Tensor, needed: tuple[bool, bool], plan: list[Terms], size: int
    ) -> tuple[Tensor | None, Tensor | None]:
        grad_y = _Product.of(grad, x, plan) if needed[0] else None
        return grad_y, _Product.of(grad, y, plan) if needed[1] else None


def _parts(plan: list[Terms], x: Tensor) -> Sequence[Tensor]:
    """``x [N, H, C]`` in parts of as many columns as a slice of the largest matrix holds."""
    # Smaller slices are slower, and take no less memory: glibc keeps arrays below 32 MiB in its heap, with holes.
    rows = max((terms.pattern.num_rows for terms in plan), default=1)
    return x.split(max(1, limits.slice_numbers // max(rows * x.size(1), 1)), dim=2)


@once_per_batch
@on_host
def centroid_plan(parent: Tensor) -> list[Terms]:
    """Decomposition of a forest given by each node's parent, computed once per batch. Raises as `build_forest`."""
    forest = build_forest(parent)
    builder = _Builder(parent.numel())
    nodes = torch.arange(parent.numel(), device=parent.device)
    link = (forest.depth > 0).long()  # whether the edge to the parent is in the node's component
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

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
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
            self.entries.setdefault(key, []).append((row, node[chosen], sign))
            self.num_terms[key] = self.num_terms.get(key, 0) + label.numel()

    def finish(self) -> list[Terms]:
        """Return all matrices, with sorted entries."""
        plan = []
        for (is_path, size), entries in self.entries.items():
            row, order = torch.cat([row for row, _, _ in entries]).sort(stable=True)
            col = torch.cat([col for _, col, _ in entries]).index_select(0, order)
            sign = torch.cat([torch.full_like(row, sign, dtype=torch.int8) for row, _, sign in entries])
            pattern = Pattern(row, col, self.num_terms[is_path, size] * size, self.num_nodes)
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
    size = sweep_up(forest, active[:, None, None], link[:, None])[:, 0, 0]
    # Nodes with half of the component below them form a path from its highest node down to the centroid.
    heavy = (active > 0) & (2 * size >= size.index_select(0, component))
    has_heavy_child = torch.zeros_like(link).index_add(0, forest.parent, link * heavy) > 0
    is_centroid = heavy & ~has_heavy_child
    meeting = _down(forest, torch.where(heavy, forest.depth, 0), link * ~heavy)  # depth where the paths to c meet
    depth = torch.zeros_like(size).index_add(0, component, forest.depth * is_centroid).index_select(0, component)
    return forest.depth + depth - 2 * meeting, is_centroid


def _down(forest: Forest, x: Tensor, weight: Tensor) -> Tensor:
    return sweep_down(forest, x[:, None, None], weight[:, None])[:, 0, 0]


def _terms_product(terms: Terms, values: Tensor, x: Tensor) -> Tensor:
    shape, size, pattern = x.shape, terms.size, terms.pattern
    values = pad(values, (0, 2 * size - 1 - values.size(1)))
    mirrored = torch.cat([values[:, 1:size].flip(1), values[:, :size]], dim=1)
    columns = x.reshape(shape[0], shape[1] * shape[2])
    sums = spmm(pattern, x.new_ones(pattern.nnz), columns).view(-1, size, *shape[1:])  # [T, L, H, C]
    if size <= _MOST_DENSE:
        matrix = toeplitz_matrix(mirrored, (size,)) if terms.is_path else values.unfold(1, size, 1)
        one_head = shape[1] == 1  # the product of all heads copies the sums
        sums = matrix[0] @ sums.squeeze(2) if one_head else (matrix @ sums.transpose(1, 2)).transpose(1, 2)
    else:  # a Hankel matrix is a Toeplitz matrix of the columns in reverse
        sums = sums if terms.is_path else sums.flip(1)
        signals = sums.permute(2, 0, 3, 1)  # [H, T, C, L]
        weight = (mirrored if terms.is_path else values).expand(shape[1], -1)
        folded = signals.reshape(shape[1], -1, size)
        signals = toeplitz_product(weight, folded).view(signals.shape)
        sums = signals.permute(1, 3, 0, 2)
    back, _ = pattern.transposed
    return spmm(back, terms.sign.to(x.dtype), sums.reshape(pattern.num_rows, -1)).view(shape)
