"""What masked attention divides by: bounds on its output, agreement of all paths, and vanishing denominators."""

from functools import cache

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch
from torch_geometric.utils import from_networkx

from pyg_topomask.nn import GKATAttention, GKATConv, GRFAttention, GRFMask, MaskedAttention
from pyg_topomask.operators import DenseOperator, GRFOperator, MaskOperator
from pyg_topomask.ops import masked_additive_attention, masked_linear_attention, masked_softmax_attention
from pyg_topomask.ops.attention.masked_additive import masked_additive_attention_reference
from pyg_topomask.ops.attention.masked_linear import masked_linear_attention_reference
from pyg_topomask.ops.attention.masked_softmax import masked_softmax_attention_reference
from pyg_topomask.ops.walks.product import walk_product
from pyg_topomask.transforms import AddRandomWalks

K = 3
LINEAR = ("auto", "factored", "pairwise", "blocks", "dense")
KERNELS = ("relu", "elu1", "square", "exp", "softmax_rf", "softmax")
DECALIN = [(i, (i + 1) % 10) for i in range(10)] + [(0, 5)]
GRAPHS = {
    "regular": lambda: nx.random_regular_graph(3, 20, seed=0),
    "grid": lambda: nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 5)),
    "molecule": lambda: nx.Graph([*DECALIN, (3, 10), (10, 11), (10, 12), (12, 13)]),
}
EXACT = {torch.float64: 1e-10, torch.float32: 2e-4}


@cache
def walked(name):
    if name == "batch":
        return Batch.from_data_list([walked(each) for each in GRAPHS])
    graph = from_networkx(GRAPHS[name]())
    graph.pos = None
    return AddRandomWalks(4, K, seed=1)(graph)


def grf(data, f, dtype, symmetric=True):
    """The GRF mask of a graph with modulation function ``f``, one or one per head."""
    mask = GRFMask(1 if f.dim() == 1 else f.size(0), K, symmetric).to(dtype)
    mask.modulation.data.copy_(f)
    return mask(data)


def largest(v, batch):
    """Largest absolute value of each row's graph, head and channel."""
    return torch.stack([v[batch == graph].abs().amax(0) for graph in batch])


SIGNED = st.lists(st.floats(-1, 1, width=32), min_size=K + 1, max_size=K + 1).filter(lambda f: max(map(abs, f)) > 1e-3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from([*GRAPHS, "batch"]),
    kernel=st.sampled_from(KERNELS),
    path=st.sampled_from(LINEAR),
    dtype=st.sampled_from(list(EXACT)),
    f=st.lists(SIGNED, min_size=2, max_size=2),
    alike=st.booleans(),
    symmetric=st.booleans(),
    seed=st.integers(0, 100),
)
def test_no_output_exceeds_the_largest_value_and_all_paths_are_the_definition(
    name, kernel, path, dtype, f, alike, symmetric, seed
):
    if kernel == "softmax" and path == "factored":
        path = "auto"
    torch.manual_seed(seed)
    data = walked(name)
    batch = data.get("batch", torch.zeros(data.num_nodes, dtype=torch.long))
    attn = GRFAttention(8, 2, K, kernel, symmetric, path=path, num_features=6).to(dtype).eval()
    attn.mask.modulation.data.copy_(torch.tensor(f))
    attn.out = torch.nn.Identity()
    x = torch.ones(data.num_nodes, 8, dtype=dtype) if alike else torch.randn(data.num_nodes, 8, dtype=dtype)
    x.requires_grad_()
    out = attn(x, data.get("batch"), data).unflatten(1, (2, 4))
    q, k, v = attn.qkv(x).detach().unflatten(1, (3, 2, 4)).unbind(1)
    limit = largest(v, batch)
    assert (out.abs() <= (1 + 1e-4) * limit).all()
    assert torch.autograd.grad(out.square().sum(), x)[0].isfinite().all()
    mask = attn.mask(data)
    matrices = mask.to_dense().double(), mask.bound.to_dense().double()
    if attn.feature_map is None:
        wanted = masked_softmax_attention_reference(q.double(), k.double(), v.double(), *matrices)
    else:
        q, k = attn.feature_map(q, k, data.get("batch"))
        wanted = masked_linear_attention_reference(q.double(), k.double(), v.double(), matrices[0], None, matrices[1])
    assert ((out - wanted).abs() <= EXACT[dtype] * limit).all()


@settings(max_examples=20, deadline=None, derandomize=True)
@given(name=st.sampled_from([*GRAPHS, "batch"]), f=SIGNED, dtype=st.sampled_from(list(EXACT)), seed=st.integers(0, 100))
def test_additive_attention_obeys_the_same_rule(name, f, dtype, seed):
    torch.manual_seed(seed)
    data = walked(name)
    mask, n = grf(data, torch.tensor(f), dtype), data.num_nodes
    receiver, sender, v = (torch.randn(n, 2, *shape, dtype=dtype) for shape in ((), (), (3,)))
    for normalizer in ("bound", "signed"):
        numbers = {"normalizer": normalizer, "tolerance": 1e-5}
        wanted = masked_additive_attention_reference(
            *(x.double() for x in (receiver, sender, v)),
            mask.to_dense().double(),
            bound=mask.bound.to_dense(),
            **numbers,
        )
        for path in ("pairwise", "blocks"):
            out = masked_additive_attention(receiver, sender, v, mask, data.get("batch"), path, normalizer=normalizer)
            if normalizer == "bound":
                assert ((out - wanted).abs() <= EXACT[dtype] * v.abs().max()).all()
            elif dtype == torch.float64:
                far = wanted.abs().amax((1, 2)) < 100 * v.abs().max()  # of cancellation
                torch.testing.assert_close(out[far], wanted[far], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("attention", [GRFAttention, GKATAttention, MaskedAttention])
def test_both_normalizers_are_the_same_where_no_parameter_is_negative(attention, kernel):
    walks = AddRandomWalks(4, K, 0.0, independent=False, seed=1)
    data = walked("batch") if attention is GRFAttention else walks(walked("molecule").clone())
    attn = attention(8, 2, kernel=kernel, **({} if attention is MaskedAttention else {"max_length": K}))
    x = torch.randn(data.num_nodes, 8)
    wanted = attn(x, graph=data)
    attn.normalizer = "signed"
    torch.testing.assert_close(attn(x, graph=data), wanted)
    assert "normalizer='signed'" in repr(attn)


def test_the_gat_shaped_layer_has_both_normalizers():
    data = AddRandomWalks(4, K, 0.0, independent=False, seed=1)(walked("molecule").clone())
    x = torch.randn(data.num_nodes, 5)
    outs = []
    for normalizer in ("bound", "signed"):
        torch.manual_seed(0)
        outs.append(GKATConv(5, 3, max_length=K, normalizer=normalizer)(x, graph=data))
    torch.testing.assert_close(*outs)


# Learned modulation functions of a run, and one near cancellation.
MODULATIONS = ([1.0, 0.2, -0.1, 0, 0], [1.096, 0.14, 0.13, -0.276, -0.058])


@pytest.mark.parametrize("f", MODULATIONS)
def test_learned_signs_leave_outputs_and_gradients_of_a_grid_small(f):
    grid = from_networkx(nx.convert_node_labels_to_integers(nx.grid_2d_graph(8, 8)))
    grid.pos = None
    batch = Batch.from_data_list([AddRandomWalks(16, 4, seed=0)(grid)] * 8)
    torch.manual_seed(0)
    attn, x = GRFAttention(32, 4), torch.randn(batch.num_nodes, 32, requires_grad=True)
    attn.mask.modulation.data.copy_(torch.tensor(f).expand(4, 5))
    out = attn(x, graph=batch)
    out.sum().backward()
    assert out.abs().max() < 2  # the signed form gives 149 and 3,100 here
    assert x.grad.abs().max() < 50  # and 3.6e4 and 1.5e7


@cache
def cancelling():
    """Walks on a regular graph, under which the rows of I − W vanish exactly for many nodes."""
    graph = from_networkx(nx.random_regular_graph(3, 1000, seed=0))
    return AddRandomWalks(4, K, seed=1)(graph)


@pytest.mark.parametrize("dtype", list(EXACT))
@pytest.mark.parametrize("path", LINEAR)
def test_equal_features_under_a_cancelling_mask(path, dtype):
    data, f = cancelling(), torch.tensor([1.0, -1, 0, 0])
    mask, matrix = grf(data, f, dtype), grf(data, f, torch.float64).to_dense()
    torch.manual_seed(0)
    features = torch.ones(1000, 1, 4, dtype=dtype, requires_grad=True)
    v = torch.randn(1000, 1, 3, dtype=dtype)
    out = masked_linear_attention(features, features, v, mask, path=path)
    assert (out.abs() <= (1 + 1e-4) * v.abs().amax()).all()
    assert torch.autograd.grad(out.sum(), features)[0].abs().max() < 10
    # Signed: rows that cancel but for rounding are zero on every path, and no other row is.
    total, size = matrix.sum(1), matrix.abs().sum(1)
    gone = total.abs() <= 1e-5 * size
    assert 100 < gone.sum() < 900
    out = masked_linear_attention(features, features, v, mask, path=path, normalizer="signed")
    assert torch.equal((out == 0).all((1, 2)), gone)  # they are set to zero, not computed
    assert torch.autograd.grad(out.sum(), features)[0].isfinite().all()
    wanted = (matrix @ v[:, 0].double()) / total[:, None]
    torch.testing.assert_close(out[~gone, 0].double(), wanted[~gone], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("path", LINEAR)
def test_a_mask_of_float32_numbers_cancels_up_to_their_precision_in_float64(path):
    index, length = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 1, 2]]), torch.zeros(5, dtype=torch.long)
    load = torch.tensor([0.1, 0.2, -0.3, 1, 1])  # 0.1 + 0.2 - 0.3 is 7e-9 in float64
    walks = walk_product(index, length, load, None, None, None, 3, 0, torch.float64)
    mask = GRFOperator(walks, torch.ones(1, dtype=torch.float64))
    q, v = torch.ones(3, 1, 2, dtype=torch.float64), torch.randn(3, 1, 2, dtype=torch.float64)
    out = masked_linear_attention(q, q, v, mask, path=path, normalizer="signed")
    assert (out[0] == 0).all()
    torch.testing.assert_close(out[1:], v[1:])


@pytest.mark.parametrize("normalizer", ["bound", "signed"])
@pytest.mark.parametrize("path", LINEAR)
def test_a_graph_alone_and_in_a_batch_vanishes_alike(path, normalizer):
    f = torch.tensor([1.0, -1, 0, 0])
    batch = walked("batch")
    q = torch.ones(batch.num_nodes, 1, 4)
    v = torch.randn(batch.num_nodes, 1, 3)
    together = masked_linear_attention(q, q, v, grf(batch, f, q.dtype), batch.batch, path, normalizer)
    for number, name in enumerate(GRAPHS):
        mine = batch.batch == number
        alone = masked_linear_attention(
            q[mine], q[mine], v[mine], grf(walked(name), f, q.dtype), None, path, normalizer
        )
        torch.testing.assert_close(together[mine], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalizer", ["bound", "signed"])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("path", ["factored", "pairwise", "blocks", "dense"])
def test_features_with_signs_are_bounded_by_absolute_features(path, masked, normalizer):
    torch.manual_seed(0)
    data = walked("batch")
    mask = grf(data, torch.tensor([1.0, -0.4, 0.3, 0.2]), torch.float64) if masked else None
    q, k, v = (torch.randn(data.num_nodes, 2, c, dtype=torch.float64, requires_grad=True) for c in (4, 4, 3))
    out = masked_linear_attention(q, k, v, mask, data.batch, path, normalizer)
    if normalizer == "bound":
        assert (out.abs() <= (1 + 1e-12) * largest(v, data.batch)).all()
    dense = (None, None) if mask is None else (mask.to_dense(), mask.bound.to_dense())
    wanted = masked_linear_attention_reference(q, k, v, dense[0], data.batch, dense[1], normalizer)
    torch.testing.assert_close(out, wanted)
    grads = (torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (out, wanted))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


class Rough(MaskOperator):
    """A positive mask whose products are off by its error, as those by a transform are."""

    def __init__(self, matrix, error):
        self.matrix, self.num_nodes, self.dtype = matrix, matrix.size(0), matrix.dtype
        self.off = error

    T = property(lambda self: Rough(self.matrix.t(), self.off))
    bound = property(lambda self: self)
    error = property(lambda self: self.off)

    def _matmul(self, x):
        noise = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
        return self.matrix @ x + self.off * x.norm(dim=0) * noise


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
@pytest.mark.parametrize("per_row", [False, True])
def test_denominators_within_the_error_of_products_vanish(kernel, per_row):
    torch.manual_seed(0)
    n, error = 30, 1e-3
    matrix = torch.rand(n, n, dtype=torch.float64)
    matrix[:10] *= 1e-9  # rows of noise alone
    op = Rough(matrix, torch.full((n, 1), error) if per_row else error)
    q, k = (torch.rand(n, 2, 3, dtype=torch.float64) for _ in range(2))
    v = 1 + 1e-6 * torch.rand(n, 2, 2, dtype=torch.float64)  # nearly equal, so that noise alone takes means beyond them
    attend = masked_softmax_attention if kernel == "softmax" else masked_linear_attention
    for path in ("dense",) if kernel == "softmax" else ("dense", "factored"):
        out = attend(q, k, v, op, path=path)
        assert (out.abs() <= v.abs().amax(0)).all()
        assert (out[:10] == 0).all()
        wanted = attend(q, k, v, matrix, path="dense")
        assert ((out - wanted)[10:].abs() <= 0.02).all()


@pytest.mark.parametrize("attend", [masked_linear_attention, masked_softmax_attention])
def test_an_unknown_normalizer_and_a_mask_without_a_bound_are_refused(attend):
    class Plain(MaskOperator):
        num_nodes = 3
        T = property(lambda self: self)

        def _matmul(self, x):
            return x

    q = torch.rand(3, 1, 2)
    with pytest.raises(ValueError, match=r"'normalizer' must be one of bound, signed \(got 'rows'\)"):
        attend(q, q, q, DenseOperator(torch.eye(3)), normalizer="rows")
    with pytest.raises(NotImplementedError, match="Plain has no bounding mask"):
        attend(q, q, q, Plain(), path="dense")
    with pytest.raises(TypeError, match=r"'mask' must be a MaskOperator or a tensor \(got list\)"):
        attend(q, q, q, [1.0])
    with pytest.raises(ValueError, match=r"a mask must be \[N, N\] or \[H, N, N\] \(got \[3, 2\]\)"):
        attend(q, q, q, torch.ones(3, 2))
    with pytest.raises(ValueError, match="'normalizer' must be one of bound, signed"):
        MaskedAttention(8, normalizer="rows")
    with pytest.raises(ValueError, match="'normalizer' must be one of bound, signed"):
        GKATConv(8, 8, normalizer="rows")
