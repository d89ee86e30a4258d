import pytest
import torch

from pyg_topomask.ops import all_pairs
from pyg_topomask.ops.attention.full_softmax import segment_softmax_attention, segment_softmax_attention_reference
from tests.ops.compare import assert_is_the_reference

SIZES = [(3, 1, 3, 1), (4, 0, 2), (5,), (0, 2, 2)]


def qkv_of(sizes, dtype=torch.float64):
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return batch, [torch.randn(len(batch), 2, width, dtype=dtype, requires_grad=True) for width in (3, 3, 4)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("biased", [False, True])
def test_is_the_reference_in_value_and_gradient(sizes, biased):
    batch, inputs = qkv_of(sizes)
    if biased:
        inputs.append(torch.randn(sum(n * n for n in sizes), 2, dtype=torch.float64, requires_grad=True))
    functions = segment_softmax_attention, segment_softmax_attention_reference
    assert_is_the_reference(*(lambda q, k, v, *bias, f=f: f(q, k, v, batch, *bias) for f in functions), inputs)


def test_gradcheck_with_a_bias():
    batch, (q, k, v) = qkv_of((2, 3, 2))
    bias = torch.randn(17, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: segment_softmax_attention(*x[:3], batch, x[3]), (q, k, v, bias))


def test_large_scores_and_single_precision():
    batch, (q, k, v) = qkv_of((3, 1, 3, 1), torch.float32)
    out = segment_softmax_attention(1e3 * q, 1e3 * k, v, batch)
    wanted = segment_softmax_attention_reference(1e3 * q.double(), 1e3 * k.double(), v.double(), batch)
    torch.testing.assert_close(out, wanted.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(segment_softmax_attention(q, k, v), segment_softmax_attention_reference(q, k, v))


def test_pairs_are_row_major_graph_after_graph():
    row, col = all_pairs(torch.tensor([0, 0, 2, 2, 2]))
    wanted = [(i, j) for nodes in ((0, 1), (2, 3, 4)) for i in nodes for j in nodes]
    assert list(zip(row.tolist(), col.tolist())) == wanted
    assert all_pairs(torch.zeros(0, dtype=torch.long)).shape == (2, 0)
