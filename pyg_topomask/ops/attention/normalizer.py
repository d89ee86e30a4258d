r"""What masked attention divides by, one rule for every kernel and every path.

With the bounding mask :math:`B_{ij} \ge |M_{ij}|` and the kernel's size :math:`|K|_{ij} \ge |K_{ij}|`, which is the
kernel itself where features are not negative,

.. math:: S_i = \sum_j B_{ij} |K|_{ij}.

``normalizer="bound"`` divides by :math:`S_i`: outputs keep the signs of the mask, never exceed the largest value, and
nothing cancels. Where neither mask nor kernel can be negative, :math:`S_i` is the denominator of the papers.
``normalizer="signed"`` divides by :math:`\sum_j M_{ij} K_{ij}`, the papers' own, which learned signs can bring near
zero; the output is zero where it is at most min(terms of a row, 1024) machine epsilons times :math:`S_i`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.attention.inputs import from_origin, with_ones
from pyg_topomask.ops.attention.mask import AttentionMask, row_errors
from pyg_topomask.ops.blocks import BlockLayout, block_layout, one_graph_layout
from pyg_topomask.ops.dropout import dropout as zero_some
from pyg_topomask.ops.numerics import weighted_mean
from pyg_topomask.ops.segment import in_groups, segment_max, segment_sum
from pyg_topomask.ops.sparse import Pattern, spmm

NORMALIZERS = ("bound", "signed")

# Terms of a sum beyond which its rounding error is not taken to grow: errors of many terms largely cancel.
_MOST_TERMS = 1024


class Normalizer(NamedTuple):
    """A mask, its bounding mask and which of the two denominators is wanted."""

    mask: AttentionMask
    bound: AttentionMask
    signed: bool

    @classmethod
    def of(cls, mask: AttentionMask, normalizer: str) -> Normalizer:
        """The normaliser of a mask, by name. Raises NotImplementedError if the mask has no bounding mask."""
        return cls(mask, mask.bound, normalizer == "signed")

    def pairs(self, dtype: torch.dtype, rows: tuple[int, int] | None = None) -> tuple[Pattern, Tensor, Tensor]:
        """Support, entries and bounds, ``[P]`` or ``[P, H]``; the same tensor twice if the mask is its own bound.

        Args:
            dtype: Dtype of entries and bounds.
            rows: First row and the one after the last; all rows, perhaps rearranged, if :obj:`None`.

        Raises:
            ValueError: If the mask has no sparse support.
        """

        def listed(mask: AttentionMask) -> tuple[Pattern, Tensor]:
            pattern, entries = mask.pairs() if rows is None else mask.row_pairs(*rows)
            return pattern, entries.to(dtype)

        pattern, entries = listed(self.mask)
        return pattern, entries, entries if self.bound is self.mask else listed(self.bound)[1]

    def blocks(self, layout: BlockLayout, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Entries and bounds of each group of graphs, ``[g, H or 1, n, n]``, senders before receivers.

        Raises:
            ValueError: If the mask is not known by its blocks, or joins two graphs.
        """
        entries = [_with_heads(block, dtype) for block in self.mask.blocks(layout)]
        if self.bound is self.mask:
            return [(entry, entry) for entry in entries]
        return list(zip(entries, (_with_heads(block, dtype) for block in self.bound.blocks(layout))))

    def dense(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Entries and bounds of the whole mask as one block, ``[1, H or 1, N, N]``, senders before receivers."""
        entry = _with_heads(self.mask.to_dense().mT[None], dtype)
        return entry, entry if self.bound is self.mask else _with_heads(self.bound.to_dense().mT[None], dtype)

    def from_origin(self, v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`from_origin` where the weights of a node add up to one, else the values as they are."""
        return from_origin(v, batch) if self.bound is self.mask else (v, None)

    def mean(
        self,
        sums: Tensor,
        v: Tensor,
        batch: Tensor | None,
        origin: Tensor | None = None,
        floor: Tensor | None = None,
    ) -> Tensor:
        """Weighted means ``[N, H, D]`` of sums ``[N, H, D + 1]`` or ``[N, H, D + 2]``, as `weighted_mean` reads them.

        Args:
            sums: The sums.
            v: Values, shape ``[N, H, D]``.
            batch: Graph of each node.
            origin: What was taken from the values before they were summed.
            floor: Size below which a denominator is the error of the mask's products, shape ``[N, H, 1]``.
        """
        out = weighted_mean(sums, v.size(-1), row_tolerance(v, batch, self.signed, self.mask), floor, origin)
        if floor is None or self.signed:
            return out
        largest = v.detach().abs()  # what approximate products add must not exceed it either
        largest = largest.amax(0) if batch is None else segment_max(largest, batch).index_select(0, batch)
        return out.clamp(-largest, largest)


def check_normalizer(normalizer: str) -> None:
    """Refuse an unknown name. Raises ValueError."""
    if normalizer not in NORMALIZERS:
        raise ValueError(f"'normalizer' must be one of {', '.join(NORMALIZERS)} (got {normalizer!r})")


def row_tolerance(x: Tensor, batch: Tensor | None, signed: bool, mask: AttentionMask | None = None) -> float | Tensor:
    """Size of a denominator of rounding errors alone, relative to :math:`S_i`: a number, or ``[N, 1, 1]``.

    It depends on the node's own graph, not on the others in the batch.
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
    pattern: Pattern, weight: Tensor, total: Tensor | None, v: Tensor, signed: bool, dropout: float = 0.0
) -> Tensor:
    """One head's sums over the support of a mask.

    Args:
        pattern: The support, ``P`` pairs.
        weight: Weights :math:`M_{ij} K_{ij}`, shape ``[P]``.
        total: Weights :math:`B_{ij} |K|_{ij}`, shape ``[P]``; the former themselves if :obj:`None`.
        v: Values, shape ``[N, D]``.
        signed: Whether the denominator is the sum of the former.
        dropout: Probability of zeroing a weight; the denominator keeps it.

    Returns:
        Shape ``[N, D + 1]`` or ``[N, D + 2]``, as `weighted_mean` reads it.
    """
    ones = v.new_ones(v.size(0), 1)
    if dropout:
        parts = [spmm(pattern, zero_some(weight, dropout), v.contiguous())]
        parts += [spmm(pattern, weight, ones)] if total is None or signed else []
    else:
        parts = [spmm(pattern, weight, torch.cat([v, ones], 1) if total is None or signed else v.contiguous())]
    if total is not None:
        parts.append(spmm(pattern, total.detach() if signed else total, ones))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def sums_in_blocks(weight: Tensor, total: Tensor | None, v: Tensor, signed: bool, dropout: float = 0.0) -> Tensor:
    """Sums over dense blocks, senders before receivers; arguments as in `sums_on_pairs`.

    Channels come before nodes in the product: on CPU that is twice as fast for narrow heads.

    Args:
        weight: Shape ``[g, H, n, n]``.
        total: Shape ``[g, H, n, n]``.
        v: Shape ``[g, H, n, D]``.
        signed, dropout: As there.

    Returns:
        Shape ``[g, H, n, D + 1]`` or ``[g, H, n, D + 2]``.
    """
    values = v.mT
    if dropout:
        parts = [values @ zero_some(weight, dropout)]
        parts += [weight.sum(-2, keepdim=True)] if total is None or signed else []
    else:
        parts = [(with_ones(v).mT if total is None or signed else values).contiguous() @ weight]
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
    """Sums within each graph under its dense block of the mask, graphs of equal size in one call.

    Args:
        function: Takes entries and bounds ``[g, H or 1, n, n]`` of ``g`` graphs of ``n`` nodes, senders before
            receivers, and their ``q, k [g, H, n, R]`` and ``v [g, H, n, D]``; gives sums as `sums_in_blocks` does.
        masks: The mask.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        q, k: Shape ``[N, H, R]``.
        v: Shape ``[N, H, D]``.

    Returns:
        Shape ``[N, H, D + 1]`` or ``[N, H, D + 2]``.

    Raises:
        ValueError: If the mask is not known by its blocks, or joins two graphs.
    """
    layout = one_graph_layout(q.size(0), q.device) if batch is None else block_layout(batch)
    blocks = masks.blocks(layout, q.dtype)
    if not blocks:
        return with_ones(v)
    of_group = {graphs[0]: block for graphs, block in zip(layout.groups.graphs, blocks)}
    return in_groups(lambda graphs, *qkv: function(*of_group[graphs[0]], *qkv), layout.groups, q, k, v)


def error_floor(masks: Normalizer, kernel_size: Callable[[], Tensor]) -> Tensor | None:
    """Size of a denominator within the error of the mask's products; :obj:`None` where they are exact.

    Args:
        masks: The mask.
        kernel_size: Gives the size of each row of the kernel over its graph, shape ``[N, H, 1]``: its norm where the
            mask multiplies the kernel's features, its sum where each entry of the mask has an error of its own.
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
        tolerance: Size of a signed denominator that vanishes, relative to :math:`S_i`.
    """
    weight = mask * kernel
    bound = torch.where(mask < 0, -mask, mask) if bound is None else bound
    total = (bound * size).sum(-1, keepdim=True)
    denominator = total if normalizer == "bound" else weight.sum(-1, keepdim=True)
    vanished = denominator.abs() <= tolerance * total
    return torch.where(vanished, 0, weight @ v.transpose(0, 1) / denominator.where(~vanished, 1)).transpose(0, 1)


def _with_heads(block: Tensor, dtype: torch.dtype) -> Tensor:
    return (block[:, None] if block.dim() == 3 else block).to(dtype)
