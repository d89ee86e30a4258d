import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import GRFMask
from pyg_topomask.operators import GRFOperator, SparseFactorOperator
from pyg_topomask.ops import masked_linear_attention, masked_softmax_attention, sample_walks
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products import factors
from pyg_topomask.ops.sparse import Pattern, sampled_product, spmm
from pyg_topomask.ops.walks import pair_table as pairs
from pyg_topomask.ops.walks.merge import WalkTable
from pyg_topomask.ops.walks.pair_table import monomials, pair_table
from pyg_topomask.ops.walks.product import WalkProduct
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks

F = torch.tensor([1.3, -0.4, 0.2, 0.7], dtype=torch.float64)
K = 3


def tables(data):
    out = []
    for seed in range(2):
        walks = sample_walks(
            data.edge_index,
            data.num_nodes,
            num_walks=3,
            max_length=K,
            halt_prob=0.2,
            edge_weight=torch.rand(data.num_edges, dtype=torch.float64) + 0.5,
            generator=torch.Generator().manual_seed(seed),
        )
        out.append(WalkTable(walks.index, walks.length, walks.load))
    return out


def features(table, num_nodes):
    """Phi, entry by entry from the walks."""
    phi = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for (i, v), length, load in zip(table.index.t().tolist(), table.length.tolist(), table.load.tolist()):
        phi[i, v] += F[length] * load
    return phi


def dense(pattern, value):
    out = torch.zeros(pattern.num_rows, pattern.num_cols, dtype=value.dtype)
    return out.index_put((pattern.row.long(), pattern.col.long()), value, accumulate=True)


@pytest.mark.parametrize("block", [1, 5, 2**21, "compiled"])
@pytest.mark.parametrize("data", GRAPHS.values(), ids=GRAPHS.keys())
def test_pair_table_is_the_product_of_the_features(monkeypatch, data, block):
    if block != "compiled":
        monkeypatch.setenv("TOPOMASK_NATIVE", "0")
        monkeypatch.setattr(pairs, "_TERMS_PER_BLOCK", block)
    elif loader.missing("walks"):
        pytest.skip("needs a C++ compiler")
    left, right = tables(data)
    n = data.num_nodes
    wanted = features(left, n) @ features(right, n).t()
    index, coeffs = pair_table(left, right, n, K)
    value = coeffs @ monomials(F)
    torch.testing.assert_close(dense(Pattern(index[0], index[1], n, n), value), wanted, rtol=1e-12, atol=1e-12)
    key = (index[0] * n + index[1]).tolist()
    assert key == sorted(set(key))
    product = WalkProduct(left, right, n, K)
    got = dense(product.pairs.pattern, product.pairs.values(product.pair_weights(F)))
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert product.counts.total >= product.pairs.pattern.nnz
    alone = WalkProduct(left, None, n, K)
    torch.testing.assert_close(
        dense(alone.pairs.pattern, alone.pairs.values(alone.pair_weights(F))), features(left, n), rtol=1e-12, atol=1e-12
    )


def test_monomials_are_every_product_once():
    f = torch.randn(2, 4, dtype=torch.float64)
    wanted = sorted(float(f[1, a] * f[1, b]) for a in range(4) for b in range(a, 4))
    assert torch.allclose(monomials(f)[1].sort().values, torch.tensor(wanted, dtype=torch.float64))


def test_entries_of_each_head():
    left, right = tables(GRAPHS["two_parts"])
    product = WalkProduct(left, right, 6, K)
    f = torch.stack([F, 2 * F.flip(0)])
    values = product.pairs.values(product.pair_weights(f))
    for head in range(2):
        torch.testing.assert_close(values[:, head], product.pairs.values(product.pair_weights(f[head])))


def test_order_of_stored_walks_does_not_matter():
    left, right = tables(GRAPHS["weighted"])
    order = torch.randperm(left.length.numel())
    mixed = WalkTable(left.index[:, order].int(), left.length[order].to(torch.int8), left.load[order])
    one, two = (WalkProduct(table, right, 5, K) for table in (left, mixed))
    assert torch.equal(one.pairs.coeffs, two.pairs.coeffs)
    assert torch.equal(one.left.coeffs, two.left.coeffs)


def test_walks_longer_than_the_modulation_are_refused():
    left, right = tables(GRAPHS["weighted"])
    with pytest.raises(ValueError, match=r"walks reach 3 hops.*'max_length' = 2.*transform the same"):
        WalkProduct(left, right, 5, 2)


@pytest.mark.parametrize("shape", [(4, 6, 9), (3, 3, 0), (0, 0, 0), (5, 2, 10), (1, 1, 1)])
def test_sparse_products_and_their_gradients(shape):
    rows, cols, nnz = shape
    row = torch.randint(max(rows, 1), (nnz,)).sort().values
    col = torch.randint(max(cols, 1), (nnz,))  # repeated positions add up
    pattern = Pattern(row, col, rows, cols)
    value = torch.randn(nnz, dtype=torch.float64, requires_grad=True)
    x, left = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (cols, rows))
    torch.testing.assert_close(spmm(pattern, value, x), dense(pattern, value) @ x)
    torch.testing.assert_close(sampled_product(pattern, left, x), (left[row] * x[col]).sum(1))
    if nnz:
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda value, x: spmm(pattern, value, x), (value, x))
            assert check(lambda left, x: sampled_product(pattern, left, x), (left, x))
    transposed, order = pattern.transposed
    torch.testing.assert_close(dense(transposed, value[order]), dense(pattern, value).t())


def shuffled_path(num_nodes):
    label = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))
    edges = torch.stack([label[:-1], label[1:]])
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=num_nodes)


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
def test_rearranged_rows_change_no_number(monkeypatch, kernel):
    graph = AddRandomWalks(seed=0)(shuffled_path(200))
    q, k, v = (torch.rand(200, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    attend = masked_linear_attention if kernel == "linear" else masked_softmax_attention
    results = []
    for far in (0, 10**9):
        monkeypatch.setattr(factors, "_FAR_NODES", far)
        mask = GRFMask(heads=2)
        operator = mask(graph.clone().apply(lambda x: x.clone()))  # new tensors: nothing is remembered
        pattern = operator.support.pairs(None)[0]
        assert (pattern.order is not None) == (far == 0)
        out = attend(q, k, v, operator, path="pairwise")
        results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, mask.modulation])])
    for got, wanted in zip(*results):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(loader.missing("pairs"), reason="needs a C++ compiler")
def test_compiled_attention_keeps_no_rows_of_pairs():
    walks = GRFMask()(AddRandomWalks(seed=0)(shuffled_path(50))).walks
    q, k, v = (torch.rand(50, 1, 4, requires_grad=True) for _ in range(3))
    masked_linear_attention(q, k, v, GRFOperator(walks, torch.rand(5)), path="pairwise").sum().backward()
    assert "pairs" in vars(walks)
    assert "row" not in vars(walks.pairs.pattern)


def test_rows_that_no_order_brings_nearer_stay(monkeypatch):
    monkeypatch.setattr(factors, "_FAR_NODES", 0)
    nodes = torch.arange(30)
    index = torch.cartesian_prod(nodes, nodes).t()
    table = pairs.entry_table(index, torch.ones(900, 1), 30)
    assert table.pattern.order is None


@pytest.mark.parametrize("far", [0, 10**9], ids=["rearranged", "in_order"])
def test_a_product_of_constants_is_that_of_learnable_factors(monkeypatch, far):
    monkeypatch.setattr(factors, "_FAR_NODES", far)
    generator = torch.Generator().manual_seed(0)
    chain = torch.randperm(200, generator=generator)  # neighbours of a path under scattered names
    index = torch.cat([torch.stack([chain[:-1], chain[1:]]), torch.arange(200).expand(2, -1)], dim=1)
    left, right = torch.rand(2, index.size(1), generator=generator, dtype=torch.float64)
    operators = [
        SparseFactorOperator((index, left.requires_grad_(learnable)), (index, right), 200)
        for learnable in (False, True)
    ]
    dense = []
    for operator in operators:
        pattern, entries = operator.support.pairs(None)
        assert operator.support.count() == pattern.nnz == 200 + 2 * 199
        matrix = torch.zeros(200, 200, dtype=torch.float64)
        matrix[pattern.row.long(), pattern.col.long()] = entries.detach()
        dense.append(matrix if pattern.order is None else matrix[pattern.inverse][:, pattern.inverse])
    assert (operators[0].support.pairs(None)[0].order is not None) == (far == 0)
    torch.testing.assert_close(dense[0], dense[1])
    torch.testing.assert_close(dense[0], operators[1].to_dense().detach())
