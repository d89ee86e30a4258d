r"""Products with masks of the paths in a forest, in one compiled function (``native/forest/``) or in plain torch.

The compiled function visits the nodes one after the other in a few nanoseconds each, so that deep trees take no more
time than shallow ones. Second derivatives are those of plain torch.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.limits import limits
from pyg_topomask.ops.functions import recomputed
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native.op import CompiledOp, Entry
from pyg_topomask.ops.products.forest import build_forest
from pyg_topomask.ops.products.slices import SlicedAttention, with_all_columns
from pyg_topomask.ops.products.trees import forest_product, hop_counts

_preorder_entry = Entry("forest", "forest_preorder", ("parent", "order", "above"))
_levels_entry = Entry("forest", "forest_levels", ("above",), {"hops": int})

_BLOCK_BYTES = 128  # of a row in a task of the compiled function

# Number of sums by distance that all threads of the compiled function keep. Few columns are slow, because nodes are
# then read in parts of a cache line. Measured on CPU with 2^10 to 2^18 nodes: 16 columns take 1.2 to 1.4 times as long
# as 32. Gradients of values are summed over 16 columns at a time.
_TASK_NUMEL = 3 * 2**26
_FEWEST_COLUMNS, _PART = 8, 16
_SLICE_COLUMNS = 48  # of attention, at most


def path_product(parent: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    r"""Product with :math:`M_{ij} = \prod_e g_e` over the edges of the path from ``j`` to ``i``; 0 between trees.

    Args:
        parent: Parent of each node, −1 for a root, shape ``[N]``; `build_forest` accepts it.
        x: Shape ``[N, H, C]``.
        weight: Weight :math:`g` of the edge to the parent, shape ``[N, H]`` or ``[N, 1]``, with the dtype of ``x``.
            Weights of roots are ignored.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``weight``.
    """
    return _product(x, weight, parent, False)


def hop_product(parent: Tensor, x: Tensor, values: Tensor) -> Tensor:
    r"""Product with :math:`M_{ij} = f(\mathrm{dist}(i, j))` of the distances in edges; 0 between trees.

    Args:
        parent: As in `path_product`.
        x: Shape ``[N, H, C]``.
        values: :math:`f` at 0, 1, … ``K`` edges, and 0 beyond; shape ``[H, K + 1]`` or ``[1, K + 1]``, with the dtype
            of ``x``.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``values``.
    """
    if values.size(1) == 1:
        return values * x  # [H, 1]
    return _product(x, values, parent, True)


def hop_attention(parent: Tensor, q: Tensor, k: Tensor, v: Tensor, values: Tensor) -> Tensor | None:
    r"""Sums :math:`\sum_{jr} q_{ir} M_{ij} k_{jr} v_j` under the mask of `hop_product`, in compiled code.

    Args:
        parent, values: Those of `hop_product`.
        q, k, v: Queries and keys ``[N, H, R]`` and values ``[N, H, D]``, of the same dtype.

    Returns:
        Shape ``[N, H, D]``; :obj:`None` if the compiled code cannot serve, or would take much memory.
    """
    inputs = q, k, v, values, parent
    if torch.compiler.is_compiling() or _attention.refuses(*inputs):
        return None
    numbers = _num_levels(_preorder(parent)[1], values.size(1) - 1) * torch.get_num_threads() * _SLICE_COLUMNS
    return _attention(*inputs) if numbers <= _TASK_NUMEL else None


@once_per_batch
def _preorder(parent: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes in preorder, and the position of the parent of each position, −1 for roots."""
    build_forest(parent)  # refuses what is not a forest
    parent = parent.long().contiguous()
    order, above = torch.empty_like(parent), torch.empty_like(parent)
    _preorder_entry((parent, order, above))
    return order, above


def _plain(x: Tensor, weight: Tensor, parent: Tensor, by_hop: bool) -> Tensor:
    """The products in plain torch."""
    if not by_hop:
        return recomputed(forest_product, parent, x, weight)

    def sums(x: Tensor) -> Tensor:
        counts = hop_counts(parent, x.flatten(1), weight.size(1) - 1)
        return torch.einsum("hk,nkhc->nhc", weight, counts.unflatten(2, x.shape[1:]))

    step = max(1, limits.slice_numbers // 4 // max(x.size(0) * x.size(1) * weight.size(1), 1))
    parts = x.split(step, dim=2)
    return torch.cat([recomputed(sums, part) for part in parts], dim=2)


class _ForestProduct(CompiledOp):
    library, name = "forest", "forest_product"
    arrays, numbers, results = ("x", "weight", "parent"), MappingProxyType({"by_hop": bool}), ("y",)
    reads, reads_numbers = ("x", "weight", "order", "above"), MappingProxyType({"by_hop": int, "block": int})
    differentiable = 2
    work_per_thread = 2**18  # numbers

    def shapes(self, x: Tensor, *rest: Any) -> list[torch.Size]:
        return [x.shape]

    def work(self, x: Tensor, weight: Tensor, parent: Tensor, by_hop: bool) -> int:
        return x.numel() * (weight.size(1) if by_hop else 1)

    def prepare(self, x: Tensor, weight: Tensor, parent: Tensor, by_hop: bool) -> tuple[Any, ...]:
        order, above = _preorder(parent)
        return x, weight, order, above, by_hop, _block(x, weight, above, by_hop)

    def twin(self, x: Tensor, weight: Tensor, parent: Tensor, by_hop: bool) -> Tensor:
        return _plain(x, weight, parent, by_hop)

    def backward(
        self, needed: Sequence[bool], inputs: tuple[Any, ...], results: list[Tensor | None], grads: list[Tensor]
    ) -> list[Tensor | None]:
        x, weight, parent, by_hop = inputs
        grad_x, parts = x.new_empty(x.shape), None
        if needed[1]:
            block = _block(x, weight, _preorder(parent)[1], by_hop)
            num_blocks = -(-x.size(2) // (min(block, _PART) if by_hop else block))
            parts = x.new_zeros(x.size(1), num_blocks, weight.size(1) if by_hop else x.size(0))
        self.run(inputs, results, grads, [grad_x, parts])
        if parts is None:
            return [grad_x, None]
        by_head = parts.sum(1)
        if weight.size(0 if by_hop else 1) == 1:
            by_head = by_head.sum(0, keepdim=True)
        return [grad_x, by_head if by_hop else by_head.t().contiguous()]

    def examples(self) -> Iterator[tuple[Any, ...]]:
        short = [-1, 0, 1, 2, 2, 1, 5, -1, 7]
        deep = [-1 if i % 40 == 0 else i - 1 - i % 3 % (i % 40) for i in range(300)]
        for parent, heads, channels, own in (
            (short, 2, 3, 1),
            (short, 2, 2, 2),
            ([], 1, 2, 1),
            (deep, 3, 64, 3),
            (deep, 2, 33, 1),
        ):
            num_nodes = len(parent)
            x, nodes = (
                torch.randn(num_nodes, heads, channels, dtype=torch.float64),
                torch.tensor(parent, dtype=torch.long),
            )
            yield x, torch.rand(num_nodes, own, dtype=torch.float64), nodes, False
            yield x, torch.randn(own, 4, dtype=torch.float64), nodes, True


_product = _ForestProduct()


class _HopAttention(SlicedAttention):
    library, name = "forest", "hop_attention"
    arrays, reads = ("q", "k", "v", "values", "parent"), ("q", "k", "v", "values", "order", "above")

    def work(self, q: Tensor, k: Tensor, v: Tensor, values: Tensor, parent: Tensor) -> int:
        return q.numel() * v.size(2) * values.size(1)

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        return *inputs[:4], *_preorder(inputs[4]), self._parts(inputs[2])

    def twin(self, q: Tensor, k: Tensor, v: Tensor, values: Tensor, parent: Tensor) -> Tensor:
        return with_all_columns(partial(_plain, weight=values, parent=parent, by_hop=True), q, k, v)

    def size(self, values: Tensor) -> int:
        return values.size(1)

    def of_coeffs(self, by_head: Tensor, values: Tensor) -> Tensor:
        return by_head if values.size(0) > 1 else by_head.sum(0, keepdim=True)

    def examples(self) -> Iterator[tuple[Any, ...]]:
        short = [-1, 0, 1, 1, -1, 4]
        deep = [-1 if i % 40 == 0 else i - 1 - i % 3 % (i % 40) for i in range(100)]
        for parent, heads, features, own, hops in (
            (short, 2, 2, 2, 3),
            (short, 1, 3, 1, 1),
            ([], 1, 2, 1, 2),
            (deep, 2, 17, 1, 7),
            (list(range(-1, 99)), 1, 9, 1, 3),  # sums from elsewhere move beyond their place
        ):
            q, k, v = torch.randn(3, len(parent), heads, features, dtype=torch.float64)
            values = torch.randn(own, hops + 1, dtype=torch.float64)
            yield q, k, v[..., : features - 1], values, torch.tensor(parent, dtype=torch.long)


_attention = _HopAttention()


def _block(x: Tensor, weight: Tensor, above: Tensor, by_hop: bool) -> int:
    """Number of columns in a task of the compiled function."""
    if not by_hop:
        return _BLOCK_BYTES // x.element_size()
    threads = torch.get_num_threads()
    most = _TASK_NUMEL // max(_num_levels(above, weight.size(1) - 1) * threads, 1)
    if most >= 2 * _PART and x.size(1) * x.size(2) >= 2 * _PART * threads:
        return 2 * _PART
    return min(max(most, _FEWEST_COLUMNS), _PART)


@once_per_batch
def _num_levels(above: Tensor, num_hops: int) -> int:
    """Numbers that a task keeps for each of its columns."""
    return _levels_entry((above,), num_hops)
