import pytest
import torch
from torch.nn import Linear
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import ATTENTION, FullAttention, GPSLayer, GPSModel, GPSStack, SANAttention
from pyg_topomask.testing import GRAPHS, AttentionCase


def with_features(data, width=3):
    data = data.clone()
    data.edge_attr = torch.sin(torch.arange(float(width * data.num_edges), dtype=torch.float64)).view(-1, width)
    return data


def odd():
    """Edges that are there twice, in one direction only, and from a node to itself; a node with nothing but itself."""
    edge_index = torch.tensor([[0, 0, 1, 2, 2, 3], [1, 1, 0, 2, 2, 1]])
    return Data(x=torch.randn(5, 4, dtype=torch.float64), edge_index=edge_index, num_nodes=5)


def batch_of(*names, width=3):
    names = names or ("path", "odd", "isolated", "single", "star", "one_way")
    return Batch.from_data_list([with_features(odd() if name == "odd" else GRAPHS[name], width) for name in names])


def jitter(attn):
    """Move the edge vectors off their common start."""
    with torch.no_grad():
        for vector in (attn.edge_vector, attn.absent_vector):
            if vector is not None:
                vector.mul_(1 + 0.5 * torch.randn_like(vector))
    return attn


class SANCase(AttentionCase):
    settings = {}  # noqa: RUF012

    def build(self):
        return jitter(SANAttention(self.channels, heads=2, **{"gamma": 0.2, **self.settings}))

    def prepare(self, data):
        data = with_features(data)
        data.edge_attr = data.edge_attr.float()
        return data


class TestSAN(SANCase):
    def build(self):
        return ATTENTION["SAN"](self.channels, heads=2)


class TestEdgeFeatures(SANCase):
    settings = {"edge_dim": 3, "bias": True}  # noqa: RUF012


class TestTinyGamma(SANCase):
    settings = {"edge_dim": 3, "gamma": 1e-6}  # noqa: RUF012


class TestNeighboursOnly(SANCase):
    settings = {"edge_dim": 3, "full_graph": False}  # noqa: RUF012


def san_reference(attn, x, batch):
    """The attention from its definition: exponentials of all pairs in one dense matrix, weighted by both factors."""
    n, width = x.size(0), attn.channels // attn.heads
    same = (batch.batch[:, None] == batch.batch) & ~torch.eye(n, dtype=torch.bool)
    q, k, v = (x @ attn.qkv.weight.t()).split(attn.channels, 1)
    real, absent = 1 / (1 + attn.gamma), attn.gamma / (1 + attn.gamma)
    if attn.full_graph:
        q2, k2 = (x @ attn.absent_qk.weight.t()).split(attn.channels, 1)
        e2 = attn.absent_vector if attn.absent is None else attn.absent.weight @ attn.absent_vector
    heads = []
    for h in range(attn.heads):
        part = slice(h * width, (h + 1) * width)
        weight = torch.zeros(n, n, dtype=x.dtype)  # receiver × sender
        is_edge = torch.zeros(n, n, dtype=torch.bool)
        for number, (j, i) in enumerate(batch.edge_index.t().tolist()):
            e = attn.edge_vector if attn.edge is None else attn.edge.weight @ batch.edge_attr[number]
            score = (q[i, part] * k[j, part] * e[part]).sum() / width**0.5
            step = torch.zeros(n, n, dtype=x.dtype)
            step[i, j] = 1
            weight, is_edge[i, j] = weight + real * score.exp() * step, True
        if attn.full_graph:
            score = (q2[:, part] * e2[part]) @ k2[:, part].t() / width**0.5
            weight = weight + absent * score.exp().masked_fill(~same | is_edge, 0)
        total = weight.sum(1, keepdim=True)
        heads.append(weight @ v[:, part] / torch.where(total > 0, total, 1))
    return torch.cat(heads, 1) @ attn.out.weight.t() + attn.out.bias


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("settings", [{"gamma": 1e-6}, {"gamma": 0.1}, {"gamma": 30.0}, {"full_graph": False}], ids=str)
def test_is_the_formula(settings, edge_dim):
    torch.manual_seed(0)
    batch = batch_of()
    attn = jitter(SANAttention(8, heads=2, edge_dim=edge_dim, **settings)).double()
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64)
    wanted = san_reference(attn, x, batch)
    torch.testing.assert_close(attn(x, batch.batch, batch), wanted, rtol=1e-10, atol=1e-12)
    single = attn.float()(x.float(), batch.batch, batch)
    torch.testing.assert_close(single, wanted.float(), rtol=1e-4, atol=1e-5)


def test_without_edges_it_is_softmax_attention_to_the_others():
    attn = SANAttention(4).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    out = attn(x, None, Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=3))
    q, k = (x @ attn.absent_qk.weight.t()).split(4, 1)
    score = (q @ k.t() / 2).masked_fill(torch.eye(3, dtype=torch.bool), -torch.inf)
    v = x @ attn.qkv.weight[8:].t()
    torch.testing.assert_close(out, attn.out(score.softmax(1) @ v))


def test_a_complete_graph_with_self_loops_is_softmax_attention():
    """Every pair is an edge, so nothing is absent, and vectors start as ones."""
    attn, full = SANAttention(8, heads=2).double(), FullAttention(8, heads=2, bias=False).double()
    full.load_state_dict({"qkv.weight": attn.qkv.weight, "out.weight": attn.out.weight}, strict=True)
    with torch.no_grad():
        attn.out.bias.zero_()
    row, col = torch.cartesian_prod(torch.arange(5), torch.arange(5)).t()
    x = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(attn(x, None, Data(edge_index=torch.stack([row, col]), num_nodes=5)), full(x))


def test_a_node_with_nothing_to_see_has_the_output_of_zero():
    x, attn = torch.randn(1, 8), SANAttention(8)
    assert torch.equal(attn(x, None, GRAPHS["single"])[0], attn.out.bias)
    star, near = GRAPHS["one_way"], SANAttention(8, full_graph=False)
    lonely = Data(edge_index=star.edge_index, num_nodes=6)
    assert torch.equal(near(torch.randn(6, 8), None, lonely)[5], near.out.bias)


def test_a_second_copy_of_an_edge_counts_and_makes_no_pair_absent():
    attn = jitter(SANAttention(8, heads=2, gamma=0.5)).double()
    x, path = torch.randn(4, 8, dtype=torch.float64), GRAPHS["path"].edge_index
    once = attn(x, None, Data(edge_index=path, num_nodes=4))
    twice = attn(x, None, Data(edge_index=path.repeat(1, 2), num_nodes=4))
    assert not torch.allclose(once, twice)
    attn.gamma = 1.0  # edges twice is absent pairs half
    torch.testing.assert_close(attn(x, None, Data(edge_index=path.repeat(1, 2), num_nodes=4)), once)


def test_large_features_stay_finite():
    batch, attn = batch_of(), SANAttention(8, heads=2, edge_dim=3)
    x = (1e6 * torch.randn(batch.num_nodes, 8)).requires_grad_()
    out = attn(x, batch.batch, batch)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(value.grad.isfinite().all() for value in (x, *attn.parameters()))


def test_layers_of_a_stack_share_what_stands_for_absent_edges():
    batch = batch_of("path", "star")
    stack = GPSStack(8, 3, attn=lambda _: SANAttention(8, 2, edge_dim=3), norm=None).double()
    assert len({id(layer.attn.absent_vector) for layer in stack}) == 1
    names = [name for name, _ in stack.named_parameters() if name.endswith("absent_vector")]
    assert names == ["0.attn.absent_vector"]
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64)
    stack(x, batch.edge_index, batch.batch, batch).square().sum().backward()
    for name, parameter in stack.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).any(), name
    apart = GPSStack(8, 3, attn=lambda _: SANAttention(8, 2))
    assert len({id(layer.attn.absent_vector) for layer in apart}) == 3


def test_only_equal_layers_are_tied():
    with pytest.raises(TypeError, match=r"tied to each other only \(got a FullAttention\)"):
        SANAttention(8).tie(FullAttention(8))
    with pytest.raises(ValueError, match=r"same 'edge_dim' and 'full_graph'.*got None and True after 3 and True"):
        SANAttention(8).tie(SANAttention(8, edge_dim=3))


def test_checkpointing_changes_no_gradient():
    batch = batch_of("path", "star")
    x = torch.randn(batch.num_nodes, 8, dtype=torch.float64, requires_grad=True)
    layer = GPSLayer(8, GCNConv(8, 8), SANAttention(8, 2, edge_dim=3), norm="layer_norm").double()
    given, inputs = (x, batch.edge_index, batch.batch, batch), (x, *layer.parameters())
    plain = torch.autograd.grad(layer(*given).square().sum(), inputs)
    again = torch.autograd.grad(checkpoint(layer, *given, use_reentrant=False).square().sum(), inputs)
    torch.testing.assert_close(plain, again)


def test_model_in_a_batch_equals_model_alone():
    model = GPSModel(4, 8, 2, 3, attn=lambda _: SANAttention(8, 2), pool="mean").double().eval()
    batch = batch_of()
    parts = [batch.get_example(number) for number in range(batch.num_graphs)]
    alone = torch.cat([model(part.x, part.edge_index, None, part) for part in parts])
    torch.testing.assert_close(model(batch.x, batch.edge_index, batch.batch, batch), alone, rtol=1e-9, atol=1e-9)


def test_encoded_edge_features_get_gradients():
    batch, encoder = batch_of(), Linear(3, 5)
    batch.edge_attr = encoder(batch.edge_attr.float())
    attn = SANAttention(8, heads=2, edge_dim=5)
    attn(torch.randn(batch.num_nodes, 8), batch.batch, batch).square().sum().backward()
    assert (encoder.weight.grad != 0).any()
    one, narrow = batch_of(width=1), SANAttention(8, heads=2, edge_dim=1)
    x = torch.randn(one.num_nodes, 8)
    wanted = narrow(x, one.batch, one)
    one.edge_attr = one.edge_attr[:, 0]
    assert torch.equal(narrow(x, one.batch, one), wanted)


def test_dropout_acts_in_training_only():
    batch, attn = batch_of(), SANAttention(8, gamma=1.0, dropout=0.5)
    x = torch.randn(batch.num_nodes, 8)
    assert not torch.equal(attn(x, batch.batch, batch), attn(x, batch.batch, batch))
    attn.eval()
    plain = SANAttention(8, gamma=1.0)
    plain.load_state_dict(attn.state_dict())
    assert torch.equal(attn(x, batch.batch, batch), plain(x, batch.batch, batch))


def test_reset_draws_anew():
    plain, featured = jitter(SANAttention(8, bias=True)), SANAttention(8, edge_dim=2)
    for attn in (plain, featured):
        before = {name: value.clone() for name, value in attn.named_parameters()}
        attn.reset_parameters()
        assert all(not torch.equal(value, before[name]) for name, value in attn.named_parameters())
    assert (plain.edge_vector == 1).all()
    assert (plain.absent_vector == 1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 3}, r"divisible by 'heads' \(got 8 and 3\)"),
        ({"edge_dim": 0}, r"'edge_dim' must be at least 1 \(got 0\)"),
        ({"gamma": 0.0}, r"'gamma' must be a positive number \(got 0.0\); full_graph=False leaves out"),
        ({"gamma": float("inf")}, r"'gamma' must be a positive number \(got inf\)"),
        ({"gamma": float("nan")}, r"'gamma' must be a positive number \(got nan\)"),
        ({"dropout": 1.0}, r"in \[0, 1\) \(got 1.0\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SANAttention(8, **arguments)


def test_bad_graphs_are_refused():
    attn, data, x = SANAttention(8), GRAPHS["star"].clone(), torch.randn(5, 8)
    with pytest.raises(ValueError, match="SANAttention needs the graph: give it a Data or Batch"):
        attn(x)
    with pytest.raises(TypeError, match=r"takes a Data or Batch \(got Tensor\)"):
        attn(x, torch.zeros(5, dtype=torch.long), data.edge_index)
    with pytest.raises(ValueError, match="needs the graph's edges, 'edge_index' or 'adj_t'"):
        attn(x, None, Data(x=x))
    for rows in (4, 6):
        with pytest.raises(ValueError, match=f"graph has 5 nodes, but 'x' has {rows} rows"):
            attn(torch.randn(rows, 8), None, data)
    with pytest.raises(ValueError, match="'edge_index' contains node 4, but nodes are 0 to 3"):
        attn(x[:4], None, Data(edge_index=data.edge_index))
    assert attn(x, None, Data(edge_index=torch.tensor([[0], [1]]))).shape == (5, 8)  # PyG would guess 2 nodes
    with pytest.raises(ValueError, match="joins nodes 0 and 4 of different graphs"):
        attn(x, torch.tensor([0, 0, 0, 0, 1]), data)
    with pytest.raises(ValueError, match="edge_dim=3, but the graph has no 'edge_attr'"):
        SANAttention(8, edge_dim=3)(x, None, data)
    data.edge_attr = torch.rand(8, 2)
    with pytest.raises(ValueError, match=r"'edge_attr' must have shape \[8, 3\].*got \[8, 2\]"):
        SANAttention(8, edge_dim=3)(x, None, data)


@pytest.mark.sparse
def test_sparse_tensor_in_place_of_edges():
    torch_sparse = pytest.importorskip("torch_sparse")
    attn, data = SANAttention(8), GRAPHS["one_way"].clone()
    x = torch.randn(5, 8)
    wanted = attn(x, None, data)
    row, col = data.edge_index
    data.adj_t = torch_sparse.SparseTensor(row=col, col=row, sparse_sizes=(5, 5))
    del data.edge_index
    torch.testing.assert_close(attn(x, None, data), wanted)
