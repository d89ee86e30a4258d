"""GPSModel, also as a vision transformer: with a norm after the last layer, positions and a graph token."""

import pytest
import torch
from torch.nn import Linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GINEConv

from pyg_topomask import nn, operators, testing
from pyg_topomask.nn.graph_attributes import graph_of
from pyg_topomask.nn.norm import NORMS
from pyg_topomask.ops.attention.masked import masked_linear_attention_reference
from tests.nn.gps_cases import Conv, batch_of, by_hand, randomise

TOL = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize(("pool", "pre_norm"), [("mean", True), ("add", False), ("max", False), (None, True)])
@pytest.mark.parametrize("head_layers", [1, 2])
def test_model_is_encoder_layers_pool_head(pool, head_layers, pre_norm):
    batch, settings = batch_of(), {"norm": "node_layer_norm", "dropout": 0.4, "pre_norm": pre_norm}
    attn = lambda _: nn.GRFAttention(8)  # noqa: E731
    model = nn.GPSModel(4, 8, 3, 2, lambda _: GCNConv(8, 8), attn, pool=pool, head_layers=head_layers, **settings)
    randomise(model.double().eval())
    x = batch.x @ model.node_encoder.weight.t() + model.node_encoder.bias
    for layer in model.layers:
        x = layer(x, batch.edge_index, batch.batch, batch)
    x = by_hand(model.norm_out, x, batch.batch)
    assert (model.norm_out is not None) == pre_norm
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


def test_edge_features_reach_the_convolution():
    batch = batch_of()
    edge_attr = torch.randn(batch.num_edges, 3, requires_grad=True)
    conv = lambda _: GINEConv(Linear(8, 8))  # noqa: E731
    model = nn.GPSModel(4, 8, 2, 2, conv, lambda _: nn.ExphormerAttention(8), edge_dim=3, pool="mean")
    model(batch.x.float(), batch.edge_index, batch.batch, batch, edge_attr=edge_attr).sum().backward()
    assert (edge_attr.grad != 0).any()
    assert (model.edge_encoder.weight.grad != 0).any()


@pytest.mark.parametrize("norm", [*NORMS, None])
@pytest.mark.parametrize("names", [("single",), ("single", "single"), ("empty", "path", "empty")])
def test_tiny_graphs_train(norm, names):
    batch = batch_of(*names)
    model = nn.GPSModel(4, 8, 2, 2, lambda _: GCNConv(8, 8), lambda _: nn.GRFAttention(8), pool="add", norm=norm)
    out = model(batch.x.float(), batch.edge_index, batch.batch, batch)
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    empty = torch.tensor([name == "empty" for name in names])
    assert torch.equal(out[empty], model.head.layers[-1].bias.expand(int(empty.sum()), -1))
    nothing = batch_of("empty")
    assert model(nothing.x.float(), nothing.edge_index, None, nothing).shape == (1, 2)


ATTENTIONS = {
    "linear": lambda _: nn.MaskedAttention(8, 2),
    "softmax": lambda _: nn.FullAttention(8, 2),
    "kmip": lambda _: nn.KMIPAttention(8, 2, 3),
    "grf": lambda _: nn.GRFAttention(8, 2),
    "grf softmax": lambda _: nn.GRFAttention(8, 2, kernel="softmax"),
    "series": lambda _: nn.MaskedAttention(8, 2, mask=nn.PowerSeriesMask(2)),
}


def token_model(name, **options):
    options = {"norm": "node_layer_norm", "pre_norm": True, "pool": "graph_token"} | options
    return nn.GPSModel(4, 8, 3, 2, attn=ATTENTIONS[name], **options).double().eval()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_token_reads_its_own_graph_alone(name):
    names, model = ("path", "empty", "star", "single", "empty"), token_model(name)
    batch = batch_of(*names)
    out = model(batch.x, batch.edge_index, batch.batch, batch)
    alone = [model(one.x, one.edge_index, one.batch, one) for one in map(batch_of, names)]
    torch.testing.assert_close(out, torch.cat(alone), **TOL)
    if not model.requires:  # without a graph, the empty one at the end is unknown
        torch.testing.assert_close(model(batch.x, batch.edge_index, batch.batch), out[:4], **TOL)
    loud = torch.where((batch.batch == 0)[:, None], batch.x, 1e3 * batch.x)
    changed = model(loud, batch.edge_index, batch.batch, batch)
    torch.testing.assert_close(changed[0], out[0], **TOL)
    assert not torch.allclose(changed[2], out[2])
    if "grf" not in name:  # the order of the nodes does not matter
        data, perm = testing.GRAPHS["star"], torch.tensor([3, 0, 4, 1, 2])
        moved = Data(x=data.x[perm], edge_index=perm.argsort()[data.edge_index])
        torch.testing.assert_close(model(moved.x, moved.edge_index, graph=moved)[0], out[2], **TOL)


def test_the_mask_of_a_token_is_ones():
    """One layer without norms and with a head that is the identity, against the dense formula."""
    data, attn = testing.GRAPHS["path"], nn.MaskedAttention(8, 2, mask=nn.PowerSeriesMask(2, 2))
    model = nn.GPSModel(4, 8, 8, 1, attn=lambda _: attn, norm=None, feed_forward=False, pool="graph_token")
    model.head = torch.nn.Identity()
    model.double()
    x = torch.cat([model.graph_token.node, model.node_encoder(data.x.double())])
    q, k, v = attn.qkv(x).view(5, 3, 2, 4).unbind(1)
    degree = torch.tensor([1.0, 2, 2, 1], dtype=torch.float64)
    weight = (degree[data.edge_index[0]] * degree[data.edge_index[1]]).rsqrt()
    phi = operators.PowerSeriesOperator(data.edge_index, 4, attn.mask.modulation, weight).to_dense()
    matrix = torch.ones(2, 5, 5, dtype=torch.float64)
    matrix[:, 1:, 1:] = phi @ phi.mT
    wanted = masked_linear_attention_reference(q.relu(), k.relu(), v, matrix, bound=matrix)
    wanted = x[:1] + attn.out(wanted.flatten(1))[:1]
    torch.testing.assert_close(model(data.x.double(), data.edge_index, graph=data), wanted, **TOL)


def test_a_model_with_a_token_leaves_its_graph_alone_and_has_the_right_gradient():
    model, batch = token_model("grf"), batch_of("star", "star")
    tensors = {name: batch[name].clone() for name in batch.keys() if torch.is_tensor(batch[name])}  # noqa: SIM118
    x, token = batch.x.double().requires_grad_(), model.graph_token.node.detach().clone().requires_grad_()

    def run(x, token):
        arguments = x, batch.edge_index, batch.batch, batch
        return torch.func.functional_call(model, {"graph_token.node": token}, arguments)

    assert torch.autograd.gradcheck(run, (x, token), fast_mode=True)
    assert all(torch.equal(batch[name], value) for name, value in tensors.items())


def test_weights_of_earlier_versions_are_read():
    model, other = token_model("linear"), token_model("linear")
    earlier = {"node_encoder": "encoder", "graph_token": "token"}
    names = {name: name.split(".") for name in model.state_dict()}
    renamed = {name: ".".join([earlier.get(first, first), *rest]) for name, (first, *rest) in names.items()}
    assert {"encoder.weight", "token.node"} <= set(renamed.values())
    other.load_state_dict({renamed[name]: value for name, value in model.state_dict().items()})
    torch.testing.assert_close(other.state_dict(), model.state_dict())
    other.encoder = torch.nn.Linear(2, 3)  # of a subclass
    weights = {name: value + 1 for name, value in other.state_dict().items()}
    other.load_state_dict(weights)
    torch.testing.assert_close(dict(other.state_dict()), weights)


def model(*arguments, pool=None, **settings):
    return nn.GPSModel(4, 8, 3, 1, *arguments, pool=pool, **settings)


EDGES, ROWS = torch.tensor([[0, 1], [1, 0]]), torch.ones(2, 4)
EXPHORMER, BIASED = lambda _: nn.ExphormerAttention(8), lambda _: nn.FullAttention(8, attn_bias="attn_bias")


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: model(lambda _: Conv(), pool="median"), ValueError, r"max, graph_token, None \(got 'median'\)"),
        (lambda: model(lambda _: Conv(), head_layers=0), ValueError, r"'head_layers' must be at least 1 \(got 0\)"),
        (lambda: model(lambda _: GCNConv(8, 8), edge_dim=2), TypeError, "no convolution takes 'edge_attr'"),
        (lambda: model("gat", edge_dim=2), TypeError, "no convolution takes 'edge_attr'.*edge_dim=C"),
        (lambda: model("gine", edge_dim=2)(ROWS, EDGES, edge_attr=EDGES), TypeError, "'edge_attr' is torch.int64"),
        (lambda: model(lambda _: Conv())(ROWS, EDGES, edge_attr=ROWS), ValueError, "no 'edge_dim', but .* is given"),
        (lambda: model(lambda _: Conv(), edge_dim=4)(ROWS, EDGES), ValueError, "an 'edge_dim', but .* is None: pass"),
        (lambda: model(lambda _: Conv(), pool="graph_token"), ValueError, "no layer has attention"),
        (lambda: model(None, EXPHORMER, pool="graph_token"), ValueError, "reads 'expander_index'.*; pool by 'mean'"),
        (lambda: model(None, BIASED, pool="graph_token"), ValueError, r"bias 'attn_bias'.*GPSNetwork\(bias_encoder="),
        (lambda: token_model("linear")(ROWS.double(), "edges"), TypeError, r"a tensor \[2, E\] \(got str\)"),
    ],
)
def test_what_does_not_fit_is_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("edge_dim", [1, -1])
def test_edge_features_may_be_one_number_for_each_edge(edge_dim):
    gine, lengths = model("gine", edge_dim=edge_dim), torch.rand(2)
    out = gine(ROWS, EDGES, edge_attr=lengths)
    assert gine.edge_encoder.in_features == 1
    torch.testing.assert_close(out, gine(ROWS, EDGES, edge_attr=lengths[:, None]))


class WithoutShortIndices(TorchDispatchMode):
    """PyTorch before 2.8, where gather and scatter took int64 alone."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.startswith(("scatter", "gather")):
            assert args[2].dtype == torch.int64, f"{func} of {args[2].dtype}"
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("pool", ["mean", "add", "max", "graph_token"])
def test_batch_vectors_of_int32_are_those_of_int64(pool):
    batch = batch_of()
    model = nn.GPSModel(4, 8, 3, 2, None, lambda _: nn.FullAttention(8), pool=pool, norm="graph_norm").double().eval()
    with WithoutShortIndices():
        found = model(batch.x, batch.edge_index, batch.batch.int())
    assert torch.equal(found, model(batch.x, batch.edge_index, batch.batch))


def test_weights_of_edges_follow_their_edges_into_each_graph():
    edges = torch.tensor([[3, 0, 4, 1, 2], [4, 1, 3, 0, 1]])  # not in the order of the graphs
    weight, batch = torch.arange(5.0), torch.tensor([0, 0, 0, 1, 1])
    made = graph_of(edges, 5, batch, lambda graph: graph, {"edge_weight": weight})
    found = dict(zip(map(tuple, made.edge_index.T.tolist()), made.edge_weight.tolist()))
    assert found == dict(zip(map(tuple, edges.T.tolist()), weight.tolist()))
