import pytest
import torch
from torch.nn import Linear
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GINEConv

from pyg_topomask.nn import ATTENTION, ExphormerAttention, GPSLayer, GPSModel
from pyg_topomask.ops.edges import edge_softmax
from pyg_topomask.testing import GRAPHS, AttentionCase, block_permutation, empty_graph, permute
from pyg_topomask.transforms import AddExpanderEdges

NAMES = ("path", "isolated", "single", "star")


def expanded(data, **settings):
    return AddExpanderEdges(**{"degree": 1, "seed": 0, **settings})(data.clone())


def batch_of(*names, width=3):
    parts = []
    for name in names or NAMES:
        part = expanded(GRAPHS[name])
        generator = torch.Generator().manual_seed(len(parts))
        part.edge_attr = torch.rand(part.num_edges, width, generator=generator, dtype=torch.float64)
        parts.append(part)
    return Batch.from_data_list(parts)


def jitter(attn):
    """Move the edge types off their common start."""
    with torch.no_grad():
        attn.edge_type.mul_(1 + 0.5 * torch.randn_like(attn.edge_type))
    return attn


class ExphormerCase(AttentionCase):
    transform = "AddExpanderEdges"
    settings = {}  # noqa: RUF012

    def build(self):
        return jitter(ExphormerAttention(self.channels, heads=2, **self.settings))

    def prepare(self, data):
        data = expanded(data)
        data.edge_attr = torch.sin(torch.arange(3.0 * data.num_edges)).view(-1, 3)
        return data


class TestExphormer(ExphormerCase):
    def build(self):
        return ATTENTION["Exphormer"](self.channels, heads=2)


class TestTwoVirtualNodes(ExphormerCase):
    settings = {"num_virtual": 2, "bias": False}  # noqa: RUF012


class TestNoVirtualNodes(ExphormerCase):
    settings = {"num_virtual": 0}  # noqa: RUF012


class TestNoExpander(ExphormerCase):
    settings = {"expander": False}  # noqa: RUF012


class TestEdgeFeatures(ExphormerCase):
    settings = {"edge_dim": 3}  # noqa: RUF012


def exphormer_reference(attn, x, batch, carry=None):
    """The attention from its definition: a dense matrix of exponentials for each type of edge."""
    n, graphs, v_nodes, width = x.size(0), batch.num_graphs, attn.num_virtual, attn.channels // attn.heads
    hidden = torch.zeros(graphs, v_nodes, attn.channels, dtype=x.dtype) if carry is None else carry
    if v_nodes:
        hidden = hidden + attn.virtual
    nodes = torch.cat([x, hidden.reshape(-1, attn.channels)])
    graph = torch.cat([batch.batch, torch.arange(graphs).repeat_interleave(v_nodes)])
    is_virtual = torch.arange(len(nodes)) >= n
    same = graph[:, None] == graph
    lists = [batch.edge_index[:, : None if attn.graph_edges else 0]] + (
        [batch.expander_index.long()] if attn.expander else []
    )
    counts = []
    for index in lists:  # receiver × sender
        count = torch.zeros(len(nodes), len(nodes), dtype=x.dtype)
        counts.append(count.index_put((index[1], index[0]), torch.ones(index.size(1), dtype=x.dtype), accumulate=True))
    if v_nodes:
        counts.append((same & is_virtual[:, None] & ~is_virtual).to(x.dtype))
        counts.append((same & ~is_virtual[:, None] & is_virtual).to(x.dtype))
    q, k, v = (nodes @ attn.qkv.weight.t() + attn.qkv.bias).split(attn.channels, 1)
    heads = []
    for h in range(attn.heads):
        part = slice(h * width, (h + 1) * width)
        weights = []
        for kind, count in enumerate(counts):
            score = (q[:, None, part] * k[None, :, part] * attn.edge_type[kind, part]).sum(-1)
            if kind == 0 and attn.edge is not None:  # the tests' graphs have no edge twice
                for (j, i), attr in zip(batch.edge_index.t().tolist(), batch.edge_attr):
                    extra = q[i, part] * k[j, part] * (attn.edge.weight[part] @ attr)
                    score = score.index_put((torch.tensor([i]), torch.tensor([j])), score[i, j] + extra.sum())
            weights.append(count * (score / width**0.5).exp())
        weight = sum(weights)
        total = weight.sum(1, keepdim=True)
        heads.append(weight @ v[:, part] / torch.where(total > 0, total, 1))
    out = torch.cat(heads, 1) @ attn.out.weight.t() + attn.out.bias
    return out[:n], out[n:].view(graphs, v_nodes, attn.channels)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_virtual": 0},
        {"num_virtual": 3},
        {"edge_dim": 3},
        {"expander": False, "edge_dim": 3},
        {"graph_edges": False},
        {"graph_edges": False, "expander": False},
    ],
)
def test_is_the_formula(settings):
    torch.manual_seed(0)
    batch = batch_of("path", "one_way", "single", "isolated")
    attn = jitter(ExphormerAttention(8, heads=2, **settings)).double()
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64)
    wanted, _ = exphormer_reference(attn, x, batch)
    torch.testing.assert_close(attn(x, batch.batch, batch), wanted, rtol=1e-10, atol=1e-12)
    carry = torch.randn(4, attn.num_virtual, 8, dtype=torch.float64)
    got, wanted = attn(x, batch.batch, batch, carry=carry), exphormer_reference(attn, x, batch, carry)
    for a, b in zip(got, wanted):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    single = attn.float()(x.float(), batch.batch, batch, carry=carry.float())
    torch.testing.assert_close(single[0], wanted[0].float(), rtol=1e-4, atol=1e-5)


def test_starts_as_dot_product_attention_to_the_neighbours():
    attn = ExphormerAttention(4, num_virtual=0, expander=False).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    q, k, v = (x @ attn.qkv.weight.t() + attn.qkv.bias).split(4, 1)
    star = GRAPHS["star"]
    out = attn(x, None, star)
    hub = (q[0] @ k[1:].t() / 2).softmax(0) @ v[1:]
    wanted = torch.cat([hub[None], v[:1].expand(4, -1)]) @ attn.out.weight.t() + attn.out.bias
    torch.testing.assert_close(out, wanted)


def test_a_node_without_edges_has_the_output_of_zero():
    attn, data = ExphormerAttention(8, num_virtual=0), expanded(GRAPHS["single"])
    assert torch.equal(attn(torch.randn(1, 8), None, data)[0], attn.out.bias)


def test_afresh_is_the_initial_carry():
    batch, attn = batch_of(), ExphormerAttention(8, heads=2, num_virtual=2)
    x = torch.randn(batch.num_nodes, 8)
    initial = attn.initial_carry(4)
    assert initial.shape == (4, 2, 8)
    out, carry = attn(x, batch.batch, batch, carry=initial)
    torch.testing.assert_close(out, attn(x, batch.batch, batch))
    again, _ = attn(x, batch.batch, batch, carry=carry)
    assert not torch.allclose(again, out)  # now virtual nodes know the graph
    assert ExphormerAttention(8, num_virtual=0).initial_carry(3).shape == (3, 0, 8)
    assert ExphormerAttention(8).double().initial_carry(3).dtype == torch.float64


def test_carry_of_a_batch_is_that_of_its_graphs_and_of_no_order():
    attn, batch = jitter(ExphormerAttention(8, heads=2, num_virtual=2)).double(), batch_of()
    x, carry = torch.randn(batch.num_nodes, 8).double(), torch.randn(4, 2, 8).double()
    out, handed = attn(x, batch.batch, batch, carry=carry)
    sizes = batch.ptr.diff().tolist()
    for number, rows in enumerate(x.split(sizes)):
        part = batch.get_example(number)
        alone, own = attn(rows, None, part, carry=carry[number : number + 1])
        torch.testing.assert_close(out[batch.batch == number], alone)
        torch.testing.assert_close(handed[number], own[0])
    perm = block_permutation(batch.batch)
    moved = permute(batch, perm)
    moved_out, moved_carry = attn(x[perm], moved.batch, moved, carry=carry)
    torch.testing.assert_close(moved_out, out[perm])
    torch.testing.assert_close(moved_carry, handed)


def test_virtual_nodes_of_graphs_without_nodes():
    attn = ExphormerAttention(8)
    parts = [expanded(data) for data in (empty_graph(), GRAPHS["path"], empty_graph())]
    batch = Batch.from_data_list(parts)
    out, carry = attn(torch.randn(4, 8), batch.batch, batch, carry=attn.initial_carry(3))
    assert out.shape == (4, 8)
    assert torch.equal(carry[[0, 2], 0], attn.out.bias.expand(2, -1))
    model = GPSModel(4, 8, 2, 2, attn=lambda _: ExphormerAttention(8), pool="mean")
    assert model(batch.x.float(), batch.edge_index, batch.batch, batch).shape == (3, 2)
    empty = expanded(empty_graph())
    assert model(empty.x.float(), empty.edge_index, None, empty).shape == (1, 2)


@pytest.mark.parametrize("num_virtual", [0, 1, 3])
def test_every_parameter_of_a_stack_has_a_gradient(num_virtual):
    batch = batch_of()
    model = GPSModel(
        4, 8, 2, 3, lambda _: GCNConv(8, 8), lambda _: ExphormerAttention(8, heads=2, num_virtual=num_virtual)
    )
    out = model(batch.x.float(), batch.edge_index, batch.batch, batch)
    (out * torch.randn_like(out)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if "norm" not in name and ".conv." not in name:  # a norm removes the convolution's bias
            assert (parameter.grad != 0).any(), name


def test_stack_hands_the_carry_on():
    """One layer sees two hops of a path at most; through virtual nodes two layers see all of it."""
    data = Data(x=torch.randn(40, 8), edge_index=torch.tensor([[*range(39)], [*range(1, 40)]]))
    data.x.requires_grad_()

    def reach(num_virtual):
        layers = [GPSLayer(8, attn=ExphormerAttention(8, 2, num_virtual, expander=False), norm=None) for _ in range(2)]
        x, carry = data.x, layers[0].attn.initial_carry(1)
        for layer in layers:
            x, carry = layer(x, data.edge_index, None, data, carry)
        (grad,) = torch.autograd.grad(x[20].sum(), data.x)
        return grad.abs().sum(1).nonzero().flatten().tolist()

    assert reach(0) == [18, 19, 20]
    assert reach(1) == [*range(40)]


def test_layers_share_one_structure(monkeypatch):
    built, pattern = [], edge_softmax.Pattern
    monkeypatch.setattr(edge_softmax, "Pattern", lambda *args: built.append(1) or pattern(*args))
    batch = batch_of()
    model = GPSModel(4, 8, 2, 4, attn=lambda _: ExphormerAttention(8))
    model(batch.x.float(), batch.edge_index, batch.batch, batch)
    assert len(built) == 1  # for all four layers


def test_checkpointing_changes_no_gradient():
    torch.manual_seed(0)
    batch = batch_of()
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64, requires_grad=True)
    layers = [
        GPSLayer(8, GCNConv(8, 8), ExphormerAttention(8, heads=2, num_virtual=2), norm="layer_norm").double()
        for _ in range(3)
    ]
    parameters = [x, *(value for layer in layers for value in layer.parameters())]

    def run(call):
        out, carry = x, layers[0].attn.initial_carry(4)
        for layer in layers:
            out, carry = call(layer, out, batch.edge_index, batch.batch, batch, carry)
        return torch.autograd.grad(out.square().sum(), parameters)

    plain = run(lambda layer, *args: layer(*args))
    again = run(lambda layer, *args: checkpoint(layer, *args, use_reentrant=False))
    for a, b in zip(plain, again):
        torch.testing.assert_close(a, b)


def test_model_in_a_batch_equals_model_alone():
    model = GPSModel(4, 8, 2, 3, attn=lambda _: jitter(ExphormerAttention(8, 2, 2)), pool="mean").double().eval()
    batch = batch_of()
    parts = [batch.get_example(number) for number in range(4)]
    alone = torch.cat([model(part.x, part.edge_index, None, part) for part in parts])
    torch.testing.assert_close(model(batch.x, batch.edge_index, batch.batch, batch), alone, rtol=1e-9, atol=1e-9)


def test_carry_under_autocast_and_in_bfloat16():
    batch = batch_of()
    layers = [ExphormerAttention(8, heads=2) for _ in range(2)]
    x = torch.randn(batch.num_nodes, 8)

    def run(x):
        out, carry = layers[0](x, batch.batch, batch, carry=layers[0].initial_carry(4))
        return layers[1](out, batch.batch, batch, carry=carry)[0]

    exact = run(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (run(x).float() - exact).norm() < 0.05 * exact.norm()
    for layer in layers:
        layer.bfloat16()
    out = run(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out.float() - exact).norm() < 0.05 * exact.norm()


def test_encoded_edge_features_get_gradients():
    batch, encoder = batch_of(), Linear(3, 5)
    batch.edge_attr = encoder(batch.edge_attr.float())
    attn = ExphormerAttention(8, heads=2, edge_dim=5)
    attn(torch.randn(batch.num_nodes, 8), batch.batch, batch).square().sum().backward()
    assert (encoder.weight.grad != 0).any()
    one = batch_of(width=1)
    narrow = ExphormerAttention(8, heads=2, edge_dim=1)
    x = torch.randn(one.num_nodes, 8)
    wanted = narrow(x, one.batch, one)
    one.edge_attr = one.edge_attr[:, 0]
    assert torch.equal(narrow(x, one.batch, one), wanted)
    model = GPSModel(
        4, 8, 2, 2, lambda _: GINEConv(Linear(8, 8)), lambda _: ExphormerAttention(8, edge_dim=3), edge_dim=3
    )
    batch = batch_of()
    out = model(batch.x.float(), batch.edge_index, batch.batch, batch, edge_attr=batch.edge_attr.float())
    assert out.isfinite().all()


def test_dropout_acts_in_training_only():
    batch, attn = batch_of(), ExphormerAttention(8, dropout=0.5)
    x = torch.randn(batch.num_nodes, 8)
    assert not torch.equal(attn(x, batch.batch, batch), attn(x, batch.batch, batch))
    attn.eval()
    plain = ExphormerAttention(8)
    plain.load_state_dict(attn.state_dict())
    assert torch.equal(attn(x, batch.batch, batch), plain(x, batch.batch, batch))


def test_reset_draws_anew():
    attn = jitter(ExphormerAttention(8, edge_dim=2))
    before = {name: value.clone() for name, value in attn.named_parameters()}
    attn.reset_parameters()
    assert all(not torch.equal(value, before[name]) for name, value in attn.named_parameters())
    assert (attn.edge_type == 1).all()


def test_requires_and_size():
    assert ExphormerAttention(8).requires == ("expander_index", "expander_size")
    assert ExphormerAttention(8, expander=False).requires == ()
    assert ExphormerAttention(8).edge_type.shape == (4, 8)
    assert ExphormerAttention(8, num_virtual=0, expander=False).edge_type.shape == (1, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 3}, r"divisible by 'heads' \(got 8 and 3\)"),
        ({"num_virtual": -1}, r"'num_virtual' must be at least 0 \(got -1\)"),
        ({"edge_dim": 0}, r"'edge_dim' must be at least 1 \(got 0\)"),
        ({"edge_dim": 3, "graph_edges": False}, "edge_dim=3 needs graph edges"),
        ({"dropout": 1.0}, r"in \[0, 1\) \(got 1.0\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ExphormerAttention(8, **arguments)


def test_bad_graphs_and_carries_are_refused():
    attn, data = ExphormerAttention(8, num_virtual=2), expanded(GRAPHS["star"])
    x = torch.randn(5, 8)
    for shape in ((1, 1, 8), (0, 2, 8), (2, 8)):
        with pytest.raises(ValueError, match=r"'carry' must have shape \[1, 2, 8\].*initial_carry"):
            attn(x, None, data, carry=torch.zeros(shape))
    for other in (attn, ExphormerAttention(8, expander=False)):
        with pytest.raises(ValueError, match="graph has 5 nodes, but 'x' has 4 rows"):
            other(x[:4], None, data)
        with pytest.raises(ValueError, match="graph has 5 nodes, but 'x' has 6 rows"):
            other(torch.randn(6, 8), None, data)
    plain = ExphormerAttention(8, expander=False)
    unstated = Data(edge_index=torch.tensor([[0], [1]]))  # PyG would guess 2 nodes
    assert plain(x, None, unstated).shape == (5, 8)
    with pytest.raises(ValueError, match=r"num_virtual=2, but AddExpanderEdges was given another"):
        attn(x, None, expanded(GRAPHS["star"], num_virtual=1))
    attn(x, None, expanded(GRAPHS["star"], num_virtual=2))
    bare = data.clone()
    del bare.edge_index
    with pytest.raises(ValueError, match="needs the graph's edges, 'edge_index' or 'adj_t'"):
        attn(x, None, bare)
    with pytest.raises(ValueError, match="edge_dim=3, but the graph has no 'edge_attr'"):
        ExphormerAttention(8, edge_dim=3)(x, None, data)
    data.edge_attr = torch.rand(8, 2)
    with pytest.raises(ValueError, match=r"'edge_attr' must have shape \[8, 3\].*got \[8, 2\]"):
        ExphormerAttention(8, edge_dim=3)(x, None, data)


@pytest.mark.sparse
def test_sparse_tensor_in_place_of_edges():
    torch_sparse = pytest.importorskip("torch_sparse")
    attn, data = ExphormerAttention(8), expanded(GRAPHS["one_way"])
    x = torch.randn(5, 8)
    wanted = attn(x, None, data)
    row, col = data.edge_index
    data.adj_t = torch_sparse.SparseTensor(row=col, col=row, sparse_sizes=(5, 5))
    del data.edge_index
    torch.testing.assert_close(attn(x, None, data), wanted)
