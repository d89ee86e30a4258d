"""Attention with additive scores, as in graph attention networks, under a topological mask."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from pyg_topomask.ops.attention.inputs import check_masked_attention
from pyg_topomask.ops.attention.mask import AttentionMask, read_mask
from pyg_topomask.ops.attention.masked_softmax import block_softmax
from pyg_topomask.ops.attention.normalizer import Normalizer, normalized_reference, sums_of_blocks
from pyg_topomask.ops.attention.pair_kernels import PairKernel
from pyg_topomask.ops.attention.pairs import means_of_pairs
from pyg_topomask.ops.attention.path_choice import choose_softmax_path
from pyg_topomask.ops.numerics import at_least_float32

PATHS = ("auto", "pairwise", "blocks")


def masked_additive_attention(
    receiver: Tensor,
    sender: Tensor,
    v: Tensor,
    mask: AttentionMask,
    batch: Tensor | None = None,
    path: str = "auto",
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    normalizer: str = "bound",
) -> Tensor:
    r"""Attention with the scores of graph attention networks.

    .. math:: \mathrm{out}_i = \frac{\sum_j M_{ij} \exp(e_{ij})\, v_j}{\sum_j B_{ij} \exp(e_{ij})}, \qquad
        e_{ij} = \mathrm{LeakyReLU}(r_i + s_j)

    with the bounding mask :math:`B` of `masked_linear_attention`.

    Reference: Veličković et al., *Graph Attention Networks*, ICLR 2018, arXiv:1710.10903, Eq. 3, with the mask of
    Choromanski et al., ICML 2022, arXiv:2107.07999, Appendix A.5.
    Cost: :math:`O(P D)` per head for ``P`` pairs in the support of the mask; with blocks, for all pairs within graphs.
    Memory is bounded as in `masked_softmax_attention`.

    Args:
        receiver, sender: Parts of the score, shape ``[N, H]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator ``[N, N]`` with a sparse support or blocks.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        path: ``"pairwise"``, ``"blocks"``, or ``"auto"``, as in `masked_softmax_attention`.
        negative_slope: Slope of the leaky ReLU below zero.
        dropout: Probability of zeroing a normalised weight.
        normalizer: ``"bound"`` or ``"signed"``, as in `masked_linear_attention`.

    Returns:
        Shape ``[N, H, D]``. Rows whose denominator vanishes are zero.

    Raises:
        ValueError, NotImplementedError: As in `masked_linear_attention`.
    """
    if receiver.dim() != 2 or v.dim() != 3:
        raise ValueError(
            f"'receiver' must be [N, H] and 'v' [N, H, D] (got {list(receiver.shape)} and {list(v.shape)})"
        )
    check_masked_attention(receiver[..., None], sender[..., None], v, batch, path, PATHS, normalizer)
    with torch.autocast(v.device.type, enabled=False):
        receiver, sender, v, dtype = *at_least_float32(receiver, sender, v), v.dtype
        masks = Normalizer.of(read_mask(mask, v), normalizer)
        values, origin = (v, None) if dropout else masks.from_origin(v, batch)
        path = choose_softmax_path(masks.mask, 1, v.size(-1), batch) if path == "auto" else path
        if path == "dense":
            raise ValueError("'mask' must have a sparse support or blocks; a tensor or another dense mask has neither")
        sides = receiver[..., None], sender[..., None]
        if path == "blocks":
            attend = block_softmax(lambda r, s: leaky_relu(s + r.mT, negative_slope), masks.signed, dropout)
            sums = sums_of_blocks(attend, masks, batch, *sides, values)
            return masks.mean(sums, v, batch, origin).to(dtype)
        kernel = PairKernel("additive", masks.signed, negative_slope=negative_slope, dropout=dropout)
        return means_of_pairs(kernel, masks, *sides, values, batch, origin).to(dtype)


def masked_additive_attention_reference(
    receiver: Tensor,
    sender: Tensor,
    v: Tensor,
    mask: Tensor,
    negative_slope: float = 0.2,
    bound: Tensor | None = None,
    normalizer: str = "bound",
    tolerance: float = 0.0,
) -> Tensor:
    """`masked_additive_attention` from its definition, for tests; arguments as in `normalized_reference`."""
    kernel = leaky_relu(receiver.t()[:, :, None] + sender.t()[:, None, :], negative_slope).exp()  # [H, N, N]
    return normalized_reference(kernel, kernel, v, mask, bound, normalizer, tolerance)
