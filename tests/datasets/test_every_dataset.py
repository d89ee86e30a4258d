"""What holds for every generated data set: seeds, refusals, and the file on the disk."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddRandomWalkPE, Constant

from pyg_topomask.datasets import (
    LONG_RANGE,
    DigitsDataset,
    InducedCycleDataset,
    LongRangeDataset,
    MotifDataset,
    ParticleDataset,
)
from pyg_topomask.tensor_files import UnreadableFileError
from tests.hostile import Calls, touch

DATASETS = {
    "motif": partial(MotifDataset, motif="ladder", num_nodes=20),
    "cycle": partial(InducedCycleDataset, num_nodes=12),
    **{task: partial(LongRangeDataset, task=task, num_nodes=12) for task in LONG_RANGE},
    "digits": partial(DigitsDataset, side=9),
    "springs": partial(ParticleDataset, force="springs", num_nodes=12, num_frames=1),
}
Circles = partial(MotifDataset, motif="circle", num_graphs=4, num_nodes=12)


def same(one, two):
    one, two = one.to_dict(), two.to_dict()
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", DATASETS)
def test_a_graph_depends_on_seed_and_number_alone(tmp_path, name, request):
    if name == "digits":
        pytest.importorskip("sklearn")
    make = DATASETS[name]
    few = make(tmp_path, num_graphs=2, seed=7)
    torch.manual_seed(1)
    np.random.seed(1)
    many = make(tmp_path, num_graphs=5, seed=7)
    read = make(tmp_path, num_graphs=5, seed=7)
    assert all(same(one, two) for one, two in zip(few, many))
    assert all(same(one, two) for one, two in zip(many, read))
    assert not all(same(one, two) for one, two in zip(few, make(tmp_path, num_graphs=2, seed=8)))
    for data in many:
        data.validate()
        assert data.is_coalesced()
        assert data.is_undirected()
        assert not data.has_self_loops()
    assert Batch.from_data_list(list(many)).num_graphs == 5
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    (one,) = make(tmp_path, num_graphs=1, seed=7)
    assert same(one, many[0])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (partial(MotifDataset, motif="laddder"), ValueError, "'motif' must be one of caveman, circle.*'laddder'"),
        (partial(MotifDataset, motif="grid", num_nodes=9), ValueError, "'num_nodes' must be at least 10.*got 9"),
        (partial(MotifDataset, motif="grid", num_graphs=0), ValueError, "'num_graphs' must be at least 1.*got 0"),
        (partial(MotifDataset, motif="grid", num_graphs=10.0), TypeError, "'num_graphs' must be an int.*10.0"),
        (partial(MotifDataset, motif="grid", pre_filter=bool), TypeError, "MotifDataset takes no 'pre_filter'"),
        (partial(MotifDataset, motif="grid", seed=-1), ValueError, "'seed' must be at least 0.*got -1"),
        (partial(InducedCycleDataset, num_nodes=4), ValueError, "'num_nodes' must be at least 5.*got 4"),
        (partial(LongRangeDataset, task="line"), ValueError, "'task' must be one of share, tree, ring"),
        (partial(LongRangeDataset, task="tree", num_nodes=9), ValueError, "'num_nodes' must be at least 10"),
        (partial(LongRangeDataset, task="ring", num_nodes=11), ValueError, r"must be even, .*\(got 11\)"),
        (partial(DigitsDataset, side=7), ValueError, "'side' must be at least 8"),
        (partial(DigitsDataset, num_graphs=1798), ValueError, "'num_graphs' must be at most 1797"),
        (partial(ParticleDataset, force="gravity"), ValueError, "'force' must be one of springs, repulsion"),
        (partial(ParticleDataset, force="springs", num_nodes=9), ValueError, "'num_nodes' must be at least 10"),
        (partial(ParticleDataset, force="springs", num_frames=0), ValueError, "'num_frames' must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, make, error, text):
    with pytest.raises(error, match=text):
        make(tmp_path)
    assert not (tmp_path / "processed").exists()


def files(root):
    return sorted(path.name for path in (root / "processed").iterdir())


def test_every_setting_has_its_own_file(tmp_path, monkeypatch):
    for settings in ({}, {"seed": 1}, {"num_nodes": 30}, {"num_graphs": 5}, {"motif": "grid"}):
        Circles(tmp_path, **settings)
    encoded = [Circles(tmp_path, pre_transform=AddRandomWalkPE(length)) for length in (2, 3, 2)]
    assert [dataset[0].random_walk_pe.size(1) for dataset in encoded] == [2, 3, 2]
    assert len(files(tmp_path)) == 7
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    Circles(tmp_path, pre_transform=AddRandomWalkPE(2))
    monkeypatch.setattr(MotifDataset, "version", 99)
    Circles(tmp_path)
    assert len(files(tmp_path)) == 9
    assert Circles(tmp_path, transform=Constant())[0].x.shape == (22, 6)


def read_elsewhere(data):
    return AddRandomWalkPE(ELSEWHERE["length"])(data)


ELSEWHERE = {"length": 2}


def test_force_reload_makes_the_graphs_again(tmp_path, monkeypatch):
    """The name of the file has a hash of the code of a ``pre_transform``, and not of what it reads elsewhere."""
    Circles(tmp_path, pre_transform=read_elsewhere)
    monkeypatch.setitem(ELSEWHERE, "length", 3)
    for _ in range(2):
        assert Circles(tmp_path, pre_transform=read_elsewhere, force_reload=True)[0].random_walk_pe.size(1) == 3
    assert len(files(tmp_path)) == 1


def test_a_broken_run_and_a_full_disk_leave_nothing_behind(tmp_path, monkeypatch):
    def full(graphs, path):
        Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    def stop(data):
        raise RuntimeError("stopped here")

    with pytest.raises(RuntimeError, match="stopped here"):
        Circles(tmp_path, pre_transform=stop)
    monkeypatch.setattr(MotifDataset, "save", staticmethod(full))
    with pytest.raises(OSError, match="No space left"):
        Circles(tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", ["hostile", "half", "junk", "list", "other", "empty"])
def test_a_file_that_holds_no_graphs_is_named(tmp_path, kind):
    Circles(tmp_path)
    (path,) = (tmp_path / "processed").iterdir()
    content = {"half": path.read_bytes()[:900], "junk": b"junk"}
    values = {"list": [1, 2], "other": ({"x": 3}, None, Data), "empty": ({}, {}, Data)}
    torch.save(values.get(kind, Calls(touch, str(tmp_path / "marker"))), path)
    if kind in content:
        path.write_bytes(content[kind])
    with pytest.raises(UnreadableFileError, match=f"{path} (cannot be read|does not hold 4 graphs; delete it)"):
        Circles(tmp_path)
    assert not (tmp_path / "marker").exists()
