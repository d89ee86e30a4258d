"""Linear attention without a mask, for features that are not negative.

On CPU, one compiled function (``native/linear/``) computes it. Plain torch does so on other devices, in other dtypes,
for wide heads, under ``torch.compile``, without a compiler, and for second derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyg_topomask.ops.attention.inputs import with_ones
from pyg_topomask.ops.attention.normalizer import row_tolerance
from pyg_topomask.ops.attention.pair_kernels import scaled
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native.op import CompiledOp
from pyg_topomask.ops.numerics import power_of_two, size_of_rows, weighted_mean
from pyg_topomask.ops.segment import segment_linear_attention, segment_max, segments

_MOST_NUMBERS = 2**12  # of one graph's and head's state; wider heads are faster as whole matrices


def linear_means(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""Means of the values of each node's own graph, with weights :math:`q_i \cdot k_j / \sum_j q_i \cdot k_j`.

    Reference: Katharopoulos et al., *Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention*,
    ICML 2020, arXiv:2006.16236, equation 5.
    Cost: :math:`O(N R D)` operations per head, and :math:`O(N (R + D) + B R D)` memory.

    Args:
        q, k: Features, not negative, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Returns:
        ``(means [N, H, D], sizes [N, H, 1])``. Where the sum of the weights is close to underflow, both are zero. Other
        sizes are positive, without a gradient.
    """
    means, size = _linear_means(q, k, v, batch)
    return means, size[..., None]


@torch.no_grad()
def key_scale(k: Tensor, batch: Tensor | None) -> Tensor:
    """Scale ``[N, H, 1]`` of the keys of each graph that keeps products of features within the range.

    Scales of keys, and those of queries by row, are powers of two and cancel in the quotient, so they do not change any
    digit of the result.
    """
    top = size_of_rows(k)
    if batch is not None:
        top = segment_max(top, batch).index_select(0, batch)
    elif top.size(0):
        top = top.amax(0, keepdim=True)
    return power_of_two(top).expand(k.size(0), -1, -1)


@once_per_batch
def _pointers(batch: Tensor) -> Tensor:
    """First node of each graph, followed by the number of nodes, int64, shape ``[B + 1]``."""
    return torch.tensor(segments(batch).ptr, device=batch.device)


class _LinearMeans(CompiledOp):
    library, name = "linear", "linear_means"
    arrays, results = ("q", "k", "v", "batch?"), ("out", "size")
    differentiable, constant_results, keeps_results = 3, 1, True
    reads, with_gaps = ("q", "k", "v", "ptr"), ("q", "k", "v")
    work_per_thread = 2**22  # multiplications

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> list[torch.Size]:
        return [v.shape, v.shape[:2]]

    def work(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> int:
        return q.numel() * v.size(2)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> tuple[Tensor, ...]:
        ptr = torch.tensor([0, q.size(0)], device="cpu") if batch is None else _pointers(batch)
        return q, k, v, ptr

    def refuses(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> str | None:
        if q.size(-1) == 0 or q.size(-1) * (v.size(-1) + 1) > _MOST_NUMBERS:
            return f"heads without features, or with more than {_MOST_NUMBERS} products, are left to plain torch"
        if torch.compiler.is_compiling():
            return "compiled code joins plain torch with what is before and after it"
        return super().refuses(q, k, v, batch)

    def twin(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
        sums = segment_linear_attention(*scaled(q, k, key_scale(k, batch)), with_ones(v), batch)
        size = sums[..., -1].detach()
        vanished = size < 2**14 * torch.finfo(v.dtype).tiny
        return weighted_mean(sums, v.size(-1), row_tolerance(v, batch, False)), size.masked_fill(vanished, 0)

    def examples(self) -> Iterator[tuple[Tensor | None, ...]]:
        for sizes, width, channels in (([3, 0, 1], 2, 2), ([], 2, 3), ([63, 64, 65], 17, 30), ([1500, 2, 1024], 3, 5)):
            batch = torch.repeat_interleave(torch.tensor(sizes, dtype=torch.long))
            q, k = torch.rand(2, batch.numel(), 2, width, dtype=torch.float64)
            yield q, k, torch.randn(batch.numel(), 2, channels, dtype=torch.float64), batch
        yield *torch.rand(3, 4, 1, 2, dtype=torch.float64), None


_linear_means = _LinearMeans()
