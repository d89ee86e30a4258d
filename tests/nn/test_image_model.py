"""What makes a GPSModel a vision transformer: pre-norm, norms of single nodes, positions and a class token."""

import pytest
import torch
from torch.nn import Linear
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import (
    ExphormerAttention,
    FullAttention,
    GatedGCN,
    GPSLayer,
    GPSModel,
    GRFAttention,
    KMIPAttention,
    MaskedAttention,
    PowerSeriesMask,
    ToeplitzMask,
)
from pyg_topomask.nn.encoder import NodePositions
from pyg_topomask.nn.norm import build_norm
from pyg_topomask.operators import PowerSeriesOperator
from pyg_topomask.ops.attention.masked import masked_linear_attention_reference
from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddGridShape, AddRandomWalks

WALKS = AddRandomWalks(seed=0)


def batch_of(*names):
    return Batch.from_data_list([WALKS(empty_graph() if name == "empty" else GRAPHS[name].clone()) for name in names])


def by_hand(norm, x):
    if norm is None:
        return x
    return (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + norm.eps).sqrt() * norm.weight + (
        norm.bias
    )


def randomise(module):
    for name, value in module.named_parameters():
        if "norm" in name:
            value.data.uniform_(0.5, 1.5)
    return module


@pytest.mark.parametrize("norm", ["node_layer_norm", None])
@pytest.mark.parametrize("feed_forward", [True, False])
def test_a_layer_with_pre_norm_is_the_formula(norm, feed_forward):
    torch.manual_seed(0)
    batch, conv, attentions = batch_of("path", "star"), GCNConv(8, 8), [MaskedAttention(8, 2), GRFAttention(8, 2)]
    layer = GPSLayer(8, conv, attentions, norm, 0.3, feed_forward=feed_forward, pre_norm=True).double().eval()
    randomise(layer)
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64)
    norms = [layer.norm_conv, *(layer.norm_attn or (None, None))]
    wanted = x + conv(by_hand(norms[0], x), batch.edge_index)
    for attn, own in zip(attentions, norms[1:]):
        wanted = wanted + attn(by_hand(own, x), batch.batch, batch)
    if feed_forward:
        first, second = (part for part in layer.mlp if isinstance(part, Linear))
        hidden = (by_hand(layer.norm_out, wanted) @ first.weight.t() + first.bias).relu()
        wanted = wanted + hidden @ second.weight.t() + second.bias
    torch.testing.assert_close(layer(x, batch.edge_index, batch.batch, batch), wanted, rtol=1e-10, atol=1e-10)


def test_dropout_acts_on_updates_before_they_are_added():
    layer = GPSLayer(8, attn=MaskedAttention(8), norm=None, dropout=0.5, feed_forward=False, pre_norm=True)
    x, edges = torch.randn(5, 8), GRAPHS["star"].edge_index
    update, drawn = layer.eval()(x, edges) - x, layer.train()(x, edges) - x
    kept = drawn.abs() > 1e-6
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(drawn[kept], 2 * update[kept], rtol=1e-3, atol=1e-4)


def test_a_norm_of_nodes_sees_one_node():
    norm = randomise(build_norm("node_layer_norm", 6).double())
    x = torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(norm(x), by_hand(norm, x))
    torch.testing.assert_close(norm(x[:1]), norm(x)[:1])


def test_the_model_normalises_after_the_last_layer():
    batch = batch_of("path", "star")
    model = GPSModel(4, 8, 3, 2, attn=lambda _: GRFAttention(8), norm="node_layer_norm", pre_norm=True, pool="mean")
    randomise(model.double().eval())
    x = model.encoder(batch.x.double())
    for layer in model.layers:
        x = layer(x, batch.edge_index, batch.batch, batch)
    x = by_hand(model.norm_out, x)
    wanted = model.head(torch.stack([x[batch.batch == graph].mean(0) for graph in range(2)]))
    torch.testing.assert_close(model(batch.x, batch.edge_index, None, batch), wanted, rtol=1e-10, atol=1e-10)
    assert GPSModel(4, 8, 3, 1, attn=lambda _: GRFAttention(8)).norm_out is None


def test_a_convolution_that_adds_its_input_has_no_pre_norm():
    with pytest.raises(ValueError, match=r"GatedGCN adds its input itself.*use pre_norm=False"):
        GPSLayer(8, GatedGCN(8), pre_norm=True)


def test_positions_are_added_to_equal_graphs():
    positions = NodePositions(8, 4)
    path = Data(edge_index=GRAPHS["path"].edge_index, num_nodes=4)
    batch = Batch.from_data_list([path, Data(num_nodes=0, edge_index=path.edge_index[:, :0]), path])
    assert torch.equal(positions(batch), positions.weight.repeat(2, 1))
    assert torch.equal(positions(path), positions.weight)
    model = GPSModel(4, 8, 3, 1, attn=lambda _: MaskedAttention(8), num_positions=4, pool="mean").eval()
    data = GRAPHS["path"]
    x = data.x.float()
    before = model(x, data.edge_index)
    swapped = model(x.flip(0), data.edge_index)
    assert not torch.allclose(before, swapped)  # without positions and edges, the order of nodes does not matter
    model.positions.weight.data.zero_()
    torch.testing.assert_close(model(x.flip(0), data.edge_index), model(x, data.edge_index))


@pytest.mark.parametrize("names", [("star",), ("path", "star"), ("path", "isolated", "single")])
def test_positions_refuse_graphs_of_another_size(names):
    batch = batch_of(*names)
    with pytest.raises(ValueError, match=r"a position for each of 4 nodes, but a graph has [15].*'num_positions'"):
        NodePositions(8, 4)(batch)
    with pytest.raises(ValueError, match="'num_positions' must be at least 1"):
        NodePositions(8, 0)


ATTENTIONS = {
    "linear": lambda _: MaskedAttention(8, 2),
    "softmax": lambda _: FullAttention(8, 2),
    "kmip": lambda _: KMIPAttention(8, 2, 3),
    "grf": lambda _: GRFAttention(8, 2),
    "grf softmax": lambda _: GRFAttention(8, 2, kernel="softmax"),
    "series": lambda _: MaskedAttention(8, 2, mask=PowerSeriesMask(2)),
}


def token_model(name, **options):
    torch.manual_seed(0)
    options = {"norm": "node_layer_norm", "pre_norm": True, "pool": "graph_token"} | options
    return GPSModel(4, 8, 3, 2, attn=ATTENTIONS[name], **options).double().eval()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_token_reads_its_own_graph_alone(name):
    names, model = ("path", "empty", "star", "single", "empty"), token_model(name)
    batch = batch_of(*names)
    out = model(batch.x, batch.edge_index, batch.batch, batch)
    assert out.shape == (5, 3)
    for number, one in enumerate(map(batch_of, names)):
        alone = model(one.x, one.edge_index, one.batch, one)
        torch.testing.assert_close(out[number], alone[0], rtol=1e-9, atol=1e-9)
    loud = torch.where((batch.batch == 0)[:, None], batch.x, 1e3 * batch.x)
    changed = model(loud, batch.edge_index, batch.batch, batch)
    torch.testing.assert_close(changed[0], out[0], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(changed[2], out[2])


@pytest.mark.parametrize("name", ["linear", "softmax", "series"])
def test_the_order_of_the_nodes_does_not_matter(name):
    model, data = token_model(name), GRAPHS["star"]
    perm = torch.tensor([3, 0, 4, 1, 2])
    moved = Data(x=data.x[perm], edge_index=perm.argsort()[data.edge_index])
    torch.testing.assert_close(
        model(moved.x, moved.edge_index, graph=moved), model(data.x, data.edge_index, graph=data), rtol=1e-9, atol=1e-9
    )


def test_the_mask_of_a_token_is_ones():
    """One layer without norms and with a head that is the identity, against the dense formula."""
    torch.manual_seed(0)
    data, attn = GRAPHS["path"], MaskedAttention(8, 2, mask=PowerSeriesMask(2, 2))
    model = GPSModel(4, 8, 8, 1, attn=lambda _: attn, norm=None, feed_forward=False, pool="graph_token")
    model.head = torch.nn.Identity()
    model.double()
    x = torch.cat([model.token.node, model.encoder(data.x.double())])
    q, k, v = attn.qkv(x).view(5, 3, 2, 4).unbind(1)
    degree = torch.tensor([1.0, 2, 2, 1], dtype=torch.float64)
    weight = (degree[data.edge_index[0]] * degree[data.edge_index[1]]).rsqrt()
    phi = PowerSeriesOperator(data.edge_index, 4, attn.mask.modulation, weight).to_dense()
    matrix = torch.ones(2, 5, 5, dtype=torch.float64)
    matrix[:, 1:, 1:] = phi @ phi.mT
    wanted = masked_linear_attention_reference(q.relu(), k.relu(), v, matrix, bound=matrix)
    wanted = x[:1] + attn.out(wanted.flatten(1))[:1]
    torch.testing.assert_close(model(data.x.double(), data.edge_index, graph=data), wanted, rtol=1e-9, atol=1e-9)


def test_masks_of_grids_take_a_token_too():
    side = torch.arange(6).view(2, 3)
    pairs = torch.cat(
        [torch.stack([side[:, :-1].flatten(), side[:, 1:].flatten()]), torch.stack([side[0], side[1]])], 1
    )
    grid = AddGridShape()(Data(x=torch.rand(6, 4), edge_index=torch.cat([pairs, pairs.flip(0)], 1)))
    batch = Batch.from_data_list([grid, grid])
    model = GPSModel(
        4, 8, 3, 2, attn=lambda _: MaskedAttention(8, 2, mask=ToeplitzMask([2, 3], 2)), pool="graph_token", norm=None
    )
    out = model(batch.x, batch.edge_index, batch.batch, batch)
    torch.testing.assert_close(out[0], out[1])
    out.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.token.node.grad.abs().sum() > 0


def test_a_model_with_a_token_repeats_and_leaves_its_graph_alone():
    model, batch = token_model("grf", num_positions=5, dropout=0.0).train(), batch_of("star", "star")
    keys = {name: batch[name].clone() for name in batch.keys() if torch.is_tensor(batch[name])}  # noqa: SIM118
    grads = []
    for _ in range(2):
        model.zero_grad()
        model(batch.x, batch.edge_index, batch.batch, batch).square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads))  # the same calls on one machine
    assert all(torch.equal(batch[name], value) for name, value in keys.items())


def test_gradient_of_a_model_with_a_token():
    model, batch = token_model("grf", num_positions=5), batch_of("star", "star")
    x = batch.x.double().requires_grad_()
    run = lambda x, token: torch.func.functional_call(  # noqa: E731
        model, {"token.node": token}, (x, batch.edge_index, batch.batch, batch)
    )
    assert torch.autograd.gradcheck(run, (x, model.token.node.detach().clone().requires_grad_()), fast_mode=True)


def test_a_token_needs_attention_and_edges_as_a_tensor():
    with pytest.raises(ValueError, match="no layer has attention"):
        GPSModel(4, 8, 3, 2, conv=lambda _: GCNConv(8, 8), pool="graph_token")
    with pytest.raises(ValueError, match=r"ExphormerAttention reads 'expander_index'.*; pool by 'mean'"):
        GPSModel(4, 8, 3, 1, attn=lambda _: ExphormerAttention(8, 2), pool="graph_token")
    with pytest.raises(TypeError, match=r"'edge_index' as a tensor \[2, E\] \(got str\)"):
        token_model("linear")(torch.rand(2, 4).double(), "edges")
