import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.ops.attention import compiled_pairs
from pyg_topomask.ops.attention.edge_softmax import (
    edge_pairs,
    edge_scores,
    edge_softmax_attention,
    edge_softmax_attention_reference,
    typed_edge_attention,
    typed_edges,
    typed_keys,
)
from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddExpanderEdges


def edges_of(*names, num_virtual=2, expander=True, degree=1):
    parts = [empty_graph() if name == "empty" else GRAPHS[name].clone() for name in names]
    batch = Batch.from_data_list([AddExpanderEdges(degree, seed=0)(part) for part in parts])
    index = batch.expander_index if expander else None
    return batch, typed_edges(batch.edge_index, index, batch.batch, batch.num_nodes, batch.num_graphs, num_virtual)


def tensors(edges, heads=2, width=3, dtype=torch.float64):
    rows, columns = edges.keys.num_rows, edges.keys.num_cols
    return [torch.randn(n, heads, width, dtype=dtype, requires_grad=True) for n in (rows, columns, rows)]


def test_more_edges_than_pairs_of_nodes():
    index = torch.tensor([[0, 1, 0, 0, 0, 1], [1, 0, 1, 1, 0, 1]])
    edges = typed_edges(index, None, None, 2, 1, 0)
    q, k, v = tensors(edges)
    assert torch.autograd.gradcheck(lambda q, k, v: edge_softmax_attention(q, k, v, edges), (q, k, v))


@pytest.mark.parametrize("num_virtual", [0, 1, 3])
@pytest.mark.parametrize("expander", [True, False])
def test_every_edge_is_there_once_under_its_type(num_virtual, expander):
    batch, edges = edges_of("star", "empty", "one_way", "single", num_virtual=num_virtual, expander=expander)
    n = batch.num_nodes
    types = [batch.edge_index.tolist()]
    if expander:
        types.append(batch.expander_index.tolist())
    wanted = [(i, kind * n + j, j) for kind, (source, target) in enumerate(types) for j, i in zip(source, target)]
    for node, graph in enumerate(batch.batch.tolist()):
        for number in range(num_virtual):
            virtual = graph * num_virtual + number
            wanted.append((n + virtual, len(types) * n + node, node))
            wanted.append((node, (len(types) + 1) * n + virtual, n + virtual))
    found = zip(edges.keys.row.tolist(), edges.keys.col.tolist(), edges.values.col.tolist())
    assert sorted(found) == sorted(wanted)
    assert torch.equal(edges.keys.row, edges.values.row)
    assert edges.keys.num_rows == edges.values.num_cols == n + 4 * num_virtual
    assert edges.keys.num_cols == (len(types) + (num_virtual > 0)) * n + 4 * num_virtual
    source, target = batch.edge_index.int()
    assert torch.equal(edges.values.col[edges.graph_edge], source)
    assert torch.equal(edges.values.row[edges.graph_edge], target)
    assert (edges.keys.col[edges.graph_edge] < n).all()


@pytest.mark.parametrize(
    "names", [("star", "isolated", "one_way"), ("single",), ("empty",), ("empty", "path", "empty")]
)
@pytest.mark.parametrize("with_score", [True, False])
def test_is_the_reference(names, with_score):
    for num_virtual in (0, 2):
        batch, edges = edges_of(*names, num_virtual=num_virtual)
        inputs = tensors(edges)
        score = torch.randn(batch.num_edges, 2, dtype=torch.float64, requires_grad=True) if with_score else None
        inputs += [score] if with_score else []
        fast = edge_softmax_attention(*inputs[:3], edges, score)
        slow = edge_softmax_attention_reference(*inputs[:3], edges, score)
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
        single = edge_softmax_attention(*(x.float() for x in inputs[:3]), edges, score.float() if with_score else None)
        torch.testing.assert_close(single, slow.float(), rtol=1e-5, atol=1e-6)
        noise = torch.randn_like(slow)
        grads = [
            torch.autograd.grad((out * noise).sum(), inputs, allow_unused=True, materialize_grads=True)
            for out in (fast, slow)
        ]
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("with_edge", [True, False])
@pytest.mark.parametrize("names", [("star", "isolated", "empty", "one_way"), ("single",), ("empty",)])
def test_vectors_of_types_and_edges(monkeypatch, names, with_edge, native):
    monkeypatch.setenv("TOPOMASK_NATIVE", native)
    for num_virtual in (0, 2):
        batch, edges = edges_of(*names, num_virtual=num_virtual)
        where = batch.edge_index, batch.expander_index, batch.batch, batch.num_nodes, batch.num_graphs, num_virtual
        num_rows, num_kinds = edges.values.num_rows, 4 if num_virtual else 2
        rows = [num_rows] * 3 + [num_kinds] + [batch.num_edges] * with_edge
        q, k, v, kinds, *edge = inputs = [torch.randn(n, 2, 3, dtype=torch.float64, requires_grad=True) for n in rows]
        fast = typed_edge_attention(q, k, v, where, kinds, *edge)
        score = edge_scores(q, k, *edge, batch.edge_index) if with_edge else None
        slow = edge_softmax_attention_reference(q, typed_keys(k, kinds, batch.num_nodes), v, edges, score)
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
        noise = torch.randn_like(slow)
        grads = [
            torch.autograd.grad((out * noise).sum(), inputs, allow_unused=True, materialize_grads=True)
            for out in (fast, slow)
        ]
        torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-11)


@pytest.mark.skipif(isinstance(compiled_pairs.load(), str), reason="needs a C++ compiler")
def test_edges_of_a_graph_lie_together():
    batch, _ = edges_of("star", "path", "one_way")
    where = batch.edge_index, batch.expander_index, batch.batch, batch.num_nodes, batch.num_graphs, 2
    pattern, kind, vector = edge_pairs(*where)
    graph = torch.cat([batch.batch, torch.arange(3).repeat_interleave(2)])[pattern.order]
    assert (graph.diff() >= 0).all()
    assert torch.equal(graph[pattern.row.long()], graph[pattern.col.long()])
    assert kind.bincount().tolist() == [batch.num_edges, batch.expander_index.size(1)] + [2 * batch.num_nodes] * 2
    assert torch.equal(vector[kind == 0].sort()[0], 4 + torch.arange(batch.num_edges).int())


def test_gradcheck():
    batch, edges = edges_of("path", "star", num_virtual=1)
    score = torch.randn(batch.num_edges, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: edge_softmax_attention(*x[:3], edges, x[3]), (*tensors(edges), score))


def test_scores_of_any_size():
    _, edges = edges_of("star", "path")
    q, k, v = tensors(edges, dtype=torch.float32)
    out = edge_softmax_attention(1e8 * q, 1e8 * k, v, edges)
    assert out.isfinite().all()
    far = edge_softmax_attention(q, k - 1e4, v, edges)  # all scores far below zero
    assert far.isfinite().all()
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_dropout_keeps_the_expectation():
    torch.manual_seed(0)
    _, edges = edges_of("star", num_virtual=1)
    q, k, v = (x.detach() for x in tensors(edges))
    exact = edge_softmax_attention(q, k, v, edges)
    draws = torch.stack([edge_softmax_attention(q, k, v, edges, dropout=0.3) for _ in range(2000)])
    assert ((draws.mean(0) - exact).abs() <= 5 * draws.std(0) / 2000**0.5 + 1e-12).all()
    assert (draws[0] != exact).any()


def test_structure_is_built_once_for_a_batch():
    batch, edges = edges_of("star", "path")
    again = typed_edges(batch.edge_index, batch.expander_index, batch.batch, 9, 2, 2)
    assert again is edges
    assert typed_edges(batch.edge_index, batch.expander_index, batch.batch, 9, 2, 1) is not edges


def test_edges_of_nodes_that_are_not_there_are_refused():
    batch, _ = edges_of("star", "path")
    with pytest.raises(ValueError, match="'edge_index' contains node 8, but nodes are 0 to 7"):
        typed_edges(batch.edge_index, None, None, 8, 1, 0)
    with pytest.raises(ValueError, match="'expander_index' contains node 8"):
        typed_edges(batch.edge_index[:, :4], batch.expander_index, None, 8, 1, 0)
