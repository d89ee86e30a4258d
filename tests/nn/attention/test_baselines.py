"""Softmax, random-feature, block-sparse attention and PyG's linear ones: each against a slow dense reference."""

from itertools import pairwise

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data
from torch_geometric.nn.attention import PolynormerAttention as PyGPolynormer
from torch_geometric.nn.attention import SGFormerAttention as PyGSGFormer

from pyg_topomask.nn import (
    ATTENTION,
    BigBirdAttention,
    FullAttention,
    GPSModel,
    PerformerAttention,
    PolynormerAttention,
    SGFormerAttention,
)
from pyg_topomask.ops import all_pairs
from pyg_topomask.ops.edges.block_sparse import block_sparse_support
from pyg_topomask.testing import GRAPHS, AttentionCase, dense_adjacency, permute


class TestFull(AttentionCase):
    def build(self):
        return ATTENTION["Transformer"](self.channels, heads=2)


class TestFullBiased(AttentionCase):
    transform = "one row for each ordered pair"

    def build(self):
        return FullAttention(self.channels, heads=2, attn_bias="attn_bias")

    def prepare(self, data):
        adj = dense_adjacency(data).flatten()
        data.attn_bias = torch.stack([adj, 2 - adj], dim=1).float()
        return data

    def permute(self, data, perm):
        pairs = {pair: row for row, pair in enumerate(map(tuple, all_pairs(data.batch).t().tolist()))}
        moved, (query, key) = permute(data, perm), perm[all_pairs(data.batch)].tolist()
        moved.attn_bias = data.attn_bias[[pairs[pair] for pair in zip(query, key)]]
        return moved


class TestPerformer(AttentionCase):
    def build(self):
        return ATTENTION["Performer"](self.channels, heads=2, num_features=12)


class TestBigBird(AttentionCase):
    equivariant = False

    def build(self):
        return ATTENTION["BigBird"](self.channels, heads=2, block_size=1, num_random=1)


class TestBigBirdBlocks(AttentionCase):
    names = ("path", "single", "two_parts", "star")  # few blocks: full attention, which is equivariant

    def build(self):
        return BigBirdAttention(self.channels, heads=2)


class TestSGFormer(AttentionCase):
    def build(self):
        return ATTENTION["SGFormer"](self.channels, heads=2)


class TestPolynormer(AttentionCase):
    def build(self):
        return ATTENTION["Polynormer"](self.channels, heads=2)


class TestPolynormerUnshared(AttentionCase):
    def build(self):
        return PolynormerAttention(self.channels, heads=4, qk_shared=False, bias=True)


def softmax_reference(attn, x, allowed, bias=0.0):
    """Softmax attention over the allowed pairs ``[N, N]`` with a bias ``[H, N, N]``, head by head."""
    width = attn.channels // attn.heads
    q, k, v = (x @ attn.qkv.weight.t() + attn.qkv.bias).split(attn.channels, dim=1)
    bias, heads = torch.as_tensor(bias, dtype=x.dtype).expand(attn.heads, len(x), len(x)), []
    for head in range(attn.heads):
        part = slice(head * width, (head + 1) * width)
        score = q[:, part] @ k[:, part].t() / width**0.5 + bias[head]
        heads.append(score.masked_fill(~allowed, -torch.inf).softmax(1) @ v[:, part])
    return torch.cat(heads, 1) @ attn.out.weight.t() + attn.out.bias


def batch_of_sizes(*sizes):
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


SIZES = [(5, 3, 5, 3, 0, 5), (4, 7, 2), (6,)]  # equal sizes share a call; different ones do not


@pytest.mark.parametrize("sizes", SIZES)
def test_full_attention_is_the_formula(sizes):
    batch, attn = batch_of_sizes(*sizes), FullAttention(6, heads=3).double()
    x = torch.randn(len(batch), 6, dtype=torch.float64)
    torch.testing.assert_close(attn(x, batch), softmax_reference(attn, x, batch[:, None] == batch))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("heads", [1, 2])
def test_full_attention_with_a_bias_is_the_formula(sizes, heads):
    batch, attn = batch_of_sizes(*sizes), FullAttention(6, heads=2, attn_bias="pair_bias").double()
    x, (row, col) = torch.randn(len(batch), 6, dtype=torch.float64), all_pairs(batch)
    bias = torch.randn(len(row), heads, dtype=torch.float64, requires_grad=True)
    dense = torch.zeros(heads, len(batch), len(batch), dtype=torch.float64)
    dense[:, row, col] = bias.detach().t()
    dense.requires_grad_()
    out = attn(x, batch, Data(x=x, pair_bias=bias))
    wanted = softmax_reference(attn, x, batch[:, None] == batch, dense)
    torch.testing.assert_close(out, wanted)
    weight = torch.randn_like(out)
    (grad,), (dense_grad,) = (torch.autograd.grad((y * weight).sum(), b) for y, b in ((out, bias), (wanted, dense)))
    torch.testing.assert_close(grad, dense_grad[:, row, col].t())


def test_full_attention_is_torch_multihead_attention():
    attn, other = FullAttention(8, heads=2), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    attn.load_state_dict(dict(zip(("qkv.weight", "qkv.bias", "out.weight", "out.bias"), other.state_dict().values())))
    x = torch.randn(7, 8)
    torch.testing.assert_close(attn(x), other(x[None], x[None], x[None])[0][0])


def test_full_attention_drops_weights_in_training_only():
    attn, x = FullAttention(8, dropout=0.5), torch.randn(20, 8)
    assert not torch.equal(attn(x), attn(x))
    attn.eval()
    assert torch.equal(attn(x), attn(x))


@pytest.mark.parametrize(
    ("bias", "error", "message"),
    [
        (torch.zeros(24, 2), ValueError, r"shape \[25, 2\].*or \[25, 1\] \(got \[24, 2\]\)"),
        (torch.zeros(25, 3), ValueError, r"got \[25, 3\]"),
        (torch.zeros(5, 5, 2), ValueError, r"got \[5, 5, 2\]"),
        (torch.zeros(25, 2, dtype=torch.long), TypeError, "floating point"),
    ],
)
def test_bad_biases_are_refused(bias, error, message):
    attn = FullAttention(8, heads=2, attn_bias="attn_bias")
    with pytest.raises(error, match=message):
        attn(torch.randn(5, 8), None, Data(attn_bias=bias))


def test_performer_is_the_formula():
    batch, attn = batch_of_sizes(5, 3, 4), PerformerAttention(6, heads=2, num_features=7).double()
    x = torch.randn(12, 6, dtype=torch.float64)
    q, k, v = (x @ attn.qkv.weight.t() + attn.qkv.bias).view(12, 3, 2, 3).unbind(1)
    omega, heads = attn.feature_map.projection, []
    for head in range(2):
        features = [
            (y @ omega.t() - y.square().sum(1, keepdim=True) / 2).exp()
            for y in (q[:, head] / 3**0.25, k[:, head] / 3**0.25)
        ]
        weight = features[0] @ features[1].t() * (batch[:, None] == batch)
        heads.append(weight @ v[:, head] / weight.sum(1, keepdim=True))
    torch.testing.assert_close(attn(x, batch), torch.cat(heads, 1) @ attn.out.weight.t() + attn.out.bias)


def projections(attn, num_forwards):
    found = []
    for _ in range(num_forwards):
        attn(torch.ones(2, 8))
        found.append(attn.feature_map.projection)
    return found


def test_performer_redraws_in_training_by_seed():
    drawn = projections(PerformerAttention(8, heads=2, redraw_interval=2, seed=3), 6)
    same = [torch.equal(a, b) for a, b in pairwise(drawn)]
    assert same == [True, False, True, False, True]
    again = projections(PerformerAttention(8, heads=2, redraw_interval=2, seed=3), 6)
    assert all(torch.equal(a, b) for a, b in zip(drawn, again))
    assert not torch.equal(drawn[0], PerformerAttention(8, heads=2, seed=4).feature_map.projection)
    attn = PerformerAttention(8, heads=2, redraw_interval=1).eval()
    assert torch.equal(*projections(attn, 2))
    before = attn.feature_map.projection
    attn.redraw()
    assert not torch.equal(attn.feature_map.projection, before)


def test_performer_resumes_where_it_stopped():
    first, second = (PerformerAttention(8, redraw_interval=3) for _ in range(2))
    drawn = projections(first, 4)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.feature_map.projection, drawn[-1])
    assert all(torch.equal(a, b) for a, b in zip(projections(first, 5), projections(second, 5)))
    second.reset_parameters()
    assert torch.equal(second.feature_map.projection, drawn[0])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_performer_does_not_redraw_while_checkpointing_repeats_a_forward(use_reentrant):
    values, grads = torch.randn(5, 8), []
    for saving in (False, True):
        torch.manual_seed(0)
        attn, x = PerformerAttention(8, heads=2, redraw_interval=1), values.clone().requires_grad_()
        for _ in range(2):
            out = checkpoint(attn, x, use_reentrant=use_reentrant) if saving else attn(x)
            out.square().sum().backward()
        assert attn.num_forwards == 2
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_an_earlier_forward_keeps_its_projection():
    values, grads = torch.randn(5, 8), []
    for again in (False, True):
        torch.manual_seed(0)
        attn, x = PerformerAttention(8, redraw_interval=1, seed=0), values.clone().requires_grad_()
        out = attn(x)
        if again:
            attn(values)  # draws another projection; the first must still be there
        out.square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


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


def test_support_of_a_batch_is_that_of_each_graph():
    sizes = (30, 1, 0, 17, 30)
    dense = dense_support(batch_of_sizes(*sizes), 2, 2, 7)
    alone = [dense_support(torch.zeros(size, dtype=torch.long), 2, 2, 7) for size in sizes if size]
    assert torch.equal(dense, torch.block_diag(*alone).bool())
    assert not torch.equal(alone[0], dense_support(torch.zeros(30, dtype=torch.long), 2, 2, 8))


def test_bigbird_is_the_formula():
    batch, attn = batch_of_sizes(20, 13, 4), BigBirdAttention(6, heads=2, block_size=2, num_random=2, seed=5).double()
    x = torch.randn(37, 6, dtype=torch.float64)
    allowed = dense_support(batch, 2, 2, 5)
    assert not allowed[:20, :20].all()
    torch.testing.assert_close(attn(x, batch), softmax_reference(attn, x, allowed))


def test_bigbird_pairs_grow_linearly():
    pairs = [block_sparse_support(torch.zeros(n, dtype=torch.long), 3, 3, 0).nnz for n in (3000, 6000)]
    assert pairs[1] < 2.01 * pairs[0]
    assert pairs[1] < 6000 * 3 * (5 + 3) + 2 * 3 * 6000


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize(
    ("ours", "arguments", "theirs"),
    [
        (SGFormerAttention, {}, lambda heads: PyGSGFormer(8, heads, 8)),
        (SGFormerAttention, {"bias": True}, lambda heads: PyGSGFormer(8, heads, 8, qkv_bias=True)),
        (PolynormerAttention, {}, lambda heads: PyGPolynormer(8, heads, 8 // heads)),
        (
            PolynormerAttention,
            {"qk_shared": False, "beta": 0.5},
            lambda heads: PyGPolynormer(8, heads, 8 // heads, beta=0.5, qk_shared=False),
        ),
    ],
)
def test_equals_pyg_on_each_graph(sizes, heads, ours, arguments, theirs):
    attn, dense, batch = ours(8, heads, **arguments), theirs(heads), batch_of_sizes(*sizes)
    dense.load_state_dict({name.removeprefix("dense."): value for name, value in attn.state_dict().items()})
    x = torch.randn(len(batch), 8, requires_grad=True)
    out = attn(x, batch)
    wanted = torch.cat([dense(part[None])[0] for part in x.split(list(sizes)) if len(part)])
    torch.testing.assert_close(out, wanted)
    weight = torch.randn_like(out)
    grads = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (out, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def sgformer_reference(attn, x, batch):
    out, dense = 0, attn.dense
    for q, k, v in zip(*(linear(x).split(attn.channels, dim=1) for linear in (dense.q, dense.k, dense.v))):
        cosine = (q / q.norm(dim=1, keepdim=True)) @ (k / k.norm(dim=1, keepdim=True)).t()
        weight = (cosine + torch.bincount(batch)[batch].diag()) * (batch[:, None] == batch)
        out = out + weight @ v / weight.sum(1, keepdim=True) / attn.heads
    return out


def test_sgformer_is_the_formula_in_float64():
    batch, attn = batch_of_sizes(5, 1, 8), SGFormerAttention(6, heads=3).double()
    x = torch.randn(14, 6, dtype=torch.float64)
    torch.testing.assert_close(attn(x, batch), sgformer_reference(attn, x, batch))


def test_sgformer_with_zero_rows_and_opposed_keys_is_finite():
    attn = SGFormerAttention(2)
    with torch.no_grad():
        attn.dense.k.weight.copy_(-attn.dense.q.weight)
    for x in (torch.zeros(3, 2), torch.ones(3, 2)):
        x.requires_grad_()
        out = attn(x)
        out.sum().backward()
        assert out.isfinite().all()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["BigBird", "Performer", "Polynormer", "SGFormer", "Transformer"])
def test_in_a_model_and_reset(name):
    batch = Batch.from_data_list([GRAPHS["star"], GRAPHS["path"]])
    model = GPSModel(4, 8, 2, 2, attn=lambda layer: ATTENTION[name](8, 2), pool="mean")
    out = model(batch.x.float(), batch.edge_index, batch.batch, batch)
    out.sum().backward()
    assert out.shape == (2, 2)
    before = [value.clone() for value in model.layers[0].attn.parameters()]
    model.layers[0].attn.reset_parameters()
    assert not all(torch.equal(a, b) for a, b in zip(before, model.layers[0].attn.parameters()))


@pytest.mark.parametrize(
    "cls", [BigBirdAttention, FullAttention, PerformerAttention, PolynormerAttention, SGFormerAttention]
)
def test_heads_must_divide_channels(cls):
    with pytest.raises(ValueError, match=r"divisible by 'heads' \(got 8 and 3\)"):
        cls(8, heads=3)


@pytest.mark.parametrize(
    ("cls", "arguments", "message"),
    [
        (FullAttention, {"dropout": 1.0}, r"in \[0, 1\) \(got 1.0\)"),
        (PerformerAttention, {"redraw_interval": 0}, r"'redraw_interval' must be at least 1 \(got 0\)"),
        (PerformerAttention, {"num_features": 0}, r"at least 1 \(got 0\)"),
        (BigBirdAttention, {"block_size": 0}, r"'block_size' must be at least 1 \(got 0\)"),
        (BigBirdAttention, {"num_random": -1}, r"'num_random' must be at least 0 \(got -1\)"),
    ],
)
def test_bad_arguments_are_refused(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(8, **arguments)


@pytest.mark.parametrize("scale", [30, 100, 300, 1000])
def test_random_features_of_long_queries_have_finite_gradients(scale):
    torch.manual_seed(0)
    attn, x = PerformerAttention(8, heads=2, num_features=16), scale * torch.randn(60, 8)
    x.requires_grad_()
    attn(x).square().mean().backward()
    assert x.grad.isfinite().all()
    assert attn.qkv.weight.grad.isfinite().all()
