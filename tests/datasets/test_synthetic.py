from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.transforms import AddRandomWalkPE, Compose, Constant

from pyg_topomask.datasets import InducedCycleDataset, MotifDataset
from pyg_topomask.datasets.synthetic import describe


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


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def test_describe_tells_settings_apart():
    def scaled(factor):
        return lambda data: data * factor

    def named(factor):
        def scale(data, *, factor=factor):
            return data * factor

        return scale

    different = [
        AddRandomWalkPE(2),
        AddRandomWalkPE(3),
        Compose([AddRandomWalkPE(2)]),
        Compose([AddRandomWalkPE(2), Constant()]),
        scaled(2.0),
        scaled(3.0),
        partial(AddRandomWalkPE, 2),
        partial(AddRandomWalkPE, 3),
        lambda data: [part + 1 for part in data],
        lambda data: [part + 2 for part in data],
        torch.ones(2),
        torch.zeros(2),
        {"a": {1, 2}},
        AddRandomWalkPE(2).forward,
        AddRandomWalkPE,
        named(2.0),
        named(3.0),
        Slotted(1),
        Slotted(2),
        torch.float32,
        torch.float64,
        torch.device("cpu"),
        Path("a"),
        Path("b"),
        range(3),
        range(4),
        slice(3),
        torch.relu,
        torch.sigmoid,
    ]
    texts = [describe(value) for value in different]
    assert len(set(texts)) == len(different)
    assert not any(" at 0x" in text for text in texts)
    assert describe(AddRandomWalkPE(2)) == texts[0]
    assert describe(scaled(2.0)) == texts[4]
    assert describe(AddRandomWalkPE(np.int64(2))) == texts[0]
    with pytest.raises(TypeError, match="Generator in 'pre_transform' cannot be told from another"):
        describe(torch.Generator())
