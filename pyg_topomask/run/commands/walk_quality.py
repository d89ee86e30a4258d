"""How well random walks estimate a layer's GRF mask, by the number of walks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from pyg_topomask.expressivity.expected_walks import with_expected_walks
from pyg_topomask.nn.mask import GRFMask
from pyg_topomask.nn.mask.structure import read_normalized_edges
from pyg_topomask.ops.walks.bounds import error_bound, error_scale, row_nonzeros
from pyg_topomask.ops.walks.settings import table_name, walk_settings
from pyg_topomask.transforms import AddRandomWalks

NUM_WALKS = (4, 8, 16, 32, 64, 128, 256)
DRAWS = 4
RISK = 0.05
"""Probability with which the bounds may be exceeded."""
_MAX_NODES = 3000  # exact masks are dense


def walk_quality(mask: GRFMask, walks: AddRandomWalks, data: Data, head: int = 0) -> dict[str, list[float]]:
    """Coverage, non-zeros and errors of the estimated mask for several numbers of walks, each drawn `DRAWS` times.

    Args:
        mask: The mask.
        walks: The transform that draws its walks; the number of walks is replaced.
        data: A graph.
        head: Number of the head, from 0.

    Returns:
        Columns with an entry for each of `NUM_WALKS`:

        - ``walks``: the number of walks from each node, ``n``
        - ``coverage``: share of the nodes within ``max_length`` hops that a node's walks visit, on average
        - ``entries``, ``pairs``: non-zeros in a row of the features and of the mask, on average
        - ``most_entries``: Lemma 3.2's bound on ``entries`` with risk `RISK`
        - ``error``: root mean square error of the non-zero entries between different nodes
        - ``estimated``: its estimate from the spread of the draws, without the exact mask
        - ``quantile``: the error that a share `RISK` of these entries exceeds
        - ``bound``: Theorem 3.1's bound on that error

    Raises:
        ValueError: If the graph has too many nodes for a dense mask, or no two nodes are connected.
    """
    num_nodes = int(data.num_nodes or 0)
    if num_nodes > _MAX_NODES:
        raise ValueError(
            f"errors need the exact mask, which is dense; at most {_MAX_NODES:,} nodes (got {num_nodes:,})"
        )
    exact = _exact(mask, data)
    exact = exact[head] if exact.dim() == 3 else exact
    off = (exact != 0) & ~torch.eye(num_nodes, dtype=torch.bool)
    if not bool(off.any()):
        raise ValueError("no two nodes are connected, so the mask has no entry to estimate")
    reached = with_expected_walks(data, mask.max_length, 0.0)
    reachable = _visited(reached.walk_index, num_nodes)
    scale = _scale(mask, walks, _draws(walks, 2, data)[0], head)
    table = table_name(mask.name, mask.tables[head % len(mask.tables)])
    columns: dict[str, list[float]] = {}
    for count in NUM_WALKS:
        draws, coverage, entries = [], 0.0, 0.0
        for data_drawn in _draws(walks, count, data):
            visited = _visited(data_drawn[f"{table}_index"], num_nodes)
            coverage += float((visited / reachable).mean()) / DRAWS
            entries += float(visited.mean()) / DRAWS
            dense = mask(data_drawn).to_dense().double()
            draws.append(dense[head] if dense.dim() == 3 else dense)
        found = torch.stack(draws)
        errors = (found - exact)[:, off].abs()
        row = {
            "walks": count,
            "coverage": coverage,
            "entries": entries,
            "pairs": float((found != 0).sum()) / (DRAWS * num_nodes),
            "most_entries": row_nonzeros(count, 0.0 if walks.lengths else walks.halt_prob, RISK, mask.max_length),
            "error": float(errors.square().mean().sqrt()),
            "estimated": float(found.var(0)[off].mean().sqrt()),
            "quantile": float(errors.flatten().sort().values[int((1 - RISK) * errors.numel())]),
            "bound": error_bound(count, RISK, scale),
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(float(value))
    return columns


def _draws(walks: AddRandomWalks, count: int, data: Data) -> list[Batch]:
    """The graph with walks, drawn several times."""
    settings = {name: value for name, value in vars(walks).items() if not name.startswith("_")}
    transform = AddRandomWalks(**settings | {"num_walks": count})
    drawn = []
    for epoch in range(DRAWS):
        transform.set_epoch(epoch)
        drawn.append(Batch.from_data_list([transform(data.clone())]))
    return drawn


def _exact(mask: GRFMask, data: Data) -> Tensor:
    """The expectation of the mask, ``[N, N]`` or ``[H, N, N]``."""
    keys = mask.key_modulation is not None
    exact = GRFMask(mask.heads, mask.max_length, mask.symmetric, positive=mask.positive, key_modulation=keys)
    exact.load_state_dict(mask.state_dict())
    return exact.double()(with_expected_walks(data, mask.max_length, 0.0)).to_dense()


def _visited(index: Tensor, num_nodes: int) -> Tensor:
    """Number of nodes that the walks of each node visit, ``[N]``, float32."""
    start = torch.unique(index.long(), dim=1)[0]
    return torch.bincount(start, minlength=num_nodes).float()


def _scale(mask: GRFMask, walks: AddRandomWalks, data: Data, head: int) -> float:
    """The constant of Theorem 3.1, for the larger one of two modulation functions."""
    edge_index, weight = read_normalized_edges(mask, data, torch.float64)
    functions = [f if f.dim() == 1 else f[head] for f in mask.parameters()]
    tail = walk_settings(1, mask.max_length, walks.halt_prob, lengths=walks.lengths).tail
    return max(error_scale(edge_index, int(data.num_nodes or 0), f, tail, weight) for f in functions)
