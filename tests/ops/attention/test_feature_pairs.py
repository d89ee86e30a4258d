"""Compiled linear attention with many features against the same sums in plain torch, in values and all gradients."""

from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import GRFMask, MaskedAttention, RWGNKMask
from pyg_topomask.ops.attention import feature_pairs
from pyg_topomask.ops.attention.feature_pairs import feature_sums, refuses
from pyg_topomask.ops.attention.masked_linear import masked_linear_attention, masked_linear_attention_reference
from pyg_topomask.ops.attention.pair_kernels import PairKernel
from pyg_topomask.ops.attention.path_choice import choose_linear_path
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks
from tests.ops.attention.pair_cases import gradients, random_pattern

LINEAR = {"bound": PairKernel("linear", False), "signed": PairKernel("linear", True)}
compiled = pytest.mark.skipif(isinstance(feature_pairs.load(), str), reason="needs a C++ compiler")


def shuffled(pattern):
    """The pattern with the columns of each row in any order."""
    order = torch.randperm(pattern.nnz)
    order = order[pattern.row[order].argsort(stable=True)]
    return Pattern(pattern.row, pattern.col[order], pattern.num_rows, pattern.num_cols)


def inputs(pattern, heads, width, channels, entries="shared", own_bound=False):
    """Entries, bounds, q, k and v with gradients; q, k and v are parts of one array."""
    qkv = torch.randn(pattern.num_cols, heads, 2 * width + channels, dtype=torch.float64).requires_grad_()
    shape = {"shared": (pattern.nnz,), "pairs": (pattern.nnz, heads), "heads": (heads, pattern.nnz)}[entries]
    entry = torch.randn(shape, dtype=torch.float64)
    entry = (entry.t() if entries == "heads" else entry).requires_grad_()
    bound = entry if own_bound else (entry.detach().abs() + 0.1).requires_grad_()
    return entry, bound, *qkv.split([width, width, channels], dim=-1)


def check(kernel, pattern, tensors, **tol):
    found, wanted = feature_sums(kernel, pattern, *tensors), kernel.sums_of_heads(pattern, *tensors)
    torch.testing.assert_close(found, wanted, **tol)
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), **tol)


def joined_graphs():
    """Enough pairs for several parts of the rows, and several blocks of columns."""
    pattern = random_pattern(800, 0.5)
    assert pattern.nnz > 2**18
    return pattern


def separate_graphs():
    """The graph in the middle has no pairs."""
    blocks = [torch.rand(30, 30) < share for share in (0.9, 0.3, 0.0, 0.9)]
    return Pattern(*torch.block_diag(*blocks).nonzero().t(), 120, 120)


@compiled
@pytest.mark.parametrize("own_bound", [False, True])
@pytest.mark.parametrize("kernel", LINEAR.values(), ids=LINEAR.keys())
@pytest.mark.parametrize(
    ("heads", "width", "channels", "entries"),
    [(1, 64, 8, "shared"), (2, 49, 3, "shared"), (3, 100, 24, "heads"), (2, 3, 1, "pairs")],
)
def test_equals_plain_torch(kernel, own_bound, heads, width, channels, entries):
    patterns = random_pattern(21, 0.4), random_pattern(21, 0.4, torch.randperm(21)), separate_graphs()
    for pattern in (*patterns, shuffled(patterns[0])):
        check(kernel, pattern, inputs(pattern, heads, width, channels, entries, own_bound), rtol=1e-10, atol=1e-10)


@compiled
def test_repeated_pairs_add_up():
    row, col = torch.tensor([0, 0, 0, 2, 3, 3]), torch.tensor([1, 1, 1, 0, 1, 2])
    pattern = Pattern(row, col, 4, 4)
    check(LINEAR["signed"], pattern, inputs(pattern, 2, 50, 4), rtol=1e-10, atol=1e-10)


@compiled
@pytest.mark.parametrize("width", [48, 50, 64, 256])
@pytest.mark.parametrize("kernel", LINEAR.values(), ids=LINEAR.keys())
def test_single_precision(kernel, width):
    pattern = random_pattern(60, 0.5)
    single = [(x.detach() / width**0.5).float().requires_grad_() for x in inputs(pattern, 2, width, 8)]
    double = [x.detach().double().requires_grad_() for x in single]
    found, wanted = feature_sums(kernel, pattern, *single), kernel.sums_of_heads(pattern, *double)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(gradients(found, single), gradients(wanted, double)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@compiled
@pytest.mark.parametrize("kernel", LINEAR.values(), ids=LINEAR.keys())
def test_first_and_second_derivatives(kernel):
    pattern = random_pattern(5, 0.7)
    tensors = [x.detach().requires_grad_() for x in inputs(pattern, 2, 2, 2)]

    def attend(*tensors):  # the size is a constant of signed normalisers
        return feature_sums(kernel, pattern, *tensors)[..., :3]

    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors, fast_mode=True)


@compiled
@pytest.mark.parametrize("entries", ["shared", "heads"])
@pytest.mark.parametrize("make_pattern", [joined_graphs, separate_graphs])
def test_threads_change_nothing(monkeypatch, make_pattern, entries):
    """Bit for bit: the order of all sums is fixed by the pattern alone."""
    monkeypatch.setattr(feature_pairs, "_WORK_PER_THREAD", 1)
    pattern, kernel, threads = make_pattern(), LINEAR["bound"], torch.get_num_threads()
    tensors = [x.detach().float().requires_grad_() for x in inputs(pattern, 3, 130, 2, entries)]
    found = []
    try:
        for num in (1, 2, 5, 1):
            torch.set_num_threads(num)
            sums = feature_sums(kernel, pattern, *tensors)
            found.append([sums, *gradients(sums, tensors)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))
    check(kernel, pattern, [x.detach().double().requires_grad_() for x in tensors], rtol=1e-9, atol=1e-9)


@compiled
@pytest.mark.parametrize("spoil", [1e6, torch.nan, torch.inf])
def test_graphs_in_a_batch_do_not_mix(spoil):
    """Not even where a graph's numbers overflow: no group of rows reads keys of another graph."""
    block = torch.rand(9, 9) < 0.6
    pattern = Pattern(*torch.block_diag(block, block).nonzero().t(), 18, 18)
    entry, bound, *qkv = inputs(pattern, 2, 64, 8)
    first = gradients(sums := feature_sums(LINEAR["bound"], pattern, entry, bound, *qkv), qkv)
    spoilt = [torch.cat([x[:9].detach(), spoil * x[9:].detach()]).requires_grad_() for x in qkv]
    second = gradients(other := feature_sums(LINEAR["bound"], pattern, entry, bound, *spoilt), spoilt)
    for a, b in zip([sums, *first], [other, *second]):
        assert torch.equal(a[:9], b[:9])


@compiled
@pytest.mark.parametrize("num_rows", [0, 3])
def test_without_pairs_or_rows(num_rows):
    nothing = torch.empty(0, dtype=torch.int64)
    pattern = Pattern(nothing, nothing, num_rows, 3)
    entry, bound, q, k, v = inputs(pattern, 2, 64, 4)
    check(LINEAR["bound"], pattern, [entry, bound, q[:num_rows], k, v], rtol=0, atol=0)


@compiled
def test_nan_is_not_hidden():
    pattern = random_pattern(10, 0.9)
    tensors = [x.detach() for x in inputs(pattern, 1, 64, 8)]
    tensors[3][4] = torch.nan
    rows = pattern.row[pattern.col == 4].long()
    assert feature_sums(LINEAR["bound"], pattern, *tensors)[rows].isnan().any(-1).all()


def test_refusals(monkeypatch):
    x, kernel = torch.zeros(3, 1, 64), LINEAR["bound"]
    assert "linear kernels" in refuses(PairKernel("softmax", False), x)
    assert "without signs" in refuses(kernel._replace(signed_features=True), x)
    assert "float32 and float64 (got torch.bfloat16)" in refuses(kernel, x.bfloat16())
    assert "row by row" in refuses(kernel, x[..., :8])
    assert "on meta" in refuses(kernel, x.to("meta"))
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    assert "TOPOMASK_NATIVE=0" in refuses(kernel, x)


@compiled
@pytest.mark.parametrize("own_bound", [False, True])
def test_the_operator_is_one_that_torch_can_compile(own_bound):
    pattern = random_pattern(6, 0.5)
    tensors = inputs(pattern, 2, 50, 4, own_bound=own_bound)
    entry, bound, *qkv = (x.detach().contiguous().requires_grad_() for x in tensors)
    arguments = (*qkv, entry, None if own_bound else bound, pattern.rowptr, pattern.col, True)
    torch.library.opcheck(feature_pairs._sums, arguments, test_utils=("test_schema", "test_faketensor"))
    traced = torch.compile(lambda *x: feature_sums(LINEAR["signed"], pattern, *x), backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(*tensors), feature_sums(LINEAR["signed"], pattern, *tensors))


@compiled
@pytest.mark.parametrize("normalizer", ["bound", "signed"])
def test_attention_under_a_mask_with_signs(monkeypatch, normalizer):
    """Against the dense definition, with a mask whose bounding mask differs from it."""
    calls = []
    monkeypatch.setattr(feature_pairs, "_FEWEST_PAIRS", 0)
    monkeypatch.setattr(feature_pairs, "feature_sums", lambda *args: calls.append(args) or feature_sums(*args))
    graph = AddRandomWalks(seed=0)(GRAPHS["path"])
    module = GRFMask(max_length=4).double()
    with torch.no_grad():
        for f in module.parameters():
            f[..., 1] = -0.4
    mask = module(graph)
    assert mask.bound is not mask
    num_nodes = graph.num_nodes
    q, k = (torch.rand(num_nodes, 2, 64, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(num_nodes, 2, 3, dtype=torch.float64, requires_grad=True)
    found = masked_linear_attention(q, k, v, mask, None, "pairwise", normalizer)
    dense, bound = mask.to_dense(), mask.bound.to_dense()
    wanted = masked_linear_attention_reference(q, k, v, dense, None, bound, normalizer, tolerance=1e-12)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(found, [q, k, v]), gradients(wanted, [q, k, v]), rtol=1e-8, atol=1e-8)
    assert len(calls) == 1


@compiled
def test_many_features_are_worth_more_pairs(monkeypatch):
    mask = SimpleNamespace(
        is_dense=False,
        has_blocks=False,
        compiles_blocks=False,
        num_pairs=40,
        num_multiply_adds=1,
        device=torch.device("cpu"),
    )
    assert choose_linear_path(mask, 256, 8) == "pairwise"
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    assert choose_linear_path(mask, 256, 8) == "factored"


@compiled
def test_few_pairs_are_computed_row_by_row(monkeypatch):
    calls = []
    monkeypatch.setattr(feature_pairs, "feature_sums", lambda *args: calls.append(args) or feature_sums(*args))
    mask = RWGNKMask()(AddRandomWalks(seed=0, independent=False, halt_prob=0.0)(GRAPHS["path"]))
    q, k = (torch.rand(mask.num_nodes, 2, 64, dtype=torch.float64) for _ in range(2))
    v = torch.randn(mask.num_nodes, 2, 3, dtype=torch.float64)
    found = []
    for fewest in (0, 96):
        monkeypatch.setattr(feature_pairs, "_FEWEST_PAIRS", fewest)
        found.append(masked_linear_attention(q, k, v, mask, None, "pairwise"))
    assert len(calls) == 1
    torch.testing.assert_close(*found)


@compiled
def test_layers_use_it(monkeypatch):
    calls = []
    monkeypatch.setattr(feature_pairs, "_FEWEST_PAIRS", 0)
    monkeypatch.setattr(feature_pairs, "feature_sums", lambda *args: calls.append(args) or feature_sums(*args))
    walks = AddRandomWalks(seed=0, independent=False, halt_prob=0.0)
    batch = Batch.from_data_list([walks(graph) for graph in (GRAPHS["path"], GRAPHS["star"])])
    x = torch.randn(batch.num_nodes, 8)
    for decay in (False, True):
        mask = RWGNKMask(learnable=decay)
        layer = MaskedAttention(8, 2, "softmax_rf", mask, path="pairwise", num_features=64)
        by_blocks = MaskedAttention(8, 2, "softmax_rf", mask, path="blocks", num_features=64)
        by_blocks.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer(x, graph=batch), by_blocks(x, graph=batch), rtol=1e-4, atol=1e-5)
    assert len(calls) == 2
