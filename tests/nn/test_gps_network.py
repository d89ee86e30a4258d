"""GPSNetwork: what its encoders, layers, tokens and head get from each other."""

import pytest
import torch
from torch.nn import Identity
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import HEADS, FullAttention, GatedGCN, GPSNetwork, GPSStack, KMIPAttention, SANAttention
from pyg_topomask.nn.encoder.base import Encoder
from pyg_topomask.nn.encoder.features import ConstantEdgeEncoder, LinearEdgeEncoder, LinearNodeEncoder
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.head.mlp import NodeHead
from pyg_topomask.ops import all_pairs
from pyg_topomask.testing import GRAPHS, empty_graph

C, H = 8, 2


def batch_of(*names):
    parts = [empty_graph() if name == "empty" else GRAPHS[name].clone() for name in names]
    for part in parts:
        part.x, part.edge_attr = part.x.float(), torch.randn(part.num_edges, 2)
        part.pe = torch.randn(part.num_nodes, 3)
    return Batch.from_data_list(parts)


class Columns(Encoder):
    """An attribute as it is."""

    def __init__(self, name, channels):
        super().__init__()
        self.requires, self.channels = (name,), channels

    def forward(self, graph):
        return self.read(graph)[0]


class Bias(Encoder):
    """A number for each pair that tells which nodes it joins."""

    channels = H

    def forward(self, graph):
        query, key = all_pairs(graph.batch) - graph.ptr[graph.batch[all_pairs(graph.batch)[0]]]
        return torch.stack([query * 0.3 - key, key * 0.1], dim=1).float()


def network(conv, attn=None, head=None, edges=None, **settings):
    layers = GPSStack(C, 2, conv, attn, norm="layer_norm")
    return GPSNetwork(LinearNodeEncoder(C, 4), layers, head or HEADS["graph"](C, 3), edges, **settings)


def gated(**settings):
    return lambda n: GatedGCN(C, update_edges=n < 1, **settings)


def biased(_):
    return FullAttention(C, H, attn_bias="attn_bias")


def test_network_is_encoders_layers_head_and_edges_go_on():
    batch = batch_of("path", "empty", "star", "single")
    net = network(gated(), lambda _: KMIPAttention(C, H, 3), edges=LinearEdgeEncoder(C, 2)).eval()
    x, edge_attr = net.node_encoder(batch), net.edge_encoder(batch)
    x, edge_attr = net.layers[0](x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr)
    x = net.layers[1](x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr)
    torch.testing.assert_close(net.embed(batch), x)
    torch.testing.assert_close(net(batch), net.head(x, batch))
    alone = torch.cat([net(part) for part in batch.to_data_list()])
    torch.testing.assert_close(net(batch), alone, rtol=1e-4, atol=1e-5)
    net.train()(batch).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []  # as distributed training asks


def test_convolutions_and_attentions_get_what_they_take():
    batch = batch_of("path", "star")
    net = network(lambda _: GCNConv(C, C), edges=ConstantEdgeEncoder(C))
    assert net(batch).shape == (2, 3)
    assert (net.edge_encoder, net.requires) == (None, ("x",))
    net = network(None, lambda _: SANAttention(C, edge_dim=C), edges=LinearEdgeEncoder(C, 2))
    net(batch).sum().backward()
    assert (net.edge_encoder.linear.weight.grad != 0).any()
    pe = Columns("pe", 3)
    net = network(gated(equivariant_stable=True), edges=ConstantEdgeEncoder(C), pe_encoder=pe).eval()
    assert net.requires == ("x", "pe")
    before = net(batch)
    batch.pe = -batch.pe
    torch.testing.assert_close(net(batch), before)
    batch.pe = 3 * batch.pe
    assert not torch.allclose(net(batch), before)


def test_bias_of_pairs_reaches_attention_and_leaves_the_graph_alone():
    batch = batch_of("path", "star")
    batch.bias = torch.rand(4 * 4 + 5 * 5, H)
    net = network(None, biased, bias_encoder=Columns("bias", H)).eval()
    before = net(batch)
    assert "attn_bias" not in batch
    assert net.requires == ("x", "bias")
    batch.bias = batch.bias.flip(0)
    assert not torch.allclose(net(batch), before)


def test_tokens_stand_in_front_of_their_graphs():
    batch, token = batch_of("path", "single", "star"), GraphToken(C, H)
    x, bias, before = torch.randn(batch.num_nodes, C), torch.randn(all_pairs(batch.batch).size(1), H), batch.clone()
    out, wider, wide_bias, place, first = token.insert(x, batch, 3, bias)
    assert torch.equal(out[place], x)
    assert torch.equal(wider.batch[place], batch.batch)
    assert torch.equal(wider.edge_index, place[batch.edge_index])
    assert wider.num_nodes == batch.num_nodes + 3
    assert torch.equal(batch.batch, before.batch)  # the caller's graph stays
    assert torch.equal(out[first], token.node.expand(3, -1))
    assert set(first.tolist()) | set(place.tolist()) == set(range(wider.num_nodes))
    expected = dict(zip(zip(*place[all_pairs(batch.batch)].tolist()), bias))
    for i, j, row in zip(*all_pairs(wider.batch).tolist(), wide_bias):
        assert torch.equal(row, expected.get((i, j), token.pair[0]))


def with_token(pool_token, head=None):
    settings = {"bias_encoder": Bias(), "graph_token": GraphToken(C, H), "pool_token": pool_token}
    return network(lambda _: GCNConv(C, C), biased, head, **settings)


@pytest.mark.parametrize("pool_token", [True, False])
def test_a_graph_with_a_token_in_a_batch_equals_the_graph_alone(pool_token):
    names, net = ("path", "single", "star"), with_token(pool_token).eval()
    alone = torch.cat([net(batch_of(name)) for name in names])
    torch.testing.assert_close(net(batch_of(*names)), alone)


def test_a_token_sees_the_graph_and_is_seen():
    batch, net = batch_of("path", "star"), with_token(True, Identity())
    net.head.forward = lambda x, graph: x
    tokens = net(batch)
    assert tokens.shape == (2, C)
    tokens[0].sum().backward()
    assert net.graph_token.node.grad.abs().sum() > 0
    assert net.graph_token.pair.grad.abs().sum() > 0
    net = with_token(False, NodeHead(C, 3))
    before = net.eval()(batch)
    assert before.shape == (batch.num_nodes, 3)
    with torch.no_grad():
        net.graph_token.node.add_(1)
    assert not torch.allclose(net(batch), before)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: network(None, lambda _: SANAttention(C, edge_dim=C)), "SANAttention has edge_dim=8.*no 'edge_encod"),
        (lambda: network(lambda _: GCNConv(C, C), pe_encoder=Columns("pe", 3)), "no convolution takes 'pe'"),
        (lambda: network(gated(), edges=LinearEdgeEncoder(4, 2)), "'edge_encoder' gives 4 channels, but .* have 8"),
        (lambda: network(lambda _: GCNConv(C, C), pool_token=True), "'pool_token' needs a 'graph_token'"),
        (lambda: network(None, biased, bias_encoder=Bias(), graph_token=GraphToken(C)), "'attn_bias', which lacks the"),
    ],
)
def test_what_does_not_fit_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
