import warnings

import pytest
import torch
from torch.nn import Linear, Module
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, GINEConv

from pyg_topomask.nn import (
    GPSLayer,
    GPSModel,
    GPSStack,
    GRFAttention,
    MaskedAttention,
    PrimphormerAttention,
    auxiliary_loss,
)
from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddRandomWalks

NAMES = ("path", "isolated", "star")


def batch_of(*names):
    return Batch.from_data_list([AddRandomWalks(seed=0)(GRAPHS[name].clone()) for name in names or NAMES])


class Conv(Module):
    """Sums neighbours; where asked to, updates edges as well."""

    def __init__(self, channels=8, edges=False):
        super().__init__()
        self.lin, self.edges = Linear(channels, channels), edges

    def forward(self, x, edge_index, edge_attr=None):
        message = x[edge_index[0]] if edge_attr is None else x[edge_index[0]] + edge_attr
        out = self.lin(torch.zeros_like(x).index_add(0, edge_index[1], message))
        return (out, 2 * edge_attr) if self.edges else out


class Carrying(Module):
    """Hands on the running sum of each graph's mean, and says what it was handed."""

    requires = ("walk_index",)

    def initial_carry(self, num_graphs):
        return torch.zeros(num_graphs, 8)

    def forward(self, x, batch=None, graph=None, carry=None):
        batch = torch.zeros(x.size(0), dtype=torch.long) if batch is None else batch
        start = self.initial_carry(int(batch.max()) + 1) if carry is None else carry
        start = start + torch.zeros_like(start).index_add(0, batch, x)
        out = x + start[batch]
        self.auxiliary_loss = start.square().sum()
        return out if carry is None else (out, start)


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
@pytest.mark.parametrize("branches", ["both", "conv", "attn", "none"])
@pytest.mark.parametrize("feed_forward", [True, False])
def test_layer_is_the_formula(norm, branches, feed_forward):
    if branches == "none" and not feed_forward:
        pytest.skip("refused")
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


def test_updated_edges_reach_the_next_layer():
    batch = batch_of()
    edge_attr, x = torch.randn(batch.num_edges, 3), torch.randn(13, 4)
    model = GPSModel(4, 8, 2, 3, conv=lambda _: Conv(edges=True), edge_dim=3, norm=None).eval()
    seen = []
    for layer in model.layers:
        layer.conv.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs["edge_attr"]), with_kwargs=True)
    model(x, batch.edge_index, edge_attr=edge_attr)
    encoded = model.edge_encoder(edge_attr)
    for power, value in enumerate(seen):
        torch.testing.assert_close(value, 2**power * encoded)
    assert len(seen) == 3


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

    model = GPSModel(8, 8, 8, 2, attn=lambda _: Carrying(), norm=None, feed_forward=False)
    model.encoder, model.head = torch.nn.Identity(), torch.nn.Identity()
    first = 2 * x + sums[batch.batch]
    second_sums = sums + torch.stack([first[batch.batch == graph].sum(0) for graph in range(3)])
    torch.testing.assert_close(model(x, batch.edge_index, batch.batch, batch), 2 * first + second_sums[batch.batch])
    torch.testing.assert_close(model(x, batch.edge_index, None, batch), 2 * first + second_sums[batch.batch])
    assert model(x[:4], GRAPHS["path"].edge_index).shape == (4, 8)  # one graph, no batch vector, no graph


def test_carry_with_a_batch_vector_alone():
    batch, x = batch_of(), torch.randn(13, 8)
    model = GPSModel(8, 8, 8, 2, attn=lambda _: Carrying(), norm=None)
    wanted = model(x, batch.edge_index, batch.batch, batch)
    torch.testing.assert_close(model(x, batch.edge_index, batch.batch), wanted)


def test_auxiliary_loss_sums_what_modules_set():
    batch, x = batch_of(), torch.randn(13, 8)
    model = GPSModel(8, 8, 8, 2, attn=lambda _: Carrying(), norm=None)
    model(x, batch.edge_index, batch.batch, batch)
    parts = [layer.attn.auxiliary_loss for layer in model.layers]
    torch.testing.assert_close(auxiliary_loss(model), parts[0] + parts[1])
    assert auxiliary_loss(model).requires_grad
    plain = Linear(2, 2)
    assert auxiliary_loss(plain).item() == 0
    assert not auxiliary_loss(plain).requires_grad
    assert auxiliary_loss(torch.nn.ReLU()).item() == 0


def test_requires_is_the_union_of_the_layers():
    model = GPSModel(4, 8, 2, 2, conv=lambda _: Conv(), attn=lambda n: GRFAttention(8) if n else MaskedAttention(8))
    assert model.requires == GRFAttention(8).requires
    assert GPSLayer(8, Conv()).requires == ()
    assert GPSModel(4, 8, 2, 2, conv=lambda _: Conv()).requires == ()


@pytest.mark.parametrize("pool", ["mean", "add", "max", None])
@pytest.mark.parametrize("head_layers", [1, 2])
def test_model_is_encoder_layers_pool_head(pool, head_layers):
    batch = batch_of()
    model = GPSModel(
        4, 8, 3, 2, lambda _: GCNConv(8, 8), lambda _: GRFAttention(8), pool=pool, head_layers=head_layers, dropout=0.4
    )
    model.double().eval()
    x = batch.x @ model.encoder.weight.t() + model.encoder.bias
    for layer in model.layers:
        x = layer(x, batch.edge_index, batch.batch, batch)
    if pool is not None:
        reduce = {"mean": lambda v: v.mean(0), "add": lambda v: v.sum(0), "max": lambda v: v.amax(0)}[pool]
        x = torch.stack([reduce(x[batch.batch == graph]) for graph in range(3)])
    linear = [module for module in model.head.layers if isinstance(module, Linear)]
    assert len(linear) == head_layers
    for module in linear[:-1]:
        x = (x @ module.weight.t() + module.bias).clamp(min=0)
    wanted = x @ linear[-1].weight.t() + linear[-1].bias
    torch.testing.assert_close(model(batch.x, batch.edge_index, batch.batch, batch), wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model(batch.x, batch.edge_index, None, batch), wanted, rtol=1e-10, atol=1e-10)


def test_pool_of_one_graph_and_of_a_batch_with_an_empty_graph():
    model = GPSModel(4, 8, 3, 1, lambda _: GCNConv(8, 8), pool="add").double().eval()
    data = GRAPHS["path"]
    assert model(data.x, data.edge_index).shape == (1, 3)
    parts = [GRAPHS["path"], empty_graph(), GRAPHS["star"], empty_graph()]
    batch = Batch.from_data_list(parts)
    out = model(batch.x, batch.edge_index, batch.batch, batch)
    assert out.shape == (4, 3)
    torch.testing.assert_close(out[0], model(data.x, data.edge_index)[0])
    torch.testing.assert_close(out[[1, 3]], model.head.layers[-1].bias.expand(2, -1))


def test_edge_features_reach_the_convolution():
    batch = batch_of()
    edge_attr, x = torch.randn(batch.num_edges, 3, requires_grad=True), batch.x.float()

    def conv(_):
        return GINEConv(Linear(8, 8))

    model = GPSModel(4, 8, 2, 2, conv, lambda _: GRFAttention(8), edge_dim=3, pool="mean")
    out = model(x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr)
    out.sum().backward()
    assert (edge_attr.grad != 0).any()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.edge_encoder.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", "graph_norm", None])
@pytest.mark.parametrize("names", [("single",), ("single", "single"), ("isolated",)])
def test_tiny_graphs_train(norm, names):
    batch = batch_of(*names)
    model = GPSModel(4, 8, 2, 2, lambda _: GCNConv(8, 8), lambda _: GRFAttention(8), pool="mean", norm=norm)
    out = model(batch.x.float(), batch.edge_index, batch.batch, batch)
    assert out.shape == (len(names), 2)
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", "graph_norm", None])
def test_a_graph_without_nodes(norm):
    data = AddRandomWalks(seed=0)(empty_graph())
    model = GPSModel(4, 8, 2, 1, lambda _: GCNConv(8, 8), lambda _: GRFAttention(8), norm=norm)
    assert model(data.x.float(), data.edge_index, None, data).shape == (0, 2)


def test_relabelling_and_batching_of_the_whole_model():
    parts = [AddRandomWalks(seed=0)(GRAPHS[name].clone()) for name in NAMES]
    batch = Batch.from_data_list(parts)
    model = GPSModel(4, 8, 2, 2, lambda _: GCNConv(8, 8), lambda _: GRFAttention(8, heads=2), pool="mean")
    model.double().eval()
    alone = torch.cat([model(part.x, part.edge_index, None, part) for part in parts])
    torch.testing.assert_close(model(batch.x, batch.edge_index, batch.batch, batch), alone, rtol=1e-9, atol=1e-9)


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
        (lambda: GPSModel(4, 8, 2, 0, lambda _: Conv()), r"'num_layers' must be at least 1 \(got 0\)"),
        (
            lambda: GPSModel(4, 8, 2, 1, lambda _: Conv(), pool="median"),
            r"mean, add, max, graph_token, None \(got 'median'\)",
        ),
        (lambda: GPSModel(4, 8, 2, 1, lambda _: Conv(), head_layers=0), r"'head_layers' must be at least 1 \(got 0\)"),
        (lambda: GPSModel(4, 8, 2, 1), "both are None"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_wrong_parts_are_refused():
    with pytest.raises(TypeError, match="'attn' must be a module"):
        GPSLayer(4, attn="GRF")
    with pytest.raises(TypeError, match=r"'conv' must be a function of the layer's number"):
        GPSModel(3, 4, 2, 1, conv=GCNConv(4, 4))
    with pytest.raises(TypeError, match=r"'attn' must be a function of the layer's number"):
        GPSModel(3, 4, 2, 1, attn=MaskedAttention)
    with pytest.raises(TypeError, match="'mask' must be a module"):
        MaskedAttention(4, mask=torch.eye(3))


@pytest.mark.parametrize(("edge_dim", "given"), [(None, True), (2, False)])
def test_edge_features_without_an_encoder_and_the_other_way_round(edge_dim, given):
    model = GPSModel(3, 4, 2, 1, conv=lambda layer: GCNConv(4, 4), edge_dim=edge_dim)
    edge_index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"edge_dim.*edge_attr"):
        model(torch.rand(2, 3), edge_index, edge_attr=torch.rand(2, 2) if given else None)


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


def test_carries_of_several_attentions_are_kept_apart():
    torch.manual_seed(0)
    graph = batch_of()
    sizes = {"norm": None, "feed_forward": False}
    x = torch.randn(graph.num_nodes, 8)
    both = GPSStack(8, 3, attn=lambda n: [Carrying(), MaskedAttention(8)], **sizes)
    seen = []
    for layer in both:
        layer.attentions[0].register_forward_hook(
            lambda m, args, kwargs, out: seen.append(kwargs["carry"]), with_kwargs=True
        )
    both(x, graph.edge_index, graph.batch, graph, graph.num_graphs).sum().backward()
    assert [tuple(carry.shape) for carry in seen] == [(3, 8)] * 3
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_carries_and_ties_pass_over_layers_of_another_kind():
    torch.manual_seed(0)
    graph = batch_of()
    x = torch.randn(graph.num_nodes, 8)
    kinds = [MaskedAttention, PrimphormerAttention, GRFAttention, PrimphormerAttention]
    stack = GPSStack(8, 4, attn=lambda n: kinds[n](8), norm=None, feed_forward=False)
    assert stack[3].attn.projection is stack[1].attn.projection
    seen = []
    for layer in (stack[1], stack[3]):
        layer.attn.register_forward_hook(
            lambda m, args, kwargs, out: seen.append((kwargs["carry"], out[1])), with_kwargs=True
        )
    stack(x, graph.edge_index, graph.batch, graph, graph.num_graphs).sum().backward()
    torch.testing.assert_close(seen[1][0], seen[0][1])
    assert seen[0][0].count_nonzero() == 0
    assert seen[1][0].count_nonzero() > 0


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
    for name, part in {"mlp": layer.mlp, "act": layer.mlp[1]}.items():
        part.register_forward_hook(lambda *_, name=name: seen.append(name))
    torch.manual_seed(0)
    assert torch.equal(layer(x, edge_index), plain)
    assert seen == ["act", "mlp"]


def test_the_feed_forward_part_can_be_replaced():
    layer, x, edge_index = GPSLayer(8, GCNConv(8, 8), norm=None), torch.randn(5, 8), GRAPHS["star"].edge_index
    layer.mlp = torch.nn.Linear(8, 8)
    before = x + layer.conv(x, edge_index)
    torch.testing.assert_close(layer(x, edge_index), before + layer.mlp(before))
