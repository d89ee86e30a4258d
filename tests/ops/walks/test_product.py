import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask import nn, ops, testing, transforms
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.products import factors
from pyg_topomask.ops.walks import pair_table as pairs
from pyg_topomask.ops.walks.merge import WalkTable
from pyg_topomask.ops.walks.product import WalkProduct
from tests.ops.compare import dense

F = torch.tensor([[1.3, -0.4, 0.2, 0.7], [0.5, 0.1, -2.0, 0.3]], dtype=torch.float64)
K = 3
TOL = {"rtol": 1e-12, "atol": 1e-12}


def tables(data):
    weight = torch.rand(data.num_edges, dtype=torch.float64) + 0.5
    settings = {"num_walks": 3, "max_length": K, "halt_prob": 0.2, "edge_weight": weight}
    walks = [ops.sample_walks(data.edge_index, data.num_nodes, **settings) for _ in range(2)]
    return [WalkTable(some.index, some.length, some.load) for some in walks]


def features(table, num_nodes, f):
    """Phi, entry by entry from the walks."""
    phi = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    for (i, v), length, load in zip(table.index.t().tolist(), table.length.tolist(), table.load.tolist()):
        phi[i, v] += f[length] * load
    return phi


@pytest.mark.parametrize("block", [1, 5, 2**21, "compiled"])
@pytest.mark.parametrize("data", testing.GRAPHS.values(), ids=testing.GRAPHS)
def test_entries_of_each_head_are_those_of_the_product_of_the_features(monkeypatch, data, block):
    """Walks in any order and of small integers, with their own keys, shared ones, and without keys."""
    if block != "compiled":
        monkeypatch.setenv("TOPOMASK_NATIVE", "0")
        monkeypatch.setattr(pairs, "_TERMS_PER_BLOCK", block)
    elif loader.missing("walks"):
        pytest.skip("needs a C++ compiler")
    n, (left, right) = data.num_nodes, tables(data)
    order = torch.randperm(left.length.numel())
    mixed = WalkTable(left.index[:, order].int(), left.length[order].to(torch.int8), left.load[order])
    for query, key in ((left, right), (mixed, right), (left, left), (left, None)):
        product = WalkProduct(query, key, n, K)
        pattern, values = product.pairs.pattern, product.pairs.values(product.pair_weights(F))
        for head, f in enumerate(F):
            wanted = features(left, n, f)
            wanted = wanted if key is None else wanted @ features(key, n, f).t()
            torch.testing.assert_close(dense(pattern, values[:, head]), wanted, **TOL)
            torch.testing.assert_close(product.pairs.values(product.pair_weights(f)), values[:, head], **TOL)
        entry = (pattern.row.long() * n + pattern.col).tolist()
        assert entry == sorted(set(entry))
        assert key is None or product.counts.total >= pattern.nnz
        squares = features(left, n, F[0]).square().sum(1)
        torch.testing.assert_close(product.squared_norms @ pairs.monomials(F[0]), squares, **TOL)


def test_walks_longer_than_the_modulation_are_refused():
    with pytest.raises(ValueError, match=r"walks reach 3 hops.*'max_length' = 2.*transform the same"):
        WalkProduct(*tables(testing.GRAPHS["weighted"]), 5, 2)


def shuffled_path(num_nodes):
    label = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))
    edges = torch.stack([label[:-1], label[1:]])
    return Data(edge_index=torch.cat([edges, edges.flip(0)], dim=1), num_nodes=num_nodes)


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
def test_rearranged_rows_change_no_number(monkeypatch, kernel):
    graph = transforms.AddRandomWalks(seed=0)(shuffled_path(200))
    q, k, v = (torch.rand(200, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    attend = ops.masked_linear_attention if kernel == "linear" else ops.masked_softmax_attention
    results = []
    for far in (0, 10**9):
        monkeypatch.setattr(factors, "FAR_NODES", far)
        mask = nn.GRFMask(heads=2)
        operator = mask(graph.clone().apply(lambda x: x.clone()))  # new tensors: nothing is remembered
        assert (operator.support.pairs(None)[0].order is not None) == (far == 0)
        out = attend(q, k, v, operator, path="pairwise")
        results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, mask.modulation])])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)
