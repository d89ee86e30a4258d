"""Colour refinement of several graphs together, with integer colours from one table."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

TOLERANCE = 1e-5
"""Encodings closer than this count as equal, relative to their size if that is above 1. It exceeds the rounding noise
of PyG's float32 random-walk encodings, about 1e-6."""


@dataclass
class EncodedGraph:
    """A graph as arrays: edges ``[2, E]``, node encodings ``[N, F]`` and edge encodings ``[E, F]`` by name.

    Attention may read it through the matrices ``mask [H, N, N]``.
    """

    num_nodes: int
    edge_index: Array
    node: dict[str, Array]
    edge: dict[str, Array]
    mask: Array | None = None


@dataclass
class JoinedGraphs:
    """A disjoint union of graphs with edges sorted by source; ``relation`` numbers the values of f_R on edges."""

    graph: Array  # [N]
    color: Array  # [N]
    rowptr: Array  # [N + 1]
    target: Array  # [E]
    relation: Array  # [E]
    num_graphs: int


def unite(graphs: Sequence[EncodedGraph], exact_only: bool) -> JoinedGraphs:
    """Join graphs, and number their colours and relations together."""
    counts = np.array([graph.num_nodes for graph in graphs])
    offset, num_nodes = np.cumsum(counts) - counts, int(counts.sum())
    source, target = np.concatenate([graph.edge_index + start for graph, start in zip(graphs, offset)], axis=1)
    color = row_ids(_columns([graph.node for graph in graphs]), num_nodes, exact_only)
    loop = (source == target).astype(np.int64)[:, None]
    relation = row_ids([loop, *_columns([graph.edge for graph in graphs])], source.size, exact_only)
    order = np.argsort(source, kind="stable")
    rowptr = np.searchsorted(source[order], np.arange(num_nodes + 1))
    number = np.repeat(np.arange(len(graphs)), counts)
    return JoinedGraphs(number, color, rowptr, target[order], relation[order], len(graphs))


def _columns(encodings: Sequence[dict[str, Array]]) -> list[Array]:
    columns = []
    for key in dict.fromkeys(key for encoding in encodings for key in encoding):
        rows = [encoding[key] for encoding in encodings if key in encoding]
        if len({array.shape[1] for array in rows}) > 1:
            widths = sorted({array.shape[1] for array in rows})
            raise ValueError(f"{key!r} must have the same number of columns on each graph (got {widths})")
        columns.append(np.concatenate(rows))
    return columns


def row_ids(blocks: Sequence[Array], count: int, exact_only: bool = False) -> Array:
    """A number for each row of the blocks ``[count, F]`` side by side, equal for equal rows.

    With ``exact_only``, columns with fractions are ignored.
    """
    columns = []
    for column in (column for block in blocks for column in block.T):
        if _is_exact(column):
            columns.append(np.unique(column, return_inverse=True)[1])
        elif not exact_only:
            order = np.argsort(column, kind="stable")
            value = column[order]
            new = np.diff(value, prepend=value[0]) > TOLERANCE * np.maximum(1.0, np.abs(value))
            columns.append(np.cumsum(new)[np.argsort(order)])
    if not columns or count == 0:
        return np.zeros(count, dtype=np.int64)
    rows = np.ascontiguousarray(np.stack(columns, axis=1).astype(np.int64))
    return np.unique(rows.view(np.dtype((np.void, rows.shape[1] * 8))).ravel(), return_inverse=True)[1]


def _is_exact(column: Array) -> bool:
    """Whether all entries are integers that float32 represents exactly."""
    return column.dtype.kind == "i" or bool(((column == np.rint(column)) & (np.abs(column) <= 2**24)).all())


def refine(union: JoinedGraphs, color: Array, rounds: int | None) -> Array:
    """Colours after ``rounds`` rounds, or earlier if no colour splits or two graphs already differ.

    A round reads only the edges from nodes with a new colour. This suffices: two nodes of one colour had equal
    neighbourhoods before the round, so they differ only in new colours around them.
    """
    color = np.unique(color, return_inverse=True)[1] if color.size else color
    changed, count = np.arange(color.size), int(color.max(initial=-1)) + 1
    while changed.size > 0 and not (union.num_graphs == 2 and differ(union.graph[changed], color[changed])):
        if rounds is not None:
            if rounds == 0:
                break
            rounds -= 1
        sizes = np.bincount(color, minlength=count)
        node, signature = _signatures(union, color, changed)
        key, part = np.unique(color[node] * (node.size + 1) + signature, return_inverse=True)
        owner, members = key // (node.size + 1), np.bincount(part, minlength=key.size)
        rest = sizes - np.bincount(owner, weights=members, minlength=count).astype(np.int64)
        largest = np.lexsort((-members, owner))
        keeps = largest[np.diff(owner[largest], prepend=-1) != 0]
        keeps = keeps[rest[owner[keeps]] == 0]
        fresh = np.ones(key.size, dtype=bool)
        fresh[keeps] = False
        ids = np.where(fresh, count + np.cumsum(fresh) - 1, owner)
        changed = node[fresh[part]]
        color[changed] = ids[part[fresh[part]]]
        count += int(fresh.sum())
    return color


def refine_with_masks(union: JoinedGraphs, color: Array, masks: Sequence[Array], rounds: int | None) -> Array:
    """As `refine`, but a round also reads the sums of each mask's rows over the nodes of each colour."""
    count = np.unique(color).size
    while rounds != 0 and not (union.num_graphs == 2 and differ(union.graph, color)):
        rounds = None if rounds is None else rounds - 1
        keys = zip(refine(union, color, 1).tolist(), _sums_by_color(color, masks))
        table: dict[tuple[int, bytes], int] = {}
        color = np.array([table.setdefault(key, len(table)) for key in keys], dtype=np.int64)
        if len(table) == count:
            break
        count = len(table)
    return color


def _sums_by_color(color: Array, masks: Sequence[Array]) -> list[bytes]:
    """For each node, its colours with sums of mask entries that are not zero, and numbers of these sums."""
    kinds, sums, start = [], [np.zeros((1, len(masks[0])))], 0
    for mask in masks:
        own, place = np.unique(color[start : start + mask.shape[-1]], return_inverse=True)
        sums.append((mask @ np.eye(own.size)[place]).reshape(len(mask), -1).T)  # [N C, H]
        kinds.append(own)
        start += mask.shape[-1]
    zero, *number = row_ids([np.concatenate(sums)], sum(map(len, sums)))
    found, rest = [], np.array(number, dtype=np.int64)
    for own, mask in zip(kinds, masks):
        rows, rest = np.split(rest, [own.size * mask.shape[-1]])
        found += [np.stack([own, row])[:, row != zero].tobytes() for row in rows.reshape(-1, own.size or 1)]
    return found


def differ(graph: Array, color: Array) -> bool:
    """Whether some colour has different frequencies in graphs 0 and 1."""
    ids = np.unique(color, return_inverse=True)[1]
    return bool(np.bincount(ids, weights=1 - 2 * graph).any())


def _signatures(union: JoinedGraphs, color: Array, changed: Array) -> tuple[Array, Array]:
    """The targets of edges from changed nodes, and for each a number of its multiset of (colour, relation)."""
    lengths = union.rowptr[changed + 1] - union.rowptr[changed]
    start = np.cumsum(lengths) - lengths
    edge = np.repeat(union.rowptr[changed] - start, lengths) + np.arange(lengths.sum())
    relations = int(union.relation.max(initial=0)) + 1
    item = np.repeat(color[changed], lengths) * relations + union.relation[edge]
    order = np.lexsort((item, union.target[edge]))
    node, first = np.unique(union.target[edge][order], return_index=True)
    lists, numbers = item[order].tobytes(), dict[bytes, int]()
    ends = [*(first * item.itemsize).tolist(), len(lists)]
    parts = (lists[start:stop] for start, stop in pairwise(ends))
    return node, np.array([numbers.setdefault(part, len(numbers)) for part in parts], dtype=np.int64)


def classes_of(graphs: Sequence[EncodedGraph], rounds: int | None) -> list[int]:
    """A number for each graph, equal for graphs that are not distinguished.

    Fractions are compared only among graphs whose integers agree, which avoids long chains of close values.
    """
    classes = _histogram_classes(graphs, rounds, exact_only=True)
    for members in members_of(classes):
        some = [graphs[i] for i in members]
        encodings = [rows for graph in some for rows in (*graph.node.values(), *graph.edge.values())]
        if some[0].mask is not None or not all(map(_is_exact, encodings)):
            start = max(classes) + 1
            for i, number in zip(members, _histogram_classes(some, rounds, exact_only=False)):
                classes[i] = start + number
    return classes


def _histogram_classes(graphs: Sequence[EncodedGraph], rounds: int | None, exact_only: bool) -> list[int]:
    if not graphs:
        return []
    union = unite(graphs, exact_only)
    masks = [graph.mask for graph in graphs if graph.mask is not None and not exact_only]
    color = refine_with_masks(union, union.color, masks, rounds) if masks else refine(union, union.color, rounds)
    color = color[np.lexsort((color, union.graph))]
    parts = np.split(color, np.cumsum([graph.num_nodes for graph in graphs])[:-1])
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(part.tobytes(), len(numbers)) for part in parts]


def members_of(classes: Sequence[object]) -> list[list[int]]:
    """The classes of two or more graphs, as lists of their numbers."""
    found: dict[object, list[int]] = {}
    for i, name in enumerate(classes):
        found.setdefault(name, []).append(i)
    return [members for members in found.values() if len(members) > 1]
