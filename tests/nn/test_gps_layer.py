import warnings

import pytest
import torch
from torch.nn import Linear
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import GPSLayer, GPSStack, GRFAttention, MaskedAttention, PrimphormerAttention
from pyg_topomask.nn.norm import NORMS
from pyg_topomask.testing import GRAPHS
from tests.nn.gps_cases import Carrying, Conv, batch_of, by_hand, randomise


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("norm", [*NORMS, None])
@pytest.mark.parametrize(
    ("num_convs", "num_attns", "feed_forward"),
    [(1, 1, True), (1, 0, True), (0, 1, False), (2, 2, False), (2, 0, True), (0, 0, True)],
)
def test_layer_is_the_formula(num_convs, num_attns, feed_forward, norm, pre_norm):
    batch = batch_of()
    convs, attns = [Conv() for _ in range(num_convs)], [GRFAttention(8, heads=2) for _ in range(num_attns)]
    layer = GPSLayer(8, convs, attns, norm, 0.3, feed_forward=feed_forward, pre_norm=pre_norm).double().eval()
    randomise(layer)
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64)
    wanted = x if pre_norm or not convs + attns else 0
    for parts, norms in ((convs, layer.norm_conv), (attns, layer.norm_attn)):
        for number, part in enumerate(parts):
            own = norms[number] if norms is not None and len(parts) > 1 else norms
            given = by_hand(own, x, batch.batch) if pre_norm else x
            update = part(given, batch.edge_index) if part in convs else part(given, batch.batch, batch)
            wanted = wanted + (update if pre_norm else by_hand(own, update + x, batch.batch))
    if feed_forward:
        first, second = (module for module in layer.mlp if isinstance(module, Linear))
        assert first.weight.shape == (16, 8)
        given = by_hand(layer.norm_out, wanted, batch.batch) if pre_norm else wanted
        wanted = wanted + second(first(given).clamp(min=0))
        wanted = wanted if pre_norm else by_hand(layer.norm_out, wanted, batch.batch)
    out = layer(x, batch.edge_index, batch.batch, batch)
    torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-10)
    assert torch.equal(layer(x, batch.edge_index, None, batch), out)  # the graph's own batch vector


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("part", ["conv", "attn", "feed_forward"])
def test_dropout_acts_on_the_update_of_each_part(part, pre_norm):
    """Without norms, an output is the input alone or, if it is kept, the input and the update / (1 − 0.5)."""
    data, x = GRAPHS["star"], torch.randn(5, 8)
    branch = {"attn": MaskedAttention(8)} if part == "attn" else {"conv": Conv() if part == "conv" else []}
    layer = GPSLayer(8, **branch, norm=None, dropout=0.5, feed_forward=part == "feed_forward", pre_norm=pre_norm)
    update, drawn = layer.eval()(x, data.edge_index) - x, layer.train()(x, data.edge_index) - x
    kept = drawn.abs() > 1e-6
    assert 0 < kept.sum() < kept.numel()
    difference = (drawn - 2 * update)[kept].abs().max()
    assert (difference > 1e-3) if part == "feed_forward" else (difference < 1e-5)  # its hidden layer has dropout, too


def test_training_uses_batch_statistics():
    batch, x = batch_of(), torch.randn(13, 8)
    layer = GPSLayer(8, Conv(), feed_forward=False)
    value = layer.conv(x, batch.edge_index) + x
    wanted = (value - value.mean(0)) / (value.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x, batch.edge_index), wanted, rtol=1e-4, atol=1e-5)


def test_convolutions_get_the_edge_features_that_they_take_and_update_them():
    batch, x = batch_of(), torch.randn(13, 8)
    edge_attr, gcn, conv = torch.randn(batch.num_edges, 8), GCNConv(8, 8), Conv(edges=True)
    arguments = x, batch.edge_index, batch.batch, batch
    alone, edges = GPSLayer(8, conv, norm=None, feed_forward=False)(*arguments, edge_attr=edge_attr)
    assert torch.equal(edges, 2 * edge_attr)
    torch.testing.assert_close(alone, x + conv(x, batch.edge_index, edge_attr)[0])
    both, edges = GPSLayer(8, [gcn, conv], norm=None, feed_forward=False)(*arguments, edge_attr=edge_attr)
    assert torch.equal(edges, 2 * edge_attr)
    torch.testing.assert_close(both, alone + x + gcn(x, batch.edge_index))  # the first takes no edge features


def test_carry_goes_from_layer_to_layer():
    batch, x = batch_of(), torch.randn(13, 8)
    layer = GPSLayer(8, Conv(edges=True), Carrying(), norm=None, feed_forward=False)
    edge_attr, carry = torch.randn(batch.num_edges, 8), torch.ones(3, 8)
    (out, edges), handed = layer(x, batch.edge_index, batch.batch, batch, carry, edge_attr=edge_attr)
    sums = torch.stack([x[batch.batch == graph].sum(0) for graph in range(3)])
    torch.testing.assert_close(handed, 1 + sums)
    assert torch.equal(edges, 2 * edge_attr)
    torch.testing.assert_close(out, layer.conv(x, batch.edge_index, edge_attr)[0] + 3 * x + (1 + sums)[batch.batch])
    with pytest.warns(UserWarning, match="Carrying passes a carry from layer to layer"):
        afresh = layer(x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr)[0]
    torch.testing.assert_close(out - afresh, torch.ones_like(out))


def test_a_layer_without_its_carry_warns_once_and_says_what_to_pass():
    graph, x = batch_of(), torch.randn(13, 8)
    layers = [GPSLayer(8, attn=PrimphormerAttention(8)) for _ in range(2)]
    with pytest.warns(UserWarning, match="give each layer the carry of the one before it") as caught:
        layers[0](x, graph.edge_index, graph.batch, graph)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        layers[1](x, graph.edge_index, graph.batch, graph)
        layers[0](x, graph.edge_index, graph.batch, graph, layers[0].initial_carry(3))
        GPSStack(8, 2, attn=lambda _: PrimphormerAttention(8))(x, graph.edge_index, graph.batch, graph)


def test_hooks_of_the_feed_forward_part_run_and_change_nothing():
    layer, x, edge_index = GPSLayer(8, GCNConv(8, 8), dropout=0.3), torch.randn(5, 8), GRAPHS["star"].edge_index
    torch.manual_seed(0)
    plain, seen = layer(x, edge_index), []
    for name, part in {"mlp": layer.mlp, "act": layer.mlp[1], "dropout": layer.mlp[2]}.items():
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
    torch.manual_seed(0)
    assert torch.equal(layer(x, edge_index), plain)
    assert seen == ["act", "dropout", "mlp"]
