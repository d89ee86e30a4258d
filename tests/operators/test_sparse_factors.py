"""Masks that are products of sparse factors: their pairs, their bounding masks, and what is kept."""

import pickle
from copy import deepcopy

import torch

from pyg_topomask.operators import ConstantOperator, OnesOperator, SparseFactorOperator
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.attention.masked import masked_linear_attention_reference
from pyg_topomask.ops.blocks import block_layout, product_blocks


def test_support_of_a_product_is_exact_or_a_bound():
    index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    op = SparseFactorOperator((index, torch.ones(3)), (index, torch.ones(3)), 4)
    assert (op.support.count(), op.num_multiply_adds) == (5, 6)  # {0, 1}² and (2, 2)
    hub = torch.stack([torch.arange(500), torch.zeros(500, dtype=torch.long)])
    op = SparseFactorOperator((hub, torch.ones(500)), (hub, torch.ones(500)), 500)
    assert op.support.count() == 500**2
    assert not {"_joined", "_constant_pairs"} & op.__dict__.keys()  # the bound was not found by listing the pairs
    assert SparseFactorOperator(None, None, 4).support.count() == 4
    torch.testing.assert_close(SparseFactorOperator(None, None, 4).to_dense(), torch.eye(4))
    op = SparseFactorOperator((index, torch.ones(3)), None, 4)
    assert [mask.support.count() for mask in (op, op.T, 2 * op)] == [3, 3, 3]
    assert OnesOperator(torch.zeros(3).long()).support is None


def test_blocks_tell_factors_apart_that_share_their_entries():
    node, value = torch.arange(3), torch.tensor([2.0, 3.0, 5.0])
    factors = (node, torch.tensor([0, 0, 1]), value), (node, node.flip(0), value)
    left, right = (torch.zeros(3, 3).index_put((row, column), value) for row, column, value in factors)
    (block,) = product_blocks(block_layout(torch.zeros(3, dtype=torch.int64)), *factors)
    torch.testing.assert_close(block[0], (left @ right.T).T)


def test_equal_entries_are_added_up_before_the_absolute_value():
    index = torch.tensor([[0, 1, 0], [1, 1, 1]])
    op = SparseFactorOperator((index, torch.tensor([3.0, 1.0, -2.0])), None, 2)
    assert op.bound is op
    assert op.num_multiply_adds == op.support.count() == 2
    torch.testing.assert_close(op.to_dense(), torch.tensor([[0.0, 1], [0, 1]]))
    op = SparseFactorOperator((index, torch.tensor([[-3.0, 3], [1, 1], [2, -2]])), None, 2)
    torch.testing.assert_close(op.bound.to_dense(), torch.tensor([[[0.0, 1], [0, 1]]] * 2))


def test_terms_that_cancel_count_in_the_bounding_mask():
    first = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 2]]), torch.ones(4, dtype=torch.float64)
    second = torch.tensor([[1, 1, 0, 2], [0, 1, 0, 2]]), torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float64)
    mask = SparseFactorOperator(first, second, 3)
    q, k, v = (torch.rand(3, 1, 2, dtype=torch.float64) + 0.1 for _ in range(3))
    wanted = masked_linear_attention_reference(q, k, v, mask.to_dense(), bound=mask.bound.to_dense())
    assert (mask.to_dense() == 0).sum() > (mask.bound.to_dense() == 0).sum()
    for path in ("pairwise", "factored", "blocks"):
        torch.testing.assert_close(masked_linear_attention(q, k, v, mask, path=path), wanted)


def test_a_constant_mask_computes_once_and_can_be_copied_after_its_use():
    index = torch.tensor([[0, 1, 1], [1, 0, 1]])
    op = ConstantOperator(SparseFactorOperator((index, torch.tensor([1.0, -2.0, 3.0])), None, 2))
    pattern, entries = op.support.pairs(None)
    assert op.support.pairs(None)[0] is pattern
    assert op.bound is op.bound
    for copy in (pickle.loads(pickle.dumps(op)), deepcopy(op)):
        found = copy.support.pairs(None)
        assert found[0] is not pattern
        assert torch.equal(found[1], entries)
