"""Masks that combine other masks with fast products: sums, one per head, block-diagonal and Kronecker products."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask import plan as plans
from pyg_topomask.operators.base import ARITHMETIC, MaskOperator, common_heads, common_nodes, product_by_head
from pyg_topomask.operators.scaled import DiagonalScaledOperator
from pyg_topomask.ops.attention.mask import DenseBlocks, Entries, Part, Support, evaluate, row_errors, row_sums
from pyg_topomask.ops.blocks import BlockLayout, block_layout, multiply_blocks
from pyg_topomask.ops.memo import cached, once_per_batch
from pyg_topomask.ops.sparse import Pattern

BlockMaker = Callable[[BlockLayout], list[Tensor]]


class CombinedOperator(MaskOperator):
    """A mask that combines several others.

    Args:
        operators: The other masks.
        num_nodes: ``N`` of the combined mask.
    """

    def __init__(self, operators: Sequence[MaskOperator], num_nodes: int) -> None:
        self.operators, self.num_nodes = list(operators), num_nodes
        self.heads = common_heads([operator.heads for operator in operators])
        self.dtype = reduce(torch.promote_types, [operator.dtype for operator in operators])
        self.device = operators[0].device
        self.num_multiply_adds = sum(operator.num_multiply_adds for operator in operators)

    @abstractmethod
    def _like(self, operators: list[MaskOperator]) -> MaskOperator:
        """The same combination, applied to other masks."""

    @property
    def T(self) -> MaskOperator:
        return self._like([operator.T for operator in self.operators])

    @property
    def bound(self) -> MaskOperator:
        bounds = [operator.bound for operator in self.operators]
        return self if all(a is b for a, b in zip(bounds, self.operators)) else self._like(bounds)

    @property
    def eps(self) -> float:
        return max(operator.eps for operator in self.operators)

    @property
    def dense_blocks(self) -> DenseBlocks | None:
        found: list[Any] = [operator.dense_blocks for operator in self.operators]
        if any(blocks is None for blocks in found):
            return None
        makers = [blocks.make for blocks in found]
        return DenseBlocks(
            lambda layout: self._join_blocks(layout, makers), lambda sizes: sum(x.work(sizes) for x in found)
        )

    def _join_blocks(self, layout: BlockLayout, makers: list[BlockMaker]) -> list[Tensor]:
        """Blocks from what makes those of the combined masks."""
        groups = zip(*(make(layout) for make in makers))
        return [self._join_group([self._with_heads(block) for block in blocks]) for blocks in groups]

    def _join_group(self, blocks: list[Tensor]) -> Tensor:
        """Blocks of a group of graphs from those of the combined masks, ``[g, n, n]``, or ``[g, H or 1, n, n]``."""
        raise NotImplementedError

    def _with_heads(self, block: Tensor) -> Tensor:
        return block[:, None] if self.heads is not None and block.dim() == 3 else block

    @property
    def error(self) -> float | Tensor:
        errors = [row_errors(operator) for operator in self.operators]
        if all(error is None for error in errors):
            return 0.0
        nothing = torch.zeros(1, 1, device=self.device)
        pairs = zip(self.operators, errors)
        return self._join_errors([nothing.expand(op.num_nodes, 1) if error is None else error for op, error in pairs])

    def _join_errors(self, errors: list[Tensor]) -> Tensor:
        """Errors by row from those of the combined masks, ``[N, H or 1]`` each."""
        raise NotImplementedError


class SumOperator(CombinedOperator):
    """Sum of masks on the same nodes, written ``op + op``; a mask without heads is added to every head.

    Args:
        operators: The masks.

    Raises:
        ValueError: If the masks differ in their nodes or heads.
    """

    def __init__(self, *operators: MaskOperator) -> None:
        super().__init__(operators, common_nodes(operators, "add"))

    def _like(self, operators: list[MaskOperator]) -> "SumOperator":
        return SumOperator(*operators)

    @property
    def parts(self) -> list[Part]:
        return list(map(_with_rows, self.operators))

    @property
    def support(self) -> Support | None:
        supports = [support for operator in self.operators if (support := operator.support)]
        if len(supports) < len(self.operators):
            return None
        return Support(
            lambda rows: _join_pairs([support.pairs(rows) for support in supports], self.heads),
            lambda: sum(support.count() for support in supports),
            lambda: torch.stack([support.by_row() for support in supports]).sum(0),
        )

    def _join_group(self, blocks: list[Tensor]) -> Tensor:
        return reduce(torch.add, blocks)

    def _join_errors(self, errors: list[Tensor]) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*errors)).sum(0)

    def to_dense(self) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*(operator.to_dense() for operator in self.operators))).sum(0)

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.stack([operator.product(x) for operator in self.operators]).sum(0)


ARITHMETIC["sum"] = SumOperator


class HeadStackOperator(CombinedOperator):
    """One mask per head, from separate masks that serve one or more heads each.

    Args:
        operators: The masks, on the same nodes.
        counts: Number of heads that each mask serves; one each if :obj:`None`. A mask with heads of its own has as
            many.

    Raises:
        ValueError: If the list is empty, a mask has another number of heads, or the masks differ in their nodes.
    """

    def __init__(self, operators: Sequence[MaskOperator], counts: Sequence[int] | None = None) -> None:
        self.counts = [1] * len(operators) if counts is None else list(counts)
        fits = [operator.heads in (None, count) for operator, count in zip(operators, self.counts)]
        if not operators or len(operators) != len(self.counts) or not all(fits):
            raise ValueError(
                f"a stack needs at least one mask, each with the heads that it serves (got {list(operators)} for "
                f"{self.counts} heads)"
            )
        super().__init__(operators, common_nodes(operators, "stack"))
        self.heads = sum(self.counts)
        work = sum(count * operator.num_multiply_adds for count, operator in zip(self.counts, operators))
        self.num_multiply_adds = work // max(self.heads, 1)

    def _like(self, operators: list[MaskOperator]) -> "HeadStackOperator":
        return HeadStackOperator(operators, self.counts)

    @property
    def parts(self) -> list[Part]:
        stops = list(accumulate(self.counts))
        return [Part(op, slice(a, b)) for op, a, b in zip(self.operators, [0, *stops], stops)]

    def _join_errors(self, errors: list[Tensor]) -> Tensor:
        return torch.cat([error.expand(-1, count) for count, error in zip(self.counts, errors)], dim=1)

    def to_dense(self) -> Tensor:
        size = self.num_nodes, self.num_nodes
        return torch.cat([op.to_dense().expand(count, *size) for op, count in zip(self.operators, self.counts)])

    def _join_group(self, blocks: list[Tensor]) -> Tensor:
        graphs = max(block.size(0) for block in blocks)
        return torch.cat([block.expand(graphs, count, -1, -1) for count, block in zip(self.counts, blocks)], dim=1)

    def _matmul(self, x: Tensor) -> Tensor:
        parts = zip(self.operators, x.split(self.counts, dim=1))
        return torch.cat([product_by_head(operator, part) for operator, part in parts], dim=1)


class BlockDiagonalOperator(CombinedOperator):
    """Masks of different graphs, one after the other, as the mask of their batch.

    Args:
        operators: The masks; those without heads are used for every head of the others.

    Raises:
        ValueError: If the list is empty, or the numbers of heads differ.
    """

    def __init__(self, operators: Sequence[MaskOperator]) -> None:
        if not operators:
            raise ValueError("a block-diagonal mask needs at least one block (got none)")
        self.sizes = [operator.num_nodes for operator in operators]
        super().__init__(operators, sum(self.sizes))

    def _like(self, operators: list[MaskOperator]) -> "BlockDiagonalOperator":
        return BlockDiagonalOperator(operators)

    @property
    def dense_blocks(self) -> DenseBlocks | None:
        return None if plans.planned() else super().dense_blocks  # they are cut by the sizes of the graphs

    def _join_errors(self, errors: list[Tensor]) -> Tensor:
        width = max(error.size(1) for error in errors)
        return torch.cat([error.expand(-1, width) for error in errors])

    def _join_blocks(self, layout: BlockLayout, makers: list[BlockMaker]) -> list[Tensor]:
        pieces: dict[int, list[Tensor]] = {}  # of each graph that is not empty, in order
        leaves = layout.block.diff(prepend=layout.block[:1]) != 0
        for operator, make, graph in zip(self.operators, makers, leaves.cumsum(0).split(self.sizes)):
            part = block_layout(graph - graph[:1])
            for number, block in enumerate(part.cut(make(part))):
                if self.heads is not None and operator.heads is None:
                    block = block.expand(self.heads, -1, -1)
                pieces.setdefault(number + int(graph[0]), []).append(block)
        return layout.stack([_block_diagonal(pieces[number]) for number in sorted(pieces)])

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.cat([operator.product(block) for operator, block in zip(self.operators, x.split(self.sizes))])


class ProductOperator(CombinedOperator):
    r"""Matrix product :math:`M = A B` of masks on the same nodes, such as :math:`\Phi \Phi^\top`.

    Args:
        left, right: The factors; one without heads is used for every head of the other. If there is no ``right``, it is
            ``A.T``, and the dense blocks of ``A`` are computed once.

    Raises:
        ValueError: If the factors differ in their nodes or heads, or the products of one are approximate.
    """

    def __init__(self, left: MaskOperator, right: MaskOperator | None = None) -> None:
        operators = [left] if right is None else [left, right]
        if any(row_errors(operator) is not None for operator in operators):
            raise ValueError(f"the products of both factors must be exact (got {left} and {right})")
        super().__init__(operators, common_nodes(operators, "multiply"))
        self.left = left
        if right is None:
            self.num_multiply_adds *= 2
        else:
            self.right = right

    @cached
    def right(self) -> MaskOperator:
        return self.left.T

    def _like(self, operators: list[MaskOperator]) -> "ProductOperator":
        return ProductOperator(*operators)

    @property
    def T(self) -> "ProductOperator":
        return self if len(self.operators) == 1 else ProductOperator(self.right.T, self.left.T)

    @cached
    def _joined(self) -> MaskOperator | None:
        return self.left.times(self.right)

    @property
    def product_cost(self) -> float:  # type: ignore[override]
        return 1.0 if self._joined is None else self._joined.product_cost

    def contract(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        return None if self._joined is None else self._joined.contract(q, k, v)

    def _join_blocks(self, layout: BlockLayout, makers: list[BlockMaker]) -> list[Tensor]:
        left, *right = (make(layout) for make in makers)
        return multiply_blocks(right[0] if right else [block.mT for block in left], left)

    def _matmul(self, x: Tensor) -> Tensor:
        return product_by_head(self.left, product_by_head(self.right, x))


class KroneckerOperator(CombinedOperator):
    r"""Kronecker product :math:`M = M_1 \otimes M_2`; node ``(i, j)`` of the product graph has number ``i * N_2 + j``.

    Args:
        left, right: The masks of the factors; one without heads is used for every head of the other.

    Raises:
        ValueError: If the numbers of heads differ.
    """

    def __init__(self, left: MaskOperator, right: MaskOperator) -> None:
        super().__init__([left, right], left.num_nodes * right.num_nodes)
        self.left, self.right = left, right
        self.num_multiply_adds = left.num_multiply_adds * right.num_nodes + right.num_multiply_adds * left.num_nodes

    def _like(self, operators: list[MaskOperator]) -> "KroneckerOperator":
        return KroneckerOperator(*operators)

    @property
    def dense_blocks(self) -> None:
        return None

    def _join_errors(self, errors: list[Tensor]) -> Tensor:
        largest = [row_sums(operator.bound).detach() for operator in self.operators]  # bounds the entries, all ≥ 0
        (a, left), (b, right) = (
            [x[:, None] if factor == 0 else x[None] for x in (error, entry)]  # [N_1, 1, H] or [1, N_2, H]
            for factor, (error, entry) in enumerate(zip(errors, largest))
        )
        return (a * right + b * left + a * b).flatten(0, 1)

    def _matmul(self, x: Tensor) -> Tensor:
        shape, outer, inner = x.shape, self.left.num_nodes, self.right.num_nodes
        x = x.reshape(outer, inner, self.heads or 1, x.size(-1))  # [N_1, N_2, H or 1, C]
        x = x.permute(1, 2, 0, 3).reshape(inner, x.size(2), outer * shape[-1])
        x = product_by_head(self.right, x).view(inner, self.heads or 1, outer, shape[-1])
        x = x.permute(2, 1, 0, 3).reshape(outer, x.size(1), inner * shape[-1])
        x = product_by_head(self.left, x).view(outer, self.heads or 1, inner, shape[-1])
        return x.transpose(1, 2).reshape(shape)


def _with_rows(operator: MaskOperator) -> Part:
    """A term of a sum, and the factors of its rows."""
    if isinstance(operator, DiagonalScaledOperator) and operator.right is None:
        return Part(operator.operator, scale=operator.left)
    return Part(operator)


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    """Block-diagonal matrix of ``[n, n]`` or ``[H, n, n]`` blocks."""
    if len(blocks) == 1:
        return blocks[0]
    ends = [0, *accumulate(block.size(-1) for block in blocks)]
    rows = [pad(block, (start, ends[-1] - stop)) for block, start, stop in zip(blocks, ends, ends[1:])]
    return torch.cat(rows, dim=-2)


def _join_pairs(parts: list[tuple[Pattern, Entries]], heads: int | None) -> tuple[Pattern, Tensor]:
    """Pairs of any of several masks, and the sums of their entries."""
    patterns = [pattern for pattern, _ in parts]
    nodes = (x for pattern in patterns for x in pattern.nodes)
    joined, places = _union(*nodes, patterns[0].num_rows, patterns[0].num_cols)
    values = [evaluate(entries) for _, entries in parts]
    if heads is not None:
        values = [x if x.dim() == 2 else x[:, None].expand(-1, heads) for x in values]
    terms = torch.cat(values)
    return joined, terms.new_zeros(joined.nnz, *terms.shape[1:]).index_add(0, places, terms)


@once_per_batch
def _union(*given: Any) -> tuple[Pattern, Tensor]:
    *nodes, num_rows, num_cols = given
    return Pattern.merge(torch.cat(nodes[::2]), torch.cat(nodes[1::2]), num_rows, num_cols)
