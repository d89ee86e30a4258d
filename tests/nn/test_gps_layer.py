import warnings
from itertools import product

import pytest
import torch
from torch.nn import Linear
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import (
    GPSLayer,
    GPSStack,
    GRFAttention,
    MaskedAttention,
    PrimphormerAttention,
)
from pyg_topomask.testing import GRAPHS
from tests.nn.gps_cases import NAMES, Carrying, Conv, batch_of


def batch_norm(norm, x):
    return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias


def layer_norm(norm, x, batch):
    out = torch.empty_like(x)
    for graph in batch.unique():
        rows = x[batch == graph]
        out[batch == graph] = (rows - rows.mean()) / (rows.var(unbiased=False) + norm.eps).sqrt()
    return out * norm.weight + norm.bias


def graph_norm(norm, x, batch):
    """Norm of each channel over the nodes of each graph; only a learned share of the mean is taken off."""
    out = torch.empty_like(x)
    for graph in batch.unique():
        rows = x[batch == graph]
        centred = rows - norm.mean_scale * rows.mean(0)
        out[batch == graph] = centred / (centred.square().mean(0) + norm.eps).sqrt() * norm.weight + norm.bias
    return out


def randomise(module):
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if "norm" in name and value.is_floating_point():
            value.data.uniform_(0.5, 1.5)
    return module


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", "graph_norm", None])
@pytest.mark.parametrize(
    ("branches", "feed_forward"),
    [*product(["both", "conv", "attn"], [True, False]), ("none", True)],  # ("none", False) is refused
)
def test_layer_is_the_formula(norm, branches, feed_forward):
    batch = batch_of()
    conv = Conv() if branches in ("both", "conv") else None
    attn = GRFAttention(8, heads=2) if branches in ("both", "attn") else None
    layer = (
        GPSLayer(8, [] if branches == "none" else conv, attn, norm=norm, dropout=0.3, feed_forward=feed_forward)
        .double()
        .eval()
    )
    randomise(layer)
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64)

    def normed(module, value):
        if norm is None:
            return value
        if norm == "batch_norm":
            return batch_norm(module, value)
        return (layer_norm if norm == "layer_norm" else graph_norm)(module, value, batch.batch)

    wanted = x if branches == "none" else 0
    if conv is not None:
        wanted = wanted + normed(layer.norm_conv, conv(x, batch.edge_index) + x)
    if attn is not None:
        wanted = wanted + normed(layer.norm_attn, attn(x, batch.batch, batch) + x)
    if feed_forward:
        first, second = (module for module in layer.mlp if isinstance(module, Linear))
        assert first.weight.shape == (16, 8)
        hidden = (wanted @ first.weight.t() + first.bias).clamp(min=0)
        wanted = normed(layer.norm_out, wanted + hidden @ second.weight.t() + second.bias)
    out = layer(x, batch.edge_index, batch.batch, batch)
    torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-10)
    assert torch.equal(layer(x, batch.edge_index, None, batch), out)  # the graph's own batch vector


@pytest.mark.parametrize("part", ["conv", "attn", "feed_forward"])
def test_dropout_acts_on_the_update_of_each_part(part):
    """Without norms, an output is the input alone or, if it is kept, the input and the update / (1 − 0.5)."""
    data, x = batch_of("star"), torch.randn(5, 8)
    branch = {"attn": MaskedAttention(8)} if part == "attn" else {"conv": Conv()}
    if part == "feed_forward":  # then the convolution updates nothing
        for parameter in branch["conv"].parameters():
            torch.nn.init.zeros_(parameter)
    layer = GPSLayer(8, **branch, norm=None, dropout=0.5, feed_forward=part == "feed_forward")
    update = layer.eval()(x, data.edge_index) - x
    drawn = layer.train()(x, data.edge_index) - x
    kept = drawn != 0
    assert 0 < kept.sum() < kept.numel()
    difference = (drawn - 2 * update)[kept].abs().max()
    assert (difference > 1e-3) if part == "feed_forward" else (difference < 1e-5)  # its hidden layer has dropout, too


def test_training_uses_batch_statistics_and_dropout():
    batch, x = batch_of(), torch.randn(13, 8)
    layer = GPSLayer(8, Conv(), feed_forward=False)
    value = layer.conv(x, batch.edge_index) + x
    wanted = (value - value.mean(0)) / (value.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(layer(x, batch.edge_index), wanted, rtol=1e-4, atol=1e-5)
    layer = GPSLayer(8, Conv(), attn=MaskedAttention(8), dropout=0.5)
    assert not torch.equal(layer(x, batch.edge_index), layer(x, batch.edge_index))
    layer.eval()
    assert torch.equal(layer(x, batch.edge_index), layer(x, batch.edge_index))


def test_layer_norm_does_not_see_other_graphs():
    batch, x = batch_of(), torch.randn(13, 8)
    layer = GPSLayer(8, Conv(), GRFAttention(8), norm="layer_norm")
    out = layer(x, batch.edge_index, batch.batch, batch)
    mine = batch.batch == 1
    loud = torch.where(mine[:, None], x, 1e6 * x)
    assert torch.equal(layer(loud, batch.edge_index, batch.batch, batch)[mine], out[mine])


def test_conv_that_updates_edges():
    batch, x = batch_of(), torch.randn(13, 8)
    edge_attr = torch.randn(batch.num_edges, 8)
    layer = GPSLayer(8, Conv(edges=True), GRFAttention(8)).eval()
    out, edges = layer(x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr)
    assert torch.equal(edges, 2 * edge_attr)
    plain = GPSLayer(8, Conv(), GRFAttention(8)).eval()
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(plain(x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr), out)


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


def test_gradient_checkpointing_changes_nothing():
    from torch.utils.checkpoint import checkpoint

    batch, layer = batch_of(), GPSLayer(8, Conv(), GRFAttention(8, path="factored"), norm="layer_norm").double()
    x = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
    arguments = (x, batch.edge_index, batch.batch, batch)
    plain = torch.autograd.grad(layer(*arguments).square().sum(), [x, *layer.parameters()])
    again = checkpoint(layer, *arguments, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(again.square().sum(), [x, *layer.parameters()]), plain):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GPSLayer(8), r"needs 'conv' or 'attn' \(both are None\)"),
        (lambda: GPSLayer(8, [], feed_forward=False), r"without branches needs feed_forward=True \(got False\)"),
        (
            lambda: GPSLayer(8, Conv(), norm="group"),
            r"batch_norm, layer_norm, node_layer_norm, graph_norm, None \(got 'group'\)",
        ),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_wrong_parts_are_refused():
    with pytest.raises(TypeError, match="'attn' must be a module"):
        GPSLayer(4, attn="GRF")
    with pytest.raises(TypeError, match="'mask' must be a module"):
        MaskedAttention(4, mask=torch.eye(3))


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", "graph_norm", None])
def test_several_branches_are_summed(norm):
    torch.manual_seed(0)
    graph, x = batch_of(), torch.randn(batch_of().num_nodes, 8)
    edge_attr = torch.randn(graph.num_edges, 8)
    convs = [GCNConv(8, 8), Conv(edges=True)]  # the first takes no edge features
    attentions = [MaskedAttention(8, 2), GRFAttention(8, 2)]
    layer = GPSLayer(8, convs, attentions, norm=norm, feed_forward=False)
    out, edges = layer(x, graph.edge_index, graph.batch, graph, edge_attr=edge_attr)
    alone = [GPSLayer(8, conv, norm=norm, feed_forward=False) for conv in convs]
    alone += [GPSLayer(8, attn=attn, norm=norm, feed_forward=False) for attn in attentions]
    parts = [alone[0](x, graph.edge_index, graph.batch, graph)]
    parts += [alone[1](x, graph.edge_index, graph.batch, graph, edge_attr=edge_attr)[0]]
    parts += [part(x, graph.edge_index, graph.batch, graph) for part in alone[2:]]
    torch.testing.assert_close(out, sum(parts))
    torch.testing.assert_close(edges, 2 * edge_attr)
    assert layer.requires == attentions[1].requires


def test_carries_that_do_not_fit_are_refused():
    graph, x = batch_of(), torch.randn(sum(GRAPHS[name].num_nodes for name in NAMES), 8)
    both = GPSLayer(8, attn=[Carrying(), MaskedAttention(8)])
    start = both.initial_carry(3)
    for wrong in (start[:1], start[0], (*start,)):
        with pytest.raises(ValueError, match="for 2 attentions a list of as many"):
            both(x, graph.edge_index, graph.batch, graph, wrong)
    for layer, carry in ((both, [start[0], start[0]]), (GPSLayer(8, attn=MaskedAttention(8)), start[0])):
        with pytest.raises(ValueError, match="MaskedAttention carries nothing"):
            layer(x, graph.edge_index, graph.batch, graph, carry)


def test_a_layer_without_its_carry_warns_once_and_says_what_to_pass():
    graph, x = batch_of(), torch.randn(13, 8)
    layers = [GPSLayer(8, attn=PrimphormerAttention(8)) for _ in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for layer in layers:
            layer(x, graph.edge_index, graph.batch, graph)
    assert len(caught) == 1
    assert "carry=layer.initial_carry(num_graphs)" in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers[0](x, graph.edge_index, graph.batch, graph, layers[0].initial_carry(3))
        GPSStack(8, 2, attn=lambda _: PrimphormerAttention(8))(x, graph.edge_index, graph.batch, graph)
        GPSLayer(8, attn=MaskedAttention(8))(x, graph.edge_index, graph.batch, graph)


def test_hooks_of_the_feed_forward_part_run_and_change_nothing():
    layer, x, edge_index = GPSLayer(8, GCNConv(8, 8), dropout=0.3), torch.randn(5, 8), GRAPHS["star"].edge_index
    torch.manual_seed(0)
    plain, seen = layer(x, edge_index), []
    for name, part in {"mlp": layer.mlp, "act": layer.mlp[1], "dropout": layer.mlp[2]}.items():
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
    torch.manual_seed(0)
    assert torch.equal(layer(x, edge_index), plain)
    assert seen == ["act", "dropout", "mlp"]


def test_the_feed_forward_part_can_be_replaced():
    layer, x, edge_index = GPSLayer(8, GCNConv(8, 8), norm=None), torch.randn(5, 8), GRAPHS["star"].edge_index
    layer.mlp = torch.nn.Linear(8, 8)
    before = x + layer.conv(x, edge_index)
    torch.testing.assert_close(layer(x, edge_index), before + layer.mlp(before))
