"""Attention on the pairs of a mask in compiled code, ``native/pairs/``.

It keeps no array of one number per pair and head: the backward pass computes the scores again.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.attention.kernels import KERNELS, EdgeVectors, Kernel, factors_kept
from pyg_topomask.ops.attention.mask import Entries, evaluate
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.hashing import draw_seeds
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native.op import CompiledOp, Entry
from pyg_topomask.ops.numerics import least_denominator
from pyg_topomask.ops.sparse import Combination, Pattern

_KEPT_FROM = 2**16  # pairs from which what is found of a pattern is kept
_pair_reach = Entry("pairs", "pair_reach", ("rowptr", "col", "low", "high"))


class PairMeans(CompiledOp):
    """Attention on pairs: outputs ``[rows, H, D]``, and denominators ``[rows, H]``, with a gradient for linear kernels.

    ``q [rows, H, R]``, ``k [columns, H, R]`` and ``v [columns, H, D]`` are in the order of the nodes. ``entry`` and
    ``bound`` are ``[H or 1, P or 1]``, or weights ``[H or 1, T]`` of coefficients ``[T, P]``; the mask bounds itself if
    there is no bound. ``edge [E, H, R]`` are edge vectors. ``rowptr``, ``col`` and ``edge_of_pair`` are int32,
    ``order`` and ``seed`` int64.
    """

    library, name = "pairs", "pair_means"
    arrays: tuple[str, ...] = ("q", "k", "v", "entry", "bound?", "edge?", "rowptr", "col", "edge_of_pair?", "seed?")
    arrays += ("order?", "coeffs?", "bound_coeffs?")
    numbers = {"kernel": int, "negative_slope": float, "dropout": float, "common_edges": int}  # noqa: RUF012
    results, differentiable, keeps_results = ("out", "size"), 6, True
    with_gaps = ("q", "k", "v")
    reads = (*(name.removesuffix("?") for name in arrays), "low", "high")

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        (rowptr, col), count = inputs[6:8], len(self.arrays)
        reach = _reach(rowptr, col) if col.numel() >= _KEPT_FROM else (None, None)
        return *inputs[:count], *reach, *inputs[count:]

    def shapes(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[tuple[int, ...]]:
        return [(q.size(0), q.size(1), v.size(2)), (q.size(0), q.size(1))]

    def constant(self, *inputs: Any) -> int:
        return int(KERNELS[inputs[-4]] != "linear")

    def work(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> int:
        return rest[4].numel() * q.size(1) * (q.size(2) + v.size(2))

    def twin(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, entry, bound, edge, rowptr, col, edge_of_pair, seed, order, coeffs, bound_coeffs, *numbers = inputs
        kernel, negative_slope, dropout, common_edges = numbers
        pattern = Pattern(None, col, q.size(0), k.size(0), order, rowptr)
        entries = _of_pairs(entry, coeffs, pattern)
        bounds = entries if bound is None else _of_pairs(bound, bound_coeffs, pattern)
        how = Kernel(KERNELS[kernel], negative_slope=negative_slope)
        kept = factors_kept(dropout, seed, pattern, v)
        edges = None if edge is None else EdgeVectors(edge, edge_of_pair, common_edges)
        sums = how.sums_of_heads(pattern, entries, bounds, q, k, v, kept=kept, edges=edges)
        size = sums[..., -1].detach() if self.constant(*inputs) else sums[..., -1]
        vanished = size < least_denominator(size.dtype)
        return Problem(how, q, k, v).finish(sums), size.masked_fill(vanished, 0)

    def examples(self) -> Iterator[tuple[Any, ...]]:
        for rows, columns, heads, width, channels in ((3, 3, 2, 2, 1), (0, 0, 1, 2, 1), (70, 50, 3, 17, 9)):
            there = torch.rand(rows, columns) < 0.5
            there[:1] = False
            pattern = Pattern(there.nonzero()[:, 0], there.nonzero()[:, 1], rows, columns)
            shapes = (rows, heads, width), (columns, heads, width), (columns, heads, channels)
            q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
            entry, where = torch.randn(heads, pattern.nnz, dtype=torch.float64), (pattern.rowptr, pattern.col)
            line, one = entry[:1].abs(), torch.ones(1, 1, dtype=torch.float64)
            seed, linear, softmax = torch.tensor([7]), (0, 0.2, 0.0, 0), (1, 0.2, 0.0, 0)
            yield q, k, v, entry, entry.abs() + 0.1, None, *where, *(None,) * 5, *softmax
            yield q.abs() + 0.1, k.abs() + 0.1, v, line, None, None, *where, *(None,) * 5, *linear
            yield q, k, v, one, None, None, *where, None, seed, *(None,) * 3, 1, 0.2, 0.3, 0
            coeffs, weights = (torch.randn(n, m, dtype=torch.float64) for n, m in ((4, pattern.nnz), (heads, 4)))
            tables = coeffs, coeffs.abs()
            if pattern.nnz:
                yield q, k, v, weights, weights.abs() + 0.1, None, *where, None, None, None, *tables, *softmax
            yield q, k, v, entry.abs(), None, None, *where, *(None,) * 5, 2, 0.2, 0.0, 0
            own = torch.arange(pattern.nnz) % 2 == 1  # the others share two vectors
            number = torch.where(own, 1 + own.cumsum(0), torch.arange(pattern.nnz) // 2 % 2).int()
            vectors = torch.randn(2 + int(own.sum()), heads, width, dtype=torch.float64)
            yield q, k, v, one, None, vectors, *where, number, *(None,) * 4, 1, 0.2, 0.0, 2


_pair_means = PairMeans()


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    return problem.no_compiled_pairs or _pair_means.refuses(problem.q, problem.k, problem.v)


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    return with_size(problem)[0]


def with_size(problem: Problem) -> tuple[Tensor, Tensor]:
    """The outputs, and :math:`S_i` ``[N, H]`` if the kernel is linear."""
    kernel = problem.kernel
    pattern, entries, bounds = problem.pairs()
    entry, coeffs = _lines(entries)
    bound, bound_coeffs = (None, None) if bounds is entries else _lines(bounds)
    edge, of_pair, common = (None, None, 0) if problem.edges is None else problem.edges
    seed = draw_seeds(1) if problem.dropout else None
    pairs = pattern.rowptr, pattern.col, of_pair, seed, pattern.order, coeffs, bound_coeffs
    numbers = KERNELS.index(kernel.name), kernel.negative_slope, problem.dropout, common
    return _pair_means(problem.q, problem.k, problem.v, entry, bound, edge, *pairs, *numbers)


@once_per_batch
def _reach(rowptr: Tensor, col: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest column of each row, by which the compiled code divides its work."""
    low, high = torch.empty_like(rowptr[1:]), torch.empty_like(rowptr[1:])
    _pair_reach((rowptr, col, low, high))
    return low, high


def _lines(entries: Entries) -> tuple[Tensor, Tensor | None]:
    """Entries ``[H or 1, P or 1]``, one number if all are equal; or weights ``[H or 1, T]``, coefficients."""
    if isinstance(entries, Combination):
        weights = entries.weights
        return weights if weights.dim() == 2 else weights[None], entries.coeffs.t()
    if entries.dim() == 2:
        return entries.t(), None
    return (entries[:1] if entries.stride() == (0,) else entries)[None], None


def _of_pairs(lines: Tensor, coeffs: Tensor | None, pattern: Pattern) -> Tensor:
    """Entries ``[P]`` or ``[P, H]`` of the arguments of `PairMeans`."""
    entries = evaluate(Combination(coeffs.t(), lines)) if coeffs is not None else lines.t()
    entries = entries.expand(pattern.nnz, -1)
    return entries if lines.size(0) > 1 else entries[:, 0]
