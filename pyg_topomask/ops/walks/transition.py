"""Walk steps that are not uniform over a node's edges."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_topomask.ops.csr import CSR, to_csr


class StepTable(NamedTuple):
    """How a walker chooses the next edge if steps are not uniform."""

    bound: Tensor
    """End of each edge's interval, shape ``[E']``, int64. The intervals of node ``i`` fill the range from ``i 2^32`` to
    ``(i + 1) 2^32``, and their lengths are proportional to the probabilities.
    """
    prob: Tensor
    """Probability of each edge, shape ``[E']``, float64; rounded like the intervals, so that loads are unbiased."""


def check_transition(transition: Any, num_edges: int) -> None:
    """Refuse weights of steps that are not one floating-point number per edge. Raises ValueError."""
    given = isinstance(transition, Tensor)
    if not given or transition.shape != (num_edges,) or not transition.is_floating_point():
        got = f"{transition.dtype}, shape {list(transition.shape)}" if given else type(transition).__name__
        raise ValueError(f"'transition' must hold one floating-point number per edge, [{num_edges}] (got {got})")


def step_table(csr: CSR, edge_index: Tensor, transition: Tensor) -> StepTable:
    """Table of steps along the edges of ``csr`` with probabilities proportional to ``transition`` ``[E]``.

    Weights are converted to integers, so that their sums do not depend on the device or on the order of the edges. A
    positive weight counts as at least 2^-24 of the largest weight of its node, or d 2^-32 of it if the node has d > 256
    neighbours, so that no probability is rounded to 0. Probabilities are multiples of 2^-32.

    Raises:
        ValueError: If ``transition`` is not one finite number ≥ 0 per edge, or all edges of a node have 0.
    """
    check_transition(transition, edge_index.size(1))
    num_nodes, row, rowptr = csr.num_nodes, csr.row, csr.pattern.rowptr
    given = to_csr(edge_index, num_nodes, transition.detach().double())  # a superset of the edges of csr
    weight = given.weight[torch.searchsorted(given.row * num_nodes + given.col, row * num_nodes + csr.col)]
    if weight.numel() and not bool(((weight >= 0) & (weight < torch.inf)).all()):
        raise ValueError("'transition' must be finite and ≥ 0; is it a softmax over each node's edges?")
    top = weight.new_zeros(num_nodes).scatter_reduce(0, row, weight, "amax")
    if bool(((top == 0) & (csr.degree > 0)).any()):
        node = int(((top == 0) & (csr.degree > 0)).nonzero()[0])
        raise ValueError(f"'transition' is 0 on all edges of node {node}, so a walker could not leave it")
    least = (csr.degree[row] + 255) // 256
    level = torch.where(weight > 0, (weight / top[row] * 2**24).round().long().maximum(least), 0)
    total = level.cumsum(0)
    before = torch.cat([total.new_zeros(1), total])[rowptr]  # [N + 1], the sum of all earlier rows
    of_row = before.diff()[row]
    bound = ((total - before[row]).double() / of_row.double() * 2**32).round().long()
    first = torch.arange(row.numel(), device=row.device) == rowptr[row]
    width = torch.where(first, bound, bound - bound.roll(1))
    return StepTable(row * 2**32 + bound, width.double() / 2**32)
