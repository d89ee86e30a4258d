import warnings

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import erdos_renyi_graph

from pyg_topomask.nn import GRFMask, RWGNKMask
from pyg_topomask.operators import (
    CausalOperator,
    ConstantOperator,
    DenseOperator,
    HeadStackOperator,
    OnesOperator,
    PowerSeriesOperator,
    SparseFactorOperator,
)
from pyg_topomask.ops import masked_linear_attention, masked_softmax_attention
from pyg_topomask.ops.attention import linear_blocks, masked_softmax
from pyg_topomask.ops.attention import masked_linear as masked_attention
from pyg_topomask.ops.attention.mask import BLOCK_ENTRIES
from pyg_topomask.ops.attention.masked_linear import choose_path
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.ops.walks import pair_table as pairs
from pyg_topomask.testing import GRAPHS, permute
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.typing import PerformanceWarning
from tests.ops.attention.pair_cases import compiled

LINEAR = ("factored", "pairwise", "blocks", "dense")
K = 3


def reference(q, k, v, mask, kernel=lambda s: s, bound=None):
    """Definition, head by head of dense masks [N, N] or [H, N, N]; the signed one without a bounding mask."""
    heads = []
    for h in range(q.size(1)):
        entry, size = (m if m.dim() == 2 else m[h] for m in (mask, mask if bound is None else bound))
        score = kernel(q[:, h] @ k[:, h].t())
        heads.append((entry * score / (size * score).sum(1, keepdim=True)) @ v[:, h])
    return torch.stack(heads, 1)


def ring(num_nodes, **settings):
    node = torch.arange(num_nodes)
    data = GRAPHS["path"].clone()
    data.x, data.num_nodes = torch.randn(num_nodes, 4), num_nodes
    data.edge_index = torch.cat(
        [torch.stack([node, (node + 1) % num_nodes]), torch.stack([(node + 1) % num_nodes, node])], 1
    )
    return AddRandomWalks(max_length=K, seed=0, **settings)(data)


def modulation_of(heads, dtype, negative):
    base = torch.tensor([1.0, 0.4, 0.2, 0.1], dtype=dtype)
    if negative:
        base = torch.tensor([1.5, -0.1, 0.1, -0.05], dtype=dtype)
    if heads is None:
        return base
    return torch.stack([base * (1 + 0.1 * h) ** torch.arange(4) for h in range(heads)])


def walked(data, dtype):
    """The GRF operator of a graph as a function of the modulation, which becomes a plain tensor."""
    mask = GRFMask(max_length=K).to(dtype)
    del mask.modulation

    def operator(modulation):
        mask.modulation = modulation
        return mask(data)

    return operator


@pytest.fixture(params=[False, True], ids=["whole", "sliced"])
def sliced(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(masked_attention, "_SLICE_NUMEL", 1)
        monkeypatch.setattr(masked_attention, "_SLICE_COLUMNS", 1)
        monkeypatch.setattr(pairs, "_TERMS_PER_BLOCK", 7)


@pytest.mark.parametrize("stored", [False, True], ids=["walks", "stored_pairs"])
@pytest.mark.parametrize(
    ("negative", "normalizer"),
    [(False, "bound"), (True, "bound"), (True, "signed")],
    ids=["positive", "bound", "signed"],
)
@pytest.mark.parametrize(("heads", "per_head"), [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"])
def test_paths_agree_in_value_and_in_every_gradient(sliced, stored, negative, normalizer, heads, per_head, dtype, tol):
    data = ring(11, pair_table=stored)
    operator = walked(data, dtype)
    f = modulation_of(heads if per_head else None, dtype, negative).requires_grad_()
    q, k = (torch.rand(11, heads, 5, dtype=dtype).add(0.1).requires_grad_() for _ in range(2))
    v = torch.randn(11, heads, 3, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, heads, 3, dtype=dtype)

    def result(out):
        return out, *torch.autograd.grad((out * weight).sum(), (q, k, v, f))

    if negative:
        assert (operator(f).to_dense() < 0).any()
    bound = operator(f).bound.to_dense() if normalizer == "bound" else None
    wanted = result(reference(q, k, v, operator(f).to_dense(), bound=bound))
    for path in LINEAR:
        got = result(masked_linear_attention(q, k, v, operator(f), path=path, normalizer=normalizer))
        for a, b in zip(got, wanted):
            assert (a - b).norm() <= tol * b.norm(), path


@pytest.mark.parametrize("path", LINEAR)
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("normalizer", ["bound", "signed"])
def test_gradcheck_of_each_path(path, per_head, normalizer):
    data = ring(5, num_walks=3)
    operator = walked(data, torch.float64)
    inputs = [torch.rand(5, 2, c, dtype=torch.float64).add(0.2) for c in (2, 2, 3)]
    f = modulation_of(2 if per_head else None, torch.float64, True)

    def run(q, k, v, f):
        return masked_linear_attention(q, k, v, operator(f), path=path, normalizer=normalizer)

    assert torch.autograd.gradcheck(run, tuple(x.requires_grad_() for x in (*inputs, f)))


def test_gradcheck_unmasked():
    batch = torch.tensor([0, 0, 0, 2, 2])
    inputs = tuple(torch.rand(5, 2, c, dtype=torch.float64).add(0.2).requires_grad_() for c in (2, 2, 3))
    assert torch.autograd.gradcheck(lambda q, k, v: masked_linear_attention(q, k, v, None, batch), inputs)
    assert torch.autograd.gradcheck(lambda q, k, v: masked_softmax_attention(q, k, v, None, batch), inputs)


def test_value_is_the_definition():
    q, k = (torch.rand(6, 2, 3, dtype=torch.float64) for _ in range(2))
    v, matrix = torch.randn(6, 2, 4, dtype=torch.float64), torch.rand(6, 6, dtype=torch.float64)
    for mask in (DenseOperator(matrix), matrix):
        for path in ("auto", "factored", "dense"):
            out = masked_linear_attention(q, k, v, mask, path=path)
            torch.testing.assert_close(out, reference(q, k, v, matrix), rtol=1e-12, atol=1e-12)
    stacked = torch.rand(2, 6, 6, dtype=torch.float64)
    out = masked_linear_attention(q, k, v, DenseOperator(stacked))
    torch.testing.assert_close(out, reference(q, k, v, stacked), rtol=1e-12, atol=1e-12)


def test_package_reference_is_the_definition():
    q, k = (torch.rand(6, 2, 3, dtype=torch.float64) for _ in range(2))
    v, matrix = torch.randn(6, 2, 4, dtype=torch.float64), torch.rand(6, 6, dtype=torch.float64)
    out = masked_attention.masked_linear_attention_reference(q, k, v, matrix)
    torch.testing.assert_close(out, reference(q, k, v, matrix), rtol=1e-12, atol=1e-12)
    batch = torch.tensor([0, 0, 0, 0, 1, 1])
    out = masked_attention.masked_linear_attention_reference(q, k, v, None, batch)
    same = (batch[:, None] == batch).double()
    torch.testing.assert_close(out, reference(q, k, v, same), rtol=1e-12, atol=1e-12)


def softmax_weights(q, k):
    return torch.einsum("ihr,jhr->hij", q, k) * q.size(-1) ** -0.5


@pytest.mark.parametrize("path", ["auto", "pairwise", "dense"])
@pytest.mark.parametrize("per_head", [False, True])
def test_softmax_attention_is_the_definition(path, per_head):
    n, heads = 7, 2
    q, k, v = (torch.randn(n, heads, c, dtype=torch.float64, requires_grad=True) for c in (3, 3, 4))
    matrix = torch.rand(n, n, dtype=torch.float64) * (torch.rand(n, n) > 0.5) + torch.eye(n)
    index = matrix.nonzero().t()
    value = matrix[index[0], index[1]]
    if per_head:
        value = torch.stack([value, value.flip(0)], 1)
    value.requires_grad_()
    mask = SparseFactorOperator((index, value), None, n)
    out = masked_softmax_attention(q, k, v, mask, path=path)
    wanted = reference(q, k, v, mask.to_dense(), lambda s: (s * 3**-0.5).exp())
    torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-12)
    weight, inputs = torch.randn_like(out), (q, k, v, value)
    grads = torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True)
    for a, b in zip(grads, torch.autograd.grad((wanted * weight).sum(), inputs)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    if path != "auto":
        run = lambda q, k, v, value: masked_softmax_attention(  # noqa: E731
            q, k, v, SparseFactorOperator((index, value), None, n), path=path
        )
        assert torch.autograd.gradcheck(run, inputs)


def test_softmax_attention_without_a_mask_is_softmax_per_graph():
    sizes = [3, 1, 0, 5]
    batch = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    q, k, v = (torch.randn(9, 2, c, dtype=torch.float64) for c in (3, 3, 4))
    out = masked_softmax_attention(q, k, v, None, batch)
    score = softmax_weights(q, k).masked_fill(batch[:, None] != batch, -torch.inf)
    torch.testing.assert_close(out, (torch.softmax(score, -1) @ v.transpose(0, 1)).transpose(0, 1))
    whole = (torch.softmax(softmax_weights(q, k), -1) @ v.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(masked_softmax_attention(q, k, v), whole)
    empty = torch.ones(0, 2, 3)
    assert masked_softmax_attention(empty, empty, empty).shape == (0, 2, 3)


def test_softmax_attention_warns_where_it_goes_dense():
    x = torch.randn(4, 1, 3)
    mask = OnesOperator(torch.tensor([0, 0, 1, 1]))
    with pytest.warns(PerformanceWarning, match="dense"):
        out = masked_softmax_attention(x, x, x, mask)
    torch.testing.assert_close(out, masked_softmax_attention(x, x, x, None, mask.batch))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masked_softmax_attention(x, x, x, mask, path="dense")
        masked_softmax_attention(x, x, x, DenseOperator(torch.ones(4, 4)))


def ragged(dtype):
    """Rings of several sizes, some of them equal and out of order, and a lone node: (batch, q, k, v)."""
    batch = Batch.from_data_list([ring(n, num_walks=12) for n in (5, 3, 9, 5, 4, 3, 5)] + [walked_single()])
    n = batch.num_nodes
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(n, 2, c, dtype=dtype, generator=generator).add(0.1).requires_grad_() for c in (4, 4, 3))
    return batch, q, k, v


def walked_single():
    return AddRandomWalks(max_length=K, seed=0)(
        Data(x=torch.randn(1, 4), edge_index=torch.zeros(2, 0).long(), num_nodes=1)
    )


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("function", [masked_linear_attention, masked_softmax_attention])
def test_blocks_of_a_batch_equal_pairs_in_value_and_gradient(function, per_head):
    batch, q, k, v = ragged(torch.float64)
    f = modulation_of(2 if per_head else None, torch.float64, True).requires_grad_()
    results = []
    for path in ("pairwise", "blocks"):
        out = function(q, k, v, walked(batch, torch.float64)(f), batch.batch, path)
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v, f))))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def complete(num_nodes: int) -> Data:
    edges = (1 - torch.eye(num_nodes)).nonzero().t()
    return AddRandomWalks(16, K, seed=0)(Data(edge_index=edges, num_nodes=num_nodes))


def test_equal_graphs_full_of_walks_go_by_blocks_without_compiled_code_and_others_do_not(monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    equal = Batch.from_data_list([complete(20)] * 32)
    mask, q = GRFMask(max_length=K)(equal), torch.rand(640, 2, 4)
    assert choose_path(mask, 4, 3, equal.batch) == "blocks"
    masked_softmax_attention(q, q, q, mask, equal.batch)
    assert "pairs" not in mask.walks.__dict__
    unequal = Batch.from_data_list([complete(size) for size in range(12, 28)] * 2)  # one more call for every size
    sparse = Batch.from_data_list([ring(64)] * 32)
    for batch in (unequal, sparse):
        assert choose_path(GRFMask(max_length=K)(batch), 16, 16, batch.batch) == "pairwise"
    large = Batch.from_data_list([ring(300), ring(4)])
    assert choose_path(GRFMask(max_length=K)(large), 16, 16, large.batch) == "pairwise"


@compiled
def test_compiled_code_takes_pairs_of_full_graphs_if_the_mask_keeps_them():
    walk = AddRandomWalks(16, K, 0.0, independent=False, seed=0)
    batch = Batch.from_data_list([walk(complete(20))] * 32)
    kernel, learned = (RWGNKMask(max_length=K, learnable=learnable)(batch) for learnable in (False, True))
    for width in (4, 16, 64):
        assert choose_path(kernel, width, 8, batch.batch) == "pairwise"
        assert masked_softmax.choose_path(kernel, width, 8, batch.batch) == "pairwise"
        assert choose_path(learned, width, 8, batch.batch) == "blocks"
    assert masked_softmax.choose_path(learned, 1, 8, batch.batch) == "blocks"
    assert masked_softmax.choose_path(kernel, 200, 200, batch.batch) == "blocks"  # too wide for compiled code
    assert masked_softmax.choose_path(CausalOperator(batch.batch), 4, 8, batch.batch) == "blocks"
    assert masked_softmax.choose_path(ConstantOperator(CausalOperator(batch.batch)), 4, 8, batch.batch) == "blocks"


@compiled
def test_large_graphs_of_one_size_go_by_compiled_blocks():
    walk = AddRandomWalks(8, 3, 0.0, independent=False, seed=0)
    sizes = {"equal": [70] * 16, "unequal": list(range(62, 78)), "few": [70] * 8}
    for name, some in sizes.items():
        batch = Batch.from_data_list([walk(complete(size)) for size in some])
        mask = RWGNKMask(max_length=3)(batch)
        assert choose_path(mask, 16, 8, batch.batch) == ("blocks" if name == "equal" else "pairwise")
        assert masked_softmax.choose_path(mask, 16, 8, batch.batch) == "pairwise"
        if name == "equal":
            learned, layout = RWGNKMask(max_length=3, learnable=True)(batch), block_layout(batch.batch)
            torch.testing.assert_close(mask.blocks(layout), learned.blocks(layout))


@compiled
def test_constant_masks_with_hubs_go_by_compiled_blocks_without_a_list_of_pairs(monkeypatch):
    walk = AddRandomWalks(16, 3, 0.0, independent=False, seed=0)
    nodes = torch.arange(300)
    hubs = torch.stack([nodes, nodes % 2])[:, 2:]
    two_hubs = Data(edge_index=torch.cat([hubs, hubs.flip(0)], 1), num_nodes=300)
    graphs = [[walk(graph), walk(ring(301))] for graph in (two_hubs, ring(300))]
    full, sparse = (RWGNKMask(max_length=3)(Batch.from_data_list(both)) for both in graphs)
    batch = Batch.from_data_list(graphs[0]).batch
    entries = 300**2 + 301**2
    assert full.num_multiply_adds * BLOCK_ENTRIES < entries
    assert choose_path(full, 16, 16, batch) == "blocks"
    assert choose_path(sparse, 16, 16, batch) == "pairwise"
    assert choose_path(full, 2, 1, batch) != "blocks"  # the factored path forms fewer numbers than blocks have entries
    q, k, v = (torch.rand(601, 2, 16) for _ in range(3))
    by_blocks, by_factors = (masked_linear_attention(q, k, v, full, batch, path) for path in ("auto", "factored"))
    torch.testing.assert_close(by_blocks, by_factors)
    monkeypatch.setattr(masked_attention, "_MOST_COMPILED_BLOCK_ENTRIES", entries - 1)
    assert choose_path(full, 16, 16, batch) != "blocks"


@pytest.mark.parametrize("path", ["pairwise", "blocks"])
def test_gradients_stay_finite_where_all_keys_in_sight_are_tiny(path):
    data = ring(12, num_walks=12)
    mask = GRFMask(max_length=K)(data)
    q = torch.rand(12, 1, 2) + 0.5
    for exponent in (-60, -100, -126, -140):
        k = torch.full((12, 1, 2), 2.0**exponent)
        k[0] = 1  # one loud key, which most nodes do not see
        q, k = q.requires_grad_(), k.requires_grad_()
        v = torch.randn(12, 1, 3, requires_grad=True)
        out = masked_linear_attention(q, k, v, mask, path=path)
        grads = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert all(x.isfinite().all() for x in (out, *grads))
        if exponent == -60:
            exact = (x.detach().double() for x in (q, k, v))
            wanted = masked_attention.masked_linear_attention_reference(*exact, mask.to_dense().double())
            torch.testing.assert_close(out, wanted.float(), rtol=1e-4, atol=1e-5)


def test_blocks_refuse_a_batch_that_splits_a_graph():
    q, k, v = (torch.rand(6, 1, 2) for _ in range(3))
    mask = GRFMask(max_length=K)(ring(6))
    with pytest.raises(ValueError, match=r"joins nodes \d+ and \d+ of different graphs"):
        masked_linear_attention(q, k, v, mask, torch.tensor([0, 0, 0, 1, 1, 1]), "blocks")
    with pytest.raises(ValueError, match="blocks of graphs; OnesOperator has none"):
        masked_linear_attention(q, k, v, OnesOperator(torch.zeros(6, dtype=torch.long)), path="blocks")


def test_sparse_walks_go_pairwise_and_a_hub_goes_factored():
    data = ring(300)
    mask = GRFMask(max_length=K)(data)
    assert choose_path(mask, 16, 16) == "pairwise"
    leaves = torch.arange(1, 1201)
    hub = GRAPHS["star"].clone()
    hub.x, hub.num_nodes = None, 1201
    hub.edge_index = torch.cat([torch.stack([leaves * 0, leaves]), torch.stack([leaves, leaves * 0])], 1)
    mask = GRFMask(max_length=K)(AddRandomWalks(max_length=K, seed=0)(hub))
    assert choose_path(mask, 4, 4) == "factored"
    assert choose_path(mask, 256, 256) == "factored"  # pairs would be faster, but there are hundreds for each entry
    assert "pairs" not in mask.walks.__dict__  # the support of 1.4 million pairs was not formed to decide
    q, k, v = (torch.rand(1201, 1, 4) for _ in range(3))
    out = masked_linear_attention(q, k, v, mask)
    assert torch.equal(out, masked_linear_attention(q, k, v, mask, path="factored"))
    assert choose_path(DenseOperator(torch.ones(3, 3)), 4, 4) == "dense"
    assert choose_path(OnesOperator(torch.zeros(3, dtype=torch.long)), 4, 4) == "factored"


def test_short_sequences_go_by_blocks_and_long_ones_by_factors(monkeypatch):
    """Factors form R (D + 1) numbers for each node, blocks one for each node of the sequence."""
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    batch = torch.arange(32).repeat_interleave(64)
    assert choose_path(CausalOperator(batch), 16, 16, batch) == "blocks"
    assert choose_path(CausalOperator(batch), 4, 4, batch) == "factored"
    assert choose_path(CausalOperator(torch.zeros(2048).long()), 16, 16, torch.zeros(2048).long()) == "factored"
    monkeypatch.setenv("TOPOMASK_NATIVE", "1")
    if linear_blocks.refuses(batch.device) is None:
        assert choose_path(CausalOperator(batch), 4, 4, batch) == "blocks"
    edge_index = torch.stack([torch.arange(2047), torch.arange(1, 2048)])[:, batch.diff() == 0]
    series = PowerSeriesOperator(edge_index, 2048, torch.ones(3))  # its blocks take a product with 64 columns
    assert choose_path(series, 4, 4, batch) == "factored"
    many = torch.arange(32 * 64).repeat_interleave(64)  # so many that their blocks take too much memory
    assert choose_path(CausalOperator(many), 16, 16, many) == "factored"


def test_many_features_go_by_pairs_and_few_by_factors(monkeypatch):
    monkeypatch.setattr(masked_attention, "_MOST_COMPILED_BLOCK_ENTRIES", 0)  # blocks would be faster than both
    graph = Data(edge_index=erdos_renyi_graph(1500, 4 / 1499), num_nodes=1500)
    mask = RWGNKMask(max_length=3)(AddRandomWalks(50, 3, 0.0, independent=False, seed=0)(graph))
    assert mask.num_pairs > 9 * mask.num_multiply_adds  # counting multiply-adds alike would take factors from here on
    # On a graph of Cora's size with such a mask pairs took 0.4 times as long as factors, and 13 times as long.
    assert choose_path(mask, 256, 8) == "pairwise"
    assert choose_path(mask, 4, 8) == "factored"


def test_entries_that_are_zero_have_a_gradient_on_the_dense_path():
    mask = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.0], [0.3, 0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    q, k, v = (torch.rand(3, 1, 2, dtype=torch.float64) for _ in range(3))
    wanted = masked_attention.masked_linear_attention_reference(q, k, v, mask)
    (wanted,) = torch.autograd.grad(wanted.square().sum(), mask)
    assert wanted[0, 1] != 0
    out = masked_linear_attention(q, k, v, mask, path="dense")
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), mask)[0], wanted)


def test_head_stack_and_shared_mask_agree():
    matrix = torch.rand(5, 5, dtype=torch.float64)
    q, k, v = (torch.rand(5, 2, 3, dtype=torch.float64) for _ in range(3))
    shared = masked_linear_attention(q, k, v, DenseOperator(matrix))
    stack = masked_linear_attention(q, k, v, HeadStackOperator([DenseOperator(matrix)] * 2), path="factored")
    torch.testing.assert_close(stack, shared)


def test_relabelled_walks_relabel_the_result():
    data, perm = ring(9, pair_table=True), torch.randperm(9)
    q, k, v = (torch.rand(9, 1, 3, dtype=torch.float64) for _ in range(3))
    mask = GRFMask(max_length=K).double()
    for path in LINEAR:
        out = masked_linear_attention(q, k, v, mask(data), path=path)
        moved = masked_linear_attention(q[perm], k[perm], v[perm], mask(permute(data, perm)), path=path)
        torch.testing.assert_close(moved, out[perm], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("q", "k", "v", "mask", "path", "error", "message"),
    [
        (
            (4, 2, 3),
            (4, 2, 2),
            (4, 2, 3),
            None,
            "auto",
            ValueError,
            r"must be \[N, H, R\].*got \[4, 2, 3\], \[4, 2, 2\]",
        ),
        ((4, 6), (4, 6), (4, 6), None, "auto", ValueError, r"must be \[N, H, R\]"),
        ((4, 2, 3), (4, 2, 3), (5, 2, 3), None, "auto", ValueError, r"and \[5, 2, 3\]"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(5, 5), "auto", ValueError, "for 5 nodes, but 'q' has 4 rows"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(3, 4, 4), "auto", ValueError, "3 heads, but 'q' has 2"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(4, 4), "fast", ValueError, "auto, factored.*got 'fast'"),
        ((4, 2, 3), (4, 2, 3), (4, 2, 3), torch.ones(4, 4), "pairwise", ValueError, "sparse support"),
    ],
)
def test_bad_arguments_are_refused(q, k, v, mask, path, error, message):
    mask = None if mask is None else DenseOperator(mask)
    with pytest.raises(error, match=message):
        masked_linear_attention(torch.ones(q), torch.ones(k), torch.ones(v), mask, path=path)


def test_bad_types_and_paths_are_refused():
    x = torch.ones(4, 1, 2)
    with pytest.raises(TypeError, match="share one floating dtype"):
        masked_linear_attention(x, x, x.double())
    with pytest.raises(TypeError, match="floating dtype"):
        masked_linear_attention(x.long(), x.long(), x.long())
    with pytest.raises(ValueError, match=r"'path' must be one of auto, pairwise, blocks, dense \(got 'factored'\)"):
        masked_softmax_attention(x, x, x, DenseOperator(torch.ones(4, 4)), path="factored")


def test_softmax_without_channels_is_refused():
    empty, v = torch.ones(4, 1, 0), torch.ones(4, 1, 2)
    for mask in (None, DenseOperator(torch.ones(4, 4))):
        with pytest.raises(ValueError, match=r"at least one channel per head \(got \[4, 1, 0\]\)"):
            masked_softmax_attention(empty, empty, v, mask)


def test_bad_paths_are_refused_without_a_mask():
    x = torch.ones(4, 1, 2)
    with pytest.raises(ValueError, match="got 'nonsense'"):
        masked_linear_attention(x, x, x, None, path="nonsense")
    with pytest.raises(ValueError, match="got 'nonsense'"):
        masked_softmax_attention(x, x, x, None, path="nonsense")
