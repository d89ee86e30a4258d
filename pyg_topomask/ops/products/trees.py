r"""Sums along the edges of rooted forests, without a Python loop over nodes.

A *sweep* carries a value along every edge, multiplies it by the edge's weight, and adds it at the other end. It goes
towards the roots (`sweep_up`) or towards the leaves (`sweep_down`); the two are transposes of each other. A sweep
processes all nodes of the same depth in one step. A deep forest is first cut into bands of about
:math:`\sqrt{\mathrm{depth}}` levels. All bands are swept in parallel, and then the forest of the bands is swept, so
that a path of ``N`` nodes takes :math:`O(\sqrt N)` steps.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.3 and Appendices A.8 (exponential masks) and
A.11.2 (any function of the distance). The paper's algorithms subtract; these do not, so that no digits are lost.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask.ops.functions import Mapped
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.products.forest import Forest, SiblingOrder, sibling_order
from pyg_topomask.ops.sparse import on_host


def sweep_up(forest: Forest, x: Tensor, weight: Tensor | None = None, shift: int = 0) -> Tensor:
    r"""Sums over each node's subtree, :math:`s_i = x_i + \sum_{c\ \mathrm{child\ of}\ i} g_c s_c`.

    Args:
        forest: The forest. The rows of all tensors are in the order of its positions.
        x: Shape ``[N, H, C]``.
        weight: Weight :math:`g` of the edge to the parent, shape ``[N, H]`` or ``[N, 1]``; one if :obj:`None`. Weights
            of roots are ignored.
        shift: Number of columns by which an edge shifts a row to the right; zeros are shifted in from the left. The
            transpose of such a sweep is a downward sweep with the negative shift.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``weight``.
    """
    return _Sweep.apply(x, weight, forest, True, shift)


def sweep_down(forest: Forest, x: Tensor, weight: Tensor | None = None, shift: int = 0) -> Tensor:
    r"""Sums over each node's ancestors, :math:`s_i = x_i + g_i s_p` with parent ``p``. Arguments as for `sweep_up`."""
    return _Sweep.apply(x, weight, forest, False, shift)


def forest_product(order: SiblingOrder, x: Tensor, weight: Tensor | None, shift: int = 0) -> Tensor:
    r"""Product with :math:`M_{ij} = \prod_e g_e` over the edges of the path from ``j`` to ``i``; 0 between trees.

    No term is ever subtracted, so the result is exact up to rounding even for weights above one:
    :math:`t_i = s_i + g_i u_i`, where :math:`s` sums over subtrees and :math:`u_i = x_p + g_p u_p + \sum_c g_c s_c`,
    summed over the siblings ``c`` of ``i``, covers all nodes outside the subtree of ``i``.

    Args:
        order: The forest and its siblings.
        x: Shape ``[N, H, C]``, by node.
        weight: Weight :math:`g` of the edge to the parent, shape ``[N, H]`` or ``[N, 1]``, by node; one if :obj:`None`.
        shift: Number of columns by which each edge shifts a row to the right, as in `sweep_up`.

    Returns:
        Shape ``[N, H, C]``, by node, differentiable in ``x`` and ``weight``.
    """
    tree = order.tree
    weight = None if weight is None else weight.index_select(0, tree.order)
    x = x.index_select(0, tree.order)
    inside = sweep_up(tree, x, weight, shift)
    children = sibling_sum(order, _carry(inside, weight, shift))
    outside = (x.index_select(0, tree.parent) + children) * _below_root(tree, x)[:, None, None]
    total = inside + sweep_down(tree, _carry(outside, weight, shift), weight, shift)
    return total.index_select(0, tree.position)


def sibling_sum(order: SiblingOrder, x: Tensor) -> Tensor:
    """Sum over each node's siblings without the node itself, computed without subtraction; ``x`` is by `tree`
    position.
    """
    return _SiblingSum.apply(x, order)


def hop_counts(order: SiblingOrder, x: Tensor, num_hops: int) -> Tensor:
    """Sums of ``x`` ``[N, C]`` over the nodes at 0, 1, … ``num_hops`` hops from each node: ``[N, num_hops + 1, C]``.

    An edge shifts a row of ``(num_hops + 1) C`` columns by ``C``: the row is a histogram over distances, shifted by a
    hop.
    """
    rows = pad(x[:, None], (0, num_hops * x.size(1)))  # [N, 1, (K + 1) C]
    return forest_product(order, rows, None, x.size(1)).view(x.size(0), num_hops + 1, x.size(1))


def meeting_depths(forest: Forest, column: Tensor, width: int, length: Tensor) -> Tensor:
    r"""Depth at which the paths from two nodes to their root meet, for all pairs of nodes that share a graph.

    It gives all distances: :math:`\mathrm{dist}(i, j) = \mathrm{depth}_i + \mathrm{depth}_j - 2\,\mathrm{meeting}_{ij}`
    for nodes of one tree.

    Args:
        forest: The forest.
        column: Column of each node among those of its graph, shape ``[N]``, by node.
        width: Number of columns.
        length: Length of the edge to the parent, 0 for a root, shape ``[N]``, by node.

    Returns:
        Shape ``[N, width]``, by node, differentiable in ``length``; 0 for nodes of different trees.
    """
    columns = torch.arange(width, device=column.device)
    own = (column.index_select(0, forest.order)[:, None] == columns).to(length.dtype)
    below = sweep_up(forest, own[:, None])[:, 0]  # whether the subtree contains the column's node
    depths = sweep_down(forest, (length.index_select(0, forest.order)[:, None] * below)[:, None])[:, 0]
    return depths.index_select(0, forest.position)


@once_per_batch
@on_host
def diameter(parent: Tensor) -> int:
    """Largest number of hops between two nodes of a tree, found from a deepest node of each tree."""
    forest = sibling_order(parent).tree
    nodes = torch.arange(forest.depth.numel(), device=forest.depth.device)
    deepest = torch.zeros_like(forest.depth).scatter_reduce(0, forest.root, forest.depth, "amax")
    is_deepest = forest.depth == deepest.index_select(0, forest.root)
    end = torch.zeros_like(nodes).scatter_reduce(0, forest.root, nodes * is_deepest, "amax")
    above_end = sweep_up(forest, (end.index_select(0, forest.root) == nodes).long()[:, None, None])
    depth_to_end = sweep_down(forest, above_end * (nodes >= forest.num_roots)[:, None, None])[:, 0, 0]
    hops = forest.depth + deepest.index_select(0, forest.root) - 2 * depth_to_end
    return int(hops.max()) if hops.numel() else 0


class _Sweep(Mapped):
    """A sweep. Its derivatives are sweeps too, so derivatives of every order are defined."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor | None, forest: Forest, up: bool, shift: int) -> Tensor:
        out = x.clone(memory_format=torch.contiguous_format)
        (_add_up if up else _add_down)(forest, out, weight, shift)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, weight, ctx.forest, ctx.up, ctx.shift = inputs
        ctx.save_for_backward(weight, output if weight is not None and weight.requires_grad else None)
        ctx.save_for_forward(weight, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, out = ctx.saved_tensors
        forest, up, shift = ctx.forest, ctx.up, ctx.shift
        grad = _Sweep.apply(grad, weight, forest, not up, -shift)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            child, parent = (out, grad) if up else (grad, out)
            parent = _carry(parent.index_select(0, forest.parent), None, -shift if up else shift)
            grad_weight = (child * parent).sum(-1)
            grad_weight = grad_weight.sum(1, keepdim=True) if weight.size(1) == 1 else grad_weight
            grad_weight = grad_weight * _below_root(forest, grad)[:, None]
        return grad, grad_weight, None, None, None

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor | None, of_weight: Tensor | None, *_: Any) -> Tensor:
        weight, out = ctx.saved_tensors
        forest, up, shift = ctx.forest, ctx.up, ctx.shift
        total = torch.zeros_like(out) if of_x is None else of_x
        if of_weight is not None:
            of_weight = of_weight * _below_root(forest, out)[:, None]
            if up:
                total = total.index_add(0, forest.parent, _carry(out, of_weight, shift))
            else:
                total = total + _carry(out.index_select(0, forest.parent), of_weight, shift)
        return _Sweep.apply(total, weight, forest, up, shift)


def _below_root(forest: Forest, like: Tensor) -> Tensor:
    return torch.arange(like.size(0), device=like.device) >= forest.num_roots


class _SiblingSum(Mapped):
    """Sum over siblings. Its matrix is symmetric, so its derivatives are the same operation."""

    @staticmethod
    def forward(x: Tensor, order: SiblingOrder) -> Tensor:
        siblings = order.siblings
        before = x.index_select(0, order.to_siblings)
        after = before.clone()
        _add_down(siblings, before, None, 0)
        _add_up(siblings, after, None, 0)
        out, first = torch.zeros_like(before), siblings.num_roots
        out[first:] = before.index_select(0, siblings.parent[first:])
        out.index_add_(0, siblings.parent[first:], after[first:])
        return out.index_select(0, order.to_tree)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.order = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _SiblingSum.apply(grad, ctx.order), None

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor, _: None) -> Tensor:
        return _SiblingSum.apply(of_x, ctx.order)


def _add_down(forest: Forest, x: Tensor, weight: Tensor | None, shift: int) -> None:
    for begin, end in forest.levels:
        above = x.index_select(0, forest.parent[begin:end])
        x[begin:end] += _carry(above, _rows(weight, begin, end), shift)
    if not forest.bands:
        return
    from_top, between, first = *_products(forest, weight), forest.num_roots
    tops, height = forest.starts[1], len(forest.starts) - 1
    inflow = torch.zeros_like(x[:tops])
    above = x.index_select(0, forest.parent[first:tops])
    inflow[first:] = _carry(above, _rows(weight, first, tops), shift)
    for begin, end in forest.bands:
        above = inflow.index_select(0, forest.top.index_select(0, forest.parent[begin:end]))
        inflow[begin:end] += _carry(above, _rows(between, begin, end), shift * height)
    for level, (begin, end) in enumerate(pairwise(forest.starts)):
        above = inflow.index_select(0, forest.top[begin:end])
        x[begin:end] += _carry(above, _rows(from_top, begin, end), shift * level)


def _add_up(forest: Forest, x: Tensor, weight: Tensor | None, shift: int) -> None:
    if forest.bands:
        from_top, between, first = *_products(forest, weight), forest.num_roots
        tops, height = forest.starts[1], len(forest.starts) - 1
        total = torch.zeros_like(x[:tops])
        for level, (begin, end) in enumerate(pairwise(forest.starts)):
            below = _carry(x[begin:end], _rows(from_top, begin, end), shift * level)
            total.index_add_(0, forest.top[begin:end], below)
        for begin, end in reversed(forest.bands):
            below = _carry(total[begin:end], _rows(between, begin, end), shift * height)
            total[:begin].index_add_(0, forest.top.index_select(0, forest.parent[begin:end]), below)
        below = _carry(total[first:], _rows(weight, first, tops), shift)
        x.index_add_(0, forest.parent[first:tops], below)
    for begin, end in reversed(forest.levels):
        below = _carry(x[begin:end], _rows(weight, begin, end), shift)
        x[:begin].index_add_(0, forest.parent[begin:end], below)


def _products(forest: Forest, weight: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Products of weights from each position up to its top, and from each top up to the next higher top."""
    if weight is None:
        return None, None
    from_top = torch.ones_like(weight)
    for begin, end in forest.levels:
        from_top[begin:end] = weight[begin:end] * from_top.index_select(0, forest.parent[begin:end])
    tops = forest.starts[1]
    return from_top, weight[:tops] * from_top.index_select(0, forest.parent[:tops])


def _carry(x: Tensor, weight: Tensor | None, shift: int) -> Tensor:
    """Carry rows ``[n, H, C]`` along edges: multiply them by the weight ``[n, H]``, shift them ``shift`` columns
    right.
    """
    if abs(shift) >= x.size(-1):
        return torch.zeros_like(x) if shift else x if weight is None else x * weight[..., None]
    x = x if weight is None else x * weight[..., None]
    return pad(x, (shift, -shift)) if shift else x


def _rows(weight: Tensor | None, begin: int, end: int) -> Tensor | None:
    return None if weight is None else weight[begin:end]
