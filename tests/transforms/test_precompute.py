"""The cache of encodings: the same result however it was made, and never half a file."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddRandomWalkPE, Compose

from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import (
    AddHops,
    AddLaplacianEncoding,
    AddRandomWalkEncoding,
    AddRandomWalks,
    AddRelativeWalkEncoding,
    AddTreeOrder,
    RelabelNodes,
    precompute,
)
from pyg_topomask.transforms import precompute as precompute_function
from pyg_topomask.transforms.base import GraphTransform
from pyg_topomask.transforms.precompute import cache_key
from tests.hostile import Calls, touch
from tests.transforms.encoding_cases import assert_same, path

module = sys.modules[precompute_function.__module__]
UNWEIGHTED = [Data(edge_index=data.edge_index, num_nodes=data.num_nodes) for data in GRAPHS.values()]
STEPS = [AddLaplacianEncoding(4), AddRandomWalkEncoding([1, 2, 3]), AddRelativeWalkEncoding([0, 2])]


def stored(folder):
    return sorted(path.name for path in (folder / "encodings").iterdir() if not path.name.endswith(".lock"))


def test_cached_result_is_the_computed_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path))
    computed = precompute(UNWEIGHTED, STEPS, cache=False)
    assert "laplacian_vectors" not in UNWEIGHTED[0]
    assert_same(computed, precompute(UNWEIGHTED, STEPS))
    assert len(stored(tmp_path)) == 1
    monkeypatch.setattr(module, "_compute", None)  # from here on only the file can serve
    again = precompute(UNWEIGHTED, STEPS, cache=tmp_path)
    assert_same(computed, again)
    Batch.from_data_list(again)
    for data in again:
        assert data.random_walk_diagonal.shape == (data.num_nodes, 3)


@pytest.mark.parametrize("junk", ["half", "bytes", "hostile"])
def test_a_damaged_file_is_made_again(tmp_path, junk, caplog):
    computed = precompute(UNWEIGHTED, STEPS, cache=tmp_path)
    (file,) = (tmp_path / "encodings" / name for name in stored(tmp_path))
    whole = file.read_bytes()
    del computed  # its tensors are mapped from the file
    file.unlink()
    if junk == "hostile":
        torch.save(Calls(touch, str(tmp_path / "marker")), file)
    else:
        file.write_bytes(whole[: len(whole) // 2] if junk == "half" else b"junk")
    again = precompute(UNWEIGHTED, STEPS, cache=tmp_path)
    assert str(file) in caplog.text
    assert "it is computed again" in caplog.text
    assert not (tmp_path / "marker").exists()
    assert_same(again, precompute(UNWEIGHTED, STEPS, cache=False))
    assert file.stat().st_size > len(whole) // 2


def test_several_groups_give_the_same(tmp_path):
    graphs, steps, done = [*UNWEIGHTED, path(9_000), path(9_000)], [AddRandomWalkEncoding([1, 2])], []
    wanted, state = [steps[0](graph.clone()) for graph in graphs], torch.get_rng_state()
    found = precompute(graphs, steps, cache=tmp_path, tick=done.append)
    assert_same(wanted, found)
    assert torch.equal(state, torch.get_rng_state())
    assert done == sorted(done)
    assert len(done) > 1
    assert done[-1] == len(graphs)
    precompute(graphs, steps, cache=tmp_path, tick=done.append)
    assert done.count(len(graphs)) == 1  # the second call reads the file


def test_walks_and_trees_are_kept_too(tmp_path):
    steps = [AddRandomWalkEncoding([1, 2, 3]), AddRandomWalks(seed=1)]
    wanted = [steps[1](steps[0](data)) for data in UNWEIGHTED]
    for given in (Compose(steps), [Compose(steps)]):  # the second call reads the file
        assert_same(wanted, precompute(UNWEIGHTED, given, cache=tmp_path))
    steps[1].set_epoch(7)
    again = precompute(UNWEIGHTED, steps, cache=tmp_path)
    assert_same([steps[1](steps[0](data)) for data in UNWEIGHTED], again)
    assert any(not torch.equal(a.walk_index, b.walk_index) for a, b in zip(again, wanted))
    for unseeded in (AddRandomWalks(), Compose([AddRandomWalks()])):
        with pytest.raises(ValueError, match="no seed"):
            precompute(UNWEIGHTED, unseeded, cache=tmp_path)
    assert "walk_index" in precompute(UNWEIGHTED, AddRandomWalks(), cache=False)[0]
    precompute(UNWEIGHTED, AddTreeOrder(), cache=tmp_path)  # without random numbers


def test_each_transform_sees_what_those_before_it_did(tmp_path):
    steps = Compose([RelabelNodes(), AddHops(2), AddRandomWalks(seed=1), AddRandomWalks(seed=2, independent=False)])
    mixed = torch.randperm(30)
    given = [Data(edge_index=mixed[path(30).edge_index], num_nodes=30), path(9)]
    for cache in (False, tmp_path, tmp_path):
        assert_same([steps(data.clone()) for data in given], precompute(given, steps, cache=cache))


def test_what_a_transform_deletes_is_gone(tmp_path):
    paired = [AddRandomWalks(seed=1)(data.clone()) for data in UNWEIGHTED]
    again = AddRandomWalks(seed=2, independent=False)
    for cache in (False, tmp_path, tmp_path):
        found = precompute(paired, again, cache=cache)
        assert_same([again(data.clone()) for data in paired], found)
        assert not any("walk_key_index" in data for data in found)
    assert all("walk_key_index" in data for data in paired)


def test_whatever_changes_changes_the_key(monkeypatch):
    graphs, steps = [UNWEIGHTED[0], UNWEIGHTED[1]], [AddRandomWalkEncoding([1, 2])]
    keys = [cache_key(graphs, steps)]
    assert cache_key([data.clone() for data in graphs], [AddRandomWalkEncoding(range(1, 3))]) == keys[0]
    other = graphs[0].clone()
    other.edge_index = other.edge_index.flip(0)
    weighted, larger = graphs[0].clone(), graphs[0].clone()
    weighted.edge_weight, larger.num_nodes = torch.ones(weighted.num_edges), 9
    for changed in (other, weighted, larger):
        keys.append(cache_key([changed, graphs[1]], steps))
    keys += [cache_key(graphs[:1], steps), cache_key(graphs[::-1], steps)]
    keys += [cache_key(graphs, [AddRandomWalkEncoding([1, 3])]), cache_key(graphs, [AddRelativeWalkEncoding([1, 2])])]
    keys += [cache_key(graphs, [AddLaplacianEncoding(4, name="other")]), cache_key(graphs, [*steps, STEPS[0]])]
    torch.set_default_dtype(torch.float64)
    try:
        keys.append(cache_key(graphs, steps))
    finally:
        torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(module.pyg_topomask, "__version__", "99")
    keys.append(cache_key(graphs, steps))
    assert len(set(keys)) == len(keys)


class Slow(GraphTransform):
    calls = 0

    def additions(self, graphs):
        type(self).calls += len(graphs)
        time.sleep(0.2)
        return [{"slow": torch.ones(graph.num_nodes), "count": graph.num_nodes} for graph in graphs]


def test_of_two_that_need_a_missing_file_one_computes_it(tmp_path):
    pytest.importorskip("fcntl")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: precompute(UNWEIGHTED, Slow(), cache=tmp_path), range(2))
    assert_same(first, second)
    assert Slow.calls == len(UNWEIGHTED)


def test_transforms_that_do_not_fit_are_refused(tmp_path):
    class Uneven(GraphTransform):
        def additions(self, graphs):
            return [{f"a{graph.num_nodes}": 1} for graph in graphs]

    with pytest.raises(ValueError, match=r"same attributes.*a4"):
        precompute(UNWEIGHTED, Uneven(), cache=tmp_path)
    with pytest.raises(TypeError, match=r"of pyg_topomask \(got AddRandomWalkPE\); give others .* 'pre_transform'"):
        precompute(UNWEIGHTED, [AddRandomWalkPE(3)])
    assert precompute([], STEPS) == []


class AddIdentity(GraphTransform):
    def additions(self, graphs):
        return [
            {
                "identity": torch.eye(graph.num_nodes),
                "count": torch.tensor([1.5]) if graph.num_nodes > 2 else torch.tensor([1]),
            }
            for graph in graphs
        ]


def test_attributes_whose_shapes_or_dtypes_differ(tmp_path):
    graphs = [Data(edge_index=torch.tensor([[0], [1]]), num_nodes=size) for size in (2, 3, 2)]
    for _ in range(2):  # computed, then read from the cache
        found = precompute(graphs, AddIdentity(), cache=tmp_path)
        assert_same(found, [AddIdentity()(graph.clone()) for graph in graphs])
        assert [graph["count"].dtype for graph in found] == [torch.int64, torch.float32, torch.int64]
