"""Linear attention under a topological mask that is known by its products.

Reference: Choromanski et al., *From block-Toeplitz Matrices to Differential Equations on Graphs*, ICML 2022,
arXiv:2107.07999, Definition 2.1, Lemma 3.1 and Algorithm 1; the pairwise path is Reid et al. 2024, arXiv:2410.03462,
Algorithm 1, evaluated on the support of the mask.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pyg_topomask.ops.attention.inputs import check_masked_attention, from_origin, with_ones
from pyg_topomask.ops.attention.linear_blocks import block_sums, block_sums_in_torch
from pyg_topomask.ops.attention.linear_means import key_scale, linear_means
from pyg_topomask.ops.attention.mask import PAIRS_PER_NUMBER, AttentionMask, read_mask
from pyg_topomask.ops.attention.normalizer import (
    Normalizer,
    error_floor,
    normalized_reference,
    row_tolerance,
    sums_of_blocks,
)
from pyg_topomask.ops.attention.pair_kernels import PairKernel, scaled
from pyg_topomask.ops.attention.pairs import means_of_pairs
from pyg_topomask.ops.attention.path_choice import choose_linear_path
from pyg_topomask.ops.numerics import (
    absolute,
    at_least_float32,
    non_negative,
    weighted_mean,
)
from pyg_topomask.ops.segment import segment_linear_attention, segment_sum

PATHS = ("auto", "factored", "pairwise", "blocks", "dense")

# Numbers in one slice of the factored path's intermediate, N × R (D + 1), and the fewest columns per product.
_SLICE_NUMEL = 2**24
_SLICE_COLUMNS = 64


def masked_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | Tensor | None = None,
    batch: Tensor | None = None,
    path: str = "auto",
    normalizer: str = "bound",
    signed_features: bool | None = None,
) -> Tensor:
    r"""Attention with the kernel :math:`K(q_i, k_j) = q_i \cdot k_j`, where ``q`` and ``k`` are mapped features.

    Each node's output is the sum of the values with weights :math:`M_{ij} K_{ij} / S_i`. By default :math:`S_i = \sum_j
    B_{ij} |K|_{ij}`, with the bounding mask :math:`B_{ij} \ge |M_{ij}|` (`MaskOperator.bound`) and :math:`|K|_{ij} =
    \sum_r |q_{ir}| |k_{jr}|`. The output then keeps the signs of the mask, never exceeds the largest value, and its
    gradients do not suffer from cancellation. If no parameter of the mask and no feature is negative, :math:`B = M`,
    and this is the attention of the papers. ``normalizer="signed"`` always divides by :math:`\sum_j M_{ij} K_{ij}`, as
    the papers do; if signs cancel, outputs and gradients grow without limit.

    The output and its gradient are zero

    - if :math:`S_i` is zero, or all its terms are close to underflow (below 2^-112 in float32), as with random features
      of very long queries;
    - if products with the mask are approximate, and :math:`S_i` is not larger than their error;
    - with ``"signed"``, if the denominator is not larger than its own rounding errors.

    The scale of ``mask``, ``q`` and ``k`` does not change the result.

    Cost per head, for ``P`` pairs in the support of the mask and ``T`` multiply-adds in one product ``mask @ x``:

    - factored: :math:`O(T R D)`; at most 64 columns or 2^24 numbers of the intermediate are in memory at a time, and
      they are computed again in the backward pass;
    - pairwise: :math:`O(P (R + D))`;
    - blocks: :math:`O(S (R + D))`, where :math:`S = \sum_g n_g^2` is the number of pairs within graphs;
    - dense: :math:`O(N^2 (R + D))`;
    - without a mask: :math:`O(N R D)`.

    Args:
        q, k: Queries and keys after the feature map, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator or tensor ``[N, N]``, block-diagonal over the batch; ones within each graph if :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. The mask itself separates graphs.
        path: ``"factored"`` multiplies by the mask, ``"pairwise"`` scores the pairs in its support, ``"blocks"`` scores
            all pairs within graphs, ``"dense"`` forms the whole mask, and ``"auto"`` takes the path with the least
            estimated work. All paths give the same result up to rounding.
        normalizer: ``"bound"`` or ``"signed"``, see above.
        signed_features: Whether ``q`` or ``k`` may contain negative numbers. If :obj:`None`, they are checked on CPU;
            on CUDA negative numbers are assumed, because a check would wait for the device.

    Returns:
        Shape ``[N, H, D]``, with the dtype of ``v``. Inputs in half precision are computed in float32.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted, the mask does not support the path, or a name is
            unknown.
        NotImplementedError: If the mask's class has no bounding mask.
    """
    check_masked_attention(q, k, v, batch, path, PATHS, normalizer)
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, dtype = *at_least_float32(q, k, v), v.dtype
        if signed_features is None:
            signed_features = not (non_negative(q) and non_negative(k))
        if mask is None and not signed_features:
            v, origin = from_origin(v, batch)
            out, size = linear_means(q, k, v, batch)
            return (out if origin is None else out + torch.where(size == 0, 0, origin)).to(dtype)
        scale_k = key_scale(k, batch)
        if mask is None:
            return _unmasked_signed(*scaled(q, k, scale_k), v, batch, normalizer == "signed").to(dtype)
        masks = Normalizer.of(read_mask(mask, q), normalizer)
        values, origin = (v, None) if signed_features else masks.from_origin(v, batch)
        path = choose_linear_path(masks.mask, q.size(-1), v.size(-1), batch) if path == "auto" else path
        if path == "pairwise":
            kernel = PairKernel("linear", masks.signed, signed_features)
            return means_of_pairs(kernel, masks, q, k, values, batch, origin, scale_k, PAIRS_PER_NUMBER).to(dtype)
        (q, k), floor = scaled(q, k, scale_k), None
        sums = _sums(path, q, k, values, masks, batch, signed_features)
        if path in ("factored", "dense"):
            floor = error_floor(masks, lambda: _kernel_size(q, k, batch, 2 if path == "factored" else 1))
        return masks.mean(sums, v, batch, origin, floor).to(dtype)


def masked_linear_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    batch: Tensor | None = None,
    bound: Tensor | None = None,
    normalizer: str = "bound",
    tolerance: float = 0.0,
) -> Tensor:
    """`masked_linear_attention` from its definition, for tests.

    Args:
        q, k, v, batch, normalizer: As there.
        mask: Dense mask, ``[N, N]`` or ``[H, N, N]``.
        bound, tolerance: As in `normalized_reference`.
    """
    kernel, size = torch.einsum("ihr,jhr->hij", q, k), torch.einsum("ihr,jhr->hij", q.abs(), k.abs())
    same = torch.ones(q.size(0), q.size(0)).to(q) if batch is None else (batch[:, None] == batch).to(q)
    mask = same if mask is None else mask * same
    return normalized_reference(kernel, size, v, mask, bound, normalizer, tolerance)


def _kernel_size(q: Tensor, k: Tensor, batch: Tensor | None, power: int) -> Tensor:
    r"""Upper bound :math:`\sum_r |q_{ir}| \|k_{\cdot r}\|_p` on the norm of each row of the kernel, ``[N, H, 1]``."""
    terms = k.abs().pow(power)
    size = terms.sum(0) if batch is None else segment_sum(terms, batch).index_select(0, batch)
    return (q.abs() * size.pow(1 / power)).sum(-1, keepdim=True)


def _unmasked_signed(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None, signed: bool) -> Tensor:
    """Attention without a mask for features that may be negative."""
    size = segment_linear_attention(absolute(q), absolute(k), torch.ones_like(v[..., :1]), batch)
    sums = segment_linear_attention(q, k, with_ones(v) if signed else v, batch)
    sums = torch.cat([sums, size.detach() if signed else size], dim=-1)
    return weighted_mean(sums, v.size(-1), row_tolerance(v, batch, signed))


def _sums(
    path: str, q: Tensor, k: Tensor, v: Tensor, masks: Normalizer, batch: Tensor | None, signed_features: bool
) -> Tensor:
    """Sums over the columns of the mask by one of the paths, ``[N, H, D + 1]`` or ``[N, H, D + 2]``."""
    if path == "blocks":
        attend = partial(block_sums, signed=masks.signed, signed_features=signed_features)
        return sums_of_blocks(attend, masks, batch, q, k, v)
    return (_factored if path == "factored" else _dense)(q, k, v, masks, signed_features)


def _factored(q: Tensor, k: Tensor, v: Tensor, masks: Normalizer, signed_features: bool) -> Tensor:
    num_nodes, heads, num_features = q.shape
    own = masks.bound is masks.mask and not signed_features
    values = with_ones(v) if own or masks.signed else v

    def multiply(mask: AttentionMask, x: Tensor) -> Tensor:  # [N, H, r, *]
        return (mask @ x.flatten(2 if mask.heads is not None else 1)).view_as(x)

    def slice_sums(q: Tensor, k: Tensor, values: Tensor) -> Tensor:  # [N, H, D + 1 or D + 2]
        state = multiply(masks.mask, k[..., :, None] * values[..., None, :])  # [N, H, r, D or D + 1]
        sums = (q[..., None] * state).sum(2)  # the gradient of a product of matrices would be slow outer products
        if own:
            return sums
        q, k = (absolute(q), absolute(k)) if signed_features else (q, k)
        if masks.signed:
            q, k = q.detach(), k.detach()
        total = (q * multiply(masks.bound, k)).sum(-1, keepdim=True)
        return torch.cat([sums, total.detach() if masks.signed else total], dim=-1)

    columns = max(_SLICE_COLUMNS, _SLICE_NUMEL // max(num_nodes, 1))
    step = max(1, columns // (heads * (v.size(-1) + 1)))
    sums = q.new_zeros(num_nodes, heads, values.size(-1) + (0 if own else 1))
    for a in range(0, num_features, step):
        some = slice(a, a + step)
        sums = sums + checkpoint(
            slice_sums, q[..., some], k[..., some], values, use_reentrant=False, preserve_rng_state=False
        )
    return sums


def _dense(q: Tensor, k: Tensor, v: Tensor, masks: Normalizer, signed_features: bool) -> Tensor:
    if q.size(0) == 0:  # an empty block cannot be padded by PyTorch 2.6
        return with_ones(v) + (q + k).sum()  # 0, with gradients
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    sums = block_sums_in_torch(*masks.dense(q.dtype), q, k, v, masks.signed, signed_features)
    return sums[0].transpose(0, 1)
