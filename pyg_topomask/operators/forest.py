"""The mask that decays or grows exponentially along the edges of a forest."""

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_floating
from pyg_topomask.operators.base import NonNegativeOperator, SymmetricOperator, common_heads
from pyg_topomask.operators.parameters import parameter_dtype, per_head
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout, check_within_graphs, identity_columns
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.products.forest import build_forest
from pyg_topomask.ops.products.paths import path_product
from pyg_topomask.ops.products.trees import sweep_up

TREE_PASSES = 6
"""Multiply-adds per node and column of a product with a function of the paths in a forest."""


class ForestExpOperator(SymmetricOperator, NonNegativeOperator):
    r"""Mask :math:`M_{ij} = e^{a\,\mathrm{dist}(i, j) + b}` of path lengths in a forest; 0 between different trees.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3.3, Lemma 3.5 and Appendix A.8. Cost of
    ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(N C)`, in compiled code if there is a compiler. Without one, it
    takes as many passes as the logarithm of the forest's depth. No term is subtracted, so growing masks (``a > 0``)
    lose no digits.

    Args:
        parent: Parent of each node, −1 for a root, in any order, shape ``[N]``.
        length: Length of the edge to the parent, shape ``[N]``; values of roots are ignored.
        a, b: Rate, and logarithm of the scale: numbers, or ``[H]`` for one mask per head.

    Raises:
        ValueError: If ``parent`` does not describe a forest, or shapes disagree.
        TypeError: If a parameter is not floating point.
    """

    def __init__(self, parent: Tensor, length: Tensor, a: float | Tensor, b: float | Tensor) -> None:
        if not plans.planned():  # what a run needs of the forest, it finds and checks itself
            build_forest(parent)  # checks it
        self.parent = parent
        if length.shape != parent.shape:
            raise ValueError(
                f"'length' must have the shape of 'parent', {list(parent.shape)} (got {list(length.shape)})"
            )
        check_floating("length", length)
        self._edge_length, self.length = length, torch.where(parent < 0, 0, length)
        (self.a, heads_a), (self.b, heads_b) = per_head("a", a, parent.device), per_head("b", b, parent.device)
        self.num_nodes, self.heads = parent.numel(), common_heads([heads_a, heads_b])
        self.dtype, self.device, self.numbers = parameter_dtype(length, a, b), parent.device, (length,)
        self.num_multiply_adds = self.num_nodes * TREE_PASSES

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, tree_block_work)

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        a, b = (x[:, None, None] if self.heads is not None else x for x in (self.a, self.b))
        blocks = []
        for distance, same_tree in tree_distances(self.parent, self._edge_length, layout):
            if self.heads is not None:
                distance, same_tree = distance[:, None], same_tree[:, None]
            blocks.append(torch.where(same_tree, torch.exp(a * distance + b).to(self.dtype), 0))
        return blocks

    def _matmul(self, x: Tensor) -> Tensor:
        weight = torch.exp(self.length[:, None] * self.a).to(x.dtype)  # [N, H or 1]
        product = path_product(self.parent, x.reshape(self.num_nodes, -1, x.size(-1)), weight)
        return (torch.exp(self.b).to(x.dtype)[:, None] * product).view_as(x)


@once_per_batch
def tree_distances(parent: Tensor, length: Tensor | None, layout: BlockLayout) -> list[tuple[Tensor, Tensor]]:
    """Distances ``[g, n, n]`` for each group of graphs, 0 between trees; and whether two nodes are in the same tree.

    All edges have length 1 if ``length`` is :obj:`None`. Computed once per batch, unless lengths are learned.
    """
    child = (parent >= 0).nonzero().squeeze(1)
    check_within_graphs(layout, child, parent.long().index_select(0, child))
    length = (parent >= 0).float() if length is None else torch.where(parent < 0, 0, length)
    tree, columns = build_forest(parent), identity_columns(layout, length.dtype)
    below = sweep_up(tree, columns[:, None])[:, 0]  # whether the column's node is below the row's one, or is this one
    result = []
    for root, own, path in zip(*(layout.groups.split(x) for x in (tree.root + 1, length, below))):
        path = path[..., : path.size(1)]  # [g, n, n]
        meeting = (path * own[..., None]).mT @ path  # depth at which the paths from two nodes to their root meet
        depth = meeting.diagonal(dim1=1, dim2=2)
        same_tree = (root[:, :, None] == root[:, None]) & (root > 0)[:, None]  # 0 where groups are padded
        result.append((torch.where(same_tree, depth[:, :, None] + depth[:, None] - 2 * meeting, 0), same_tree))
    return result


def tree_block_work(sizes: list[int]) -> float:
    """What the distances of all pairs of nodes in graphs of these sizes cost, in multiply-adds of matrices."""
    return 40.0 * max(sizes, default=0) * sum(sizes)
