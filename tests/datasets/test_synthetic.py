import os

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE, Constant

from pyg_topomask.datasets import InducedCycleDataset, MotifDataset


def files(root):
    return sorted(path.name for path in (root / "processed").iterdir())


def test_second_start_reads_the_file(tmp_path, monkeypatch):
    first = MotifDataset(tmp_path, "circle", num_graphs=6)
    assert len(files(tmp_path)) == 1
    monkeypatch.setattr(MotifDataset, "generate", None)
    second = MotifDataset(tmp_path, "circle", num_graphs=6)
    assert len(second) == 6
    for one, two in zip(first, second):
        keys = ["edge_index", "x", "y"]
        assert sorted(one.keys()) == sorted(two.keys()) == keys
        assert all(torch.equal(one[key], two[key]) for key in keys)


def test_every_argument_has_its_own_file(tmp_path, monkeypatch):
    for arguments in ({}, {"seed": 1}, {"num_nodes": 30}, {"num_graphs": 5}, {"pre_transform": Constant()}):
        MotifDataset(tmp_path, "circle", **{"num_graphs": 4, **arguments})
    MotifDataset(tmp_path, "grid", num_graphs=4)
    InducedCycleDataset(tmp_path, num_graphs=4)
    assert len(files(tmp_path)) == 7
    monkeypatch.setattr(MotifDataset, "version", 99)
    MotifDataset(tmp_path, "grid", num_graphs=4)
    assert len(files(tmp_path)) == 8


def test_pre_transform_is_saved_and_its_settings_are_seen(tmp_path):
    short = InducedCycleDataset(tmp_path, num_graphs=2, pre_transform=AddRandomWalkPE(2))
    long = InducedCycleDataset(tmp_path, num_graphs=2, pre_transform=AddRandomWalkPE(3))
    assert short[0].random_walk_pe.shape == (50, 2)
    assert long[0].random_walk_pe.shape == (50, 3)
    again = InducedCycleDataset(tmp_path, num_graphs=2, pre_transform=AddRandomWalkPE(2))
    assert again[0].random_walk_pe.shape == (50, 2)
    assert len(files(tmp_path)) == 2
    dtype = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        double = InducedCycleDataset(tmp_path, num_graphs=2, pre_transform=AddRandomWalkPE(2))
    finally:
        torch.set_default_dtype(dtype)
    assert len(files(tmp_path)) == 3
    assert double[0].random_walk_pe.dtype == torch.float64
    assert InducedCycleDataset(tmp_path, num_graphs=2, transform=Constant())[0].x.shape == (50, 2)


def test_a_broken_run_leaves_nothing_behind(tmp_path):
    calls = []

    def failing(data):
        calls.append(data)
        if len(calls) == 3:
            raise RuntimeError("stopped here")
        return data

    with pytest.raises(RuntimeError, match="stopped here"):
        MotifDataset(tmp_path, "circle", num_graphs=4, pre_transform=failing)
    assert not (tmp_path / "processed").exists() or files(tmp_path) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def save(graphs, path):
        with open(path, "w") as file:
            file.write("half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MotifDataset, "save", staticmethod(save))
        with pytest.raises(OSError, match="No space left"):
            MotifDataset(tmp_path, "circle", num_graphs=4)
    assert files(tmp_path) == []
    assert len(MotifDataset(tmp_path, "circle", num_graphs=4)) == 4


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("kind", ["hostile", "half", "junk", "list", "other", "empty"])
def test_a_file_that_holds_no_graphs_is_made_again(tmp_path, kind, caplog):
    wanted = list(MotifDataset(tmp_path, "circle", num_graphs=4))
    (name,) = files(tmp_path)
    path = tmp_path / "processed" / name
    content = {"half": path.read_bytes()[:900], "junk": b"junk"}
    values = {
        "hostile": Hostile(tmp_path / "marker"),
        "list": [1, 2],
        "other": ({"x": 3}, None, Data),
        "empty": ({}, {}, Data),
    }
    if kind in content:
        path.write_bytes(content[kind])
    else:
        torch.save(values[kind], path)
    found = MotifDataset(tmp_path, "circle", num_graphs=4)
    assert f"{path}" in caplog.text
    assert "it is generated again" in caplog.text
    assert not (tmp_path / "marker").exists()
    assert all(torch.equal(one.edge_index, two.edge_index) for one, two in zip(wanted, found))
    assert len(MotifDataset(tmp_path, "circle", num_graphs=4)) == 4
