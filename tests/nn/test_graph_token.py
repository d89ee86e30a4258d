import pytest
import torch
from torch.nn import Identity
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import FullAttention, GPSModel, GPSNetwork, GPSStack
from pyg_topomask.nn.encoder import Encoder, LinearNodeEncoder
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.head import GraphHead, NodeHead
from pyg_topomask.ops import all_pairs
from pyg_topomask.testing import GRAPHS

C, H = 8, 2


def batch_of(*names):
    batch = Batch.from_data_list([GRAPHS[name] for name in names])
    batch.x = batch.x.float()
    return batch


class Bias(Encoder):
    """A number for each pair that tells which nodes it joins."""

    channels = H

    def forward(self, graph):
        query, key = all_pairs(graph.batch) - graph.ptr[graph.batch[all_pairs(graph.batch)[0]]]
        return torch.stack([query * 0.3 - key, key * 0.1], dim=1).float()


def test_tokens_stand_in_front_of_their_graphs():
    batch, token = batch_of("path", "single", "star"), GraphToken(C, H)
    x = torch.randn(batch.num_nodes, C)
    bias = torch.randn(all_pairs(batch.batch).size(1), H)
    out, wider, wide_bias, place, first = token.insert(x, batch, 3, bias)
    assert torch.equal(out[place], x)
    assert torch.equal(wider.batch[place], batch.batch)
    assert torch.equal(wider.edge_index, place[batch.edge_index])
    assert wider.num_nodes == batch.num_nodes + 3
    assert torch.equal(batch.batch, batch_of("path", "single", "star").batch)  # the caller's graph stays
    assert torch.equal(out[first], token.node.expand(3, -1))
    assert set(first.tolist()) | set(place.tolist()) == set(range(wider.num_nodes))
    query, key = all_pairs(wider.batch)
    expected = dict(zip(zip(*place[all_pairs(batch.batch)].tolist()), bias))
    for i, j, row in zip(query.tolist(), key.tolist(), wide_bias):
        assert torch.equal(row, expected.get((i, j), token.pair[0]))


def network(pool_token, head=None):
    torch.manual_seed(0)
    layers = GPSStack(
        C, 2, lambda _: GCNConv(C, C), lambda _: FullAttention(C, H, attn_bias="attn_bias"), norm="layer_norm"
    )
    head = head or GraphHead(C, 3)
    encoder, token = LinearNodeEncoder(C, 4), GraphToken(C, H)
    return GPSNetwork(encoder, layers, head, bias_encoder=Bias(), graph_token=token, pool_token=pool_token)


@pytest.mark.parametrize("pool_token", [True, False])
def test_a_graph_in_a_batch_equals_the_graph_alone(pool_token):
    names, net = ("path", "single", "star"), network(pool_token).eval()
    alone = torch.cat([net(batch_of(name)) for name in names])
    torch.testing.assert_close(net(batch_of(*names)), alone)


def test_a_token_sees_the_graph_and_is_seen():
    batch, net = batch_of("path", "star"), network(True, Identity())
    net.head.forward = lambda x, graph: x
    tokens = net(batch)
    assert tokens.shape == (2, C)
    tokens[0].sum().backward()
    assert net.graph_token.node.grad.abs().sum() > 0
    assert net.graph_token.pair.grad.abs().sum() > 0
    net = network(False, NodeHead(C, 3))
    before = net.eval()(batch)
    assert before.shape == (batch.num_nodes, 3)
    with torch.no_grad():
        net.graph_token.node.add_(1)
    assert not torch.allclose(net(batch), before)


def test_a_model_with_a_token_refuses_a_bias_that_it_cannot_extend():
    with pytest.raises(ValueError, match=r"FullAttention reads the bias 'attn_bias'.*GPSNetwork\(bias_encoder="):
        GPSModel(C, C, 3, 1, attn=lambda _: FullAttention(C, attn_bias="attn_bias"), pool="graph_token")
    with pytest.raises(ValueError, match="FullAttention reads the bias 'other'"):
        GPSNetwork(
            LinearNodeEncoder(C, 4),
            GPSStack(C, 1, attn=lambda _: FullAttention(C, attn_bias="other")),
            GraphHead(C, 1),
            bias_encoder=Bias(),
            graph_token=GraphToken(C, H),
        )


def test_pooling_a_token_needs_one():
    with pytest.raises(ValueError, match="'pool_token' needs a 'graph_token'"):
        GPSNetwork(LinearNodeEncoder(C, 4), GPSStack(C, 1, lambda _: GCNConv(C, C)), GraphHead(C, 1), pool_token=True)
