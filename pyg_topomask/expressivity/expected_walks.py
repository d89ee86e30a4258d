"""The expectation of random walks, in place of a sample that would depend on chance."""

from __future__ import annotations

import torch
from torch.linalg import matrix_power
from torch_geometric.data import Data

from pyg_topomask.ops.csr import drop_zeros, sym_normalize, to_csr
from pyg_topomask.ops.walks.settings import Lengths, walk_settings


def with_expected_walks(data: Data, max_length: int, halt_prob: float, lengths: Lengths = None) -> Data:
    """The graph with the tables of :class:`~pyg_topomask.transforms.AddRandomWalks` for infinitely many walks.

    Queries and keys get the same table, because independent tables have the same expectation. It takes
    :math:`O(N^2 K)` memory for walks of up to ``K = max_length`` hops.

    Args:
        data: A graph; not modified.
        max_length: Largest length of a walk, in hops.
        halt_prob: Probability that a walk halts, per step. It changes the expected visits, but not the loads.
        lengths: Distribution of the lengths of walks in place of ``halt_prob``, as in the transform.
    """
    num_nodes = int(data.num_nodes or 0)
    weight = data.get("edge_weight")
    weight = torch.ones(data.num_edges, dtype=torch.float64) if weight is None else weight.double()
    csr = drop_zeros(to_csr(data.edge_index, num_nodes, weight))
    edges, zeros = (csr.row.long(), csr.col.long()), torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adj = zeros.index_put(edges, sym_normalize(csr).weight)
    step = zeros.index_put(edges, 1 / csr.degree.double()[csr.row])
    load, count = (torch.stack([matrix_power(x, k) for k in range(max_length + 1)], dim=-1) for x in (adj, step))
    count = count * count.new_tensor(walk_settings(1, max_length, halt_prob, lengths=lengths).tail)
    start, visited, length = found = count.nonzero(as_tuple=True)
    table = {"index": torch.stack([start, visited]), "length": length, "load": load[found], "count": count[found]}
    data = data.clone()
    for name in ("walk", "walk_key"):
        data.update({f"{name}_{part}": column for part, column in table.items()})
    data.update({"walk_size": num_nodes, "walk_max_length": max_length})
    return data
