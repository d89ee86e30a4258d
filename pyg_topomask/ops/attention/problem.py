r"""What is asked of masked attention: one problem, which every engine understands.

Let :math:`B_{ij} \ge |M_{ij}|` be the bounding mask, and let :math:`|K|_{ij} \ge |K_{ij}|` be the size of the kernel,
which is the kernel itself if no feature is negative. Then

.. math:: \mathrm{out}_i = \frac{\sum_j M_{ij} K_{ij} v_j}{S_i}, \qquad S_i = \sum_j B_{ij} |K|_{ij}.

Outputs keep the signs of the mask, never exceed the largest value, and nothing cancels. If neither mask nor kernel can
be negative, :math:`S_i` is the denominator of the papers. If it is ``signed``, the denominator is :math:`\sum_j M_{ij}
K_{ij}`, as in the papers. Learned signs can bring it close to zero; the output is zero if it is at most min(terms of a
row, 1024) machine epsilons times :math:`S_i`.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_topomask.limits import limits
from pyg_topomask.ops.attention.kernels import EdgeVectors, Kernel
from pyg_topomask.ops.attention.mask import AttentionMask, Entries, Rows, evaluate, row_errors
from pyg_topomask.ops.blocks import BlockLayout, layout_of
from pyg_topomask.ops.memo import cached, once_per_batch
from pyg_topomask.ops.numerics import at_least_float32, least_denominator
from pyg_topomask.ops.segment import SizeGroups, segment_max, segment_sum, size_groups
from pyg_topomask.ops.sparse import Combination, Pattern

# The rounding error of a sum is assumed to grow up to this number of terms; errors of more terms largely cancel.
_MOST_TERMS = 1024

# If the terms of a mask are so many times the pairs of nodes of the graphs, nearly all of these have an entry.
_FULL = 4

# Numbers of a pair's key and value, above which products of whole matrices are faster than C++ and Triton code.
_MOST_COMPILED = 256


class Pairs(NamedTuple):
    """The support of a mask, and the entries of mask and bounding mask, not evaluated if the mask has coefficients."""

    pattern: Pattern
    entries: Entries
    bounds: Entries
    """The same object as ``entries`` if the mask is its own bound."""

    def evaluated(self) -> tuple[Pattern, Tensor, Tensor]:
        """The pattern, and entries and bounds ``[P]`` or ``[P, H]``; the same tensor if the mask is its own bound."""
        entries = evaluate(self.entries)
        return self.pattern, entries, entries if self.bounds is self.entries else evaluate(self.bounds)


@dataclass(frozen=True, eq=False)
class Problem:
    """Queries, keys and values, their kernel, and the mask. Engines get `wide` problems, apart from `pairs_triton`."""

    kernel: Kernel
    q: Tensor
    """Queries, shape ``[N, H, R]``, or those of some rows."""
    k: Tensor
    """Keys, shape ``[N, H, R]``."""
    v: Tensor
    """Values, shape ``[N, H, D]``."""
    mask: Any = None
    """The mask, an `AttentionMask`, block-diagonal over the batch; ones within each graph if :obj:`None`."""
    batch: Tensor | None = None
    """Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`."""
    rows: Rows | None = None
    """The rows of which ``q`` holds the queries; all if :obj:`None`."""
    edges: EdgeVectors | None = None
    """Vectors that multiply the keys of pairs; none if :obj:`None`."""
    signed: bool = False
    """Whether the denominator is the signed sum."""
    dropout: float = 0.0
    """Probability of zeroing a weight in the numerator."""

    @property
    def wide(self) -> "Problem":
        """The problem in float32 or float64: half precision is widened."""
        q, k, v = at_least_float32(self.q, self.k, self.v)
        return self if v is self.v else replace(self, q=q, k=k, v=v)  # what `self` has derived stays known

    @cached
    def bound(self) -> AttentionMask:
        """The bounding mask."""
        return self.mask.bound

    @property
    def owns_bound(self) -> bool:
        """Whether the mask is its own bounding mask."""
        return self.bound is self.mask

    @property
    def size(self) -> tuple[int, int, int, int]:
        """Numbers of nodes, heads, features and channels: ``N, H, R, D``."""
        return self.k.size(0), self.k.size(1), self.k.size(2), self.v.size(2)

    @cached
    def errors(self) -> float | Tensor | None:
        """Error of the mask's entries, or of those of each row, ``[N, H or 1]``; :obj:`None` if products are exact."""
        error = None if self.mask is None else self.mask.error
        return row_errors(self.mask) if isinstance(error, Tensor) else error or None

    @cached
    def support(self) -> Any:
        """The `Support` of the mask; :obj:`None` if it has none."""
        return None if self.mask is None else self.mask.support

    @cached
    def num_pairs(self) -> int:
        """Number of pairs in the support, or an upper bound; pairs of many hubs are not listed for it, nor those that
        nearly fill dense blocks, which are cheaper.
        """
        if self.mask.dense_blocks is not None and self.rows is None and not self.v.is_cuda:
            most = sum(n * n for n in self.groups.num_nodes)
            if _sum(self.support.by_row()) > _FULL * most:
                return most
        return self.support.count()

    @cached
    def num_terms(self) -> int:
        """Upper bound on the pairs, which costs little."""
        return self.num_pairs if self.support.kept else _sum(self.support.by_row())

    @property
    def most_pairs(self) -> int:
        """Number of pairs that are listed together at most."""
        return min(max(limits.pairs_at_once, self.pairs_of_stored), limits.entries)

    @property
    def pairs_of_stored(self) -> int:
        """Number of pairs that may always be listed together, because it is proportional to the numbers of the mask.

        Linear kernels allow more pairs, because compiled code keeps nothing per pair and head.
        """
        per_number = limits.per_stored // (1 if self.kernel.name == "linear" else 16)
        return per_number * int(self.mask.product.count())

    @cached
    def has_hubs(self) -> bool:
        """Whether the mask has too many pairs to be listed together.

        Any two nodes whose walks visit the same hub form a pair: their number grows with the square of a hub's degree.
        """
        return self.rows is None and self.k.size(0) ** 2 > self.most_pairs and self.num_terms > self.most_pairs

    @property
    def no_pairs(self) -> str | None:
        """Why the pairs of the mask cannot be listed together; :obj:`None` if they can."""
        if self.mask is None:
            return "there is no mask"
        if self.support is None:
            return f"it needs a sparse support, and {type(self.mask).__name__} has none"
        if self.has_hubs:
            return f"the mask has up to {self.num_terms:,} pairs, too many to be listed together"
        return None

    @property
    def no_compiled_pairs(self) -> str | None:
        """Why C++ and Triton code do not serve the pairs of the mask; :obj:`None` if they do."""
        if self.no_pairs is not None:
            return self.no_pairs
        if self.signed or self.kernel.signed_features:
            return "it serves features and denominators without signs"
        _, _, width, channels = self.size
        if 0 in (width, channels) or width + channels > _MOST_COMPILED:
            return f"keys and values of no, or of more than {_MOST_COMPILED}, numbers are faster as matrices"
        return None

    @property
    def no_blocks(self) -> str | None:
        """Why there are no dense blocks of the mask; :obj:`None` if there are."""
        if self.mask is None:
            return "there is no mask"
        if self.mask.dense_blocks is None:
            return f"it needs the dense blocks of graphs, and {type(self.mask).__name__} has none"
        return None

    @cached
    def groups(self) -> SizeGroups:
        """Groups of graphs of similar size."""
        return size_groups(self.k.size(0) if self.batch is None else self.batch)

    def pairs(self) -> Pairs:
        """The pairs of the rows, listed anew unless the mask keeps them."""
        pattern, entries = self.support.pairs(self.rows)
        entries = self._cast(entries)
        if self.owns_bound:
            return Pairs(pattern, entries, entries)
        support: Any = self.bound.support
        return Pairs(pattern, entries, self._cast(support.pairs(self.rows)[1]))

    def _cast(self, entries: Entries) -> Entries:
        """Entries in the dtype of sums. Entries that several heads share are evaluated, once for all heads."""
        dtype = torch.promote_types(self.v.dtype, torch.float32)
        if isinstance(entries, Combination):
            shared = entries.weights.dim() == 1 and self.v.size(1) > 1
            if entries.coeffs.dtype == dtype and entries.coeffs.size(0) and not shared:
                return entries
        return evaluate(entries).to(dtype)

    @property
    def layout(self) -> BlockLayout:
        """The graphs' blocks."""
        return layout_of(self.batch, self.k)

    def blocks(self) -> list[tuple[Tensor, Tensor]]:
        """Entries and bounds of each group of graphs of `layout`, ``[g or 1, H or 1, n, n]`` (senders, receivers); the
        same tensor if the mask is its own bound.

        Raises:
            ValueError: If the mask connects two graphs, or its operator gives blocks of another shape.
        """
        entries = self._blocks_of(self.mask)
        return list(zip(entries, entries if self.owns_bound else self._blocks_of(self.bound)))

    def _blocks_of(self, mask: Any) -> list[Tensor]:
        blocks = [_with_heads(block, self.v.dtype) for block in mask.dense_blocks.make(self.layout)]
        for (num_graphs, nodes), block in zip(self.layout.groups.shapes, blocks, strict=True):
            fits = block.dim() == 4 and block.size(0) in (1, num_graphs) and block.size(1) in (1, self.v.size(1))
            if not fits or block.shape[2:] != (nodes, nodes):  # compiled code would read beyond its end
                raise ValueError(
                    f"the mask's block of {num_graphs} graphs of {nodes} nodes must be [1 or {num_graphs}, 1 or "
                    f"{self.v.size(1)}, {nodes}, {nodes}] (got {list(block.shape)}): correct 'dense_blocks' of the "
                    "mask's operator"
                )
        return blocks

    def dense(self) -> tuple[Tensor, Tensor]:
        """Entries and bounds of the whole mask as one block, ``[1, H or 1, N, N]`` (senders, receivers)."""
        entry = _with_heads(self.mask.to_dense().mT[None], self.v.dtype)
        return entry, entry if self.owns_bound else _with_heads(self.bound.to_dense().mT[None], self.v.dtype)

    def row_norm(self, kernel: Tensor | None = None, bound: Tensor | None = None) -> Tensor | None:
        r"""Norm of each row of the kernel within its graph, by which errors of the mask grow.

        Args:
            kernel: Sizes of the kernel in blocks, ``[g, H, n, n]`` (senders, receivers); if :obj:`None`, the upper
                bound :math:`\sum_r |q_{ir}| \|k_{\cdot r}\|_2` for a linear kernel.
            bound: Blocks of the bounding mask, in the same form; pairs with bound 0 are ignored.

        Returns:
            Shape ``[N, H, 1]``, or ``[g, H, n, 1]`` for blocks; :obj:`None` if products with the mask are exact.
        """
        if self.errors is None:
            return None
        with torch.no_grad():
            if kernel is not None:
                return torch.linalg.vector_norm(kernel * (bound != 0), dim=-2)[..., None]
            squares = self.k.square()
            norms = squares.sum(0) if self.batch is None else segment_sum(squares, self.batch)[self.batch]
            return (self.q.abs() * norms.sqrt()).sum(-1, keepdim=True)

    def finish(self, sums: Tensor, row_norm: Tensor | None = None) -> Tensor:
        """Outputs ``[N, H, D]``: the numerator over the denominator, zero with zero gradient where it vanishes.

        The denominator vanishes if it is within its own rounding error, if it is not larger than the error of
        approximate products with the mask, or if :math:`S_i` is close to underflow: the terms then lack significant
        digits, and the reciprocal may overflow.

        Args:
            sums: Sums in the form of `Kernel`, shape ``[N, H, D + 1]`` or ``[N, H, D + 2]``.
            row_norm: What `row_norm` returns, ``[N, H, 1]``; the sums are exact up to rounding if :obj:`None`.
        """
        channels = self.v.size(-1)
        numerator, denominator, *total = sums.split([channels] + [1] * (sums.size(-1) - channels), dim=-1)
        vanished = self.vanished(denominator, (total or [denominator])[0].detach(), row_norm)
        out = numerator / denominator.masked_fill(vanished, torch.inf)
        if row_norm is None or self.signed:
            return out
        largest = self.v.detach().abs()  # the error of approximate products must not exceed it either
        largest = largest.amax(0) if self.batch is None else segment_max(largest, self.batch)[self.batch]
        # Derivative 1 everywhere: if all values are equal, rounding decides which outputs lie beyond the largest.
        return out.detach().clamp(-largest, largest) + (out - out.detach())

    def vanished(self, denominator: Tensor, total: Tensor, row_norm: Tensor | None) -> Tensor:
        """Where a denominator vanishes, given :math:`S_i` and what `row_norm` returns, all ``[N, H, 1]``."""
        least: Any = least_denominator(total.dtype)
        if row_norm is not None:
            errors: Any = self.errors  # a norm comes with errors
            if isinstance(errors, Tensor):
                errors = (errors if self.rows is None else errors[slice(*self.rows)])[..., None].to(total)
            least = (row_norm * errors).clamp(min=least)
        if self.signed:
            return (total < least) | (denominator.detach().abs() <= (self._tolerance() * total).clamp(min=least))
        return total <= least

    def _tolerance(self) -> float | Tensor:
        """Rounding error of a signed denominator relative to :math:`S_i`: a number, or a tensor ``[N, 1, 1]``.

        It depends only on the node's own graph, not on the other graphs of the batch.
        """
        eps, terms = torch.finfo(self.v.dtype).eps, _MOST_TERMS
        if self.mask is not None:
            eps = max(eps, self.mask.eps)
        if self.batch is None:
            return eps * min(terms, self.k.size(0))
        ones = self.v.new_ones(self.k.size(0), 1, 1)
        size = segment_sum(ones, self.batch).index_select(0, self.batch).clamp(max=terms)
        return eps * (size if self.rows is None else size[slice(*self.rows)])


@once_per_batch
def _sum(counts: Tensor) -> int:
    """The sum on the host; on CUDA, only the first call for the same counts waits for the device."""
    return int(counts.sum())


def _with_heads(block: Tensor, dtype: torch.dtype) -> Tensor:
    return (block[:, None] if block.dim() == 3 else block).to(dtype)
