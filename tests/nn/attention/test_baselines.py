"""Softmax, random-feature and block-sparse attention: each against a slow dense reference."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import FullAttention, PerformerAttention
from pyg_topomask.ops import all_pairs
from pyg_topomask.ops.edges.block_sparse import block_sparse_support
from pyg_topomask.testing import AttentionCase, dense_adjacency, permute
from tests.nn.attention.references import masked


class TestFullBiased(AttentionCase):
    names = ("path", "isolated", "single", "star", "one_way")  # with biases that are not symmetric
    transform = "one row for each ordered pair"

    def build(self):
        return FullAttention(self.channels, heads=2, attn_bias="attn_bias")

    def prepare(self, data):
        adj = dense_adjacency(data).flatten()
        data.attn_bias = torch.stack([adj, 2 - adj], dim=1).float()
        return data

    def reference(self, attn, x, batch, carry):
        return masked(attn, x, batch, carry)

    def permute(self, data, perm):
        pairs = {pair: row for row, pair in enumerate(map(tuple, all_pairs(data.batch).t().tolist()))}
        moved, (query, key) = permute(data, perm), perm[all_pairs(data.batch)].tolist()
        moved.attn_bias = data.attn_bias[[pairs[pair] for pair in zip(query, key)]]
        return moved


def test_a_bias_has_a_gradient_and_may_be_shared_by_the_heads():
    attn, (row, _) = FullAttention(6, heads=2, attn_bias="pair_bias").double(), all_pairs(torch.tensor([0, 0, 0, 1, 1]))
    x, batch = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1])
    bias = torch.randn(len(row), 1, dtype=torch.float64, requires_grad=True)
    run = lambda bias: attn(x, batch, Data(x=x, pair_bias=bias))  # noqa: E731
    torch.testing.assert_close(run(bias), run(bias.expand(-1, 2)))
    assert torch.autograd.gradcheck(run, (bias,))
    assert all_pairs(torch.tensor([0, 2, 2])).tolist() == [[0, 1, 1, 2, 2], [0, 1, 2, 1, 2]]


def test_performer_keeps_the_features_of_its_seed_until_they_are_redrawn():
    attn, same = (PerformerAttention(8, heads=2, seed=3) for _ in range(2))
    first = attn.feature_map.projection.clone()
    assert torch.equal(first, same.feature_map.projection)
    assert not torch.equal(first, PerformerAttention(8, heads=2, seed=4).feature_map.projection)
    attn(torch.ones(2, 8))
    assert torch.equal(attn.feature_map.projection, first)
    attn.redraw()
    assert not torch.equal(attn.feature_map.projection, first)
    same.load_state_dict(attn.state_dict())
    assert torch.equal(same.feature_map.projection, attn.feature_map.projection)
    attn.reset_parameters()
    assert torch.equal(attn.feature_map.projection, first)


def bigbird_reference(num_nodes, block_size, support):
    """What must hold of a single graph's pattern: seen blocks by block, from the definition."""
    block = torch.arange(num_nodes) // block_size
    last = int(block[-1])
    near = (block[:, None] - block).abs() <= 1
    whole = (block == 0) | (block == last)
    fixed = near | whole[:, None] | whole
    assert support[fixed].all()
    return [set(block[row].tolist()) for row in support & ~fixed], block, last


def dense_support(batch, *settings):
    support = block_sparse_support(batch, *settings)
    dense = torch.zeros(len(batch), len(batch), dtype=torch.int)
    dense[support.row.long(), support.col.long()] += 1
    assert int(dense.sum()) == support.nnz  # each pair once
    return dense.bool()


@pytest.mark.parametrize(
    ("num_nodes", "block_size", "num_random"), [(40, 3, 3), (31, 1, 2), (50, 4, 0), (22, 3, 9), (2, 3, 3)]
)
def test_blocks_see_neighbours_global_and_random_blocks(num_nodes, block_size, num_random):
    dense = dense_support(torch.zeros(num_nodes, dtype=torch.long), block_size, num_random, 0)
    extra, block, last = bigbird_reference(num_nodes, block_size, dense)
    for node, seen in enumerate(extra):
        here = int(block[node])
        others = {b for b in range(1, last) if abs(b - here) > 1} if 0 < here < last else set()
        assert len(seen) == min(num_random, len(others))
        assert seen <= others
        for b in seen:
            assert dense[node, block == b].all()  # blocks are seen whole
        assert seen == extra[int((block == here).nonzero()[0])]


def test_random_blocks_are_uniform():
    """Block 4 of 12 draws 2 of 7 others: each in 2/7 of the seeds, to five standard errors."""
    hits, draws = torch.zeros(12), 600
    for seed in range(draws):
        hits += dense_support(torch.zeros(12, dtype=torch.long), 1, 2, seed)[4]
    candidates = torch.tensor([1, 2, *range(6, 11)])
    assert (hits[[0, 3, 4, 5, 11]] == draws).all()
    assert ((hits[candidates] - draws * 2 / 7).abs() < 5 * (draws * 2 / 7 * 5 / 7) ** 0.5).all()
