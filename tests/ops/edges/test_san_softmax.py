import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.ops.edges.san import san_attention
from pyg_topomask.testing import GRAPHS, empty_graph
from tests.ops.compare import assert_dropout_keeps_the_mean

# Edges that are there twice, in one direction only, and from a node to itself.
ODD = Data(x=torch.zeros(4, 1), edge_index=torch.tensor([[0, 0, 1, 2, 2], [1, 1, 0, 2, 2]]))


def batch_of(*names):
    parts = [ODD if name == "odd" else empty_graph() if name == "empty" else GRAPHS[name] for name in names]
    return Batch.from_data_list([Data(edge_index=part.edge_index, num_nodes=part.num_nodes) for part in parts])


def tensors(batch, heads=2, width=3, dtype=torch.float64):
    """Queries, keys, values, vectors of edges, and queries and keys of absent pairs."""
    rows = [batch.num_nodes] * 3 + [batch.num_edges] + [batch.num_nodes] * 2
    return [torch.randn(n, heads, width, dtype=dtype).requires_grad_() for n in rows]


def run(function, inputs, batch, gamma=0.3, full=True, **settings):
    absent = inputs[4:] if full else None
    return function(*inputs[:4], batch.edge_index, absent, gamma, batch.batch, **settings)


def test_scores_of_any_size():
    batch = batch_of("star", "odd", "path")
    inputs = tensors(batch, dtype=torch.float32)
    for own, absent in ((1e4, 1e4), (-1e4, -1e4), (1e4, 1), (1, 1e4)):
        factors = (own, 1e4, 1, 1, absent, 1e4)
        out = run(san_attention, [x * factor for x, factor in zip(inputs, factors)], batch)
        assert out.isfinite().all()
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), inputs))


def test_gamma_goes_from_neighbours_only_to_absent_pairs_only():
    batch = batch_of("star")
    inputs = tensors(batch)
    torch.testing.assert_close(run(san_attention, inputs, batch, 1e-200), run(san_attention, inputs, batch, full=False))
    leaves = run(san_attention, inputs, batch, 1e200)[1:]
    v, q, k = inputs[2], *inputs[4:]
    score = torch.einsum("ihd,jhd->ijh", q[1:], k[1:]) / 3**0.5
    score = score.masked_fill(torch.eye(4, dtype=torch.bool)[..., None], -torch.inf)
    torch.testing.assert_close(leaves, torch.einsum("ijh,jhd->ihd", score.softmax(1), v[1:]))


def test_dropout_keeps_the_expectation():
    batch = batch_of("path", "star")
    inputs = [x.detach() for x in tensors(batch)]
    exact = run(san_attention, inputs, batch, 1.0)
    assert_dropout_keeps_the_mean(lambda: run(san_attention, inputs, batch, 1.0, dropout=0.3), exact, 500)


def test_edges_between_graphs_are_refused():
    batch = batch_of("path", "star")
    inputs = tensors(batch)
    crossing = batch.edge_index.clone()
    crossing[0, 0] = 7
    with pytest.raises(ValueError, match="joins nodes 7 and 1 of different graphs"):
        san_attention(*inputs[:4], crossing, inputs[4:], 0.5, batch.batch)
