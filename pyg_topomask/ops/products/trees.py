r"""Sums along the edges of rooted forests, without a Python loop over nodes.

A *sweep* carries a value along every edge, multiplies it by the edge's weight, and adds it at the other end. It goes
towards the roots (`sweep_up`) or towards the leaves (`sweep_down`); the two are transposes of each other. With the
matrix ``A`` of the edges from each node to its parent, a sweep is the product with
:math:`(I - A)^{-1} = (I + A)(I + A^2)(I + A^4) \cdots` or its transpose. The factors carry values over 1, 2, 4, …
edges, so that a path of ``N`` nodes takes :math:`\log_2 N` steps.

Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.3 and Appendices A.8 (exponential masks) and
A.11.2 (any function of the distance). The paper's algorithms subtract; these do not, so that no digits are lost.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.products.forest import Forest, build_forest, sibling_forest
from pyg_topomask.ops.sparse import on_host


def sweep_up(forest: Forest, x: Tensor, weight: Tensor | None = None, shift: int = 0) -> Tensor:
    r"""Sums over each node's subtree, :math:`s_i = x_i + \sum_{c\ \mathrm{child\ of}\ i} g_c s_c`.

    Args:
        forest: The forest.
        x: Shape ``[N, H, C]``.
        weight: Weight :math:`g` of the edge to the parent, shape ``[N, H]`` or ``[N, 1]``; one if :obj:`None`. Weights
            of roots are ignored.
        shift: Number of columns by which an edge shifts a row to the right; zeros are shifted in from the left. The
            transpose of such a sweep is a downward sweep with the negative shift.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``weight``.
    """
    return _sweep(forest, x, weight, True, shift)


def sweep_down(forest: Forest, x: Tensor, weight: Tensor | None = None, shift: int = 0) -> Tensor:
    r"""Sums over each node's ancestors, :math:`s_i = x_i + g_i s_p` with parent ``p``. Arguments as for `sweep_up`."""
    return _sweep(forest, x, weight, False, shift)


def _sweep(forest: Forest, x: Tensor, weight: Tensor | None, up: bool, shift: int) -> Tensor:
    for node, above in forest.jumps:
        if shift and abs(shift) >= x.size(-1):  # nothing is carried so far
            break
        source, target = (node, above) if up else (above, node)
        own = None if weight is None else weight.index_select(0, node)
        x = x.index_add(0, target, _carry(x.index_select(0, source), own, shift))
        if weight is not None and own is not None:  # the weight of a jump that is twice as long
            weight = weight.index_copy(0, node, own * weight.index_select(0, above))
        shift *= 2
    return x


def forest_product(parent: Tensor, x: Tensor, weight: Tensor | None, shift: int = 0) -> Tensor:
    r"""Product with :math:`M_{ij} = \prod_e g_e` over the edges of the path from ``j`` to ``i``; 0 between trees.

    No term is ever subtracted, so the result is exact up to rounding even for weights above one:
    :math:`t_i = s_i + g_i u_i`, where :math:`s` sums over subtrees and :math:`u_i = x_p + g_p u_p + \sum_c g_c s_c`,
    summed over the siblings ``c`` of ``i``, covers all nodes outside the subtree of ``i``.

    Args:
        parent: Parent of each node, −1 for a root, shape ``[N]``.
        x: Shape ``[N, H, C]``.
        weight: Weight :math:`g` of the edge to the parent, shape ``[N, H]`` or ``[N, 1]``; one if :obj:`None`.
        shift: Number of columns by which each edge shifts a row to the right, as in `sweep_up`.

    Returns:
        Shape ``[N, H, C]``, differentiable in ``x`` and ``weight``.
    """
    tree = build_forest(parent)
    inside = sweep_up(tree, x, weight, shift)
    children = sibling_sum(sibling_forest(parent), _carry(inside, weight, shift))
    outside = (x.index_select(0, tree.parent) + children) * (tree.depth > 0)[:, None, None]
    return inside + sweep_down(tree, _carry(outside, weight, shift), weight, shift)


def sibling_sum(siblings: Forest, x: Tensor) -> Tensor:
    """Sum of ``x [N, H, C]`` over each node's siblings without the node itself, computed without subtraction."""
    out = torch.zeros_like(x)
    for node, previous in siblings.jumps[:1]:
        out = out.index_add(0, node, sweep_down(siblings, x).index_select(0, previous))
        out = out.index_add(0, previous, sweep_up(siblings, x).index_select(0, node))
    return out


def hop_counts(parent: Tensor, x: Tensor, num_hops: int) -> Tensor:
    """Sums of ``x`` ``[N, C]`` over the nodes at 0, 1, … ``num_hops`` hops from each node: ``[N, num_hops + 1, C]``.

    An edge shifts a row of ``(num_hops + 1) C`` columns by ``C``: the row is a histogram over distances, shifted by a
    hop.
    """
    rows = pad(x[:, None], (0, num_hops * x.size(1)))  # [N, 1, (K + 1) C]
    return forest_product(parent, rows, None, x.size(1)).view(x.size(0), num_hops + 1, x.size(1))


@once_per_batch
@on_host
def diameter(parent: Tensor) -> int:
    """Largest number of hops between two nodes of a tree, found from a deepest node of each tree."""
    forest = build_forest(parent)
    nodes = torch.arange(forest.depth.numel(), device=forest.depth.device)
    deepest = torch.zeros_like(forest.depth).scatter_reduce(0, forest.root, forest.depth, "amax")
    is_deepest = forest.depth == deepest.index_select(0, forest.root)
    end = torch.zeros_like(nodes).scatter_reduce(0, forest.root, nodes * is_deepest, "amax")
    above_end = sweep_up(forest, (end.index_select(0, forest.root) == nodes).long()[:, None, None])
    depth_to_end = sweep_down(forest, above_end * (forest.depth > 0)[:, None, None])[:, 0, 0]
    hops = forest.depth + deepest.index_select(0, forest.root) - 2 * depth_to_end
    return int(hops.max()) if hops.numel() else 0


def _carry(x: Tensor, weight: Tensor | None, shift: int) -> Tensor:
    """Carry rows ``[n, H, C]`` along edges: multiply them by the weight ``[n, H]``, shift them ``shift`` columns
    right.
    """
    x = x if weight is None else x * weight[..., None]
    return pad(x, (shift, -shift)) if shift else x
