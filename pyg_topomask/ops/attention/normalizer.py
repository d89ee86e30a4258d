r"""The denominators of masked attention: one rule for all kernels and all paths.

Let :math:`B_{ij} \ge |M_{ij}|` be the bounding mask, and let :math:`|K|_{ij} \ge |K_{ij}|` be the size of the kernel,
which is the kernel itself if no feature is negative. Then

.. math:: S_i = \sum_j B_{ij} |K|_{ij}.

``normalizer="bound"`` divides by :math:`S_i`. Outputs keep the signs of the mask, never exceed the largest value, and
nothing cancels. If neither mask nor kernel can be negative, :math:`S_i` is the denominator of the papers.
``normalizer="signed"`` divides by :math:`\sum_j M_{ij} K_{ij}`, as the papers do. Learned signs can bring this sum
close to zero; the output is zero if the sum is at most min(terms of a row, 1024) machine epsilons times :math:`S_i`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask.ops.attention.inputs import from_origin, with_ones
from pyg_topomask.ops.attention.mask import AttentionMask, row_errors
from pyg_topomask.ops.blocks import BlockLayout, block_layout, one_graph_layout
from pyg_topomask.ops.dropout import dropout as zero_some
from pyg_topomask.ops.numerics import weighted_mean
from pyg_topomask.ops.segment import in_groups, segment_max, segment_sum
from pyg_topomask.ops.sparse import Combination, Pattern, spmm

# The rounding error of a sum is assumed to grow up to this number of terms; errors of more terms largely cancel.
_MOST_TERMS = 1024


class Normalizer(NamedTuple):
    """A mask, its bounding mask, and the choice of the denominator."""

    mask: AttentionMask
    bound: AttentionMask
    signed: bool
    """Whether the denominator is the signed sum."""

    @classmethod
    def of(cls, mask: AttentionMask, normalizer: str) -> Normalizer:
        """The normaliser with the given name, of a mask whose scale is taken out because it cancels.

        Raises:
            NotImplementedError: If the mask has no bounding mask.
        """
        mask = mask.rescaled
        return cls(mask, mask.bound, normalizer == "signed")

    def pairs(self, dtype: torch.dtype, rows: tuple[int, int] | None = None) -> tuple[Pattern, Tensor, Tensor]:
        """Support, entries and bounds, ``[P]`` or ``[P, H]``; the same tensor twice if the mask is its own bound.

        Args:
            dtype: Dtype of entries and bounds.
            rows: First row and last row + 1; all rows, possibly permuted (`Pattern.order`), if :obj:`None`.

        Raises:
            ValueError: If the mask has no sparse support.
        """

        def listed(mask: AttentionMask) -> tuple[Pattern, Tensor]:
            pattern, entries = mask.pairs() if rows is None else mask.row_pairs(*rows)
            return pattern, entries.to(dtype)

        pattern, entries = listed(self.mask)
        return pattern, entries, entries if self.bound is self.mask else listed(self.bound)[1]

    def combined_pairs(self, like: Tensor) -> tuple[Pattern, Tensor | Combination, Tensor | Combination]:
        """As `pairs`, with entries that are not evaluated if the mask has coefficients.

        Entries that several heads share are evaluated, once for all heads.

        Args:
            like: Array of all heads, shape ``[N, H, *]``, with the dtype of entries and bounds.

        Raises:
            ValueError: If the mask has no sparse support.
        """
        found = self.mask.combined_pairs()
        if found is None or found[1].coeffs.dtype != like.dtype or (found[1].weights.dim() == 1 and like.size(1) > 1):
            return self.pairs(like.dtype)
        bound = found if self.bound is self.mask else self.bound.combined_pairs()
        assert bound is not None
        return *found, bound[1]

    def blocks(self, layout: BlockLayout, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Entries and bounds of each group of graphs, ``[g or 1, H or 1, n, n]`` (senders, receivers).

        Raises:
            ValueError: If the mask has no blocks, or connects two graphs.
        """
        entries = [_with_heads(block, dtype) for block in self.mask.blocks(layout)]
        if self.bound is self.mask:
            return [(entry, entry) for entry in entries]
        return list(zip(entries, (_with_heads(block, dtype) for block in self.bound.blocks(layout))))

    def dense(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Entries and bounds of the whole mask as one block, ``[1, H or 1, N, N]`` (senders, receivers)."""
        entry = _with_heads(self.mask.to_dense().mT[None], dtype)
        return entry, entry if self.bound is self.mask else _with_heads(self.bound.to_dense().mT[None], dtype)

    def from_origin(self, v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Apply `from_origin` if the weights of each node add up to one; otherwise return the values unchanged."""
        return from_origin(v, batch) if self.bound is self.mask else (v, None)

    def mean(
        self,
        sums: Tensor,
        v: Tensor,
        batch: Tensor | None,
        origin: Tensor | None = None,
        floor: Tensor | None = None,
    ) -> Tensor:
        """Outputs ``[N, H, D]`` of attention.

        Args:
            sums: Sums in the form of `weighted_mean`, shape ``[N, H, D + 1]`` or ``[N, H, D + 2]``.
            v: Values, shape ``[N, H, D]``.
            batch: Graph of each node.
            origin: Origin that was subtracted from the values before they were summed.
            floor: Error of the denominator due to approximate products with the mask, shape ``[N, H, 1]``; none if
                :obj:`None`.
        """
        out = weighted_mean(sums, v.size(-1), row_tolerance(v, batch, self.signed, self.mask), floor, origin)
        if floor is None or self.signed:
            return out
        largest = v.detach().abs()  # the error of approximate products must not exceed it either
        largest = largest.amax(0) if batch is None else segment_max(largest, batch).index_select(0, batch)
        # Derivative 1 everywhere: if all values are equal, rounding decides which outputs lie beyond the largest.
        return out.detach().clamp(-largest, largest) + (out - out.detach())


def row_tolerance(x: Tensor, batch: Tensor | None, signed: bool, mask: AttentionMask | None = None) -> float | Tensor:
    """Rounding error of a denominator relative to :math:`S_i`: a number, or a tensor ``[N, 1, 1]``.

    It depends only on the node's own graph, not on the other graphs of the batch.
    """
    eps = torch.finfo(x.dtype).eps
    if not signed:
        return eps
    terms = _MOST_TERMS
    if mask is not None:
        eps, terms = max(eps, mask.eps), min(terms, mask.row_terms)
    if batch is None:
        return eps * min(terms, x.size(0))
    size = segment_sum(x.new_ones(x.size(0), 1, 1), batch).index_select(0, batch)
    return eps * size.clamp(max=terms)


def sums_on_pairs(
    pattern: Pattern, weight: Tensor, total: Tensor | None, v: Tensor, signed: bool, dropout: float | Tensor = 0.0
) -> Tensor:
    """One head's sums over the support of a mask.

    Args:
        pattern: The support, ``P`` pairs.
        weight: Weights :math:`M_{ij} K_{ij}`, shape ``[P]``.
        total: Weights :math:`B_{ij} |K|_{ij}`, shape ``[P]``; the same as ``weight`` if :obj:`None`.
        v: Values, shape ``[N, D]``.
        signed: Whether the denominator is the sum of ``weight``.
        dropout: Probability of zeroing a weight in the numerator, or factors of these weights, shape ``[P]``.

    Returns:
        Shape ``[N, D + 1]`` or ``[N, D + 2]``, in the form of `weighted_mean`.
    """
    ones = v.new_ones(v.size(0), 1)
    if isinstance(dropout, Tensor) or dropout > 0:
        kept = weight * dropout if isinstance(dropout, Tensor) else zero_some(weight, dropout)
        parts = [spmm(pattern, kept, v.contiguous())]
        parts += [spmm(pattern, weight, ones)] if total is None or signed else []
    else:
        parts = [spmm(pattern, weight, torch.cat([v, ones], 1) if total is None or signed else v.contiguous())]
    if total is not None:
        parts.append(spmm(pattern, total.detach() if signed else total, ones))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def sums_in_blocks(weight: Tensor, total: Tensor | None, v: Tensor, signed: bool, dropout: float = 0.0) -> Tensor:
    """Sums over dense blocks; arguments as in `sums_on_pairs`.

    In the product, channels come before nodes, which is twice as fast on CPU for narrow heads.

    Args:
        weight, total: Weights (senders, receivers), shape ``[g, H, n, n]``.
        v: Values, shape ``[g, H, n, D]``.
        signed, dropout: As in `sums_on_pairs`.

    Returns:
        Shape ``[g, H, n, D + 1]`` or ``[g, H, n, D + 2]``.
    """
    values = v.mT
    if dropout:
        parts = [values @ zero_some(weight, dropout)]
        parts += [weight.sum(-2, keepdim=True)] if total is None or signed else []
    else:
        parts = [(pad(values, (0, 0, 0, 1), value=1.0) if total is None or signed else values.contiguous()) @ weight]
    if total is not None:
        parts.append((total.detach() if signed else total).sum(-2, keepdim=True))
    return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)).mT


def sums_of_blocks(
    function: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor],
    masks: Normalizer,
    batch: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Sums within each graph, with its dense block of the mask; graphs of equal size are computed in one call.

    Args:
        function: Takes entries and bounds ``[g or 1, H or 1, n, n]`` (senders, receivers) of ``g`` graphs of ``n``
            nodes, and their ``q, k [g, H, n, R]`` and ``v [g, H, n, D]``; returns sums in the form of `sums_in_blocks`.
        masks: The mask.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        q, k: Shape ``[N, H, R]``.
        v: Shape ``[N, H, D]``.

    Returns:
        Shape ``[N, H, D + 1]`` or ``[N, H, D + 2]``.

    Raises:
        ValueError: If the mask has no blocks, blocks of another shape, or connects two graphs.
    """
    layout = one_graph_layout(q.size(0), q.device) if batch is None else block_layout(batch)
    blocks = masks.blocks(layout, q.dtype)
    if not blocks:
        return with_ones(v)
    for (num_graphs, nodes), pair in zip(layout.groups.shapes, blocks, strict=True):
        _check_shapes(pair, num_graphs, q.size(1), nodes)
    of_group = {graphs[0]: block for graphs, block in zip(layout.groups.graphs, blocks)}
    return in_groups(lambda graphs, *qkv: function(*of_group[graphs[0]], *qkv), layout.groups, q, k, v)


def _check_shapes(pair: tuple[Tensor, Tensor], num_graphs: int, heads: int, nodes: int) -> None:
    """Refuse entries or bounds of a group of graphs that compiled code would read beyond their end."""
    for block in pair:
        fits = block.dim() == 4 and block.size(0) in (1, num_graphs) and block.size(1) in (1, heads)
        if not fits or block.shape[2:] != (nodes, nodes):
            raise ValueError(
                f"the mask's block of {num_graphs} graphs of {nodes} nodes must be [1 or {num_graphs}, 1 or {heads}, "
                f"{nodes}, {nodes}] (got {list(block.shape)}): correct 'blocks' of the mask's operator"
            )


def error_floor(masks: Normalizer, kernel_size: Callable[[], Tensor]) -> Tensor | None:
    """Error of each denominator due to approximate products with the mask; :obj:`None` if they are exact.

    Args:
        masks: The mask.
        kernel_size: Computes the size of each row of the kernel within its graph, shape ``[N, H, 1]``: the norm of the
            row if the mask multiplies the kernel's features, the sum of the row if each mask entry has its own error.
    """
    errors = row_errors(masks.mask)
    if errors is None:
        return None
    with torch.no_grad():
        size = kernel_size()
        return errors[..., None].to(size) * size


def normalized_reference(
    kernel: Tensor,
    size: Tensor,
    v: Tensor,
    mask: Tensor,
    bound: Tensor | None = None,
    normalizer: str = "bound",
    tolerance: float = 0.0,
) -> Tensor:
    """Masked attention from its definition with dense arrays, for tests.

    Args:
        kernel, size: The kernel and its size, shape ``[H, N, N]``.
        v: Values, shape ``[N, H, D]``.
        mask: Mask, shape ``[N, N]`` or ``[H, N, N]``.
        bound: Bounding mask; the absolute value of the mask if :obj:`None`.
        normalizer: ``"bound"`` or ``"signed"``.
        tolerance: A signed denominator up to this multiple of :math:`S_i` counts as zero.
    """
    weight = mask * kernel
    bound = torch.where(mask < 0, -mask, mask) if bound is None else bound
    total = (bound * size).sum(-1, keepdim=True)
    denominator = total if normalizer == "bound" else weight.sum(-1, keepdim=True)
    vanished = denominator.abs() <= tolerance * total
    return torch.where(vanished, 0, weight @ v.transpose(0, 1) / denominator.where(~vanished, 1)).transpose(0, 1)


def _with_heads(block: Tensor, dtype: torch.dtype) -> Tensor:
    return (block[:, None] if block.dim() == 3 else block).to(dtype)
