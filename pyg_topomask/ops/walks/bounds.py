r"""Bounds on the error and on the size of graph random features.

Reference: Reid et al. 2024, arXiv:2410.03462, Theorem 3.1 and Lemma 3.2. Both are for independent walkers
(``scheme="iid"``), and the theorem is for entries between two nodes, or any entry if queries and keys have walks of
their own. They are worst cases: observed errors are far smaller.
"""

from collections.abc import Sequence
from math import ceil, expm1, inf, log, log1p, sqrt

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
        edge_index: Edges, as for :func:`~pyg_topomask.ops.sample_walks`.
        num_nodes: Number of nodes ``N``.
        modulation: Modulation function ``f``, shape ``[K + 1]``.
        tail: Probability :math:`p_k` that a walk does not halt before hop ``k``, for ``k`` = 0 … K;
            :math:`(1 - p_{halt})^k` in the theorem.
        edge_weight: ``W``, shape ``[E]``; one per edge if :obj:`None`.

    Raises:
        TypeError: If indices are not integers or weights are not floating point.
        ValueError: If the edges do not describe a graph, or the other arguments do not fit each other.
    """
    if modulation.dim() != 1 or modulation.numel() != len(tail) or not tail or not 0 < min(tail) <= max(tail) <= 1:
        raise ValueError(
            f"'modulation' must be [K + 1], and 'tail' must hold K + 1 probabilities above 0 (got "
            f"{list(modulation.shape)} and {list(tail)})"
        )
    edge_index, edge_weight = edge_tensors(edge_index, edge_weight)
    check_edges(edge_index, num_nodes, edge_weight)
    csr = drop_zeros(to_csr(edge_index, num_nodes, edge_weight))
    steps = csr.weight.detach().double().abs() * csr.degree[csr.row]
    step = float(steps.max()) if steps.numel() else 0.0
    return sum(abs(f) * step**k / p for k, (f, p) in enumerate(zip(modulation.tolist(), tail)))


def error_bound(num_walks: int, prob: float, scale: float) -> float:
    r"""The error of an entry of the mask that is exceeded with probability ``prob`` at most: the ``t`` of

    .. math:: 2 \exp\left(-\frac{t^2 n^3}{2 (2n - 1)^2 c^4}\right) = \mathrm{prob}

    Args:
        num_walks: Walks from each node, ``n``.
        prob: The probability, in ``(0, 1)``.
        scale: ``c`` of `error_scale`. If keys have a function of their own, :math:`\sqrt{c_1 c_2}`.

    Raises:
        TypeError: If ``num_walks`` is not an integer.
        ValueError: If an argument is out of range.
    """
    number = check_integer("num_walks", num_walks, 1)
    _check_prob(prob)
    return (2 * number - 1) * scale**2 * sqrt(2 * log(2 / prob) / number**3)


def row_nonzeros(num_walks: int, halt_prob: float, prob: float, max_length: int | None = None) -> int:
    r"""The number of non-zeros of a row of features that is exceeded with probability ``prob`` (δ) at most.

    .. math:: 1 + n (\lceil b \rceil - 1), \quad b = \frac{\log(1 - (1 - \delta)^{1/n})}{\log(1 - p_{halt})}

    The paper does not round ``b`` up, but a walk has a whole number of hops.

    Args:
        num_walks: Walks from each node, ``n``.
        halt_prob: Probability of halting before each step, in ``[0, 1)``.
        prob: δ, in ``(0, 1)``.
        max_length: Longest stored walk, which limits a row as well; no limit if :obj:`None`.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If an argument is out of range, or the walks never end.
    """
    walk_settings(num_walks, 0 if max_length is None else max_length, halt_prob)
    _check_prob(prob)
    if halt_prob == 0 and max_length is None:
        raise ValueError("walks with 'halt_prob' = 0 end only at 'max_length': give it")
    hops = inf if halt_prob == 0 else ceil(log(-expm1(log1p(-prob) / num_walks)) / log1p(-halt_prob)) - 1
    return 1 + num_walks * int(min(hops, inf if max_length is None else max_length))


def _check_prob(prob: float) -> None:
    if not 0 < prob < 1:
        raise ValueError(f"'prob' must be a probability in (0, 1) (got {prob})")
