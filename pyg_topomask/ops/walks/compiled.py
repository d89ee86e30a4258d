"""Random walks and their pair tables in compiled code, ``native/walks/``: the same as those of plain torch."""

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyg_topomask.ops.hashing import wrap
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.native.op import Entry
from pyg_topomask.ops.sparse import Pattern, check_entries
from pyg_topomask.ops.walks.merge import WalkTable, num_monomials, num_products
from pyg_topomask.ops.walks.pair_table import sorted_walks
from pyg_topomask.ops.walks.settings import SCHEMES, WalkSettings
from pyg_topomask.ops.walks.walkers import WalkGraph

if TYPE_CHECKING:
    from collections.abc import Sequence

refuses = partial(loader.refuses, "walks")
"""Why the compiled functions cannot serve loads or factors like these; :obj:`None` if they can."""

_TABLE = ("start", "visited", "length", "load")
_LEFT, _RIGHT = ([f"{side}_{name}" for name in _TABLE] for side in ("left", "right"))
_pair_table = Entry(
    "walks", "pair_table", (*_LEFT, *_RIGHT, "rowptr", "row", "col", "coeffs"), {"lengths": int, "ordered": int}
)
_walk_features = Entry("walks", "walk_features", (*_TABLE, "decay", "rowptr", "col", "value"), {"exponent": float})
_walk_tables = Entry(
    "walks",
    "walk_tables",
    ("start", "stream", "rowptr", "col", "factor", "bound", "gain", "halts_below", "totals", "made"),
    dict.fromkeys(("tables", "walks", "block", "scheme", "has_own"), int),
)
_walk_graph = Entry(
    "walks",
    "walk_graph",
    ("edge_index", "edge_weight", "ptr", "draws", "rowptr", "col", "factor", "stream"),
    {"seed": int, "epoch": int, "goes_on": float, "importance": int},
)
_write_walks = Entry("walks", "write_walks", ("index", "length", "load", "count", "own"), {"made": int, "table": int})
_release_walks = Entry("walks", "release_walks", ("like",), {"made": int})

_NO_SUCH_NODE, _NOT_SORTED, _NEGATIVE = -3, -4, -3  # answers

# Walk entries of both tables, and walkers, that are worth a second thread.
_ENTRIES_PER_THREAD, _WALKERS_PER_THREAD = 2**13, 2**13


def normalized_graph(
    edge_index: Tensor, edge_weight: Tensor | None, ptr: Tensor, draws: "Tensor | Sequence[int]", settings: WalkSettings
) -> tuple[WalkGraph, Tensor] | None:
    """The graph that walkers move on, with the symmetrically normalised adjacency as ``W``, and the hash of each start.

    Args:
        edge_index: Checked edges of the disjoint union of several graphs, shape ``[2, E]``.
        edge_weight: Weights, shape ``[E]``, float64; one per edge if :obj:`None`.
        ptr: First node of each graph, followed by the number of nodes, shape ``[B + 1]``.
        draws: Seed of each graph, shape ``[B]``, or the seed and the epoch that `hash_graphs` takes.
        settings: Checked settings.

    Returns:
        :obj:`None` if compiled code cannot serve, or a node's weights add up to a negative number.
    """
    sizes = edge_index.size(1), int(ptr[-1]) + 1, int(ptr[-1])
    factor = torch.empty(sizes[0], device=ptr.device)
    if refuses(factor) is not None:
        return None
    check_entries(max(sizes))
    col, rowptr, stream = (ptr.new_empty(size) for size in sizes)
    drawn, (seed, epoch) = (draws, (0, 0)) if isinstance(draws, Tensor) else (None, draws)
    given = (edge_index.long(), edge_weight, ptr, drawn, rowptr, col, factor, stream)
    arrays = [x if x is None else x.contiguous() for x in given]
    numbers = wrap(seed), epoch, 1 - settings.halt_prob, settings.importance
    count = _walk_graph(arrays, *numbers, answers=(_NEGATIVE,))
    return None if count < 0 else (WalkGraph(rowptr, col[:count], factor[:count], None), stream)


def walk_tables(
    graph: WalkGraph, nodes: Tensor, stream: Tensor, num_tables: int, settings: WalkSettings, own: bool
) -> list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]]:
    """Index, length, load, count and, if wanted, own products of each table, in the order of `Walks`.

    Arguments are those of `pyg_topomask.ops.walks.sample.walk_tables`. Raises MemoryError.
    """
    gains, halts_below = torch.tensor(settings.gains, dtype=torch.float64), nodes.new_tensor(settings.halts_below)
    bound = None if graph.steps is None else graph.steps.bound
    given = (nodes, stream, graph.rowptr, graph.col, graph.factor, bound, gains, halts_below)
    totals, made = nodes.new_empty(num_tables), nodes.new_zeros(1)
    threads = loader.num_threads(nodes.numel() * num_tables * settings.num_walks, _WALKERS_PER_THREAD)
    numbers = num_tables, settings.num_walks, settings.block_size, SCHEMES.index(settings.scheme), own
    arrays = [x if x is None else x.contiguous() for x in given]
    _walk_tables([*arrays, totals, made], *numbers, threads=threads)
    try:
        found = []
        for table, total in enumerate(totals.tolist()):
            index, length = nodes.new_empty(2, total), nodes.new_empty(total)
            loads, counts = (graph.factor.new_empty(total) for _ in range(2))
            products = graph.factor.new_empty(nodes.numel(), num_monomials(settings.max_length)) if own else None
            _write_walks((index, length, loads, counts, products), int(made), table)
            found.append((index, length, loads, counts, products))
        return found
    finally:
        _release_walks((graph.factor,), int(made))


def pair_table(
    left: WalkTable, right: WalkTable, num_nodes: int, max_length: int, ordered: bool = False
) -> tuple[Tensor, Tensor]:
    """`pyg_topomask.ops.walks.pair_table.sorted_pair_table` of walks that `refuses` does not refuse.

    Raises:
        ValueError: If a walk has a node or a length that does not exist.
        MemoryError: If memory is short.
    """
    threads = loader.num_threads(left.length.numel() + right.length.numel(), _ENTRIES_PER_THREAD)
    rowptr = left.index.new_zeros(num_nodes + 1, dtype=torch.int64)
    given = [*_columns(left, left.load.dtype), *_columns(right, left.load.dtype), rowptr]
    numbers = max_length + 1, ordered
    answers = _NO_SUCH_NODE, _NOT_SORTED
    answer = _pair_table([*given, None, None, None], *numbers, threads=threads, answers=answers)
    if answer == _NOT_SORTED:
        left = sorted_walks(left, num_nodes, max_length)
        return pair_table(left, right, num_nodes, max_length, ordered)
    if answer == _NO_SUCH_NODE:
        raise ValueError(
            f"stored walks name a node outside of 0 to {num_nodes - 1}, or have more than 'max_length' = {max_length} "
            "steps: draw them again on this graph"
        )
    num_pairs = int(rowptr[-1])
    index = rowptr.new_empty(2, num_pairs, dtype=torch.int32)
    coeffs = left.load.new_empty(num_products(max_length, ordered), num_pairs)
    if num_pairs > 0:
        _pair_table([*given, *index, coeffs], *numbers, threads=threads)
    return index, coeffs.t()


def walk_features(
    walks: WalkTable, num_nodes: int, decay: list[float], exponent: float
) -> tuple[Pattern, Tensor] | None:
    r"""Features :math:`f_i(u)\, \|f_i\|^{2 e}` of walks that `refuses` does not refuse, where :math:`f_i(u) = \sum_\ell
    \lambda_\ell\, \mathrm{load}_i(u, \ell)`.

    Args:
        walks: The walks.
        num_nodes: ``N``.
        decay: :math:`\lambda_\ell` of each length.
        exponent: :math:`e`.

    Returns:
        Pattern ``[N, N]`` and entries; :obj:`None` if the walks are not sorted, or not those of such a graph.

    Raises:
        MemoryError: If memory is short.
    """
    table, size = _columns(walks, walks.load.dtype), walks.length.numel()
    rowptr, col = (walks.load.new_empty(length, dtype=torch.int32) for length in (num_nodes + 1, size))
    value, factors = walks.load.new_empty(size), walks.load.new_tensor(decay, dtype=torch.float64)
    if _walk_features([*table, factors, rowptr, col, value], exponent, answers=(_NO_SUCH_NODE, _NOT_SORTED)):
        return None
    count = int(rowptr[-1])
    return Pattern(None, col[:count], num_nodes, num_nodes, rowptr=rowptr), value[:count]


def _columns(table: WalkTable, dtype: torch.dtype) -> list[Tensor]:
    return [x.contiguous() for x in (*table.index.int(), table.length.int(), table.load.to(dtype))]
