"""Compiled walks and pair tables against those of plain torch."""

import pytest
import torch

from pyg_topomask.ops import sample_walks
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.walks import compiled
from pyg_topomask.ops.walks.merge import WalkTable
from pyg_topomask.ops.walks.pair_table import sorted_pair_table
from tests.threads import assert_threads_change_nothing

pytestmark = pytest.mark.skipif(loader.missing("walks"), reason="needs a C++ compiler")
K = 4
FAR = torch.tensor([[0, 2**22], [2**22, 0]])
SETTINGS = {
    "iid": {"edge_weight": torch.linspace(-0.5, 0.5, 300)},
    "transition": {"transition": torch.linspace(0.1, 1.1, 300)},
    "importance": {"importance": False, "start": torch.arange(5, 90, 3)},
    "antithetic": {"scheme": "antithetic", "edge_weight": torch.linspace(-1, 1, 300, dtype=torch.float64)},
    "both": {"scheme": "antithetic", "transition": torch.linspace(0.1, 1.1, 300)},
    "repelling": {"scheme": "repelling", "start": torch.arange(5, 90, 3)},
    "blocks": {"scheme": "repelling", "block_size": 3, "edge_weight": torch.linspace(-1, 1, 300, dtype=torch.float64)},
    "lengths": {"lengths": "uniform", "halt_prob": 0.0},
    "antithetic lengths": {"lengths": (0, 0.3, 0.3, 0.1, 0.1, 0.2), "halt_prob": 0.0, "scheme": "antithetic"},
    "infinite loads": {"edge_weight": torch.ones(300).index_fill(0, torch.arange(0, 300, 10), 1e30)},
}


def assert_same_walks(monkeypatch, edge_index, num_nodes, **settings):
    found = []
    for native in ("1", "0"):
        monkeypatch.setenv("TOPOMASK_NATIVE", native)
        found.append(sample_walks(edge_index, num_nodes, generator=torch.Generator().manual_seed(1), **settings))
    walks, wanted = found
    assert walks.index.equal(wanted.index)
    assert walks.length.equal(wanted.length)
    for name in ("load", "count", "own"):
        torch.testing.assert_close(getattr(walks, name), getattr(wanted, name), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("halt_prob", [0.0, 0.3])
@pytest.mark.parametrize("name", SETTINGS)
def test_walks_equal_those_of_plain_torch(monkeypatch, name, halt_prob):
    edge_index = torch.randint(100, (2, 300))  # a few nodes have no neighbour
    settings = {"num_walks": 7, "max_length": 5, "halt_prob": halt_prob, **SETTINGS[name]}
    assert_same_walks(monkeypatch, edge_index, 100, **settings)


@pytest.mark.parametrize("scheme", ["iid", "repelling"])
def test_walks_of_many_starts_and_to_nodes_far_apart(monkeypatch, scheme):
    """Visits are sorted in several passes over the digits of nodes, and in several parts."""
    settings = {"num_walks": 8, "max_length": 4, "scheme": scheme}
    assert_same_walks(monkeypatch, torch.randint(5_000, (2, 20_000)), 5_000, halt_prob=0.1, **settings)
    edge_index = torch.cat([torch.randint(2**22 + 1, (2, 500)), FAR], dim=1)
    assert_same_walks(monkeypatch, edge_index, 2**22 + 1, start=edge_index[0], **settings)


def tables(num_nodes, dtype=torch.float64):
    edge_index = torch.randint(num_nodes, (2, 4 * num_nodes))
    weight = torch.randn(edge_index.size(1), dtype=dtype)  # loads have signs
    walks = [sample_walks(edge_index, num_nodes, num_walks=8, max_length=K, edge_weight=weight) for _ in range(2)]
    return [WalkTable(some.index, some.length, some.load) for some in walks]


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-3), (torch.float64, 1e-11)])
@pytest.mark.parametrize(("shared", "ordered"), [(False, False), (True, False), (False, True), (True, True)])
def test_pair_tables_equal_those_of_plain_torch(dtype, atol, shared, ordered):
    """Also of small integers, in which transforms store nodes and lengths, and of walks that relabelling has mixed."""
    left, right = tables(300, dtype)
    right = left if shared else right
    stored = [WalkTable(some.index.int(), some.length.to(torch.int8), some.load) for some in (left, right)]
    order = torch.randperm(left.length.numel())
    mixed = WalkTable(left.index[:, order], left.length[order], left.load[order])
    wanted_index, wanted = sorted_pair_table(left, right, 300, K, ordered=ordered)
    for given in ((left, right), stored, (mixed, mixed if shared else right)):
        index, coeffs = compiled.pair_table(*given, 300, K, ordered)
        assert index.equal(wanted_index)
        assert (index.dtype, coeffs.dtype) == (torch.int32, dtype)
        torch.testing.assert_close(coeffs, wanted, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=atol)


def test_threads_change_nothing():
    """Each row is summed by one thread, in the order of its walks."""
    edge_index = torch.randint(1_000, (2, 4_000))

    def run():
        walks = sample_walks(edge_index, 1_000, num_walks=4, max_length=K, generator=torch.manual_seed(0))
        table = WalkTable(walks.index, walks.length, walks.load)
        return [*vars(walks).values(), *compiled.pair_table(table, table, 1_000, K)]

    assert_threads_change_nothing(run)


@pytest.mark.parametrize("wrong", [{"start": 3}, {"visited": 3}, {"visited": -1}, {"length": 5}, {"length": -1}])
@pytest.mark.parametrize("side", [0, 1])
def test_walks_of_another_graph_are_refused(wrong, side):
    walks = [{"start": 0, "visited": 1, "length": 1} for _ in range(2)]
    walks[side].update(wrong)
    given = [
        WalkTable(torch.tensor([[walk["start"]], [walk["visited"]]]), torch.tensor([walk["length"]]), torch.ones(1))
        for walk in walks
    ]
    with pytest.raises(ValueError, match="outside of 0 to 2, or have more than 'max_length' = 4 steps"):
        compiled.pair_table(*given, 3, K)
