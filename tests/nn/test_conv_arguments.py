"""What convolutions get by name: weights and types of edges, from the graph or as arguments of a model."""

import pytest
import torch
from torch.nn import Identity, Linear
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, GINConv, RGCNConv

from pyg_topomask import nn, testing, transforms
from pyg_topomask.nn.attention.pyg import ConvAttention
from pyg_topomask.nn.encoder.features import LinearNodeEncoder
from pyg_topomask.run.graphgps.convs import CONVS


def weighted_batch():
    graphs = [testing.GRAPHS[name].clone() for name in ("path", "star")]
    for graph in graphs:
        graph.x = torch.randn(graph.num_nodes, 8)
        graph.edge_weight = torch.rand(graph.num_edges) + 0.1
        graph.edge_type = torch.arange(graph.num_edges) % 2
    return Batch.from_data_list([transforms.AddRandomWalks(seed=0)(graph) for graph in graphs])


@pytest.mark.parametrize("convs", [1, 2])
def test_layers_give_convolutions_the_weights_of_the_graph(convs):
    batch, parts = weighted_batch(), [GCNConv(8, 8) for _ in range(convs)]
    layer = nn.GPSLayer(8, parts, norm=None, feed_forward=False)
    wanted = sum(batch.x + conv(batch.x, batch.edge_index, batch.edge_weight) for conv in parts)
    torch.testing.assert_close(layer(batch.x, batch.edge_index, graph=batch), wanted)
    torch.testing.assert_close(layer(batch.x, batch.edge_index, edge_weight=batch.edge_weight), wanted)
    plain = sum(batch.x + conv(batch.x, batch.edge_index) for conv in parts)
    torch.testing.assert_close(layer(batch.x, batch.edge_index, graph=batch, edge_weight=None), plain)
    batch.edge_weight = batch.edge_weight[1:]
    with pytest.raises(ValueError, match=r"graph\.edge_weight has 13 weights, but 'edge_index' has 14 edges"):
        layer(batch.x, batch.edge_index, graph=batch)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("attn", ["series", "walks"])
@pytest.mark.parametrize("kind", [nn.GPSModel, nn.GPSConv])
def test_weights_are_the_same_from_the_graph_the_call_and_a_sparse_matrix(kind, attn):
    batch = weighted_batch()
    x, edges, weight, n = batch.x, batch.edge_index, batch.edge_weight, batch.num_nodes
    transform = None if attn == "series" else transforms.AddRandomWalks(seed=0)
    mask = lambda: nn.PowerSeriesMask() if attn == "series" else nn.GRFMask()  # noqa: E731
    if kind is nn.GPSConv:
        model = nn.GPSConv(8, GCNConv(8, 8), attn_type=nn.MaskedAttention(8, mask=mask()), transform=transform)
    else:
        model = nn.GPSModel(8, 8, 8, 2, "gcn", lambda _: nn.MaskedAttention(8, mask=mask()), transform=transform)
    wanted = model.eval()(x, edges, batch.batch, batch)
    adj = torch.sparse_coo_tensor(edges.flip(0), weight, (n, n), check_invariants=True).to_sparse_csr()
    torch.testing.assert_close(model(x, edges, batch.batch, edge_weight=weight), wanted)
    torch.testing.assert_close(model(x, adj, batch.batch), wanted)
    assert not torch.allclose(model(x, edges, batch.batch), wanted)
    assert model(x[:0], edges[:, :0], edge_weight=weight[:0]).shape == (0, 8)
    with pytest.raises(ValueError, match="'batch' must be sorted"):
        model(x, edges, batch.batch.flip(0))


def test_weights_reach_networks_and_convolutions_as_attentions():
    batch, conv = weighted_batch(), GCNConv(8, 8)
    wanted = conv(batch.x, batch.edge_index, batch.edge_weight)
    torch.testing.assert_close(ConvAttention(8, conv)(batch.x, graph=batch), wanted)
    own = CONVS["GCN"].build(channels=8, act=lambda: "relu", alone=True)
    own.conv.load_state_dict(conv.state_dict())
    stack = nn.GPSStack(8, 1, lambda _: own, norm=None, feed_forward=False)
    network = nn.GPSNetwork(LinearNodeEncoder(8, 8), stack, Identity())
    network.node_encoder.forward = lambda graph: graph.x
    torch.testing.assert_close(network.embed(batch), batch.x + wanted.relu())


def test_a_convolution_without_weights_is_named_once():
    batch, model = weighted_batch(), nn.GPSModel(8, 8, 3, 2, lambda _: GINConv(Linear(8, 8)), "grf")
    with pytest.warns(UserWarning, match="GINConv takes no 'edge_weight'") as caught:
        model(batch.x, batch.edge_index, graph=batch)
    assert len(caught) == 1  # for two layers


def test_relations_train_by_convolution_and_walks():
    batch, transform = weighted_batch(), transforms.AddRandomWalks(seed=0, edge_type=1)
    del batch.edge_weight
    model = nn.GPSModel(8, 8, 3, 2, lambda _: RGCNConv(8, 8, 2), "grf", transform=transform, norm=None)
    loss = model(batch.x, batch.edge_index, batch.batch, edge_type=batch.edge_type).square().sum()
    graph = Batch.from_data_list([transform(part) for part in batch.to_data_list()])
    again = model(batch.x, batch.edge_index, graph=graph, edge_type=batch.edge_type).square().sum()
    torch.testing.assert_close(loss, again)
    loss.backward()
    assert all((layer.conv.weight.grad != 0).any((1, 2)).all() for layer in model.layers)
    other = model(batch.x, batch.edge_index, graph=graph, edge_type=1 - batch.edge_type).square().sum()
    assert not torch.allclose(other, loss)
    with pytest.raises(TypeError, match="RGCNConv needs 'edge_type', the relation of each edge"):
        model(batch.x, batch.edge_index, graph=graph)


@pytest.mark.parametrize("make", [nn.GPSLayer, lambda *given: nn.GPSStack(8, 2, lambda _: given[1], norm=None)])
@pytest.mark.parametrize("several", [False, True])
def test_misspelt_arguments_are_refused(make, several):
    batch, layer = weighted_batch(), make(8, [GCNConv(8, 8), RGCNConv(8, 8, 2)] if several else GCNConv(8, 8))
    with pytest.raises(TypeError, match="takes no 'edge_weigth': did you mean 'edge_weight'"):
        layer(batch.x, batch.edge_index, edge_weigth=batch.edge_weight)
    with pytest.raises(TypeError, match=r"GCNConv takes no 'pos': it takes edge_weight"):
        make(8, GCNConv(8, 8))(batch.x, batch.edge_index, pos=batch.x)
