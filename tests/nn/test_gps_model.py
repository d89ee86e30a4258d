import pytest
import torch
from torch.nn import Linear
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, GINEConv

from pyg_topomask.nn import (
    GPSLayer,
    GPSModel,
    GRFAttention,
    MaskedAttention,
    auxiliary_loss,
)
from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddRandomWalks
from tests.nn.gps_cases import NAMES, Carrying, Conv, batch_of


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


def test_carry_goes_from_layer_to_layer_of_a_model():
    batch, x = batch_of(), torch.randn(13, 8)
    sums = torch.stack([x[batch.batch == graph].sum(0) for graph in range(3)])
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


@pytest.mark.parametrize(("edge_dim", "given"), [(None, True), (2, False)])
def test_edge_features_without_an_encoder_and_the_other_way_round(edge_dim, given):
    model = GPSModel(3, 4, 2, 1, conv=lambda layer: GCNConv(4, 4), edge_dim=edge_dim)
    edge_index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"edge_dim.*edge_attr"):
        model(torch.rand(2, 3), edge_index, edge_attr=torch.rand(2, 2) if given else None)


@pytest.mark.parametrize(
    ("build", "message"),
    [
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
    with pytest.raises(TypeError, match=r"'conv' must be a function of the layer's number"):
        GPSModel(3, 4, 2, 1, conv=GCNConv(4, 4))
    with pytest.raises(TypeError, match=r"'attn' must be a function of the layer's number"):
        GPSModel(3, 4, 2, 1, attn=MaskedAttention)
