"""Small graphs that cover the special cases of masks, and relabelling of nodes."""

import torch
from torch import Tensor
from torch_geometric.data import Data


def _graph(num_nodes: int, edges: list[tuple[int, int]], *, directed: bool = False, weighted: bool = False) -> Data:
    if not directed:
        edges = [pair for i, j in edges for pair in ((i, j), (j, i))]
    generator = torch.Generator().manual_seed(num_nodes + len(edges))
    data = Data(
        x=torch.randn(num_nodes, 4, generator=generator, dtype=torch.float64),
        edge_index=torch.tensor(edges, dtype=torch.long).view(-1, 2).t().contiguous(),
        num_nodes=num_nodes,
    )
    if weighted:
        weight = torch.rand(len(edges) // 2, generator=generator, dtype=torch.float64) + 0.5
        data.edge_weight = weight.repeat_interleave(2)
    return data


GRAPHS: dict[str, Data] = {
    "path": _graph(4, [(0, 1), (1, 2), (2, 3)]),
    "star": _graph(5, [(0, 1), (0, 2), (0, 3), (0, 4)]),
    "two_parts": _graph(6, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5)]),
    "isolated": _graph(4, [(0, 2), (2, 3)]),
    "single": _graph(1, []),
    "one_way": _graph(5, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)], directed=True),
    "weighted": _graph(5, [(0, 1), (1, 2), (2, 3), (3, 0), (1, 4)], weighted=True),
}
"""Graphs by name: path, star, two parts, an isolated node, a single node, one-way edges with a dead end, weights.

Each has float64 features ``x [N, 4]``. Do not modify them; ``clone()`` first.
"""


def empty_graph() -> Data:
    """A graph without nodes, with the attributes of `GRAPHS`."""
    return _graph(0, [])


def without_nodes(data: Data) -> Data:
    """A graph of no nodes with the attributes of ``data``, also those of walks."""
    empty = data.clone()
    for key, value in data.to_dict().items():
        if key.endswith("_size"):
            empty[key] = 0 * value
        elif isinstance(value, Tensor):
            empty[key] = value.narrow(-1 if "index" in key else 0, 0, 0)
    empty.num_nodes = 0
    return empty


def dense_adjacency(data: Data) -> Tensor:
    """Adjacency ``[N, N]`` in float64, entry by entry from its definition: equal edges add up."""
    adj = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    weight = data.get("edge_weight")
    for edge, (i, j) in enumerate(data.edge_index.t().tolist()):
        adj[i, j] += 1.0 if weight is None else float(weight[edge])
    return adj


def block_permutation(batch: Tensor, seed: int = 0) -> Tensor:
    """Random permutation ``[N]`` of the nodes of a batch within their graphs."""
    noise = torch.rand(batch.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (batch + noise).argsort()
