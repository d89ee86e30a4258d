"""The keys with the largest inner products. Gradients flow only through their scores; their choice is a constant."""

from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask.checks import NonFiniteError, check_integer, readable
from pyg_topomask.ops.native.loader import is_transformed
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.segment import check_batch, segments
from pyg_topomask.ops.sparse import Pattern, sampled_product
from pyg_topomask.ops.topk.backends import Problem, find

# Slots that every query keeps even if its graph has fewer keys, so that results are bit-identical alone and batched.
# Narrow rows cost little.
_FREE_SLOTS = 64


# Not compiled: torch.compile may free a tensor whose address only the C++ search holds.
@torch.compiler.disable
def topk_inner_product(
    q: Tensor, k: Tensor, topk: int, batch_q: Tensor | None = None, batch_k: Tensor | None = None, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """The ``topk`` keys of each query's own graph with the largest inner products, exactly.

    Cost: :math:`O(N (k + d))` memory and at most :math:`O(N^2 d)` operations, of which a tree of keys skips 50 to 95 %
    on clustered data. Scores of float16 and bfloat16 inputs are computed in float32.

    Args:
        q: Queries, shape ``[Nq, d]`` or ``[Nq, H, d]``.
        k: Keys, shape ``[Nk, d]`` or ``[Nk, H, d]``.
        topk: Number of keys to keep, at least 1; a graph with fewer keys keeps all of them.
        batch_q: Graph of each query, sorted, shape ``[Nq]``; one graph if :obj:`None`.
        batch_k: Graph of each key, sorted, shape ``[Nk]``; :obj:`None` means ``batch_q``, which requires Nk = Nq.
        backend: ``"auto"`` takes the fastest engine available: ``"triton"`` (CUDA), ``"cpp"`` (CPU, compiled at first
            use), ``"torch"`` (any device). All give the same pairs, except where rounding decides whether two scores
            are equal: matrix products (``"torch"``) may round the scores of two equal keys differently.

    Returns:
        Two tensors of shape ``[Nq, topk]`` or ``[Nq, H, topk]``.

        - ``values``: Inner products, descending; −inf for missing keys. Differentiable in ``q`` and ``k``.
        - ``index``: Row in ``k`` of each kept key, int64; −1 for missing keys. Lower indices win ties.

    Raises:
        TypeError: If ``topk`` is not an integer, or the inputs do not share one floating dtype.
        ValueError: If shapes disagree, a number is NaN or infinite, ``topk`` is below 1, a batch vector is not sorted,
            or the named back end does not support the problem.
    """
    squeeze, topk = q.dim() == 2, check_integer("topk", topk, 1)
    if squeeze and k.dim() == 2:
        q, k = q[:, None], k[:, None]
    _check_pair(q, k)
    with torch.autocast(q.device.type, enabled=False):
        q, k = at_least_float32(q, k)
        check_finite(q, k)
        kept = search_keys(q, k, topk, *_offsets(q, k, batch_q, batch_k), backend)
        values = kept.scores(head_rows(q), head_rows(k)).transpose(0, 1)
    index = kept.keys.transpose(0, 1)
    return (values[:, 0], index[:, 0]) if squeeze else (values, index)


def topk_inner_product_reference(
    q: Tensor, k: Tensor, topk: int, batch_q: Tensor | None = None, batch_k: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`topk_inner_product` from its definition, with all scores; for tests."""
    if q.dim() == 3:
        heads = [topk_inner_product_reference(q[:, h], k[:, h], topk, batch_q, batch_k) for h in range(q.size(1))]
        values, index = (torch.stack(parts, dim=1) for parts in zip(*heads))
        return values, index
    score = q @ k.t()
    if batch_q is not None:
        batch_k = batch_q if batch_k is None else batch_k
        score = score.masked_fill(batch_q[:, None] != batch_k, -torch.inf)
    missing = score.new_full((q.size(0), topk), -torch.inf)
    values, index = torch.cat([score, missing], dim=1).sort(dim=1, descending=True, stable=True)
    values, index = values[:, :topk], index[:, :topk]
    return values, index.masked_fill(values == -torch.inf, -1)


class Kept:
    """The kept pairs. Rows of queries and keys are numbered across all heads.

    Args:
        keys: Shape ``[H, Nq, topk]``, −1 for missing keys.
        num_keys: Number of keys of a head.
        complete: Whether no key is missing.
    """

    def __init__(self, keys: Tensor, num_keys: int, complete: bool) -> None:
        self.keys, self.num_keys = keys, num_keys
        self.exists = None if complete else keys >= 0

    @cached_property
    def pattern(self) -> Pattern:
        """The pairs as a matrix ``[H Nq, H Nk]``."""
        heads, num_queries, topk = self.keys.shape
        column = self.keys + torch.arange(heads, device=self.keys.device)[:, None, None] * self.num_keys
        rows = heads * num_queries
        if self.exists is None:
            column = column.view(-1)
            rowptr = torch.arange(rows + 1, dtype=torch.int32, device=column.device) * topk
        else:
            column = column[self.exists]
            rowptr = pad(self.exists.view(rows, topk).sum(1).cumsum(0), (1, 0)).int()
        return Pattern(None, column, rows, heads * self.num_keys, rowptr=rowptr)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Inner products of the pairs, shape ``[H, Nq, topk]``, of ``q`` ``[H Nq, d]`` and ``k`` ``[H Nk, d]``."""
        score = sampled_product(self.pattern, q, k)
        if self.exists is None:
            return score.view(self.keys.shape)
        return score.new_full(self.keys.shape, -torch.inf).masked_scatter(self.exists, score)


@torch.no_grad()
def search_keys(
    q: Tensor, k: Tensor, topk: int, ptr_q: list[int], ptr_k: list[int], backend: str, trim: bool = False
) -> Kept:
    """Find the pairs of finite queries and keys, and sort those of each query by scores, which no engine changes.

    ``ptr_q`` and ``ptr_k`` are the first row of each graph, followed by the number of rows.

    With ``trim``, columns in which no graph has a key may be dropped, and on CUDA the order is that of the engine.
    """
    q, k = q.detach(), k.detach()
    if trim:
        topk = min(topk, max([_FREE_SLOTS, *(d - c for c, d in pairwise(ptr_k))]))
    heads = q.transpose(0, 1).contiguous(), k.transpose(0, 1).contiguous()  # [H, N, d]
    if is_transformed():
        index = find_keys(q, k, topk, torch.tensor(ptr_q), torch.tensor(ptr_k), backend)
    else:
        index = find(Problem(*heads, ptr_q, ptr_k, topk), backend)
    sizes = zip(pairwise(ptr_q), pairwise(ptr_k))
    complete = all(d - c >= topk or a == b for (a, b), (c, d) in sizes)
    kept = Kept(index, k.size(0), complete)
    if trim and index.is_cuda:  # for attention, the order of a query's keys does not matter, and a check would wait
        return kept
    score = kept.scores(*(x.flatten(0, 1) for x in heads))
    higher, lower = score[..., :-1], score[..., 1:]
    wrong = (higher < lower) | ((higher == lower) & (index[..., :-1] > index[..., 1:]) & (lower > -torch.inf))
    if not bool(wrong.any()):
        return kept
    rows = wrong.any(-1)
    some, order = index[rows].where(index[rows] >= 0, k.size(0)).sort(dim=-1)  # missing keys last
    by_score = score[rows].gather(-1, order).sort(dim=-1, descending=True, stable=True)[1]
    some = some.gather(-1, by_score)
    index = index.clone()
    index[rows] = some.masked_fill(some == k.size(0), -1)
    return Kept(index, k.size(0), complete)


@torch.library.custom_op("topomask::topk_search", mutates_args=())
def find_keys(q: Tensor, k: Tensor, topk: int, ptr_q: Tensor, ptr_k: Tensor, backend: str) -> Tensor:
    """`find` as an operator of torch, for transforms of `torch.func` and programs, of ``q, k [N, H, d]``."""
    q, k = (x.transpose(0, 1).contiguous() for x in (q, k))
    return find(Problem(q, k, ptr_q.tolist(), ptr_k.tolist(), topk), backend)


@find_keys.register_fake
def _(q: Tensor, k: Tensor, topk: int, ptr_q: Tensor, ptr_k: Tensor, backend: str) -> Tensor:
    return q.new_empty(q.size(1), q.size(0), topk, dtype=torch.int64)


def head_rows(x: Tensor) -> Tensor:  # [N, H, d] -> [H N, d]
    return x.transpose(0, 1).flatten(0, 1).contiguous()


def _check_pair(q: Tensor, k: Tensor) -> None:
    if q.dim() != 3 or k.dim() != 3 or q.shape[1:] != k.shape[1:]:
        raise ValueError(
            f"'q' and 'k' must be [Nq, d] and [Nk, d], or [Nq, H, d] and [Nk, H, d] (got {list(q.shape)} and "
            f"{list(k.shape)})"
        )
    if not q.is_floating_point() or q.dtype != k.dtype or q.device != k.device:
        raise TypeError(
            f"'q' and 'k' must be floating point, of one dtype and on one device "
            f"(got {q.dtype} on {q.device} and {k.dtype} on {k.device})"
        )


def check_finite(q: Tensor, k: Tensor) -> None:
    """Refuse NaN, infinity, and numbers so large that a score may become either, where they are `readable`."""
    if q.numel() == 0 or k.numel() == 0 or not readable(q):
        return
    if bool((q.abs().amax() * k.abs().amax() * q.size(-1)).isfinite()):
        return
    for name, x in (("q", q), ("k", k)):
        bad = (~x.isfinite()).flatten(1).any(1).nonzero()
        if bad.numel() > 0:
            raise NonFiniteError(f"'{name}' holds NaN or infinity, first in row {int(bad[0])}; are the features clean?")
    raise NonFiniteError(
        f"inner products of 'q' (up to {float(q.abs().amax()):.2g}) and 'k' (up to {float(k.abs().amax()):.2g}) may "
        f"overflow {q.dtype}; normalise the features or use float64"
    )


def _offsets(q: Tensor, k: Tensor, batch_q: Tensor | None, batch_k: Tensor | None) -> tuple[list[int], list[int]]:
    """First row of each graph among queries and among keys, each followed by the number of rows."""
    if batch_q is None and batch_k is None:
        return [0, q.size(0)], [0, k.size(0)]
    if batch_q is None or (batch_k is None and q.size(0) != k.size(0)):
        name, other = ("batch_q", "batch_k") if batch_q is None else ("batch_k", "batch_q")
        raise ValueError(f"'{name}' is missing although '{other}' is given; pass both")
    batch_k = batch_q if batch_k is None else batch_k
    check_batch(batch_q, q.size(0))
    check_batch(batch_k, k.size(0))
    ptr_q, ptr_k = segments(batch_q).ptr, segments(batch_k).ptr
    num_graphs = max(len(ptr_q), len(ptr_k))
    return tuple(ptr + [ptr[-1]] * (num_graphs - len(ptr)) for ptr in (ptr_q, ptr_k))  # type: ignore[return-value]
