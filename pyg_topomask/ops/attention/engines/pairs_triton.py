"""Attention on the pairs of a mask on CUDA: the Triton kernels of ``triton_kernels.py`` do what ``pairs_cpp`` does.

It keeps no array of one number per pair and head: the backward pass computes the scores again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.ops import triton_support
from pyg_topomask.ops.attention.kernels import KERNELS, EdgeVectors, Kernel, factors_kept
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.hashing import draw_seeds
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.native.op import CompiledOp
from pyg_topomask.ops.numerics import at_least_float32, least_denominator
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.ops.triton_support import power_of_two

_MODULE = "pyg_topomask.ops.attention.triton_kernels"
PAIRS = 16  # pairs that a program reads at a time
CUT = 1024  # most pairs of a row or column that one program sums
_NUMBERS = 256  # most numbers of the keys and values of one pair, in all heads of a program
_TWO_WARPS = 4096  # float32 numbers from which a program of four heads, or with dropout, has two warps; one spills them


class PairSums(CompiledOp):
    """Sums ``[rows, H, D + 1]`` of attention (`Kernel`) on pairs, and the largest scores ``[rows, H]`` of rows.

    Only the kernels' backward pass reads these scores, so that the twin leaves them at −inf.

    ``q [rows, H, R]``, ``k [columns, H, R]`` and ``v [columns, H, D]`` are in the order of the pattern. ``entry`` and
    ``bound`` are ``[H or 1, P]``; the mask bounds itself if there is no bound. ``edge [E, H, R]`` are edge vectors, of
    which pairs have those that ``of_pair`` says. ``rowptr``, ``col`` and ``of_pair`` are int32, the ``seed`` of the
    dropout is int64. ``longest`` is the largest number of pairs of a row or column: none is cut if it is small. ``q``,
    ``k`` and ``v``, and so their gradients, may be in half precision; all sums have the dtype of ``entry``, float32 or
    float64.
    """

    library, name = "", "pair_sums_triton"
    arrays = ("entry", "q", "k", "v", "bound?", "edge?", "rowptr", "col", "of_pair?", "seed?")
    differentiable = 6
    results, constant_results, keeps_results = ("sums", "tops"), 1, True
    numbers = {"kernel": int, "negative_slope": float, "dropout": float, "longest": int}  # noqa: RUF012

    def shapes(self, entry: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[tuple[int, ...]]:
        return [(q.size(0), q.size(1), v.size(2) + 1), (q.size(0), q.size(1))]

    def refuses(self, entry: Tensor, *rest: Any) -> str | None:
        if loader.is_transformed():
            return "derivatives in forward mode and transforms of torch.func are left to plain torch"
        return triton_support.refuses(entry.device)

    def twin(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        entry, *qkv, bound, edge, rowptr, col, of_pair, seed, kernel, negative_slope, dropout, _ = inputs
        q, k, v = at_least_float32(*qkv)
        pattern = Pattern(None, col, q.size(0), k.size(0), rowptr=rowptr)
        entries = entry.t() if entry.size(0) > 1 else entry[0]
        bounds = entries if bound is None else bound.t() if bound.size(0) > 1 else bound[0]
        how = Kernel(KERNELS[kernel], negative_slope=negative_slope)
        kept = factors_kept(dropout, seed, pattern, v)
        edges = None if edge is None else EdgeVectors(edge, of_pair, edge.size(0))
        sums = how.sums_of_heads(pattern, entries, bounds, q, k, v, kept=kept, edges=edges)
        return sums, sums.new_full(sums.shape[:2], -torch.inf)

    def run(
        self,
        inputs: tuple[Any, ...],
        results: Any,
        grads: Sequence[Tensor] = (),
        room: Sequence[Tensor | None] = (),
    ) -> None:
        """Launch the forward kernel, or those that fill the gradients that have ``room``."""
        q, k, v, bound, edge, rowptr, col, of_pair = inputs[1:9]
        call, rows, (sums, tops) = _Call(*inputs), (rowptr, _rows(rowptr, col.numel())), results
        if not grads:
            return call.launch("forward", rows, col, sums=(sums,), tops=tops)
        of_q, of_k, of_v = (x.new_empty(x.shape) if space is None else space for x, space in zip((q, k, v), room[1:]))
        weights: Any = room[0], room[4]
        shared = [x is not None and x.size(0) == 1 for x in weights]  # then each block of heads has its own sums
        filled = [x.new_empty(call.blocks, x.size(1)) if one else x for x, one in zip(weights, shared)]
        flags: Any = {"HAS_BOUND": bound is not None, "SHARED_ENTRY": shared[0], "SHARED_BOUND": shared[1]}
        call.launch("backward_rows", rows, col, grads[0], tops, *filled, sums=(of_q,), **flags)
        for x, of_blocks, one in zip(weights, filled, shared):
            if one:
                x.copy_(of_blocks.sum(0, keepdim=True))
        pairs = rows[1], col, grads[0], tops
        if room[2] is not None or room[3] is not None:
            *places, order = transposed_pairs(col, k.size(0))
            call.launch("backward_columns", places, order, *pairs, sums=(of_k, of_v), OF_EDGE=False)
        if room[5] is not None:
            *places, order = transposed_pairs(of_pair, edge.size(0))
            call.cuts = places_of_cuts(col)  # many pairs may share an edge vector
            call.launch("backward_columns", places, order, *pairs, sums=(room[5], None), OF_EDGE=True)


class _Call:
    """What all launches of one call of `PairSums` share."""

    def __init__(self, entry: Tensor, q: Tensor, k: Tensor, v: Tensor, bound: Tensor | None, *rest: Any) -> None:
        edge, _, col, of_pair, seed, kernel, slope, dropout, longest = rest
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        weights = [x.contiguous() for x in (entry, entry if bound is None else bound)]
        (heads, width), channels = q.shape[1:], v.size(-1)
        self.entry, self.cuts = entry, places_of_cuts(col) if longest > CUT else 0
        self.block = _head_block(heads, width if edge is None else 2 * width, channels)
        self.blocks = -(-heads // self.block)
        self.arrays = q, k, v, *weights, None if edge is None else edge.contiguous(), of_pair, seed
        strides = [stride for x in (q, k, v) for stride in x.stride()[:2]]
        for x in weights:
            strides += [x.stride(1), x.stride(0) if x.size(0) > 1 else 0]
        self.numbers = *strides, heads, width, channels, col.numel()
        self.constants = {
            "KERNEL": kernel,
            "SLOPE": slope,
            "DROPPED": 0 if seed is None else int(dropout * 2**32),
            "SCALE": 1 / (1 - dropout) if dropout < 1 else 0.0,
            "PAIRS": PAIRS,
            "WIDTH": power_of_two(width),
            "CHANNELS": power_of_two(channels),
        }
        # Queries or gradients of keys beside keys and values. Rows are short: a wider program repeats work.
        numbers = PAIRS * self.block * ((2 if edge is None else 3) * power_of_two(width) + power_of_two(channels))
        wide = numbers * entry.element_size() >= 4 * _TWO_WARPS
        self.warps = 2 if wide and (self.block >= 4 or seed is not None) else 1

    def launch(
        self,
        name: str,
        places: Sequence[Tensor],
        *own: Tensor | None,
        sums: Sequence[Tensor | None],
        tops: Tensor | None = None,
        **flags: Any,
    ) -> None:
        """Run a kernel that fills ``sums`` of rows, whose largest scores it stores in ``tops``, if they are given.

        ``places`` are the first pair of each row, and the row of each pair, in the order of the kernel.
        """
        rows, sizes = places[0].numel() - 1, {"CUT": CUT, "HEADS": self.block}
        given = [(x, None if x is None else self._parts(x)) for x in sums]
        scores = (None, None) if tops is None else (tops, self._parts(tops))
        filled = [x for pair in given for x in pair] + [x for x in scores if x is not None]
        arguments = (*self.arrays, *places, *own, *filled, *self.numbers, rows, self.cuts)
        self._run(name, rows + self.cuts, arguments, self.constants | sizes | flags)
        for x, parts in given:
            if x is not None:
                heads, size = x.shape[1:]
                arguments = (x, parts, *scores, *places, self.cuts, heads, size)
                self._run("combine", self.cuts, arguments, sizes | {"SIZE": power_of_two(size)})

    def _parts(self, sums: Tensor) -> Tensor:
        """Room for the sums of parts of rows, in the precision of sums."""
        return self.entry.new_empty(2 * self.cuts, *sums.shape[1:])

    def _run(self, name: str, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        grid = programs, self.blocks
        triton_support.launch(_MODULE, name, grid, arguments, constants, num_warps=self.warps)


_pair_sums = PairSums()


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if problem.no_compiled_pairs is not None:
        return problem.no_compiled_pairs
    if not problem.v.is_cuda:  # Triton's interpreter would serve CPU tensors, a thousand times as slowly
        return f"it runs on CUDA (got {problem.v.device})"
    return _pair_sums.refuses(problem.v)


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    return with_size(problem)[0]


def with_size(problem: Problem) -> tuple[Tensor, Tensor]:
    """The outputs, and :math:`S_i` ``[N, H]`` if the kernel is linear."""
    kernel, (pattern, entries, bounds) = problem.kernel, problem.pairs().evaluated()
    q, k, v = (pattern.arrange(x) for x in (problem.q, problem.k, problem.v))
    edge, of_pair = (None, None) if problem.edges is None else problem.edges[:2]
    entry, bound = (x.t() if x.dim() == 2 else x[None] for x in (entries, bounds))
    seed = draw_seeds(1, device=problem.v.device) if problem.dropout else None
    # A plan has no sizes of graphs on the host, and may end with a long row of padded pairs.
    longest = problem.k.size(0) if plans.reading() else max(problem.groups.num_nodes, default=0)
    numbers = KERNELS.index(kernel.name), kernel.negative_slope, problem.dropout, longest
    rest = pattern.rowptr, pattern.col, of_pair, seed, *numbers
    sums = pattern.restore(_pair_sums(entry, q, k, v, None if bounds is entries else bound, edge, *rest)[0])
    size = sums[..., -1]
    return problem.finish(sums), size.masked_fill(size < least_denominator(size.dtype), 0)


def places_of_cuts(col: Tensor) -> int:
    """Number of the places where rows may be cut."""
    return max(col.numel() - 1, 0) // CUT


def _head_block(heads: int, width: int, channels: int) -> int:
    """Number of heads of a program, a power of two, whose numbers fit together."""
    fitting = max(1, _NUMBERS // (power_of_two(width) + power_of_two(channels)))
    return min(power_of_two(heads), 1 << (fitting.bit_length() - 1))


@partial(once_per_batch, traced=True)
def _rows(rowptr: Tensor, num_pairs: int) -> Tensor:
    """Row of each pair, int32."""
    return torch.repeat_interleave(rowptr.diff(), output_size=num_pairs).int()


@partial(once_per_batch, traced=True)
def transposed_pairs(col: Tensor, num_columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """First pair of each column in the transposed order, the columns in this order, and the pairs."""
    column, order = col.sort(stable=True)
    columns = torch.arange(num_columns + 1, dtype=col.dtype, device=col.device)
    return torch.searchsorted(column, columns, out_int32=True), column, order
