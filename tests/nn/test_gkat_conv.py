import pytest
import torch

from pyg_topomask.nn import GKATAttention, GKATConv, GPSModel, redraw_walks
from pyg_topomask.nn.dynamic_walks import walks_along
from pyg_topomask.testing import GRAPHS, AttentionCase, empty_graph
from pyg_topomask.transforms import AddRandomWalks


def walked(data, num_walks=4, **settings):
    return AddRandomWalks(num_walks, 3, 0.0, independent=False, seed=0, **settings)(data.clone())


class ConvCase(AttentionCase):
    def prepare(self, data):
        return walked(data)

    def weights(self, attn, x, batch):
        """Normalised weights ``[H, N, N]`` and values ``[H, N, D]``."""
        v = attn.lin(x).unflatten(1, (attn.heads, -1)).transpose(0, 1)
        receiver, sender = v @ attn.att_receiver[..., None], v @ attn.att_sender[..., None]
        weight = attn.mask(batch).to_dense() * torch.nn.functional.leaky_relu(receiver + sender.mT, 0.2).exp()
        return weight / weight.sum(2, keepdim=True), v

    def reference(self, attn, x, batch, carry):
        weight, v = self.weights(attn, x, batch)
        heads = (weight @ v).transpose(0, 1)
        out = (heads.flatten(1) if attn.concat else heads.mean(1)) + attn.bias
        return torch.nn.functional.elu(out) if attn.elu else out

    def test_weights_of_pairs(self):
        attn, batch, x = self._case()
        out, (pairs, weights) = attn(x, batch.batch, batch, return_attention_weights=True)
        assert torch.equal(out, attn(x, batch.batch, batch))
        wanted = self.weights(attn, x, batch)[0]
        assert torch.equal(pairs, wanted.any(0).nonzero().t())
        torch.testing.assert_close(weights, wanted[:, pairs[0], pairs[1]].t(), **self.tol)
        rows = attn(x, batch.batch, batch, return_attention_weights=True, rows=[2])[1]
        torch.testing.assert_close(rows, (pairs[:, pairs[0] == 2], weights[pairs[0] == 2]), **self.tol)


class TestGKATConvBlocks(ConvCase):
    def build(self):
        return GKATConv(self.channels, self.channels // 2, heads=2, max_length=3)


class TestGKATConvPairwise(ConvCase):
    def build(self):
        return GKATConv(self.channels, self.channels, heads=3, concat=False, elu=False, max_length=3, path="pairwise")


class TestGKATConvLearnable(ConvCase):
    def build(self):
        return GKATConv(self.channels, self.channels // 2, heads=2, max_length=3, decay=0.75, learnable=True)


@pytest.mark.parametrize("layer", [GKATAttention(8, heads=2), GKATConv(8, 4, heads=2)])
def test_called_like_a_convolution_it_says_how_to_be_called(layer):
    data = walked(GRAPHS["star"])
    for second in (data.edge_index, data):
        with pytest.raises(ValueError, match=r"attention is called as attn\(x, batch, graph\)"):
            layer(torch.randn(5, 8), second)


def test_attention_of_a_layer_called_by_keyword_and_of_empty_graphs():
    transform = AddRandomWalks(4, 3, 0.0, independent=False, seed=3, transition="step_weight")
    layer = GKATAttention(8, heads=2, max_length=3)
    for name in ("star", "empty"):
        data = transform(GRAPHS["star"].clone() if name == "star" else empty_graph())
        x = torch.randn(int(data.num_nodes), 8)
        named, plain = (
            redraw_walks([data], transform, 1, layer, forward)[0]
            for forward in (lambda batch, x=x: layer(x=x, graph=batch), lambda batch, x=x: layer(x, None, batch))
        )
        assert torch.equal(named.step_weight, plain.step_weight)


def test_edge_attention_is_a_softmax_over_each_nodes_edges():
    data = GRAPHS["star"]
    x = torch.randn(5, 8, dtype=torch.float64)
    attn, conv = GKATAttention(8, heads=2).double(), GKATConv(8, 4, heads=2).double()
    q, k, _ = attn.qkv(x).view(5, 3, 2, 4).unbind(1)
    dot = torch.einsum("ihd,jhd->hij", q, k) / 2
    _, r, s = conv.project(x)
    additive = torch.nn.functional.leaky_relu(r.t()[:, :, None] + s.t()[:, None, :], 0.2)
    i, j = data.edge_index
    adjacent = torch.zeros(5, 5, dtype=torch.bool)
    adjacent[i, j] = True
    for layer, score in ((attn, dot), (conv, additive)):
        wanted = score.masked_fill(~adjacent, -torch.inf).softmax(-1).mean(0)[i, j]
        torch.testing.assert_close(layer.edge_attention(x, data.edge_index), wanted.detach())


def model():
    return GPSModel(8, 8, 2, 2, attn=lambda _: GKATAttention(8, heads=2, max_length=3)).eval()


def test_redrawn_walks_follow_the_layers_attention_and_are_determined_by_seed_and_epoch():
    transform = AddRandomWalks(64, 3, 0.0, independent=False, seed=3, transition="step_weight")
    graphs = []
    for name in ("star", "path", "two_parts"):
        data = GRAPHS[name].clone()
        data.edge_attr = data.edge_weight = None
        data.x = torch.randn(data.num_nodes, 8)
        graphs.append(transform(data))
    net = model()
    layer = net.layers[1].attn
    layer.qkv.weight.data.mul_(4)
    calls = []
    layer.register_forward_pre_hook(lambda _, args: calls.append(args[0].detach()))

    def forward(batch):
        return net(batch.x, batch.edge_index, batch.batch, batch)

    first = redraw_walks(graphs, transform, 1, layer, forward)
    again = redraw_walks(graphs, transform, 1, layer, forward, batch_size=1)
    later = redraw_walks(graphs, transform, 2, layer, forward)
    for a, b, c, old in zip(first, again, later, graphs):
        assert torch.equal(a.walk_index, b.walk_index)
        assert torch.equal(a.walk_count, b.walk_count)
        assert not (torch.equal(a.walk_index, c.walk_index) and torch.equal(a.walk_count, c.walk_count))
        assert "step_weight" not in old
    star = first[0]
    torch.testing.assert_close(star.step_weight, layer.edge_attention(calls[0][:5], star.edge_index))
    transform.set_epoch(1)
    assert not torch.equal(transform(graphs[0].clone()).walk_count, star.walk_count)
    assert torch.equal(transform(star.clone()).walk_count, star.walk_count)
    with pytest.raises(ValueError, match=r"'batch_size' must be at least 1 \(got 0\)"):
        redraw_walks(graphs, transform, 1, layer, forward, batch_size=0)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        walks_along(graphs, transform, 1, [star.step_weight])
    with pytest.raises(ValueError, match=r"once in a pass \(it did 0 times\)"):
        redraw_walks(graphs, transform, 1, layer, lambda batch: None)
