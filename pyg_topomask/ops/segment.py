"""Sums over the graphs of a batch, and their groups of similar size."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from math import isqrt

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.checks import holds
from pyg_topomask.ops.functions import Linear
from pyg_topomask.ops.memo import kept_property, once_per_batch, once_per_setting
from pyg_topomask.ops.sparse import row_pointers

# Groups of graphs (`SizeGroups`): twice the binary logarithm of the most nodes in the first one, and their number.
_LEAST_STEP, _LEAST_STEP_CPU, _MOST_GROUPS = 12, 10, 8

_UNSORTED = "'batch' must be sorted: sort nodes by graph first, for example with batch.argsort(stable=True)"

_MOST_EMPTY = 2**20  # graphs without nodes; more of them are a number in 'batch' that counts something else


class Segments:
    """A batch's graphs.

    Args:
        offsets: First node of each graph, followed by the number of nodes, ``[B + 1]``.
    """

    of_host = ("ptr",)

    def __init__(self, offsets: Tensor) -> None:
        self.offsets = offsets
        self.ptr: list[int] = offsets.tolist()
        """The same numbers on the host."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs ``B``."""
        return self.offsets.size(0) - 1


class SizeGroups:
    """A batch's graphs in at most 8 groups of similar size, each padded to its largest graph.

    Groups end at 64 nodes (on CPU at 32), below which a call costs more than its pairs, and at powers of the square
    root of two, so that padding at most doubles the pairs of larger graphs. A plan has one group, because compiled code
    is made for a number of groups.

    Args:
        num_nodes: Number of nodes of every graph.
        device: Device of the batch.
    """

    of_host = ("num_nodes", "graphs", "inside")

    def __init__(self, num_nodes: list[int], device: torch.device) -> None:
        self.num_nodes, self.device, self.is_planned = num_nodes, device, plans.planned()
        steps = [(n * n - 1).bit_length() for n in num_nodes]  # 2 log2(n), rounded up
        least = _LEAST_STEP_CPU if device.type == "cpu" else _LEAST_STEP
        least = max(least, max(steps, default=0) - (0 if self.is_planned else _MOST_GROUPS - 1))
        found: dict[int, list[int]] = {}
        for graph, nodes in enumerate(num_nodes):
            if nodes:
                found.setdefault(max(steps[graph], least), []).append(graph)
        self.graphs = [found[step] for step in sorted(found)]
        """Graphs of each group, without empty ones."""
        widths = (isqrt(plans.padded(max(num_nodes[graph] for graph in graphs) ** 2)) for graphs in self.graphs)
        self.shapes = [(len(graphs), width) for graphs, width in zip(self.graphs, widths)]
        """Number of graphs ``g`` of each group, and number of nodes ``n`` of the largest one."""

    @property
    def width(self) -> int:
        """Number of nodes of the largest graph."""
        return self.shapes[-1][1] if self.shapes else 0

    @kept_property
    def slot(self) -> Tensor | None:
        """Row of each node in the padded groups, one after the other, shape ``[N]``; :obj:`None` if nothing moves."""
        start, total = [0] * len(self.num_nodes), 0
        for graphs, (_, width) in zip(self.graphs, self.shapes):
            for graph in graphs:
                start[graph], total = total, total + width
        before = accumulate(self.num_nodes, initial=0)
        moves = total != sum(self.num_nodes) or any(a != b for a, b, n in zip(start, before, self.num_nodes) if n)
        if not moves and not self.is_planned:
            return None
        first, count = (torch.tensor(x, dtype=torch.int64, device="cpu") for x in (start, self.num_nodes))
        return ragged_ranges(first, count)[1].to(self.device, non_blocking=True)

    def split(self, x: Tensor) -> list[Tensor]:
        """Rows of ``x`` ``[N, *]`` of each group, ``[g, n, *]``; zeros after the nodes of a smaller graph."""
        if not self.shapes:
            return []
        lengths = [g * n for g, n in self.shapes]
        rows = x if self.slot is None else _Place.of(x, self.slot, sum(lengths), False)
        return [part.unflatten(0, shape) for part, shape in zip(rows.split(lengths), self.shapes)]

    def join(self, parts: list[Tensor]) -> Tensor:
        """The rows ``[N, *]`` of the nodes in parts ``[g, n, *]``."""
        rows = torch.cat([part.flatten(0, 1) for part in parts]) if len(parts) > 1 else parts[0].flatten(0, 1)
        return rows if self.slot is None else _Place.of(rows, self.slot, rows.size(0), True)

    @kept_property
    def filled(self) -> list[Tensor | None]:
        """Rows of each group's graphs that are nodes, bool, ``[g, n]``; :obj:`None` if nothing is padded."""
        found: list[Tensor | None] = []
        for graphs, (_, width) in zip(self.graphs, self.shapes):
            sizes = torch.tensor([self.num_nodes[graph] for graph in graphs], device="cpu")
            node = torch.arange(width, device=self.device) < sizes[:, None].to(self.device, non_blocking=True)
            is_padded = self.is_planned or any(self.num_nodes[graph] < width for graph in graphs)
            found.append(node if is_padded else None)
        return found

    @kept_property
    def inside(self) -> list[Tensor | None]:
        """Pairs of nodes of each group's graphs, bool, ``[g, n, n]``; :obj:`None` if nothing is padded."""
        return [None if node is None else node[:, :, None] & node[:, None] for node in self.filled]


class _Place(Linear):
    """Rows put at distinct ``slot`` s among ``total`` rows, zero elsewhere; or the rows of these slots."""

    @staticmethod
    def forward(x: Tensor, slot: Tensor, total: int, back: bool) -> Tensor:
        if back:
            return x.index_select(0, slot)
        return x.new_zeros(total, *x.shape[1:]).index_copy_(0, slot, x)

    @staticmethod
    def adjoint(slot: Tensor, total: int, back: bool) -> tuple[Tensor, int, bool]:
        return slot, total, not back


def batch_of_rows(batch: Tensor | None, x: Tensor) -> Tensor:
    """``batch``, or that of one graph with a node for each row of ``x`` if it is :obj:`None`."""
    return _one_graph(x.size(0), x.device) if batch is None else batch


@once_per_setting(4)
def _one_graph(num_nodes: int, device: torch.device) -> Tensor:
    """Repeated calls return the same tensor, so `once_per_batch` finds its results."""
    return torch.zeros(num_nodes, dtype=torch.int64, device=device)


def check_batch(batch: Tensor, num_nodes: int) -> None:
    """Refuse a ``batch`` vector that does not sort ``num_nodes`` nodes by graph.

    Raises:
        TypeError: If it does not hold integers.
        ValueError: If it has another length, or is not sorted (checked immediately on CPU, asynchronously on CUDA).
    """
    if batch.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"'batch' must hold the integer graph of each node (got {batch.dtype})")
    if batch.dim() != 1 or batch.numel() != num_nodes:
        whose = "'batch', which is that of the plan," if plans.reading() else "'batch'"
        got = f"(got {list(batch.shape)}); is it of another batch?"
        raise ValueError(f"{whose} must have shape [{num_nodes}], one graph per node {got}")
    if not _is_sorted(batch):
        raise ValueError(_UNSORTED)


@partial(once_per_batch, traced=True)
def _is_sorted(batch: Tensor) -> bool:
    """Whether a batch vector is sorted and not negative; see `holds`."""
    return holds((batch.diff(prepend=batch.new_zeros(1)) >= 0).all(), _UNSORTED)


@once_per_batch
def segments(batch: Tensor) -> Segments:
    """The graphs of a batch vector that `check_batch` accepts, computed once per batch."""
    check_batch(batch, batch.numel())
    num_graphs = int(batch[-1]) + 1 if batch.numel() else 0  # on CUDA, this line and the next one wait
    if num_graphs > batch.numel() + _MOST_EMPTY:
        raise ValueError(
            f"'batch' names graph {num_graphs - 1}, but there are {batch.numel()} nodes; graphs are numbered 0, 1, …"
        )
    return Segments(row_pointers(batch, num_graphs))


def size_groups(batch: Tensor | int) -> SizeGroups:
    """Groups of a checked batch vector, computed once per batch, or of one graph with the given number of nodes."""
    return SizeGroups([batch], torch.device("cpu")) if isinstance(batch, int) else _size_groups(batch)


@once_per_batch
def _size_groups(batch: Tensor) -> SizeGroups:
    groups = SizeGroups([b - a for a, b in pairwise(segments(batch).ptr)], batch.device)
    if plans.planned():
        groups.slot, groups.filled  # noqa: B018  # a plan has no sizes on the host, by which to find them later
    return groups


def in_groups(
    function: Callable[[int, Tensor, Tensor, Tensor], Tensor], groups: SizeGroups, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """Attention within each graph, by a function that is called once for all graphs of a group.

    The inputs are split once and the results are joined once. Otherwise, the backward pass would fill an array of the
    whole batch for each graph.

    Args:
        function: Takes the number of a group, and its ``q, k [g, H, n, R]`` and ``v [g, H, n, D]`` with zeros after the
            nodes of a smaller graph; returns ``[g, H, n, D]``.
        groups: The batch's groups.
        q, k: Shape ``[N, H, R]``.
        v: Shape ``[N, H, D]``.

    Returns:
        Shape ``[N, H, D]``.
    """
    if not groups.shapes:
        return v + (q * k).sum(-1, keepdim=True)  # no rows, with gradients
    widths = [x.size(-1) for x in (q, k, v)]
    moved = (q, k, v) if groups.slot is None else [torch.cat([q, k, v], dim=-1)]  # one array takes fewer calls
    out = []
    for number, parts in enumerate(zip(*(groups.split(x) for x in moved))):
        qkv = parts if groups.slot is None else parts[0].split(widths, dim=-1)
        out.append(function(number, *(x.transpose(1, 2) for x in qkv)).transpose(1, 2))
    return groups.join(out)


def ragged_ranges(first: Tensor, count: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """For ranges of ``count[i]`` numbers from ``first[i]`` on: the ``i`` of each number, and the number itself.

    With the ``total`` of the counts, nothing waits for them on CUDA.
    """
    owner = torch.repeat_interleave(count, output_size=total)
    offset = first - (count.cumsum(0) - count)
    return owner, torch.arange(owner.numel(), device=owner.device) + offset[owner]


def split_by_count(count: Tensor, limit: int) -> list[int]:
    """Lengths of consecutive parts of ``[N]`` counts; the counts of a part add up to about ``limit``."""
    part = (count.cumsum(0) - count) // max(limit, 1)
    return part.unique_consecutive(return_counts=True)[1].tolist()


def segment_sum(x: Tensor, batch: Tensor) -> Tensor:
    """Sum of the rows of ``x`` ``[N, *]`` over each graph of ``batch``: shape ``[B, *]``."""
    return x.new_zeros(_count(batch), *x.shape[1:]).index_add_(0, batch, x)


def _count(batch: Tensor) -> int:
    """Number of graphs, which a plan knows."""
    planned = plans.num_graphs()
    return segments(batch).num_graphs if planned is None else planned


def segment_mean(x: Tensor, batch: Tensor | None, num_graphs: int) -> Tensor:
    """Mean of the rows of ``x`` ``[N, *]`` over each graph: shape ``[B, *]``; 0 for a graph without nodes.

    Args:
        x: Rows, floating point.
        batch: Graph of each row, sorted; one graph if :obj:`None`.
        num_graphs: ``B``. Since it is given, nothing waits for the values in ``batch``.
    """
    if batch is None:
        return x.sum(dim=0, keepdim=True) / max(x.size(0), 1)
    share = _share(batch, num_graphs, x.dtype).view(-1, *[1] * (x.dim() - 1))
    return x.new_zeros(num_graphs, *x.shape[1:]).index_add_(0, batch, x * share)


@partial(once_per_batch, traced=True)
def _share(batch: Tensor, num_graphs: int, dtype: torch.dtype) -> Tensor:
    """One over the number of nodes of each node's graph."""
    count = torch.zeros(num_graphs, dtype=dtype, device=batch.device)
    return count.index_add_(0, batch, torch.ones_like(batch, dtype=dtype)).reciprocal_().index_select(0, batch)


def segment_max(x: Tensor, batch: Tensor) -> Tensor:
    """Largest row of ``x`` ``[N, *]`` in each graph of ``batch``: shape ``[B, *]``; −inf for a graph without nodes."""
    graph = batch.long().view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    return x.new_full((_count(batch), *x.shape[1:]), -torch.inf).scatter_reduce(0, graph, x, "amax")


def segment_linear_attention(q: Tensor, k: Tensor, v: Tensor, batch: Tensor | None) -> Tensor:
    r"""Sums :math:`\sum_j (q_i \cdot k_j) v_j` over the nodes ``j`` of each node's own graph.

    Cost: :math:`O(N R D)` operations per head; :math:`O(N (R + D) + B R D)` memory.

    Args:
        q, k: Queries and keys, shape ``[N, H, R]``.
        v: Values, shape ``[N, H, D]``.
        batch: Graph of each node, sorted, shape ``[N]``; one graph if :obj:`None`.

    Returns:
        Shape ``[N, H, D]``.
    """
    groups = size_groups(v.size(0) if batch is None else batch)
    return in_groups(lambda _, q, k, v: q @ (k.mT @ v), groups, q, k, v)
