"""Compiled linear attention in dense blocks against the same sums in plain torch, in values and all gradients."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import CausalMask, MaskedAttention
from pyg_topomask.operators import GridHeatOperator, ToeplitzOperator
from pyg_topomask.ops.attention import linear_blocks, masked_linear
from pyg_topomask.ops.attention.linear_blocks import block_sums, block_sums_in_torch, refuses
from pyg_topomask.ops.attention.masked_linear import masked_linear_attention, masked_linear_attention_reference
from tests.ops.attention.pair_cases import gradients

compiled = pytest.mark.skipif(isinstance(linear_blocks.load(), str), reason="needs a C++ compiler")
pytestmark = compiled


def inputs(graphs, heads, nodes, width, channels, mask=(1, 1), own_bound=False, dtype=torch.float64):
    """Entries, bounds, q, k and v with gradients; q, k and v are parts of one array of features."""
    qkv = torch.rand(graphs, nodes, heads, 2 * width + channels, dtype=dtype).requires_grad_()
    entry = torch.randn(*mask, nodes, nodes, dtype=dtype).requires_grad_()
    bound = entry if own_bound else (entry.detach().abs() + 0.1).requires_grad_()
    return entry, bound, *(x.transpose(1, 2) for x in qkv.split([width, width, channels], dim=-1))


def check(tensors, signed, **tol):
    found, wanted = block_sums(*tensors, signed, False), block_sums_in_torch(*tensors, signed, False)
    torch.testing.assert_close(found, wanted, **tol)
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), **tol)


@pytest.mark.parametrize("own_bound", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (3, 2, 5, 4, 3), (2, 3, 17, 16, 16), (2, 1, 130, 9, 33)])
def test_equals_plain_torch(sizes, signed, own_bound):
    graphs, heads = sizes[:2]
    for mask in {(1, 1), (graphs, 1), (1, heads), (graphs, heads)}:
        check(inputs(*sizes, mask, own_bound), signed, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("nodes", [23, 64])
def test_single_precision(nodes):
    single = [x.detach().requires_grad_() for x in inputs(2, 2, nodes, 8, 8, dtype=torch.float32)]
    double = [x.detach().double().requires_grad_() for x in single]
    found, wanted = block_sums(*single, False, False), block_sums_in_torch(*double, False, False)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    for a, b in zip(gradients(found, single), gradients(wanted, double)):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("signed", [False, True])
def test_first_and_second_derivatives(signed):
    tensors = [x.detach().requires_grad_() for x in inputs(2, 2, 3, 2, 2, (1, 2))]

    def attend(*tensors):  # the size is a constant of signed normalisers
        return block_sums(*tensors, signed, False)[..., :3]

    assert torch.autograd.gradcheck(attend, tensors)
    assert torch.autograd.gradgradcheck(attend, tensors, fast_mode=True)


def test_one_tensor_as_queries_keys_and_values_has_one_gradient():
    entry, x = torch.rand(1, 1, 5, 5, dtype=torch.float64), torch.rand(2, 2, 5, 3, dtype=torch.float64).requires_grad_()
    found, wanted = (
        torch.autograd.grad(attend(entry, entry, x, x, x, False, False).sin().sum(), x, create_graph=True)[0]
        for attend in (block_sums, block_sums_in_torch)
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("mask", [(1, 1), (1, 3), (6, 1), (6, 3)])
def test_threads_change_nothing(monkeypatch, mask):
    """Bit for bit: the order of all sums is fixed by the shapes alone."""
    monkeypatch.setattr(linear_blocks, "_WORK_PER_THREAD", 1)
    tensors, threads, found = inputs(6, 3, 70, 8, 5, mask, dtype=torch.float32), torch.get_num_threads(), []
    try:
        for num in (1, 2, 5, 1):
            torch.set_num_threads(num)
            sums = block_sums(*tensors, False, False)
            found.append([sums, *gradients(sums, tensors)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(other, found[0]))


@pytest.mark.parametrize("spoil", [1e30, torch.nan, torch.inf])
def test_graphs_in_a_batch_do_not_mix(spoil):
    """Not even where a graph's numbers overflow."""
    entry, bound, *qkv = inputs(2, 2, 19, 8, 8, (2, 1), dtype=torch.float32)
    first = gradients(sums := block_sums(entry, bound, *qkv, False, False), [*qkv, entry])
    spoilt = [torch.cat([x[:1].detach(), spoil * x[1:].detach()]).requires_grad_() for x in qkv]
    second = gradients(other := block_sums(entry, bound, *spoilt, False, False), [*spoilt, entry])
    for a, b in zip([sums, *first], [other, *second]):
        assert torch.equal(a[0], b[0])


def test_nan_is_not_hidden():
    entry, bound, q, k, v = (x.detach() for x in inputs(1, 1, 9, 4, 4))
    k[0, 0, 3, 1] = torch.nan
    assert block_sums(entry, bound, q, k, v, False, False).isnan().any(-1).all()


def test_blocks_of_another_size_are_refused():
    class Wrong(GridHeatOperator):
        def blocks(self, layout):
            return [block[..., :1, :1] for block in super().blocks(layout)]

    x, batch = torch.rand(12, 2, 3), torch.arange(2).repeat_interleave(6)
    with pytest.raises(ValueError, match=r"2 graphs of 6 nodes must be \[1 or 2, 1 or 2, 6, 6\] \(got \[1, 1, 1, 1\]"):
        masked_linear_attention(x, x, x, Wrong((2, 3), 0.5, num_graphs=2), batch, "blocks")


def test_second_derivatives_do_not_depend_on_autocast():
    entry = torch.rand(1, 1, 5, 5)
    x, found = torch.rand(2, 2, 5, 3).requires_grad_(), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            sums = block_sums(entry, entry, x, x, x, False, False)
            found.append(torch.autograd.grad(sums, x, torch.ones_like(sums), create_graph=True)[0])
    assert torch.equal(*found)


def test_refusals(monkeypatch):
    assert "got meta" in refuses(torch.device("meta"))
    assert refuses(torch.device("cpu")) is None
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    assert "TOPOMASK_NATIVE=0" in refuses(torch.device("cpu"))


@pytest.mark.parametrize("own_bound", [False, True])
def test_the_operator_is_one_that_torch_can_compile(own_bound):
    entry, bound, *qkv = (x.detach().requires_grad_() for x in inputs(2, 2, 6, 4, 3, (1, 2)))
    arguments = (*qkv, entry, None if own_bound else bound, True)
    torch.library.opcheck(linear_blocks._sums, arguments, test_utils=("test_schema", "test_faketensor"))
    tensors = entry, entry if own_bound else bound, *qkv
    traced = torch.compile(lambda *x: block_sums(*x, True, False), backend="aot_eager", fullgraph=True)
    assert torch.equal(traced(*tensors), block_sums(*tensors, True, False))


@pytest.mark.parametrize("normalizer", ["bound", "signed"])
@pytest.mark.parametrize("heads", [None, 2])
def test_attention_under_a_mask_with_signs(monkeypatch, heads, normalizer):
    """Against the dense definition, with a mask whose bounding mask differs from it."""
    calls = []
    monkeypatch.setattr(masked_linear, "block_sums", lambda *args, **kw: calls.append(args) or block_sums(*args, **kw))
    weight = torch.randn(*([] if heads is None else [heads]), 5, 5, dtype=torch.float64).requires_grad_()
    mask, batch = ToeplitzOperator(weight, (3, 3), 4), torch.arange(4).repeat_interleave(9)
    q, k = (torch.rand(36, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(36, 2, 3, dtype=torch.float64, requires_grad=True)
    found = masked_linear_attention(q, k, v, mask, batch, "blocks", normalizer)
    dense, bound = mask.to_dense(), mask.bound.to_dense()
    wanted = masked_linear_attention_reference(q, k, v, dense, batch, bound, normalizer, tolerance=1e-12)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    tensors = [q, k, v, weight]
    torch.testing.assert_close(gradients(found, tensors), gradients(wanted, tensors), rtol=1e-7, atol=1e-7)
    assert len(calls) == 1


def test_layers_without_a_compiler_compute_the_same(monkeypatch):
    batch = torch.tensor([0] * 3 + [1] * 4 + [2] * 3)
    x, layer = torch.randn(10, 8), MaskedAttention(8, 2, "elu1", CausalMask(), path="blocks")
    graph = Data(batch=batch, num_nodes=10)
    found = layer(x, batch, graph)
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    torch.testing.assert_close(layer(x, batch, graph), found, rtol=1e-5, atol=1e-6)


def test_heat_of_equal_grids_is_shared():
    """One block for the whole batch: its gradient is that of all graphs."""
    time = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    batch = torch.arange(3).repeat_interleave(6)
    q, k, v = (torch.rand(18, 2, 4, dtype=torch.float64) for _ in range(3))

    def attend(time):
        return masked_linear_attention(q, k, v, GridHeatOperator((2, 3), time, 3), batch, "blocks")

    assert torch.autograd.gradcheck(attend, (time,))
    assert torch.autograd.gradgradcheck(attend, (time,))


def test_gradients_of_torch_func():
    entry, bound, q, k, v = inputs(2, 2, 5, 4, 3)
    found = torch.func.grad(lambda q: block_sums(entry, bound, q, k, v, False, False).square().sum())(q)
    (wanted,) = torch.autograd.grad(block_sums(entry, bound, q, k, v, False, False).square().sum(), q)
    torch.testing.assert_close(found, wanted)
