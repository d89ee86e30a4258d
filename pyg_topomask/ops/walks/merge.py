"""Walk tables from the visits of all walkers."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from pyg_topomask.ops.walks.settings import WalkSettings
from pyg_topomask.ops.walks.walkers import Visits, block_of


@dataclass(frozen=True)
class WalkTable:
    """Stored walks of a graph or batch: the tensors of :class:`~pyg_topomask.ops.walks.sample.Walks` on a ``Data``."""

    index: Tensor  # [2, nnz]: start, visited
    length: Tensor  # [nnz]
    load: Tensor  # [nnz]


def num_monomials(max_length: int) -> int:
    """Number of products ``f_a f_b``, ``a ≤ b ≤ K``."""
    return (max_length + 1) * (max_length + 2) // 2


def num_products(max_length: int, ordered: bool) -> int:
    """Number of products ``f_a g_b`` of two functions if they are ``ordered``, else of `num_monomials`."""
    return (max_length + 1) ** 2 if ordered else num_monomials(max_length)


def monomial(a: Tensor, b: Tensor) -> Tensor:
    """Position of ``f_a f_b`` among all products, which are sorted by the larger length, then by the smaller one."""
    high = torch.maximum(a, b)
    return high * (high + 1) // 2 + torch.minimum(a, b)


def merge_visits(
    visits: list[Visits], nodes: Tensor, num_nodes: int, num_tables: int, settings: WalkSettings
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Index, length, load and count of each table: visits sorted by (start, visited, length); equal ones are added
    up.
    """
    num_starts, num_walks = nodes.numel(), settings.num_walks
    row, visited, length, total, hits = _merge(visits, num_walks, num_nodes, num_starts, num_walks)
    index = torch.stack([nodes[row % max(num_starts, 1)], visited])
    load, count = ((column / num_walks).to(visits[0].load.dtype) for column in (total, hits))
    bounds = torch.searchsorted(row, torch.arange(num_tables + 1, device=row.device) * num_starts).tolist()
    return [(index[:, a:b], length[a:b], load[a:b], count[a:b]) for a, b in pairwise(bounds)]


def own_products(
    visits: list[Visits], num_nodes: int, num_starts: int, num_tables: int, settings: WalkSettings
) -> list[Tensor]:
    """`pyg_topomask.ops.walks.sample.Walks.own` of each table, ``[S, Q]``."""
    size, blocks = settings.block_size, settings.num_blocks
    block, visited, length, total, _ = _merge(visits, size, num_nodes, num_starts, settings.num_walks)
    rows = num_tables * num_starts
    own = revisits(block // blocks, block * num_nodes + visited, length, total, rows, settings.max_length)
    own = (own / settings.num_walks**2).to(visits[0].load.dtype)
    return [own[table * num_starts : (table + 1) * num_starts] for table in range(num_tables)]


def revisits(row: Tensor, node: Tensor, length: Tensor, load: Tensor, num_rows: int, max_length: int) -> Tensor:
    r"""Coefficients in ``f_a f_b`` of :math:`\sum_v (\sum_a f_a \ell_{va})^2`, summed over the nodes ``v`` of a row.

    Args:
        row: Row of each entry, shape ``[nnz]``.
        node: Node of each entry, shape ``[nnz]``. Entries of the same node are adjacent and sorted by length.
        length: Shape ``[nnz]``.
        load: Shape ``[nnz]``, float64.
        num_rows: Number of rows.
        max_length: Longest walk ``K``.

    Returns:
        Shape ``[num_rows, Q]``, float64, in the order of `monomial`.
    """
    size = num_monomials(max_length)
    out, slot = load.new_zeros(num_rows * size), row * size
    for offset in range(min(max_length + 1, row.numel())):
        stop = row.numel() - offset
        same = (node[offset:] == node[:stop]).nonzero().squeeze(1)
        code = slot[same] + monomial(length[same], length[same + offset])
        out.index_add_(0, code, load[same] * load[same + offset] * (1 if offset == 0 else 2))
    return out.view(num_rows, size)


def _merge(
    visits: list[Visits], block_size: int, num_nodes: int, num_starts: int, num_walks: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Block, visited node, length, sum of loads and number of visits (float64), sorted by the first three."""
    num_lengths, num_nodes, num_starts = len(visits), max(num_nodes, 1), max(num_starts, 1)
    walk = visits[0].walker // num_starts % num_walks
    first = (walk % block_size == 0).nonzero().squeeze(1)  # all walkers of a block share one visit at their start
    at_start = Visits(*(column.index_select(0, first) for column in visits[0]))
    parts = [at_start, *visits[1:]]
    length = torch.cat([torch.full_like(part.walker, hops) for hops, part in enumerate(parts)])
    walker, node, load = (torch.cat(column) for column in zip(*parts))
    load = load.double()
    load[: first.numel()] = (num_walks - walk.index_select(0, first)).clamp(max=block_size).double()
    block = block_of(walker, num_starts, num_walks, block_size)
    key, order = ((block * num_nodes + node) * num_lengths + length).sort(stable=True)
    key, slot, hits = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    total = torch.zeros(key.numel(), dtype=torch.float64, device=key.device)
    total.index_add_(0, slot, load.index_select(0, order))
    pair, length = key // num_lengths, key % num_lengths
    return pair // num_nodes, pair % num_nodes, length, total, torch.where(length == 0, total, hits.double())
