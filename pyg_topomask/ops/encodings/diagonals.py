r"""Diagonals of matrix powers, computed exactly by blocks of columns or estimated by random signs.

Half powers halve the work: :math:`(S^{a+b})_{ii} = \sum_j (S^a)_{ij} (S^b)_{ji}`. Small graphs are multiplied together
as one block-diagonal matrix whose columns are counted within each graph. Large graphs are multiplied one block of
columns at a time, so that the memory stays within a few MB. For random signs z, :math:`(S^a z)_i ((S^T)^b z)_i` has the
same expectation (Bekas, Kokiopoulou and Saad, *An estimator for the diagonal of a matrix*, 2007, applied to half
powers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_topomask.checks import check_choice
from pyg_topomask.ops.csr import CSR, sym_normalize
from pyg_topomask.ops.encodings.graph_batch import GraphBatch, is_symmetric, to_scipy
from pyg_topomask.ops.sparse import Pattern, spmm

EXACT_NODES = 10_000
"""Largest graph whose diagonals ``method="auto"`` computes exactly; this takes some seconds of one core."""

_BUDGET = 2**18  # numbers in a block of columns, which then fits a core's cache
_SPARSE_NODES = 1000  # for larger graphs, powers are tried in sparse form
_PROBES = 64  # random vectors multiplied at a time


class Diagonals(NamedTuple):
    """Diagonals of several matrices, with the error of an estimate."""

    value: Tensor
    """Shape ``[N, K]``, float32."""
    error: Tensor
    """Standard error of each value, shape ``[N, K]``, float32; zero where nothing was estimated."""


def check_method(method: str, tol: float) -> None:
    """Refuse unknown methods, and tolerances that need too many random vectors.

    Raises:
        ValueError: If the method is unknown or the tolerance is out of range.
    """
    check_choice("method", method, ("auto", "exact", "estimate"))
    if not 1e-3 <= tol < 1:
        raise ValueError(f"'tol' must be in [1e-3, 1): 2 / tol² random vectors are needed (got {tol})")


def parts(batch: GraphBatch, method: str) -> Iterator[tuple[slice, CSR, list[int], int, bool]]:
    """Consecutive graphs that are computed together: as many as fit in a block of columns.

    Yields:
        Rows of the graphs, their adjacency, the first node of each of them followed by their number of nodes, the
        number of nodes of the largest one, and whether ``method`` computes them exactly. Estimated graphs are alone, so
        that their random vectors do not depend on other graphs.
    """
    budget = 0 if method == "estimate" else _BUDGET
    first, ptr, sizes = 0, batch.ptr, batch.sizes
    while first < len(sizes):
        last, width = first + 1, sizes[first]
        while last < len(sizes) and (ptr[last + 1] - ptr[first]) * max(width, sizes[last]) <= budget:
            last, width = last + 1, max(width, sizes[last])
        start, stop = ptr[first], ptr[last]
        exact = method == "exact" or (method == "auto" and width <= EXACT_NODES)
        if width > 0:
            yield (
                slice(start, stop),
                batch.rows(start, stop),
                [at - start for at in ptr[first : last + 1]],
                width,
                exact,
            )
        first = last


def return_probabilities(
    batch: GraphBatch, steps: Sequence[int], *, method: str = "auto", tol: float = 0.05, seed: int = 0
) -> Diagonals:
    r"""Probability that a random walk is back at its start: the diagonals of :math:`P^k`, :math:`P = D^{-1} A`.

    A walker moves along the direction of edges, with probability proportional to their weight. The walk ends at a node
    without outgoing edges.

    Args:
        batch: Graphs.
        steps: Numbers ``k ≥ 1``.
        method: ``"exact"``, ``"estimate"``, or ``"auto"``: exact for up to 10,000 nodes, and for larger graphs exact as
            long as the powers of ``P`` stay sparse; the remaining steps are estimated.
        tol: Standard error of an estimate relative to :math:`\sqrt{(P^{2a})_{ii} (P^{2b})_{ii}}`, with
            :math:`a = \lceil k/2 \rceil, b = \lfloor k/2 \rfloor`; for even ``k`` this is the value itself.
            ``2 / tol²`` random vectors are drawn. The formula is that of undirected graphs.
        seed: Seed of the random vectors.

    Cost: exact, :math:`O(E \max_g N_g K)` operations; estimated, :math:`O(E K / tol^2)`.
    Exact values are computed in float32: they agree with float64 to 2e-6.
    """
    check_method(method, tol)
    distinct = sorted(set(steps))
    column, steps = [distinct.index(k) for k in steps], distinct
    batch = batch._replace(csr=sym_normalize(batch.csr))
    value = torch.zeros(batch.num_nodes, len(steps), dtype=torch.float64)
    error = torch.zeros_like(value)
    for rows, part, ptr, width, exact in parts(batch, method):
        todo = list(range(len(steps)))
        if method != "estimate" and width > _SPARSE_NODES:
            nnz = width**2 // 16 if exact else 100 * max(width, part.col.numel())
            done = _sparse_powers(part, steps, nnz)
            for position, diagonal in done.items():
                value[rows, position] = diagonal
            todo = [position for position in todo if position not in done]
        if not todo:
            continue
        blocks = unit_columns(ptr, width) if exact else random_signs(part.num_nodes, tol, seed)
        value[rows, todo], error[rows, todo] = _powers(part, blocks, [steps[position] for position in todo], exact)
    return Diagonals(value[:, column].float(), error[:, column].float())


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
        block = torch.zeros(num_nodes, min(step, width - begin))
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


def random_signs(num_nodes: int, tol: float, seed: int) -> Iterator[Tensor]:
    """Blocks of random signs, ``2 / tol²`` columns in all, float32."""
    generator = torch.Generator().manual_seed(seed)
    left = math.ceil(2 / tol**2)
    while left > 0:
        width = min(_PROBES, left)
        yield torch.randint(0, 2, (num_nodes, width), generator=generator, dtype=torch.int8).float() * 2 - 1
        left -= width


class Sums:
    """Sums over the columns of blocks: values if they are exact, else samples, whose mean and error are wanted."""

    def __init__(self, num_rows: int, num_values: int, exact: bool) -> None:
        self.sum = torch.zeros(num_rows, num_values, dtype=torch.float64)
        self.squares, self.exact, self.count = torch.zeros_like(self.sum), exact, 0

    def add(self, value: int, block: Tensor) -> None:  # [N, columns]
        self.sum[:, value] += block.sum(dim=1)
        if not self.exact:
            self.squares[:, value] += block.square().sum(dim=1)

    def result(self) -> tuple[Tensor, Tensor]:
        if self.exact:
            return self.sum, self.squares
        mean = self.sum / self.count
        variance = (self.squares / self.count - mean**2).clamp(min=0) / max(self.count - 1, 1)
        return mean, variance.sqrt()


def _powers(csr: CSR, blocks: Iterator[Tensor], steps: Sequence[int], exact: bool) -> tuple[Tensor, Tensor]:
    """Diagonals of powers, and their errors, from blocks of columns of the identity or of random signs."""
    ways, sums = _both_ways(csr), Sums(csr.num_nodes, len(steps), exact)
    for block in blocks:
        sums.count += block.size(1)
        for k, product in enumerate(_half_powers(ways, block, max(steps)), 1):
            if k in steps:
                sums.add(steps.index(k), product)
    return sums.result()
