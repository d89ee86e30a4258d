"""The mask that is an arbitrary function of the hop distance in a forest."""

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_choice
from pyg_topomask.operators.base import SymmetricOperator
from pyg_topomask.operators.forest import TREE_PASSES, tree_block_work, tree_distances
from pyg_topomask.operators.parameters import coefficient_heads
from pyg_topomask.ops.attention.mask import DenseBlocks
from pyg_topomask.ops.blocks import BlockLayout
from pyg_topomask.ops.memo import cached
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.numerics import at_least_float32, product_eps
from pyg_topomask.ops.products.centroid import centroid_plan, distance_product
from pyg_topomask.ops.products.paths import hop_attention, hop_product
from pyg_topomask.ops.products.trees import diameter

METHODS = ("auto", "histogram", "centroid")

# Time of a multiply-add in histograms, compiled and in plain torch, relative to one in centroids.
_COMPILED_COST, _TORCH_COST = 0.5, 4

# Work of a product that takes less time than the plan of the centroids.
_PLAN = 2**21

# Rounding error of an entry, in machine epsilons times the norm of the function; only centroids subtract and transform.
_ROUNDING = 16.0


class TreeDistanceOperator(SymmetricOperator):
    r"""Mask :math:`M_{ij} = f(\mathrm{dist}(i, j))` of hop distances in a forest; 0 between different trees.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 6, Lemmas 6.1 and 6.2, and Appendix A.11.
    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: ``"histogram"`` sums ``x`` by distance,
    :math:`O(N \min(K, \mathrm{diameter})\, C)`; ``"centroid"`` splits trees at their centroids,
    :math:`O(N \log^2 N\, C)`; ``"auto"`` takes the one with the least time, estimated from counted multiply-adds.

    Args:
        parent: Parent of each node, −1 for a root, in any order, shape ``[N]``.
        values: :math:`f` at 0, 1, … ``K`` hops, and 0 beyond; shape ``[K + 1]``, or ``[H, K + 1]`` for one mask per
            head.
        method: ``"auto"``, ``"histogram"`` or ``"centroid"``. Both give the same numbers up to rounding.

    Raises:
        ValueError: If ``parent`` does not describe a forest, ``values`` has another shape, or the method is unknown.
        TypeError: If ``values`` is not floating point.
    """

    def __init__(self, parent: Tensor, values: Tensor, method: str = "auto") -> None:
        check_choice("method", method, METHODS)
        self.parent, self.values, self.numbers = parent, values, (values,)
        self.num_nodes, self.heads = parent.numel(), coefficient_heads("values", values)
        self.dtype, self.device = values.dtype, parent.device
        most = values.size(-1) - 1
        self._num_hops = most if plans.planned() else min(most, diameter(parent))  # a plan serves trees of any size
        self.method = plans.once("method", self._cheapest) if method == "auto" else method
        self.product_cost = 0.1 if self.method == "histogram" else 0.3  # 0.1: `contract` serves

    def _with(self, values: Tensor) -> "TreeDistanceOperator":
        return TreeDistanceOperator(self.parent, values, self.method)

    @property
    def error(self) -> float | Tensor:
        if self.method == "histogram":
            return 0.0
        (values,) = at_least_float32(self.values.detach())
        norm = values.norm(dim=-1)
        return (_ROUNDING * product_eps(self.dtype) * norm).expand(self.num_nodes, *norm.shape)

    @cached
    def num_multiply_adds(self) -> int:
        return self._histogram_work if self.method == "histogram" else self._centroid_work

    @property
    def _histogram_work(self) -> int:
        return self.num_nodes * (self._num_hops + 1) * TREE_PASSES

    @property
    def _centroid_work(self) -> int:
        return sum(terms.num_multiply_adds for terms in centroid_plan(self.parent))

    def _cheapest(self) -> str:
        """The method with the least estimated time; no plan is made if histograms are cheaper anyway."""
        is_compiled = self.device.type == "cpu" and loader.missing("forest") is None
        work = self._histogram_work * (_COMPILED_COST if is_compiled else _TORCH_COST)
        return "histogram" if self._num_hops < 2 or work <= _PLAN or work <= self._centroid_work else "centroid"

    @property
    def dense_blocks(self) -> DenseBlocks:
        return DenseBlocks(self._make_blocks, tree_block_work)

    def _make_blocks(self, layout: BlockLayout) -> list[Tensor]:
        blocks = []
        for distance, same_tree in tree_distances(self.parent, None, layout):
            inside = same_tree & (distance < self.values.size(-1))
            hops = torch.where(inside, distance, 0).long()
            entry = self.values.index_select(-1, hops.flatten()).unflatten(-1, hops.shape)
            blocks.append(torch.where(inside, entry, 0) if self.heads is None else (inside * entry).transpose(0, 1))
        return blocks

    def contract(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        if self.method == "centroid":
            return None
        values = self.values.to(v.dtype).view(-1, self.values.size(-1))
        return hop_attention(self.parent, q, k, v, values[:, : self._num_hops + 1])

    def _matmul(self, x: Tensor) -> Tensor:
        values = self.values.to(x.dtype).view(-1, self.values.size(-1))
        rows = x.reshape(self.num_nodes, -1, x.size(-1))  # [N, H or 1, C]
        if self.method == "centroid":
            return distance_product(centroid_plan(self.parent), values, rows).view_as(x)
        return hop_product(self.parent, rows, values[:, : self._num_hops + 1]).view_as(x)
