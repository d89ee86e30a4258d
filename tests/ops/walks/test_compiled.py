"""Compiled walks and pair tables against those of plain torch."""

import pytest
import torch

from pyg_topomask.limits import limits
from pyg_topomask.ops import sample_walks
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.walks import compiled
from pyg_topomask.ops.walks.merge import WalkTable
from pyg_topomask.ops.walks.pair_table import sorted_pair_table

pytestmark = pytest.mark.skipif(loader.missing("walks"), reason="needs a C++ compiler")
K = 4


def tables(num_nodes, dtype=torch.float64):
    edge_index = torch.randint(num_nodes, (2, 4 * num_nodes))
    weight = torch.randn(edge_index.size(1), dtype=dtype)  # loads have signs
    walks = [sample_walks(edge_index, num_nodes, num_walks=8, max_length=K, edge_weight=weight) for _ in range(2)]
    return [WalkTable(some.index, some.length, some.load) for some in walks]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("halt_prob", [0.0, 0.3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"transition": True},
        {"importance": False},
        {"scheme": "antithetic"},
        {"scheme": "antithetic", "transition": True},
        {"scheme": "repelling"},
        {"scheme": "repelling", "block_size": 3},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "iid",
)
@pytest.mark.parametrize("start", [None, torch.arange(5, 90, 3)], ids=["all", "some"])
def test_walks_equal_those_of_plain_torch(monkeypatch, settings, halt_prob, start, dtype):
    edge_index = torch.randint(100, (2, 300))  # a few nodes have no neighbour
    weight = torch.rand(300, dtype=dtype) - 0.5
    settings = {**settings, "transition": torch.rand(300) + 0.1} if "transition" in settings else settings
    found = []
    for native in ("1", "0"):
        monkeypatch.setenv("TOPOMASK_NATIVE", native)
        walks = {"num_walks": 7, "max_length": 5, "halt_prob": halt_prob, "edge_weight": weight, "start": start}
        found.append(sample_walks(edge_index, 100, generator=torch.Generator().manual_seed(1), **walks, **settings))
    compiled_walks, wanted = found
    assert compiled_walks.index.equal(wanted.index)
    assert compiled_walks.length.equal(wanted.length)
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for name in ("load", "count", "own"):
        torch.testing.assert_close(getattr(compiled_walks, name), getattr(wanted, name), **tolerance)


def walks_of_both(monkeypatch, edge_index, num_nodes, **settings):
    """The walks of compiled code and of plain torch."""
    found = []
    for native in ("1", "0"):
        monkeypatch.setenv("TOPOMASK_NATIVE", native)
        walks = sample_walks(edge_index, num_nodes, generator=torch.Generator().manual_seed(1), **settings)
        found.append(walks)
    return found


@pytest.mark.parametrize("scheme", ["iid", "repelling"])
def test_walks_of_many_starts(monkeypatch, scheme):
    """Visits are sorted in several passes over the digits of nodes, and in several parts."""
    settings = {"num_walks": 8, "max_length": 4, "halt_prob": 0.1, "scheme": scheme}
    found, wanted = walks_of_both(monkeypatch, torch.randint(5_000, (2, 20_000)), 5_000, **settings)
    assert found.index.equal(wanted.index)
    assert found.length.equal(wanted.length)
    for name in ("load", "count", "own"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-5, atol=1e-6)


def test_walks_to_nodes_far_apart(monkeypatch):
    """Numbers of nodes have 23 bits here, which are sorted in three passes."""
    num_nodes = 2**22 + 1
    far = torch.tensor([[0, num_nodes - 1], [num_nodes - 1, 0]])
    edge_index = torch.cat([torch.randint(num_nodes, (2, 500)), far], dim=1)
    settings = {"num_walks": 4, "max_length": 3, "start": edge_index[0]}
    found, wanted = walks_of_both(monkeypatch, edge_index, num_nodes, **settings)
    assert found.index.equal(wanted.index)
    assert found.length.equal(wanted.length)
    torch.testing.assert_close(found.load, wanted.load)


def test_infinite_loads_stay_in_their_rows(monkeypatch):
    edge_index = torch.randint(200, (2, 600))
    weight = torch.where(torch.rand(600) < 0.1, 1e30, 1.0)  # two such steps exceed float32
    found, wanted = walks_of_both(monkeypatch, edge_index, 200, num_walks=4, max_length=5, edge_weight=weight)
    assert bool(wanted.load.isinf().any())
    torch.testing.assert_close(found.load, wanted.load, equal_nan=True)


def test_walks_are_the_same_on_any_number_of_threads():
    edge_index = torch.randint(1_000, (2, 4_000))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with limits.override(thread_work=0):
                found.append(sample_walks(edge_index, 1_000, num_walks=4, max_length=3, generator=torch.manual_seed(0)))
    finally:
        torch.set_num_threads(before)
    for walks in found[1:]:
        for name in ("index", "length", "load", "count", "own"):
            assert getattr(walks, name).equal(getattr(found[0], name))


def test_without_nodes():
    walks = sample_walks(torch.empty(2, 0, dtype=torch.long), 0, num_walks=2, max_length=3)
    assert walks.index.shape == (2, 0)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-3), (torch.float64, 1e-11)])
@pytest.mark.parametrize("shared", [False, True])
def test_equals_plain_torch(dtype, atol, shared):
    left, right = tables(300, dtype)
    right = left if shared else right
    index, coeffs = compiled.pair_table(left, right, 300, K)
    wanted_index, wanted = sorted_pair_table(left, right, 300, K)
    assert index.equal(wanted_index)
    assert index.dtype == wanted_index.dtype == torch.int32
    assert coeffs.dtype == dtype
    torch.testing.assert_close(coeffs, wanted, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=atol)


def test_small_integers():
    """Transforms store nodes as int32 and lengths as int8."""
    left, right = tables(50)
    stored = [WalkTable(walks.index.int(), walks.length.to(torch.int8), walks.load) for walks in (left, right)]
    index, coeffs = compiled.pair_table(*stored, 50, K)
    for wanted_index, wanted in (compiled.pair_table(left, right, 50, K), sorted_pair_table(*stored, 50, K)):
        assert index.equal(wanted_index)
        torch.testing.assert_close(coeffs, wanted, rtol=1e-12, atol=1e-11)


def test_threads_change_nothing():
    """Each row is summed by one thread, in the order of its walks."""
    left, right = tables(1_000)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            with limits.override(thread_work=0):
                found.append(compiled.pair_table(left, right, 1_000, K))
    finally:
        torch.set_num_threads(before)
    for index, coeffs in found[1:]:
        assert index.equal(found[0][0])
        assert coeffs.equal(found[0][1])


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_without_walks(num_nodes):
    none = WalkTable(torch.empty(2, 0, dtype=torch.long), torch.empty(0, dtype=torch.long), torch.empty(0))
    index, coeffs = compiled.pair_table(none, none, num_nodes, K)
    assert index.shape == (2, 0)
    assert coeffs.shape == (0, (K + 1) * (K + 2) // 2)


@pytest.mark.parametrize(
    ("place", "value"), [("start", 3), ("visited", 3), ("visited", -1), ("length", 5), ("length", -1)]
)
@pytest.mark.parametrize("side", [0, 1])
def test_walks_of_another_graph_are_refused(place, value, side):
    walks = [{"start": 0, "visited": 1, "length": 1} for _ in range(2)]
    walks[side][place] = value
    left, right = (
        WalkTable(torch.tensor([[walk["start"]], [walk["visited"]]]), torch.tensor([walk["length"]]), torch.ones(1))
        for walk in walks
    )
    with pytest.raises(ValueError, match="outside of 0 to 2, or have more than 'max_length' = 4 steps"):
        compiled.pair_table(left, right, 3, K)


def test_refusals(monkeypatch):
    assert "got meta" in compiled.refuses(torch.ones(1, device="meta"))
    assert "got torch.bfloat16" in compiled.refuses(torch.ones(1, dtype=torch.bfloat16))
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    assert "TOPOMASK_NATIVE=0" in compiled.refuses(torch.ones(1))
