"""Exact search in plain torch, on any device, with working memory that does not depend on the number of nodes.

The scores of a block of queries with a block of keys are written to one reused buffer. The best keys of a block are
searched only in the few strided groups with the best maxima, which is several times faster than `torch.topk` over all
scores.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.memo import once_per_setting

# Queries of all heads and keys of one block of scores: 64 MiB in float32, as fast as larger blocks.
_QUERIES = 256
_KEYS = 65_536
_GROUP = 16  # scores of a group; 8 to 32 are equally fast
_AT_ONCE = 2**20  # most scores of a head of small graphs that are sorted at once
SMALL = {"cpu": 32, "cuda": 512}
"""Nodes up to which graphs are searched together: launches cost a GPU most, and a CPU sorts slowly."""


def best_keys(q: Tensor, k: Tensor, out: Tensor, first: int = 0) -> None:
    """Write the keys of one graph with the largest inner products, best first; lower indices win ties.

    Args:
        q: Queries, shape ``[H, nq, d]``.
        k: Keys, shape ``[H, nk, d]``.
        out: Filled in place: shape ``[H, nq, topk]``, int64; columns beyond ``nk`` are not changed.
        first: Index of the first key.
    """
    heads, num_keys, _ = k.shape
    keep = min(out.size(2), num_keys)
    rows, columns = max(_QUERIES // heads, 1), min(max(_KEYS, keep), num_keys)
    buffer = q.new_empty(heads * min(rows, q.size(1)) * columns)
    for queries, found in zip(q.split(rows, 1), out[..., :keep].split(rows, 1)):
        best: tuple[Tensor, Tensor] | None = None
        for c in range(0, num_keys, columns):
            keys = k[:, c : c + columns]
            shape = heads, queries.size(1), keys.size(1)
            scores = torch.bmm(queries, keys.mT, out=buffer[: prod(shape)].view(shape)).flatten(0, 1)
            value, index = _block_topk(scores, min(keep, keys.size(1)))
            best = (value, index + c) if best is None else _merge(*best, value, index + c, keep)
        assert best is not None
        found.copy_(best[1].view(found.shape) + first)


class _Many(NamedTuple):
    """Some graphs, padded to ``n`` queries and ``m`` keys."""

    query: Tensor
    """Row of each query, ``[g, n]``."""
    key: Tensor
    """Row of each key, ``[g, m]``, and 0 beyond a graph."""
    there: Tensor
    """Whether the graph has the key, ``[g, m]``."""
    place: Tensor
    """Places of the queries that exist, among ``g * n``."""
    row: Tensor
    """Their rows."""


def best_keys_of_many(q: Tensor, k: Tensor, out: Tensor, graphs: tuple[tuple[int, ...], ...]) -> None:
    """Write the best keys of small graphs (`SMALL`), as `best_keys`, in some calls for all of them.

    Args:
        q, k, out: Those of all graphs.
        graphs: First and last query, and first and last key of each; no range is empty.
    """
    for many in _padded(graphs, q.device):
        scores = (q[:, many.query] @ k[:, many.key].mT).masked_fill(~many.there[:, None], -torch.inf)
        order = scores.sort(dim=-1, descending=True, stable=True)[1][..., : out.size(2)]  # keys beyond come last
        first, count = many.key[:, :1, None], many.there.sum(1)[:, None, None]
        found = torch.where(order < count, order + first, -1).flatten(1, 2).index_select(1, many.place)
        out[..., : found.size(2)].index_copy_(1, many.row, found)


@once_per_setting(4)
def _padded(graphs: tuple[tuple[int, ...], ...], device: torch.device) -> list[_Many]:
    """Graphs of similar sizes together; all layers share the result."""
    return [
        _pad(torch.tensor(part, device="cpu").T, device) for part in _parts(sorted(graphs, key=lambda x: x[3] - x[2]))
    ]


def _parts(graphs: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Parts of the graphs, which are sorted by size: at most `_AT_ONCE` padded scores, about half of which exist."""
    part: list[tuple[int, ...]] = []
    queries = 0
    for graph in graphs:
        queries, keys = max(queries, graph[1] - graph[0]), graph[3] - graph[2]
        if part and ((len(part) + 1) * queries * keys > _AT_ONCE or keys > 16 + 2 * (part[0][3] - part[0][2])):
            yield part
            part, queries = [], graph[1] - graph[0]
        part.append(graph)
    if part:
        yield part


def _pad(ranges: Tensor, device: torch.device) -> _Many:
    """The graphs with these ranges, ``[4, g]``, on CPU."""
    begin, end, first, last = ranges[..., None]
    query, key = (a + torch.arange(int((b - a).max()), device="cpu") for a, b in ((begin, end), (first, last)))
    exists, there = (query < end).flatten(), key < last
    place = exists.nonzero().squeeze(1)
    parts = query.where(query < end, 0), key.where(there, 0), there, place, query.flatten()[place]
    return _Many(*(x.to(device, non_blocking=True) for x in parts))


def _block_topk(scores: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Values and columns ``[nq, keep]`` of the largest scores; lower columns win ties."""
    num = scores.size(1)
    groups = num // _GROUP  # group g holds columns g, g + groups, g + 2 groups, ...
    if groups < 4 * keep:
        value, index = scores.topk(keep, dim=1)
        tied = (scores >= value[:, -1:]).sum(1) > keep
    else:
        body = scores[:, : groups * _GROUP].view(-1, _GROUP, groups)
        largest = body.amax(dim=1)  # [nq, groups]
        chosen = largest.topk(keep, dim=1)[1]
        steps = torch.arange(_GROUP, device=scores.device) * groups
        rest = torch.arange(groups * _GROUP, num, device=scores.device)
        column = (chosen[:, :, None] + steps).flatten(1)  # [nq, keep * group]
        column = torch.cat([column, rest.expand(scores.size(0), -1)], dim=1)
        candidate = scores.gather(1, column)
        value, order = candidate.topk(keep, dim=1)
        index = column.gather(1, order)
        # A skipped group contains no tied score unless more than `keep` groups reach the last value kept.
        tied = ((candidate >= value[:, -1:]).sum(1) > keep) | ((largest >= value[:, -1:]).sum(1) > keep)
    tied |= (value[:, :-1] == value[:, 1:]).any(1)
    for row in tied.nonzero().squeeze(1).split(32):
        ordered, column = scores.index_select(0, row).sort(dim=1, descending=True, stable=True)
        value[row], index[row] = ordered[:, :keep], column[:, :keep]
    return value, index


def _merge(value: Tensor, index: Tensor, other: Tensor, other_index: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Best entries of two sorted lists; the second list has the higher indices."""
    value, order = torch.cat([value, other], dim=1).sort(dim=1, descending=True, stable=True)
    index = torch.cat([index, other_index], dim=1).gather(1, order)
    return value[:, :keep], index[:, :keep]
