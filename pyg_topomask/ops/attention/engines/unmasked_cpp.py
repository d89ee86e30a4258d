"""Linear attention without a mask in compiled code, ``native/linear/``: one small state per graph and head."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native.op import CompiledOp
from pyg_topomask.ops.numerics import least_denominator, with_ones
from pyg_topomask.ops.segment import segment_linear_attention, segments, size_groups

_MOST_NUMBERS = 2**12  # of one graph's and head's state; wider heads are faster as whole matrices


class LinearMeans(CompiledOp):
    """Means ``[N, H, D]`` of the values of each node's own graph with the weights ``q_i · k_j``, and sums ``[N, H]`` of
    the weights.

    ``q, k [N, H, R]`` are features without signs, ``v [N, H, D]`` are values, and ``batch [N]`` is sorted; one graph if
    there is none.

    Reference: Katharopoulos et al., *Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention*,
    ICML 2020, arXiv:2006.16236, equation 5.
    Cost: :math:`O(N R D)` operations per head, and :math:`O(N (R + D) + B R D)` memory.
    """

    library, name = "linear", "linear_means"
    arrays, results = ("q", "k", "v", "batch?"), ("out", "size")
    differentiable, keeps_results = 3, True
    reads, with_gaps = ("q", "k", "v", "ptr"), ("q", "k", "v")
    work_per_thread = 2**22  # multiplications

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> list[torch.Size]:
        return [v.shape, v.shape[:2]]

    def work(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> int:
        return q.numel() * v.size(2)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> tuple[Tensor, ...]:
        return q, k, v, torch.tensor([0, q.size(0)], device="cpu") if batch is None else _pointers(batch)

    def twin(self, q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> tuple[Tensor, Tensor]:
        sums = segment_linear_attention(q, k, with_ones(v), batch)
        size = sums[..., -1]
        out = Problem(Kernel("linear"), q, k, v, None, batch).finish(sums)
        return out, size.masked_fill(size < least_denominator(v.dtype), 0)

    def examples(self) -> Iterator[tuple[Tensor | None, ...]]:
        for sizes, width, channels in (([3, 0, 1], 2, 2), ([], 2, 3), ([63, 64, 65], 17, 30), ([1500, 2, 1024], 3, 5)):
            batch = torch.repeat_interleave(torch.tensor(sizes, dtype=torch.long))
            q, k = torch.rand(2, batch.numel(), 2, width, dtype=torch.float64)
            yield q, k, torch.randn(batch.numel(), 2, channels, dtype=torch.float64), batch
        yield *torch.rand(3, 4, 1, 2, dtype=torch.float64), None


_linear_means = LinearMeans()


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if problem.mask is not None:
        return "it serves attention without a mask"
    if problem.kernel != Kernel("linear") or problem.signed:
        return "it serves linear kernels of features without signs"
    _, _, features, channels = problem.size
    if features == 0 or features * (channels + 1) > _MOST_NUMBERS:
        return f"heads without features, or with more than {_MOST_NUMBERS} products, are left to plain torch"
    if torch.compiler.is_compiling():
        return "compiled code joins plain torch with what is before and after it"
    return _linear_means.refuses(problem.q, problem.k, problem.v, problem.batch)


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    return with_size(problem)[0]


def with_size(problem: Problem) -> tuple[Tensor, Tensor]:
    """The outputs, and :math:`S_i` ``[N, H]``."""
    if plans.planned() and problem.batch is not None:
        size_groups(problem.batch)  # a plan serves `unmasked`, too
    return _linear_means(problem.q, problem.k, problem.v, problem.batch)


@once_per_batch
def _pointers(batch: Tensor) -> Tensor:
    """First node of each graph, followed by the number of nodes, int64, shape ``[B + 1]``."""
    return torch.tensor(segments(batch).ptr, device=batch.device)
