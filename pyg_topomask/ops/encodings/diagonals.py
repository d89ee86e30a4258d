r"""Diagonals of matrix powers, computed by blocks of columns.

Half powers halve the work: :math:`(S^{a+b})_{ii} = \sum_j (S^a)_{ij} (S^b)_{ji}`. Small graphs are multiplied together
as one block-diagonal matrix whose columns are counted within each graph. Large graphs are multiplied one block of
columns at a time, so that the memory stays within a few MB.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_topomask.ops.csr import CSR, sym_normalize
from pyg_topomask.ops.encodings.graph_batch import GraphBatch, is_symmetric, to_scipy
from pyg_topomask.ops.sparse import Pattern, spmm

_BUDGET = 2**18  # numbers in a block of columns, which then fits a core's cache
_SPARSE_NODES = 1000  # for larger graphs, powers are tried in sparse form


def parts(batch: GraphBatch) -> Iterator[tuple[slice, CSR, list[int], int]]:
    """Consecutive graphs that are computed together: as many as fit in a block of columns.

    Yields:
        Rows of the graphs, their adjacency, the first node of each of them followed by their number of nodes, and the
        number of nodes of the largest one.
    """
    first, ptr, sizes = 0, batch.ptr, batch.sizes
    while first < len(sizes):
        last, width = first + 1, sizes[first]
        while last < len(sizes) and (ptr[last + 1] - ptr[first]) * max(width, sizes[last]) <= _BUDGET:
            last, width = last + 1, max(width, sizes[last])
        start, stop = ptr[first], ptr[last]
        if width > 0:
            yield slice(start, stop), batch.rows(start, stop), [at - start for at in ptr[first : last + 1]], width
        first = last


def return_probabilities(batch: GraphBatch, steps: Sequence[int]) -> Tensor:
    r"""Probability that a random walk is back at its start: the diagonals of :math:`P^k`, :math:`P = D^{-1} A`.

    A walker moves along the direction of edges, with probability proportional to their weight. The walk ends at a node
    without outgoing edges.

    Args:
        batch: Graphs.
        steps: Numbers ``k ≥ 1``.

    Returns:
        Probabilities ``[N, K]``, float32; they agree with float64 to 2e-6.

    Cost: :math:`O(E \max_g N_g K)` operations, fewer as long as the powers of ``P`` stay sparse.
    """
    distinct = sorted(set(steps))
    column, steps = [distinct.index(k) for k in steps], distinct
    batch = batch._replace(csr=sym_normalize(batch.csr))
    value = torch.zeros(batch.num_nodes, len(steps), dtype=torch.float64)
    for rows, part, ptr, width in parts(batch):
        todo = list(range(len(steps)))
        if width > _SPARSE_NODES:
            done = _sparse_powers(part, steps, width**2 // 16)
            for position, diagonal in done.items():
                value[rows, position] = diagonal
            todo = [position for position in todo if position not in done]
        if todo:
            value[rows, todo] = _powers(part, unit_columns(ptr, width), [steps[position] for position in todo])
    return value[:, column].float()


def return_probabilities_reference(batch: GraphBatch, steps: Sequence[int]) -> Tensor:
    """`return_probabilities` from its definition, with dense float64 powers: shape ``[N, K]``."""
    found = [torch.zeros(0, len(steps), dtype=torch.float64)]
    for csr in batch.graphs():
        adj = torch.from_numpy(to_scipy(csr).toarray())
        strength = adj.sum(dim=1, keepdim=True)
        walk = adj / torch.where(strength > 0, strength, 1)
        found.append(torch.stack([torch.linalg.matrix_power(walk, k).diagonal() for k in steps], dim=1))
    return torch.cat(found)


def _sparse_powers(csr: CSR, steps: Sequence[int], max_nnz: int) -> dict[int, Tensor]:
    """Diagonals, by position in ``steps``, of the powers whose halves have at most ``max_nnz`` entries."""
    matrix, one_way = to_scipy(csr), not is_symmetric(csr)
    diagonal: dict[int, Tensor] = {1: torch.from_numpy(matrix.diagonal())}
    low = high = matrix
    for k in range(2, max(steps) + 1):
        if k % 2 == 1:
            if _next_nnz(matrix, low) > max_nnz:
                break
            high = matrix @ low
        diagonal[k] = torch.from_numpy(np.asarray(high.multiply(low.T if one_way else low).sum(axis=1)).ravel())
        if k % 2 == 1:
            low = high
    return {position: diagonal[k] for position, k in enumerate(steps) if k in diagonal}


def _next_nnz(matrix: Any, power: Any) -> int:
    """Upper bound on the number of entries of ``matrix @ power``."""
    return int(np.diff(power.indptr)[matrix.indices].sum(dtype=np.int64))


def _both_ways(csr: CSR) -> list[tuple[Pattern, Tensor]]:
    """The matrix and its transpose, which is the same object if the matrix is symmetric."""
    forward = csr.pattern, csr.weight.float()
    return [forward, forward if is_symmetric(csr) else (csr.T.pattern, csr.T.weight.float())]


def unit_columns(ptr: Sequence[int], width: int) -> Iterator[Tensor]:
    """Blocks of columns of the identity of every graph, side by side in one matrix with one row per node."""
    num_nodes = ptr[-1]
    local = torch.arange(num_nodes) - torch.repeat_interleave(torch.tensor(ptr[:-1]), torch.tensor(ptr).diff())
    step = max(1, min(width, _BUDGET * 4 // max(num_nodes, 1)))
    for begin in range(0, width, step):
        block = torch.zeros(num_nodes, min(step, width - begin), dtype=torch.float32)
        row = torch.nonzero((local >= begin) & (local < begin + block.size(1)))[:, 0]
        block[row, local[row] - begin] = 1
        yield block


def _half_powers(ways: list[tuple[Pattern, Tensor]], x: Tensor, last: int) -> Iterator[Tensor]:
    """``(S^a x) * ((S^T)^b x)`` for a + b = 1, …, ``last``, with a = b or a = b + 1."""
    left = right = x
    same = ways[0] is ways[1]
    for k in range(1, last + 1):
        if k % 2 == 1:
            left = spmm(*ways[0], left)
        else:
            right = left if same else spmm(*ways[1], right)
        yield left * right


def _powers(csr: CSR, blocks: Iterator[Tensor], steps: Sequence[int]) -> Tensor:
    """Diagonals of powers from blocks of columns of the identity, ``[N, K]``."""
    ways, sums = _both_ways(csr), torch.zeros(csr.num_nodes, len(steps), dtype=torch.float64)
    for block in blocks:
        for k, product in enumerate(_half_powers(ways, block, max(steps)), 1):
            if k in steps:
                sums[:, steps.index(k)] += product.sum(dim=1)
    return sums
