r"""Attention under a topological mask that is known by its products.

.. math:: \mathrm{out}_i = \frac{\sum_j M_{ij} K(q_i, k_j)\, v_j}{\sum_j M_{ij} K(q_i, k_j)}

Reference: Choromanski et al., *From block-Toeplitz Matrices to Differential Equations on Graphs*, ICML 2022,
arXiv:2107.07999, Definition 2.1, Lemma 3.1 and Algorithm 1; the pairwise path is Reid et al. 2024, arXiv:2410.03462,
Algorithm 1, evaluated on the support of the mask.

A mask is anything with ``@``. Where it has them, these make it faster: ``heads``; ``work``, the multiply-adds of one
column of ``mask @ x``; ``num_pairs`` and ``pairs()``, its support and entries; ``has_blocks`` and ``blocks(layout)``,
each graph's dense block; ``to_dense()``.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask.ops.blocks import BlockLayout, block_layout, count_block_entries
from pyg_topomask.ops.dropout import dropout as zero_some
from pyg_topomask.ops.segment import check_batch, in_groups, segment_linear_attention, segment_max
from pyg_topomask.ops.softmax_attention import segment_softmax_attention
from pyg_topomask.ops.sparse import sampled_product, spmm
from pyg_topomask.typing import PerformanceWarning

PATHS = ("auto", "factored", "pairwise", "blocks", "dense")

# Numbers in one slice of the factored path's N × m(d+1) intermediate, and the fewest columns worth one product.
_SLICE_NUMEL = 2**24
_SLICE_COLUMNS = 64

# Entries of dense blocks for each number that a mask stores, up to which blocks are taken. A pair in a block costs a
# fifth to a tenth of one in a sparse pattern, and no pattern need be found; the limit keeps memory within a constant
# of the stored numbers.
_BLOCK_ENTRIES = 4

# Scoring a pair costs as much as this many features more than it has, and a multiply-add in a product with the mask as
# much as this many on pairs: measured on CPU for 4 to 256 features, 4 to 32 channels and 10 to 1,600 pairs a node.
_PAIR_OVERHEAD = 96
_FACTORED_COST = 4


def masked_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, batch: Tensor | None = None, path: str = "auto"
) -> Tensor:
    r"""Attention with the kernel :math:`K(q_i, k_j) = q_i \cdot k_j` of features that a feature map has produced.

    Where the denominator vanishes, that is where it is at most machine epsilon times the sum of the absolute values
    of its terms, the output is zero with zero gradient, whatever the scale of ``mask``, ``q`` and ``k``. So it is where
    all terms are next to underflow (below 2^-112 in float32), as random features of very long queries are.
    The factored path takes the products of the mask with single features for its terms, so there a denominator of
    rounding alone is found unless it cancels within one of them.

    Cost, per head, with ``P`` pairs in the support of the mask and ``T`` multiply-adds in one product ``mask @ x``:
    factored :math:`O(T R D)` with at most 64 columns or 2^24 numbers of the intermediate in memory, recomputed in the
    backward pass; pairwise :math:`O(P (R + D))`; blocks :math:`O(S (R + D))` with :math:`S = \sum_g n_g^2` the pairs
    within graphs; dense :math:`O(N^2 (R + D))`; without a mask :math:`O(N R D)`.

    Args:
        q, k: Queries and keys after the feature map, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator ``[N, N]``, block-diagonal over the batch; ones within each graph if :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. A mask tells graphs apart itself.
        path: ``"factored"`` multiplies by the mask, ``"pairwise"`` scores the pairs in its support, ``"blocks"`` all
            pairs within graphs, ``"dense"`` forms the whole mask; ``"auto"`` weighs the work of each and takes the
            least. All give the same numbers.

    Returns:
        Shape ``[N, H, D]``, of the dtype of ``v``. Half precision inputs are computed in float32.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted or the mask cannot serve the path.
    """
    check_qkv(q, k, v)
    if path not in PATHS:
        raise ValueError(f"'path' must be one of {', '.join(PATHS)} (got {path!r})")
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, dtype = *at_least_float32(q, k, v), v.dtype
        if batch is not None:
            check_batch(batch, q.size(0))
        if mask is not None:
            check_mask(mask, q, path)
            path = choose_path(mask, q.size(-1), v.size(-1), batch) if path == "auto" else path
        scale_q, scale_k = _scales(q, k, batch)
        if mask is not None and path == "pairwise":  # scales each head by itself
            return _pairwise_linear(q, k, v, mask, scale_q, scale_k).to(dtype)
        q, k = q * scale_q, k * scale_k
        if mask is None:
            out = _unmasked_linear(q, k, v, batch)
        elif path == "blocks":
            out = _blocks(q, k, v, mask, batch)
        else:
            out = (_factored_linear if path == "factored" else _dense_linear)(q, k, v, mask)
    return out.to(dtype)


def masked_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Any = None, batch: Tensor | None = None, path: str = "auto"
) -> Tensor:
    r"""Attention with the exact softmax kernel :math:`K(q_i, k_j) = \exp(q_i \cdot k_j / \sqrt{R})`.

    Cost: :math:`O(P (R + D))` for a mask with a sparse support, :math:`O(N^2)` otherwise; without a mask, each graph's
    own softmax attention, no array over the whole batch.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator ``[N, N]``, block-diagonal over the batch; ones within each graph if :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. A mask tells graphs apart itself.
        path: ``"pairwise"``, ``"blocks"``, ``"dense"`` or ``"auto"``: blocks where graphs are small beside what the
            mask stores, pairwise where it has a sparse support.

    Returns:
        Shape ``[N, H, D]``. Rows whose denominator vanishes are zero, as in `masked_linear_attention`.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted or the mask cannot serve the path.
    """
    check_qkv(q, k, v)
    if path not in PATHS or path == "factored":
        raise ValueError(f"the softmax kernel takes path 'auto', 'pairwise', 'blocks' or 'dense' (got {path!r})")
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, dtype = *at_least_float32(q, k, v), v.dtype
        if batch is not None:
            check_batch(batch, q.size(0))
        if mask is None:
            return segment_softmax_attention(q, k, v, batch).to(dtype)
        check_mask(mask, q)
        if path == "auto" and prefers_blocks(mask, q.size(0), batch):
            path = "blocks"
        if path == "blocks":
            return _blocks(q, k, v, mask, batch, softmax=True).to(dtype)
        if path == "auto":
            path = "dense" if getattr(mask, "num_pairs", None) is None else "pairwise"
            if path == "dense" and not _is_dense(mask):
                warnings.warn("softmax attention forms this mask as a dense array", PerformanceWarning, stacklevel=3)
        out = (_softmax_pairwise if path == "pairwise" else _softmax_dense)(q, k, v, mask)
    return out.to(dtype)


def masked_linear_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, batch: Tensor | None = None
) -> Tensor:
    """`masked_linear_attention` from its definition, with a dense mask ``[N, N]`` or ``[H, N, N]``, for tests."""
    weight = torch.einsum("ihr,jhr->hij", q, k)
    if batch is not None:
        weight = weight * (batch[:, None] == batch)
    weight = weight if mask is None else weight * mask
    den = weight.sum(-1, keepdim=True)
    vanished = den.abs() <= torch.finfo(q.dtype).eps * weight.abs().sum(-1, keepdim=True)
    return torch.where(vanished, 0, weight @ v.transpose(0, 1) / den.where(~vanished, 1)).transpose(0, 1)


def choose_path(mask: Any, num_features: int, head_channels: int, batch: Tensor | None = None) -> str:
    """Path of least cost for a mask, ``R`` features and ``D`` channels per head."""
    if _is_dense(mask):
        return "dense"
    if prefers_blocks(mask, mask.num_nodes if hasattr(mask, "num_nodes") else 0, batch):
        return "blocks"
    num_pairs, work = getattr(mask, "num_pairs", None), getattr(mask, "work", None)
    if num_pairs is None or work is None:
        return "factored"
    scoring = num_pairs * (num_features + head_channels + _PAIR_OVERHEAD)
    return "pairwise" if scoring <= _FACTORED_COST * work * num_features * (head_channels + 1) else "factored"


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not fit together. Raises ValueError and TypeError."""
    if q.dim() != 3 or q.shape != k.shape or v.dim() != 3 or v.shape[:2] != q.shape[:2]:
        raise ValueError(
            "'q' and 'k' must be [N, H, R] and 'v' [N, H, D] "
            f"(got {list(q.shape)}, {list(k.shape)} and {list(v.shape)})"
        )
    if not (q.is_floating_point() and q.dtype == k.dtype == v.dtype):
        raise TypeError(f"'q', 'k' and 'v' must share one floating dtype (got {q.dtype}, {k.dtype} and {v.dtype})")


def check_mask(mask: Any, q: Tensor, path: str = "auto") -> None:
    """Refuse a mask of other nodes or heads than ``q`` ``[N, H, R]``, or not for ``path``. Raises ValueError."""
    num_nodes = mask.size(-1) if isinstance(mask, Tensor) else getattr(mask, "num_nodes", q.size(0))
    if num_nodes != q.size(0):
        raise ValueError(f"the mask is for {num_nodes} nodes, but 'q' has {q.size(0)} rows; is it of another batch?")
    heads = _heads(mask)
    if heads is not None and heads != q.size(1):
        raise ValueError(f"the mask has {heads} heads, but 'q' has {q.size(1)}")
    if path == "factored" and isinstance(mask, Tensor) and mask.dim() == 3:
        raise ValueError("a tensor of one mask per head is not multiplied on path 'factored': wrap it in DenseOperator")


def _heads(mask: Any) -> int | None:
    if isinstance(mask, Tensor):
        return mask.size(0) if mask.dim() == 3 else None
    return getattr(mask, "heads", None)


def _is_dense(mask: Any) -> bool:
    return isinstance(mask, Tensor) or getattr(mask, "is_dense", False)


def at_least_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Widen half precision, in which sums over a graph lose all digits."""
    return tuple(x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors)


def with_ones(v: Tensor) -> Tensor:
    """Values with a last column of ones, whose weighted sum is the denominator."""
    return torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)


def _scales(q: Tensor, k: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    """Factors, ``[N, H, 1]``, of queries by row and of keys by graph, so that no product of features leaves the range.

    They are powers of two and cancel in attention, so no digit of the result changes.
    """
    with torch.no_grad():
        row, top = (_size(x) for x in (q, k))
        if batch is not None:
            top = segment_max(top, batch).index_select(0, batch)
        elif top.size(0):
            top = top.amax(0, keepdim=True).expand_as(top)
        return _power_of_two(row), _power_of_two(top)


def _size(x: Tensor) -> Tensor:
    """Sum of absolute values over the last dimension, kept: on CPU a fourth of the time of their maximum."""
    return x.abs().sum(-1, keepdim=True)


def _power_of_two(x: Tensor) -> Tensor:
    """The power of two that brings a number ``x ≥ 0`` into [1/2, 1); 1 for 0."""
    return torch.ldexp(torch.ones_like(x), -torch.frexp(x).exponent.clamp(-100, 100))


def _divide(sums: Tensor, magnitude: Tensor) -> Tensor:
    """Numerator over denominator (the last column), zero where it vanishes beside the ``magnitude`` of its terms.

    Or where all terms are next to underflow: few digits are left of them, and one over them may be infinite.
    """
    magnitude = magnitude.detach()[..., None]
    underflown = magnitude < 2**14 * torch.finfo(magnitude.dtype).tiny
    scale = _power_of_two(magnitude)  # a mask may be scaled, too
    sums, magnitude = sums * scale, magnitude * scale
    num, den = sums[..., :-1], sums[..., -1:]
    vanished = underflown | (den.detach().abs() <= torch.finfo(den.dtype).eps * magnitude)
    return torch.where(vanished, 0, num) / torch.where(vanished, 1, den)


def _unmasked_linear(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> Tensor:
    sums = segment_linear_attention(q, k, with_ones(v), batch)
    magnitude = sums[..., -1]
    with torch.no_grad():
        if not _non_negative(q) or not _non_negative(k):  # sum_k |q_k| |z_k|, z the sum of the graph's keys
            ones = v.new_ones(*v.shape[:2], 1)
            keys = segment_linear_attention(ones, ones, k, batch)
            magnitude = (q.abs() * keys.abs()).sum(-1)
    return _divide(sums, magnitude)


def _factored_linear(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    num_nodes, heads, num_features = q.shape
    values = with_ones(v)

    def slice_sums(q: Tensor, k: Tensor, values: Tensor) -> Tensor:  # [N, H, D + 2], the last column the magnitude
        outer = k[..., :, None] * values[..., None, :]  # [N, H, r, D + 1]
        outer = outer.flatten(2) if _heads(mask) is not None else outer.flatten(1)
        state = (mask @ outer).view(num_nodes, heads, k.size(-1), values.size(-1))
        magnitude = (q.detach().abs() * state[..., -1].detach().abs()).sum(-1, keepdim=True)
        return torch.cat([torch.einsum("nhr,nhrd->nhd", q, state), magnitude], dim=-1)

    columns = max(_SLICE_COLUMNS, _SLICE_NUMEL // max(num_nodes, 1))
    step = max(1, columns // (heads * values.size(-1)))
    sums = q.new_zeros(num_nodes, heads, values.size(-1) + 1)
    for a in range(0, num_features, step):
        some = slice(a, a + step)
        sums = sums + checkpoint(
            slice_sums, q[..., some], k[..., some], values, use_reentrant=False, preserve_rng_state=False
        )
    return _divide(sums[..., :-1], sums[..., -1])


def _pairwise_linear(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale_q: Tensor, scale_k: Tensor) -> Tensor:
    pattern, entries = supported_pairs(mask, q.dtype)
    # Unbound, not indexed, by head: the gradient of an index is as large as all heads.
    parts = zip(*(pattern.arrange(x).unbind(1) for x in (q, k, with_ones(v), scale_q, scale_k)))
    out = []
    for head, (q_head, k_head, value, scale_q_head, scale_k_head) in enumerate(parts):
        entry = entries if entries.dim() == 1 else entries[:, head]
        # The product with the scale is the contiguous copy of a head that is needed anyway.
        weight = entry * sampled_product(pattern, q_head * scale_q_head, k_head * scale_k_head)
        sums = spmm(pattern, weight, value.contiguous())
        out.append(_divide(sums, _row_magnitude(pattern, weight, sums)))
    return pattern.restore(torch.stack(out, dim=1))


def _dense_linear(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    entry = _dense(mask, q.dtype)
    weight = torch.einsum("ihr,jhr->hij", q, k).masked_fill(entry == 0, 0) * entry  # infinity times 0 is no 0
    sums = weight @ with_ones(v).transpose(0, 1)
    return _divide(sums, weight.detach().abs().sum(-1)).transpose(0, 1)


def prefers_blocks(mask: Any, num_nodes: int, batch: Tensor | None) -> bool:
    """Whether dense blocks of the graphs are small beside what the mask stores."""
    if not getattr(mask, "has_blocks", False):
        return False
    return count_block_entries(num_nodes if batch is None else batch) <= _BLOCK_ENTRIES * mask.work


def mask_blocks(mask: Any, batch: Tensor | None, q: Tensor) -> tuple[BlockLayout, dict[int, Tensor]]:
    """Layout of a batch, and the mask's dense blocks, each group's under its first graph, in the dtype of ``q``.

    Raises:
        ValueError: If the mask is not known by its blocks.
    """
    if not getattr(mask, "has_blocks", False):
        raise ValueError(f"path 'blocks' needs a mask known by its graphs' blocks, which {type(mask).__name__} is not")
    layout = block_layout(torch.zeros(q.size(0), dtype=torch.int64, device=q.device) if batch is None else batch)
    return layout, {graphs[0]: block.to(q.dtype) for graphs, block in zip(layout.groups.graphs, mask.blocks(layout))}


def _blocks(q: Tensor, k: Tensor, v: Tensor, mask: Any, batch: Tensor | None, softmax: bool = False) -> Tensor:
    """Attention within each graph under its dense block of the mask, graphs of equal size in one call.

    Weights are transposed and channels come ahead of nodes: on CPU that is twice as fast for narrow heads.
    """
    layout, blocks = mask_blocks(mask, batch, q)
    if not layout.groups.graphs:
        return v.clone()
    if softmax:
        q = q * q.size(-1) ** -0.5

    with torch.no_grad():
        known = not softmax and all(map(_non_negative, (q, k, *blocks.values())))

    def attend(graphs: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        entry = blocks[graphs[0]]
        entry = entry[:, None] if entry.dim() == 3 else entry  # [g, H or 1, n, n], senders ahead of receivers
        q, k, v = (x.mT.contiguous() for x in (q, k, v))  # [g, H, R or D + 1, n]
        score = k.mT @ q
        if softmax:
            return softmax_in_block(score, entry, v)
        weight = score * entry if entry.requires_grad else score.mul_(entry)
        return _with_magnitude(v @ weight, None if known else weight)

    return divide_sums(in_groups(attend, layout.groups, q, k, with_ones(v)))


def softmax_in_block(score: Tensor, entry: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Sums of softmax attention under a dense mask within graphs of one size, for `divide_sums`.

    Args:
        score: Scores, senders ahead of receivers, shape ``[g, H, n, n]``.
        entry: Entries of the mask, shape ``[g, H or 1, n, n]``.
        v: Values and a last channel of ones, shape ``[g, H, D + 1, n]``.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        Shape ``[g, H, n, D + 2]``.
    """
    top = score.detach().masked_fill(entry == 0, -torch.inf).amax(-2, keepdim=True)
    weight = entry * _exp_below(score, top)
    if dropout:
        sums = torch.cat([v[..., :-1, :] @ zero_some(weight, dropout), weight.sum(-2, keepdim=True)], dim=-2)
    else:
        sums = v @ weight
    return _with_magnitude(sums, None if _non_negative(entry) else weight)


def _with_magnitude(sums: Tensor, weight: Tensor | None) -> Tensor:
    """Sums ``[g, H, D + 1, n]`` and those of ``|weight|`` as ``[g, H, n, D + 2]``; no weights: none is negative."""
    with torch.no_grad():
        magnitude = sums[..., -1:, :] if weight is None else weight.abs().sum(-2, keepdim=True)
    return torch.cat([sums, magnitude], dim=-2).mT


def divide_sums(sums: Tensor) -> Tensor:
    """Numerators ``[N, H, D]`` over the denominators and their terms' magnitudes, the last two of ``[N, H, D + 2]``.

    For all graphs at once: within each group of equal graphs it would be most of the calls.
    """
    return _divide(sums[..., :-1], sums[..., -1])


def softmax_on_pairs(pattern: Any, score: Tensor, entry: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """One head's softmax attention on the support of a mask.

    Args:
        pattern: The support, ``P`` pairs.
        score, entry: Score and mask entry of each pair, shape ``[P]``.
        v: Values and a last channel of ones, shape ``[N, D + 1]``, contiguous.
        dropout: Probability of zeroing a normalised weight.

    Returns:
        Shape ``[N, D]``.
    """
    row = pattern.row.long()
    with torch.no_grad():  # the largest score of a row is a factor that cancels; pairs of entry 0 do not count
        top = score.new_full((pattern.num_rows,), -torch.inf)
        top = top.scatter_reduce(0, row, score.masked_fill(entry == 0, -torch.inf), "amax")
    weight = entry * _exp_below(score, top.index_select(0, row))
    sums = spmm(pattern, weight, v)
    magnitude = _row_magnitude(pattern, weight, sums)
    if dropout:
        kept = spmm(pattern, zero_some(weight, dropout), v[:, :-1].contiguous())
        sums = torch.cat([kept, sums[:, -1:]], dim=-1)
    return _divide(sums, magnitude)


def _softmax_pairwise(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    pattern, entries = supported_pairs(mask, q.dtype)
    scale = q.size(-1) ** -0.5
    out = []
    for head, (q_head, k_head, value) in enumerate(zip(*(pattern.arrange(x).unbind(1) for x in (q, k, with_ones(v))))):
        entry = entries if entries.dim() == 1 else entries[:, head]
        score = sampled_product(pattern, q_head.contiguous() * scale, k_head.contiguous())
        out.append(softmax_on_pairs(pattern, score, entry, value.contiguous()))
    return pattern.restore(torch.stack(out, dim=1))


def _softmax_dense(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    entry = _dense(mask, q.dtype)
    score = torch.einsum("ihr,jhr->hij", q, k) * q.size(-1) ** -0.5
    top = score.detach().masked_fill(entry == 0, -torch.inf).amax(-1, keepdim=True) if q.size(0) else score.detach()
    weight = entry * _exp_below(score, top)
    sums = weight @ with_ones(v).transpose(0, 1)
    return _divide(sums, weight.detach().abs().sum(-1)).transpose(0, 1)


def _exp_below(score: Tensor, top: Tensor) -> Tensor:
    """``exp(score − top)``, also where an entry of 0 lets a score exceed the top, for the gradient to that entry.

    It is cut there at e^40, and rows without an entry have no top.
    """
    return (score - top.masked_fill(top == -torch.inf, 0)).clamp(max=40).exp()


def supported_pairs(mask: Any, dtype: torch.dtype) -> tuple[Any, Tensor]:
    """Support and entries of a mask. Raises ValueError if it has no sparse support."""
    if getattr(mask, "num_pairs", None) is None:
        raise ValueError(f"path 'pairwise' needs a mask with a sparse support, which {type(mask).__name__} has not")
    pattern, entries = mask.pairs()
    return pattern, entries.to(dtype)


def _dense(mask: Any, dtype: torch.dtype) -> Tensor:
    return (mask if isinstance(mask, Tensor) else mask.to_dense()).to(dtype)


def _row_magnitude(pattern: Any, weight: Tensor, sums: Tensor) -> Tensor:
    """Row sums of ``|weight|``: the denominators themselves unless a weight is negative."""
    with torch.no_grad():
        if _non_negative(weight):
            return sums[:, -1]
        return spmm(pattern, weight.abs(), weight.new_ones(pattern.num_cols, 1)).squeeze(1)


def _non_negative(x: Tensor) -> bool:
    """Whether no number is negative; not asked on CUDA, where the answer would have to be waited for."""
    return not x.is_cuda and (x.numel() == 0 or bool(x.detach().min() >= 0))
