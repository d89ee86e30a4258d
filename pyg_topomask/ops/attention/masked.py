r"""Attention under a topological mask that is known by its products, its pairs or its blocks.

Reference: Choromanski et al., *From block-Toeplitz Matrices to Differential Equations on Graphs*, ICML 2022,
arXiv:2107.07999, Definition 2.1, Lemma 3.1 and Algorithm 1; on the support of the mask, Reid et al. 2024,
arXiv:2410.03462, Algorithm 1. `Problem` states what all of these functions compute.
"""

from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from pyg_topomask.checks import check_choice, check_dropout
from pyg_topomask.ops.attention import choice
from pyg_topomask.ops.attention.inputs import NORMALIZERS, check_channels, check_qkv
from pyg_topomask.ops.attention.kernels import KERNELS, Kernel
from pyg_topomask.ops.attention.mask import AttentionMask, read_mask
from pyg_topomask.ops.attention.mixture import solve
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.numerics import at_least_float32, non_negative
from pyg_topomask.ops.segment import check_batch

QKV: TypeAlias = tuple[Tensor, Tensor, Tensor]


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

    Under a sum of masks, a mask whose own :math:`S_i` is zero gives row i no gradient. The output and its gradient are
    zero

    - if :math:`S_i` is zero or close to underflow (below 2^-112 in float32), as with random features of very long
      queries;
    - if products with the mask are approximate, and :math:`S_i` is not larger than their error;
    - with ``"signed"``, if the denominator is not larger than its own rounding errors.

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
        mask: Operator, or tensor ``[N, N]`` or ``[H, N, N]``, block-diagonal over the batch; ones within each graph if
            :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. The mask itself separates graphs.
        path: ``"factored"`` multiplies by the mask, ``"pairwise"`` scores the pairs in its support, ``"blocks"`` scores
            all pairs within graphs, ``"dense"`` forms the whole mask, and ``"auto"`` takes what is estimated to be
            fastest (`explain`). All paths give the same result up to rounding.
        normalizer: ``"bound"`` or ``"signed"``, see above.
        signed_features: Whether ``q`` or ``k`` may contain negative numbers. If :obj:`None`, they are checked on CPU;
            on CUDA negative numbers are assumed, because a check would wait for the device.

    Returns:
        Shape ``[N, H, D]``, with the dtype of ``v``. Inputs in half precision are summed in float32.

    Raises:
        ValueError: If shapes disagree, ``batch`` is not sorted, a dense mask joins graphs of it (checked on CPU), the
            mask does not support the path, or a name is unknown.
        TypeError: If ``q``, ``k`` and ``v`` do not share one floating dtype, or the mask is neither an operator nor a
            tensor.
        NotImplementedError: If the mask's class has no bounding mask.
    """
    check_qkv(q, k, v)
    if signed_features is None:
        signed_features = not (non_negative(q) and non_negative(k))
    kernel = Kernel("linear", signed_features=signed_features)
    problem = problem_of(kernel, (q, k, v), mask, batch, normalizer)
    return _solved(problem, path)


def masked_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | Tensor | None = None,
    batch: Tensor | None = None,
    path: str = "auto",
    normalizer: str = "bound",
    dropout: float = 0.0,
) -> Tensor:
    r"""Attention with the exact softmax kernel :math:`K(q_i, k_j) = \exp(q_i \cdot k_j / \sqrt{R})`.

    Cost: :math:`O(P (R + D))` for a mask with a sparse support, :math:`O(N^2)` otherwise. Without a mask, softmax
    attention is computed within each graph, and no array over the pairs of the whole batch is formed.
    Memory: 50 to 200 bytes per pair and 45 bytes per pair and head, for up to 2^23 pairs. Graphs with hubs soon have
    more: a star of 3,000 nodes has 9 million. The pairs are then listed for one part of the rows at a time, and again
    in the backward pass, and a `PerformanceWarning` is given. Memory stays below about 2 GiB plus that of the mask.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        mask: Operator, or tensor ``[N, N]`` or ``[H, N, N]``, block-diagonal over the batch; ones within each graph if
            :obj:`None`.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`. The mask itself separates graphs.
        path: ``"pairwise"``, ``"blocks"``, ``"dense"`` or ``"auto"``, as in `masked_linear_attention`.
        normalizer: ``"bound"`` or ``"signed"``, as in `masked_linear_attention`.
        dropout: Probability in [0, 1) of zeroing a normalised weight.

    Returns:
        Shape ``[N, H, D]``, with the dtype of ``v``. Rows whose denominator vanishes are zero.

    Raises:
        ValueError: As in `masked_linear_attention`; also if queries and keys have no channels (``R = 0``), or
            ``dropout`` is out of range.
        TypeError: As in `masked_linear_attention`.
        NotImplementedError: If the mask's class has no bounding mask.
    """
    check_qkv(q, k, v)
    check_channels(q)
    check_dropout(dropout)
    (scaled,) = at_least_float32(q)
    qkv = scaled * q.size(-1) ** -0.5, k, v
    problem = problem_of(Kernel("softmax"), qkv, mask, batch, normalizer, dropout)
    return _solved(problem, path)


def masked_additive_attention(
    receiver: Tensor,
    sender: Tensor,
    v: Tensor,
    mask: AttentionMask | Tensor,
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
        mask: Operator, or tensor ``[N, N]`` or ``[H, N, N]``, block-diagonal over the batch.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.
        path: ``"pairwise"``, ``"blocks"``, ``"dense"`` or ``"auto"``, as in `masked_linear_attention`.
        negative_slope: Slope of the leaky ReLU below zero.
        dropout: Probability in [0, 1) of zeroing a normalised weight.
        normalizer: ``"bound"`` or ``"signed"``, as in `masked_linear_attention`.

    Returns:
        Shape ``[N, H, D]``, with the dtype of ``v``. Rows whose denominator vanishes are zero.

    Raises:
        ValueError: As in `masked_linear_attention`; also if ``dropout`` is out of range.
        TypeError: As in `masked_linear_attention`; also if there is no mask.
        NotImplementedError: If the mask's class has no bounding mask.
    """
    if receiver.dim() != 2 or sender.shape != receiver.shape or v.dim() != 3:
        raise ValueError(
            "'receiver' and 'sender' must be [N, H] and 'v' [N, H, D] "
            f"(got {list(receiver.shape)}, {list(sender.shape)} and {list(v.shape)})"
        )
    check_dropout(dropout)
    if mask is None:
        raise TypeError("additive attention needs a 'mask' (got None); OnesOperator(batch) is that of all pairs")
    q, k = additive_scores(receiver, sender)
    check_qkv(q, k, v)
    kernel = Kernel("additive", negative_slope=negative_slope)
    problem = problem_of(kernel, (q, k, v), mask, batch, normalizer, dropout)
    return _solved(problem, path)


def additive_scores(receiver: Tensor, sender: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys ``[N, H, 2]`` whose products are the sums of scores of receivers and senders ``[N, H]``."""
    one = torch.ones_like(receiver)
    return torch.stack([receiver, one], dim=-1), torch.stack([one, sender], dim=-1)


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | Tensor | None = None,
    batch: Tensor | None = None,
    kernel: str = "linear",
    normalizer: str = "bound",
) -> dict[str, str | float]:
    """Why each engine of masked attention cannot serve, or its estimated nanoseconds, forward and backward.

    ``path="auto"`` takes the engine with the least estimate among those that hold few numbers. ``dense`` is its last
    choice if there are several graphs, because NaN in one of them would reach the others. A sum of masks and a stack of
    masks for groups of heads are computed part by part: explain each part by itself.

    Args:
        q, k, v, mask, batch: Arguments of `masked_linear_attention`.
        kernel: ``"linear"``, ``"softmax"`` or ``"additive"``.
        normalizer: ``"bound"`` or ``"signed"``.

    Returns:
        A reason or a number for each engine, by its name.

    Raises:
        ValueError, TypeError: As in `masked_linear_attention`.
    """
    check_qkv(q, k, v)
    check_choice("kernel", kernel, KERNELS)
    if kernel == "softmax":
        check_channels(q)
    signed_features = kernel == "linear" and not (non_negative(q) and non_negative(k))
    problem = problem_of(Kernel(kernel, signed_features), (q, k, v), mask, batch, normalizer)
    return choice.explain(problem.wide)


def _solved(problem: Problem, path: str) -> Tensor:
    """Outputs ``[N, H, D]``."""
    check_choice("path", path, choice.PATHS)
    q, k, v = problem.q, problem.k, problem.v
    with torch.autocast(v.device.type, enabled=False):
        return solve(problem, path).to(v.dtype) if q.size(0) else v + (q + k).sum()  # no rows, with gradients


def problem_of(
    kernel: Kernel,
    qkv: QKV,
    mask: AttentionMask | Tensor | None,
    batch: Tensor | None,
    normalizer: str,
    dropout: float = 0.0,
) -> Problem:
    """The problem. The denominator is not signed if nothing can be negative."""
    check_choice("normalizer", normalizer, NORMALIZERS)
    q, k, v = qkv
    if batch is not None:
        check_batch(batch, q.size(0))
    mask, signed = None if mask is None else read_mask(mask, q, batch), normalizer == "signed"
    problem = Problem(kernel, q, k, v, mask, batch, signed=signed, dropout=dropout)
    if signed and not kernel.signed_features:
        with torch.autocast(v.device.type, enabled=False):  # only here: torch.export cannot store an empty region
            if mask is None or problem.owns_bound:
                return replace(problem, signed=False)
    return problem


def masked_linear_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, batch: Tensor | None = None, **settings: Any
) -> Tensor:
    """`masked_linear_attention` from its definition, for tests.

    Args:
        q, k, v, batch: Those of `masked_linear_attention`.
        mask: Dense mask, ``[N, N]`` or ``[H, N, N]``.
        settings: ``bound``, ``normalizer`` and ``tolerance`` of `normalized_reference`.
    """
    kernel, size = torch.einsum("ihr,jhr->hij", q, k), torch.einsum("ihr,jhr->hij", q.abs(), k.abs())
    same = torch.ones(q.size(0), q.size(0)).to(q) if batch is None else (batch[:, None] == batch).to(q)
    return normalized_reference(kernel, size, v, same if mask is None else mask * same, **settings)


def masked_softmax_attention_reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **settings: Any) -> Tensor:
    """`masked_softmax_attention` from its definition, for tests; arguments as in `normalized_reference`."""
    kernel = (torch.einsum("ihr,jhr->hij", q, k) * q.size(-1) ** -0.5).exp()
    return normalized_reference(kernel, kernel, v, mask, **settings)


def masked_additive_attention_reference(
    receiver: Tensor, sender: Tensor, v: Tensor, mask: Tensor, negative_slope: float = 0.2, **settings: Any
) -> Tensor:
    """`masked_additive_attention` from its definition, for tests; arguments as in `normalized_reference`."""
    kernel = leaky_relu(receiver.t()[:, :, None] + sender.t()[:, None, :], negative_slope).exp()  # [H, N, N]
    return normalized_reference(kernel, kernel, v, mask, **settings)


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
