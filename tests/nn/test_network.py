import pytest
import torch
from torch.nn import BatchNorm1d, Linear
from torch.nn.functional import cosine_similarity, normalize
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, InstanceNorm

from pyg_topomask.nn import (
    HEADS,
    GatedGCN,
    GPSModel,
    GPSNetwork,
    GPSStack,
    KMIPAttention,
    MaskedAttention,
    SANAttention,
)
from pyg_topomask.nn.encoder import ConstantEdgeEncoder, Encoder, LinearEdgeEncoder, LinearNodeEncoder
from pyg_topomask.nn.head import GraphHead
from pyg_topomask.testing import GRAPHS, empty_graph

C = 8


def batch_of(*names):
    parts = [(GRAPHS[name] if name != "empty" else empty_graph()).clone() for name in names]
    for part in parts:
        part.x, part.edge_attr = part.x.float(), torch.randn(part.num_edges, 2)
        part.pe = torch.randn(part.num_nodes, 3)
        part.edge_label_index = torch.randint(max(part.num_nodes, 1), (2, 3 if part.num_nodes else 0))
    return Batch.from_data_list(parts)


class Columns(Encoder):
    """An attribute as it is."""

    def __init__(self, name, channels):
        super().__init__()
        self.requires, self.channels = (name,), channels

    def forward(self, graph):
        return self.read(graph)[0]


class BiasReader(torch.nn.Module):
    requires = ("attn_bias", "other")

    def forward(self, x, batch=None, graph=None):
        return x * graph["attn_bias"].sum()


def stack(conv=None, attn=None, layers=2, **kwargs):
    conv = conv or (lambda n: GatedGCN(C, dropout=kwargs.get("dropout", 0.0), update_edges=n < layers - 1))
    return GPSStack(C, layers, conv, attn or (lambda _: KMIPAttention(C, heads=2, k=3)), **kwargs)


def network(head="graph", out=3, **kwargs):
    torch.manual_seed(0)
    edges = LinearEdgeEncoder(C, 2)
    return GPSNetwork(LinearNodeEncoder(C, 4), stack(**kwargs), HEADS[head](C, out), edge_encoder=edges)


def test_network_is_encoders_layers_head_and_edges_go_on():
    batch, net = batch_of("path", "empty", "star", "single"), network().eval()
    x, edge_attr = net.node_encoder(batch), net.edge_encoder(batch)
    x, edge_attr = net.layers[0](x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr)
    x = net.layers[1](x, batch.edge_index, batch.batch, batch, edge_attr=edge_attr)
    torch.testing.assert_close(net.embed(batch), x)
    torch.testing.assert_close(net(batch), net.head(x, batch))
    assert net(batch).shape == (4, 3)
    alone = torch.cat([net(part) for part in batch.to_data_list()])
    torch.testing.assert_close(net(batch), alone, rtol=1e-4, atol=1e-5)


def test_an_attention_with_edge_features_needs_their_encoder():
    layers = stack(attn=lambda _: SANAttention(C, edge_dim=C))
    with pytest.raises(ValueError, match=r"SANAttention has edge_dim=8.*no 'edge_encoder'"):
        GPSNetwork(LinearNodeEncoder(C, 4), layers, GraphHead(C, 3))


def test_every_parameter_has_a_gradient():
    batch, net = batch_of("path", "star", "isolated"), network()
    net(batch).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []  # as distributed training asks


def test_convs_get_what_they_take():
    batch = batch_of("path", "star")
    layers = stack(lambda _: GCNConv(C, C))
    net = GPSNetwork(LinearNodeEncoder(C, 4), layers, GraphHead(C, 2), edge_encoder=ConstantEdgeEncoder(C))
    assert net(batch).shape == (2, 2)
    assert net.edge_encoder is None
    assert net.requires == ("x",)
    with pytest.raises(ValueError, match="no convolution takes 'pe'"):
        GPSNetwork(LinearNodeEncoder(C, 4), layers, GraphHead(C, 2), pe_encoder=Columns("pe", 3))
    with pytest.raises(ValueError, match="'node_encoder' gives 4 channels, but the layers have 8"):
        GPSNetwork(LinearNodeEncoder(4, 4), layers, GraphHead(C, 2))
    layers = stack(lambda _: GatedGCN(C, equivariant_stable=True, update_edges=False))
    edges, pe = ConstantEdgeEncoder(C), Columns("pe", 3)
    net = GPSNetwork(LinearNodeEncoder(C, 4), layers, GraphHead(C, 2), edges, pe).eval()
    assert net.requires == ("x", "pe")
    before = net(batch)
    batch.pe = -batch.pe
    torch.testing.assert_close(net(batch), before)
    batch.pe = 3 * batch.pe
    assert not torch.allclose(net(batch), before)


def test_bias_of_pairs_reaches_attention_and_leaves_the_graph_alone():
    batch = batch_of("path", "star")
    batch.bias = torch.rand(4 * 4 + 5 * 5, 1)
    layers = GPSStack(C, 1, None, lambda _: BiasReader(), norm=None, feed_forward=False)
    net = GPSNetwork(LinearNodeEncoder(C, 4), layers, GraphHead(C, 2), bias_encoder=Columns("bias", 1))
    torch.testing.assert_close(net.embed(batch), net.node_encoder(batch) * (1 + batch.bias.sum()))
    assert "attn_bias" not in batch
    assert net.requires == ("x", "bias", "other")


@pytest.mark.parametrize("attn", ["plain", "carry"])
def test_checkpointing_changes_nothing(attn):
    class Carrying(MaskedAttention):
        def initial_carry(self, num_graphs):
            return torch.zeros(num_graphs, C)

        def forward(self, x, batch=None, graph=None, carry=None):
            carry = carry.index_add(0, batch, x)
            return super().forward(x, batch, graph) + carry[batch], carry

    batch, results = batch_of("path", "star", "two_parts"), []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        build = (lambda _: Carrying(C)) if attn == "carry" else None
        net = network(attn=build, layers=3, dropout=0.3, checkpoint=checkpoint)
        torch.manual_seed(1)
        out = net(batch)
        out.square().sum().backward()
        norms = [m for m in net.modules() if isinstance(m, BatchNorm1d)]
        state = [value for m in norms for value in (m.running_mean, m.running_var, m.num_batches_tracked)]
        results.append([out, *(p.grad for p in net.parameters()), *state])
        assert all(m.momentum == 0.1 for m in norms)
    for plain, again in zip(*results):
        torch.testing.assert_close(again, plain)


def test_checkpointing_updates_the_statistics_of_every_norm_once():
    class Normed(MaskedAttention):
        def __init__(self):
            super().__init__(C)
            self.norm = InstanceNorm(C, track_running_stats=True)

        def forward(self, x, batch=None, graph=None):
            return super().forward(self.norm(x, batch), batch, graph)

    found = []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        net = network(attn=lambda _: Normed(), layers=1, checkpoint=checkpoint)
        net(batch_of("path", "star")).sum().backward()
        found.append(next(part for part in net.modules() if isinstance(part, Normed)).norm.running_var)
    torch.testing.assert_close(found[1], found[0])


def test_checkpointing_keeps_less():
    kept = []
    for checkpoint in (False, True):
        batch, net, sizes = batch_of("star"), network(layers=4, checkpoint=checkpoint), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            net(batch)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def test_model_shares_the_stack():
    batch = batch_of("path", "star")
    torch.manual_seed(0)

    def build(checkpoint):
        return GPSModel(
            4,
            C,
            3,
            2,
            conv=lambda n: GatedGCN(C, update_edges=n == 0),
            attn=lambda _: KMIPAttention(C, k=3),
            edge_dim=2,
            pool="mean",
            checkpoint=checkpoint,
        )

    model, again = build(False), build(True)
    assert isinstance(model.layers, GPSStack)
    again.load_state_dict(model.state_dict())
    arguments = (batch.x, batch.edge_index, batch.batch, batch, batch.edge_attr)
    torch.testing.assert_close(again(*arguments), model(*arguments))
    with pytest.raises(TypeError, match="no convolution takes 'edge_attr'"):
        GPSModel(4, C, 3, 1, lambda _: GCNConv(C, C), edge_dim=2)(*arguments)


def test_attentions_of_a_stack_are_tied():
    class Tied(MaskedAttention):
        def tie(self, first):
            self.first = [first]

    layers = stack(attn=lambda _: Tied(C), layers=3)
    assert [layer.attn.first[0] for layer in layers[1:]] == [layers[0].attn] * 2


SHAPES = {
    "graph": (4, 3),
    "san_graph": (4, 3),
    "mlp_graph": (4, 3),
    "ogb_code_graph": (4, 5, 3),
    "node": (11, 3),
    "inductive_node": (11, 3),
    "edge": (9,),
    "inductive_edge": (9,),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name):
    torch.manual_seed(0)
    batch = batch_of("path", "single", "empty", "two_parts")
    head = HEADS[name](C, 1 if "edge" in name else 3)
    x = torch.randn(11, C, requires_grad=True)
    out = head(x, batch)
    assert out.shape == SHAPES[name]
    out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all((p.grad != 0).any() for p in head.parameters())
    if "edge" not in name:
        parts = zip(x.split(batch.ptr.diff().tolist()), batch.to_data_list())
        torch.testing.assert_close(out, torch.cat([head(rows, part) for rows, part in parts]))


def test_head_widths_and_norms():
    san = HEADS["san_graph"](64, 10, pool="add")
    assert [m.weight.shape for m in san.predict if isinstance(m, Linear)] == [(32, 64), (16, 32), (10, 16)]
    x, head = torch.randn(5, C), HEADS["node"](C, 3, layers=2)
    first, last = (m for m in head.mlp.layers if isinstance(m, Linear))
    torch.testing.assert_close(head(x), last(normalize(first(x).relu(), dim=1)))
    head = HEADS["node"](C, 3, layers=2, l2_norm=False, act="elu")
    first, last = (m for m in head.mlp.layers if isinstance(m, Linear))
    torch.testing.assert_close(head(x), last(torch.nn.functional.elu(first(x))))
    mlp = HEADS["mlp_graph"](C, 3, layers=1, dropout=0.5)
    batch, ones = batch_of("single"), torch.ones(1, C)
    assert len({tuple(mlp(ones, batch)[0].tolist()) for _ in range(9)}) > 1  # dropout before the only layer


@pytest.mark.parametrize("decoding", ["dot", "cosine_similarity", "concat"])
def test_edge_decoding(decoding):
    batch, x = batch_of("path", "star"), torch.randn(9, C)
    head = HEADS["inductive_edge"](C, 1, layers=2, decoding=decoding)
    z = head.embed(x)
    i, j = batch.edge_label_index
    wanted = {
        "dot": lambda: torch.einsum("ec,ec->e", z[i], z[j]),
        "cosine_similarity": lambda: cosine_similarity(z[i], z[j]),
        "concat": lambda: head.mlp(torch.cat([x[i], x[j]], 1))[:, 0],
    }[decoding]()
    torch.testing.assert_close(head(x, batch), wanted)
    if decoding == "concat":
        assert HEADS["edge"](C, 3, decoding=decoding)(x, batch).shape == (6, 3)
    else:
        with pytest.raises(ValueError, match="gives one score per pair, but 3 are requested"):
            HEADS["edge"](C, 3, decoding=decoding)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: HEADS["graph"](C, 3, pool="median"), r"mean, add, max \(got 'median'\)"),
        (lambda: HEADS["edge"](C, decoding="bilinear"), r"dot, cosine_similarity, concat \(got 'bilinear'\)"),
        (lambda: HEADS["edge"](C)(torch.ones(4, C), GRAPHS["path"]), "needs 'edge_label_index'.*RandomLinkSplit"),
        (lambda: HEADS["san_graph"](3, 2), "3 channels cannot be halved 2 times"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
