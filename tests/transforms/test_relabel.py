"""Relabelling: what moves with the nodes, what undoes it, and that masks and attentions only see another order."""

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.transforms import Compose

from pyg_topomask.nn import GRFAttention, HopMask, MaskedAttention, TreeMask
from pyg_topomask.transforms import (
    AddExpanderEdges,
    AddGridShape,
    AddHops,
    AddRandomWalks,
    AddRelativeWalkEncoding,
    AddTreeOrder,
    RelabelNodes,
)
from pyg_topomask.transforms.relabel import far_apart
from tests.transforms.encoding_cases import grid, path, random_graph

ADD = Compose([AddRandomWalks(seed=0), AddHops(3), AddTreeOrder(), AddRelativeWalkEncoding([1, 2])])


def dense(graph, key="edge_index", value=None):
    """Matrix of the pairs in an attribute."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    values = torch.ones(graph[key].size(1)) if value is None else graph[value]
    return matrix.index_put_(tuple(graph[key].long()), values.double(), accumulate=True)


def shuffled(graph):
    return Data(edge_index=torch.randperm(graph.num_nodes)[graph.edge_index], num_nodes=graph.num_nodes)


def full():
    """A graph with attributes of every kind."""
    graph = ADD(random_graph(40, 3.0))
    graph.x, graph.y, graph.train_mask = torch.randn(40, 3), torch.arange(40), torch.rand(40) < 0.5
    graph.edge_weight, graph.label = torch.rand(graph.num_edges), torch.tensor([[1.0]])
    graph.numbers, graph.sources = [*range(40)], graph.edge_index[0].tolist()  # lists, such as names
    graph.attn_bias, graph.edge_label_index = torch.randn(1600, 2), torch.tensor([[1, 2], [3, 4]])
    return AddExpanderEdges(2, seed=0)(graph)


def test_every_attribute_moves_with_the_nodes():
    graph = full()
    moved, before = RelabelNodes()(graph.clone()), full()
    ids = moved.original_id
    assert ids.sort()[0].tolist() == list(range(40))
    assert moved.numbers == ids.tolist()
    assert moved.sources == ids[moved.edge_index[0]].tolist()
    for key in ("x", "y", "train_mask", "walk_diagonal"):
        if key in graph:
            assert torch.equal(moved[key], graph[key][ids])
            assert torch.equal(moved[key][ids.argsort()], graph[key])  # undone
    tables = {
        "edge_index": "edge_weight",
        "walk_index": "walk_load",
        "walk_key_index": "walk_key_length",
        "hop_index": "hop_length",
        "tree_index": "tree_length",
        "expander_index": None,
    }
    for key, value in tables.items():
        assert torch.equal(dense(moved, key, value), dense(graph, key, value)[ids][:, ids])
    for key in ("attn_bias", "pair_relative_walk"):
        torch.testing.assert_close(moved[key].view(40, 40, 2), graph[key].view(40, 40, 2)[ids][:, ids])
    assert torch.equal(ids[moved.edge_label_index], graph.edge_label_index)
    assert moved.edge_index[0].diff().min() >= 0
    assert torch.equal(moved.label, graph.label)
    for key, value in before.to_dict().items():  # tensors of the given graph are as they were
        assert torch.equal(torch.as_tensor(graph[key]), torch.as_tensor(value))


@pytest.mark.parametrize(
    "make",
    [
        lambda: GRFAttention(8, 2),
        lambda: MaskedAttention(8, 2, mask=HopMask(2, max_hops=3)),
        lambda: MaskedAttention(8, mask=TreeMask()),
    ],
)
def test_attention_only_sees_another_order(make):
    graph, attn = full(), make().double()
    moved, x = RelabelNodes()(graph), torch.randn(40, 8, dtype=torch.float64)
    torch.testing.assert_close(attn(x[moved.original_id], graph=moved), attn(x, graph=graph)[moved.original_id])


def test_neighbours_are_near_and_numbers_compose():
    given = shuffled(grid(30, 30))
    given.x = torch.arange(900)
    once = RelabelNodes()(given.clone())
    assert (once.edge_index[0] - once.edge_index[1]).abs().max() <= 60  # a grid of that width: at least 30
    assert (given.edge_index[0] - given.edge_index[1]).abs().max() > 600
    twice = RelabelNodes()(once.clone())
    assert torch.equal(twice.original_id, twice.x)
    assert torch.equal(once.original_id, once.x)
    assert far_apart(given) == ""  # all of it is near
    line = far_apart(shuffled(path(30_000)))
    assert line.startswith("The numbers of neighbours are ")
    assert "makes that 1," in line
    assert far_apart(path(30_000)) == ""


def test_attributes_of_nodes_move_whatever_their_names():
    graph = AddTreeOrder()(shuffled(path(40)))
    graph.tree_depth = torch.arange(40)
    moved = RelabelNodes()(graph)
    assert torch.equal(moved.tree_depth, moved.original_id)


def test_edges_of_other_kinds():
    graph = full()
    indexed = graph.clone()
    indexed.edge_index = EdgeIndex(graph.edge_index, sparse_size=(40, 40))
    assert torch.equal(torch.as_tensor(RelabelNodes()(indexed).edge_index), RelabelNodes()(graph).edge_index)
    with pytest.raises(ValueError, match="cannot move 'adj_t' of the graph: add it after RelabelNodes"):
        RelabelNodes()(Data(adj_t=torch.eye(3).to_sparse(), num_nodes=3))
    with pytest.raises(ValueError, match="cannot move 'grid_shape' of the graph: a grid has its own order"):
        RelabelNodes()(AddGridShape()(grid(3, 3)))
