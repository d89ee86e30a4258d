r"""Error bounds of masks of graph random features.

Reference: Reid et al. 2024, arXiv:2410.03462, Theorem 3.1 and Lemma 3.2. The theorem assumes independent walkers
(``scheme="iid"``). It is valid for entries between two different nodes, and for the diagonal if queries and keys have
independent walks. It is a worst case: observed errors are far smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, inf, log, log1p, sqrt

import torch
from torch import Tensor

from pyg_topomask.checks import check_integer
from pyg_topomask.ops.csr import check_edges, drop_zeros, edge_tensors, to_csr
from pyg_topomask.ops.walks.settings import walk_settings
from pyg_topomask.typing import Adj


def error_scale(
    edge_index: Adj, num_nodes: int, modulation: Tensor, tail: Sequence[float], edge_weight: Tensor | None = None
) -> float:
    r"""The constant :math:`c = \sum_k |f_k| (\max_{ij} |W_{ij}| \deg_i)^k / p_k` of Theorem 3.1.

    Args:
        edge_index: Edges, as for `pyg_topomask.ops.sample_walks`.
        num_nodes: Number of nodes ``N``.
        modulation: Modulation function ``f``, shape ``[K + 1]``.
        tail: Probability :math:`p_k` that a walk does not halt before ``k`` hops, for 0 … K hops; the theorem has
            :math:`(1 - p_{halt})^k`.
        edge_weight: ``W``, shape ``[E]``; one per edge if :obj:`None`.

    Raises:
        TypeError: If indices are not integers or weights are not floating point.
        ValueError: If the edges do not describe a graph, or an argument is out of range.
    """
    if modulation.dim() != 1 or modulation.numel() == 0:
        raise ValueError(f"'modulation' must have shape [K + 1] (got {list(modulation.shape)})")
    edge_index, edge_weight = edge_tensors(edge_index, edge_weight)
    check_edges(edge_index, num_nodes, edge_weight)
    csr = drop_zeros(to_csr(edge_index, num_nodes, edge_weight))
    largest = float((csr.weight.double().abs() * csr.degree[csr.row]).max()) if csr.col.numel() else 0.0
    powers = largest ** torch.arange(modulation.numel(), dtype=torch.float64)
    return float(modulation.detach().double().cpu().abs() @ (powers / torch.tensor(tail, dtype=torch.float64)))


def error_bound(num_walks: int, prob: float, scale: float) -> float:
    r"""The error that an entry exceeds with probability at most ``prob``.

    It is the ``t`` of :math:`2 \exp\left(-\frac{t^2 n^3}{2 (2n - 1)^2 c^4}\right) = \mathrm{prob}`.

    Args:
        num_walks: Walks from each node, ``n``.
        prob: The probability, in ``(0, 1)``.
        scale: ``c`` of `error_scale`.

    Raises:
        TypeError: If ``num_walks`` is not an integer.
        ValueError: If an argument is out of range.
    """
    number = check_integer("num_walks", num_walks, 1)
    _check_prob(prob)
    return (2 * number - 1) * scale**2 * sqrt(2 * log(2 / prob) / number**3)


def row_nonzeros(num_walks: int, halt_prob: float, prob: float, max_length: int | None = None) -> int:
    r"""Upper bound on the non-zeros in a row of features, which holds with probability ``1 - prob``.

    .. math:: 1 + n (\lceil b \rceil - 1), \quad b = \frac{\log(1 - (1 - \delta)^{1/n})}{\log(1 - p_{halt})}

    ``b`` is rounded up because a walk has a whole number of hops.

    Args:
        num_walks: Walks from each node, ``n``.
        halt_prob: Probability of halting before each step, in ``[0, 1)``.
        prob: :math:`\delta`, in ``(0, 1)``.
        max_length: Longest stored walk, which also limits the row. It is required if walks do not halt.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If an argument is out of range, or the walks never end.
    """
    settings = walk_settings(num_walks, 0 if max_length is None else max_length, halt_prob)
    _check_prob(prob)
    if halt_prob == 0 and max_length is None:
        raise ValueError("walks with 'halt_prob' = 0 end only at 'max_length'; pass 'max_length' too")
    hops = inf if halt_prob == 0 else ceil(log(-expm1(log1p(-prob) / settings.num_walks)) / log1p(-halt_prob)) - 1
    return 1 + settings.num_walks * int(min(hops, inf if max_length is None else settings.max_length))


def _check_prob(prob: float) -> None:
    if not 0 < prob < 1:
        raise ValueError(f"'prob' must be a probability in (0, 1) (got {prob})")
