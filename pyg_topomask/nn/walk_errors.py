"""How well random walks estimate the GRF mask of a layer, by the number of walks."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import reduce
from inspect import signature
from math import ceil, sqrt
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.nn.mask import GRFMask, PowerSeriesMask
from pyg_topomask.nn.mask.structure import read_normalized_edges
from pyg_topomask.operators import MaskOperator, PowerSeriesOperator, ProductOperator
from pyg_topomask.ops import error_bound, error_scale, row_nonzeros
from pyg_topomask.ops.attention.mask import rows_of
from pyg_topomask.ops.csr import relation_of
from pyg_topomask.ops.walks.settings import table_name
from pyg_topomask.transforms import AddRandomWalks

NUM_WALKS, MOST = (2, 4, 8, 16, 32, 64, 128, 256), 10**9
"""Numbers of walks that are tried, and the most that are looked for."""
_ROWS, _NUMBERS = 256, 2**22
"""Rows of a mask that are compared, and entries that are computed for each head, at most."""


@torch.no_grad()
def walk_errors(
    mask: GRFMask, walks: AddRandomWalks, data: Data, head: int = 0, draws: int = 8, risk: float = 0.05
) -> list[dict[str, Any]]:
    """Errors of the estimated mask and entries of its features, for 2, 4, … 256 and the number of ``walks``.

    Args:
        mask: The mask.
        walks: The transform that draws its walks; other numbers of walks replace its own.
        data: The graph.
        head: Number of the head.
        draws: Number of times that each number of walks is drawn.
        risk: Share of the rows, or entries, that may exceed a bound.

    Returns:
        A row for each number: ``walks``; ``risk``; ``nonzeros``, entries in a row of the features that a share ``risk``
        of the rows exceeds; ``most``, Lemma 3.2's bound on it; ``error``, the root mean square error of the entries
        between two nodes whose exact value is not 0; ``typical``, the root mean square of these entries; ``quantile``,
        the error that a share ``risk`` of them exceeds; ``bound``, Theorem 3.1's bound on it; ``needed``, the number
        of walks for which the bound is as small as ``quantile``. Bounds are None where the theorem does not hold: if
        walkers are coupled, loads are not weighted, or the mask is stitched. ``most`` is also None for walks with
        ``lengths``, and ``needed`` if it would be more than 10^9.

    References: Reid et al., *Linear transformer topological masking with graph random features*, 2024,
    arXiv:2410.03462, Theorem 3.1 and Lemma 3.2.

    Raises:
        ValueError: If the mask joins no two nodes.
    """
    num_nodes = int(data.num_nodes or 0)
    rows = torch.arange(0, num_nodes, -(-num_nodes // max(1, min(_ROWS, _NUMBERS // max(num_nodes, 1)))) or 1)
    relation = relation_of(walks.edge_type)
    edges = read_normalized_edges(PowerSeriesMask(), data, torch.float64, relation)  # it needs no walks
    of_head = (f if f.dim() == 1 else f[head] for f in mask.functions)
    functions = [f[: walks.max_length + 1].double() for f in of_head]  # walks may be shorter than the mask
    exact = _rows(_exact(mask, edges, num_nodes, functions), rows, 0)
    counted = (exact != 0) & (torch.arange(num_nodes)[:, None] != rows)
    if not bool(counted.any()):
        raise ValueError("the mask joins no two nodes, so there is nothing to estimate")
    settings = walks.settings
    uncoupled = settings.scheme == "iid" and settings.importance and mask.stitch == 1
    factors = functions if mask.symmetric else [*functions, torch.ones(1)]  # the features of the keys are the identity
    scales = [error_scale(edges[0], num_nodes, f, settings.tail[: len(f)], edges[1]) for f in (factors[0], factors[-1])]
    found = []
    for count in sorted({*NUM_WALKS, walks.num_walks}):
        errors, sizes = [], []
        for drawn in _draws(walks, count, data, draws):
            errors.append((_rows(mask(drawn), rows, head) - exact)[counted].abs())
            index = drawn[f"{table_name(mask.name, mask.tables[head % len(mask.tables)] * mask.stitch)}_index"]
            sizes.append(torch.bincount(torch.unique(index.long(), dim=1)[0], minlength=num_nodes))
        error, quantile = torch.cat(errors), _exceeded(torch.cat(errors), risk)
        row: dict[str, Any] = {"walks": count, "risk": risk, "most": None}
        row["nonzeros"] = int(_exceeded(torch.cat(sizes), risk))
        row |= {"error": float(error.square().mean().sqrt()), "typical": float(exact[counted].square().mean().sqrt())}
        row |= {"quantile": float(quantile), "bound": None, "needed": None}
        if uncoupled:
            scale = sqrt(scales[0] * scales[1])
            row |= {"bound": error_bound(count, risk, scale), "needed": walks_for(float(quantile), scale, risk)}
            if settings.lengths is None:
                row["most"] = row_nonzeros(count, settings.halt_prob, risk, settings.max_length)
        found.append(row)
    return found


def walks_for(error: float, scale: float, risk: float) -> int | None:
    """The least number of walks for which the bound is at most ``error``; None if it is more than `MOST`.

    The bound is larger at 2 walks than at 1 and falls from there.
    """
    if error_bound(1, risk, scale) <= error:
        return 1
    found = 2 + bisect_left(range(2, MOST + 1), True, key=lambda number: error_bound(number, risk, scale) <= error)
    return found if found <= MOST else None


def _draws(walks: AddRandomWalks, count: int, data: Data, draws: int) -> Iterator[Data]:
    """The graph with so many walks from each node, drawn several times."""
    settings = {name: getattr(walks, name) for name in signature(AddRandomWalks).parameters}
    transform = AddRandomWalks(**settings | {"num_walks": count})
    for epoch in range(draws):
        transform.set_epoch(epoch)
        yield transform(data.clone())


def _exact(mask: GRFMask, edges: tuple[Tensor, Tensor], num_nodes: int, functions: Sequence[Tensor]) -> MaskOperator:
    """The mask that the walks estimate."""
    series = [PowerSeriesOperator(edges[0], num_nodes, f, edges[1]) for f in functions]
    if not mask.symmetric:
        return series[0]
    return reduce(ProductOperator, [ProductOperator(series[0], series[-1].T)] * mask.stitch)


def _rows(operator: MaskOperator, rows: Tensor, head: int) -> Tensor:
    """Rows of a mask as columns ``[N, R]``, float64."""
    found = rows_of(operator, rows).double()
    return found if operator.heads is None else found[:, head]


def _exceeded(values: Tensor, risk: float) -> Tensor:
    """The smallest value that a share of at most ``risk`` of the values exceeds."""
    return values.sort().values[ceil((1 - risk) * values.numel()) - 1]
