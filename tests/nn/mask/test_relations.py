"""Masks of the relations of a heterogeneous graph, which are those of a graph with their edges alone."""

import copy

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from pyg_topomask.nn import GPSModel, GRFMask, KMIPAttention, MaskedAttention, PowerSeriesMask
from pyg_topomask.transforms import AddRandomWalks

RELATIONS = [0, (0, 1), (2,), [1, 2]]


def hetero():
    graph = HeteroData()
    graph["author"].x, graph["paper"].x = torch.randn(5, 4), torch.randn(4, 4)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 1, 2, 4], [0, 0, 1, 2, 3]])
    graph["paper", "by", "author"].edge_index = graph["author", "writes", "paper"].edge_index.flip(0)
    graph["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 3, 0, 1]])
    for number, edges in enumerate(graph.edge_types):
        graph[edges].edge_weight = torch.linspace(0.5, 1.5, 5) + number
    return graph


def alone(graph, relation):
    kept = torch.isin(graph.edge_type, torch.tensor(relation))
    return Data(edge_index=graph.edge_index[:, kept], edge_weight=graph.edge_weight[kept], num_nodes=graph.num_nodes)


@pytest.mark.parametrize("relation", RELATIONS)
def test_walks_and_series_are_those_of_the_edges_alone(relation):
    graph = hetero().to_homogeneous()
    graph.edge_weight = graph.edge_weight.double().requires_grad_()
    mask, part = PowerSeriesMask(edge_type=relation).double(), alone(graph, relation)
    assert mask.requires == ("edge_type",)
    expected = PowerSeriesMask().double()(part).to_dense()
    torch.testing.assert_close(mask(graph).to_dense(), expected, rtol=0, atol=0)
    grads = (torch.autograd.grad(dense.sum(), graph.edge_weight)[0] for dense in (mask(graph).to_dense(), expected))
    torch.testing.assert_close(*grads)
    graph.edge_weight = graph.edge_weight.detach()
    walks = AddRandomWalks(seed=0, name="own", edge_type=relation)
    given = AddRandomWalks(seed=0, name="own")(alone(graph, relation))
    for walked in (walks(copy.copy(graph)), *walks([graph, graph])):
        for key in set(given.keys()) - {"edge_index", "edge_weight", "num_nodes"}:
            torch.testing.assert_close(walked[key], given[key], rtol=0, atol=0)
        assert torch.equal(walked.edge_index, graph.edge_index)


@pytest.mark.parametrize("settings", [{}, {"mask_heads": (2, 2)}])
@pytest.mark.parametrize("kind", ["walks", "series"])
def test_batches_of_graphs_with_relations(kind, settings):
    names, numbers = ("own", "other"), ((0, 1), 2)
    graph = hetero().to_homogeneous()
    for name, number in zip(names, numbers):
        graph = AddRandomWalks(seed=0, name=name, edge_type=number)(graph)
    by_walks = kind == "walks"
    masks = [GRFMask(name=name) for name in names] if by_walks else [PowerSeriesMask(edge_type=n) for n in numbers]
    attn, x = MaskedAttention(8, 4, mask=masks, **settings), torch.randn(2 * graph.num_nodes, 8)
    batch = Batch.from_data_list([graph, graph])
    single = torch.cat([attn(part, graph=graph) for part in x.split(graph.num_nodes)])
    torch.testing.assert_close(attn(x, graph=batch), single)


def typed(dtype, num_weights=2):
    edges, kinds = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1]).to(dtype)
    return Data(edge_index=edges, edge_type=kinds, edge_weight=torch.ones(num_weights), num_nodes=2)


def test_a_type_that_the_dtype_of_types_cannot_hold_has_no_edges():
    graph = typed(torch.int8)
    torch.testing.assert_close(PowerSeriesMask(edge_type=(256, 300))(graph).to_dense(), torch.eye(2))
    assert AddRandomWalks(edge_type=256)(graph).walk_index.tolist() == [[0, 1], [0, 1]]


UNTYPED = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
TOO_FEW = Data(edge_index=torch.tensor([[0], [1]]), edge_type=torch.tensor([0, 1]), num_nodes=2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: KMIPAttention(4)(torch.ones(9, 4), graph=hetero()), TypeError, "got HeteroData.: call to_homogeneous"),
        (
            lambda: KMIPAttention(4)(torch.ones(9, 4), graph=torch.ones(2, 5).long()),
            TypeError,
            r"Data .* shape \[2, 5\]",
        ),
        (lambda: PowerSeriesMask()(hetero()), TypeError, "got HeteroData.: call to_homogeneous.., and .* edge_type="),
        (lambda: GPSModel(4, 4, 1, 1, attn="kmip")(torch.ones(9, 4), None, graph=hetero()), TypeError, "got Hetero"),
        (lambda: AddRandomWalks(edge_type=0)(hetero()), TypeError, "homogeneous graph .got HeteroData"),
        (lambda: AddRandomWalks(edge_type=0)(UNTYPED.clone()), ValueError, "needs 'edge_index' and 'edge_type'"),
        (lambda: PowerSeriesMask(edge_type=0)(UNTYPED), ValueError, "needs 'edge_type' on the graph"),
        (lambda: PowerSeriesMask(edge_type=0)(TOO_FEW), ValueError, "an integer for each of 1 edges .got .*2"),
        (lambda: AddRandomWalks(edge_type=1)(TOO_FEW.clone()), ValueError, "an integer for each of 1 edges .got .*2"),
        (lambda: PowerSeriesMask(edge_type="cites"), TypeError, "edge_type"),
        (lambda: AddRandomWalks(edge_type=-1), ValueError, "'edge_type' must be at least 0"),
        (lambda: PowerSeriesMask(edge_type=()), ValueError, "'edge_type' must name a type of edges .got ..."),
        (lambda: AddRandomWalks(edge_type=[]), ValueError, "'edge_type' must name a type of edges .got ..."),
        (lambda: PowerSeriesMask(edge_type=1)(typed(torch.bool)), ValueError, r"an integer .*got torch.bool, \[2\]"),
        (lambda: AddRandomWalks(edge_type=1)(typed(torch.float)), ValueError, r"an integer .*got torch.float32, \[2\]"),
        (lambda: PowerSeriesMask(edge_type=0)(typed(torch.long, 1)), ValueError, r"'edge_weight' .*, \[2\] .got \[1\]"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
