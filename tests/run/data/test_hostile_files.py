"""Raw and processed files of data sets that would execute a program are refused."""

import pickle
import subprocess

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.config.dataset import DatasetConfig
from pyg_topomask.run.graphgps.formats import load_dataset, ogb
from tests.hostile import Calls


def popen(marker):
    """Outside of torch's allow-list; after torch's message, PyG would load the file without the list."""
    return Calls(subprocess.Popen, ["touch", str(marker)])


@pytest.fixture(autouse=True)
def marker(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TOPOMASK_DATA", raising=False)
    yield tmp_path / "marker"
    assert not (tmp_path / "marker").exists()


def refused(tmp_path, **data):
    with pytest.raises(RunError, match=r"could not be read: UnpicklingError: it (refers to|was not written)") as caught:
        load_dataset(DatasetConfig(dir=str(tmp_path / "data"), **data))
    text = str(caught.value)
    assert "\n" not in text
    assert "Delete" in text
    assert "weights_only" not in text


def raw_folder(tmp_path, *parts):
    folder = tmp_path.joinpath("data", *parts, "raw")
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("name", ["data.pt", "pre_transform.pt", "pre_filter.pt"])
def test_processed_files(tmp_path, marker, tu_folder, name):
    data = {"format": "PyG-TUDataset", "name": "TINY"}
    assert len(load_dataset(DatasetConfig(dir=str(tu_folder), **data))) == 12
    (path,) = (tmp_path / "cache").rglob(name)
    for write in (torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))):
        write(popen(marker), path)
        refused(tmp_path, **data)


CORA = " ".join(f"ind.cora.{x}" for x in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"))


@pytest.mark.parametrize(
    ("data", "files"),
    [
        ("PyG-LRGBDataset pascalvoc-sp", "train.pickle val.pickle test.pickle"),
        ("PyG-LRGBDataset peptides-func", "train.pt val.pt test.pt"),
        ("PyG-Planetoid Cora", CORA),
        ("PyG-AQSOL none", "train.pickle val.pickle test.pickle atom_dict.pickle bond_dict.pickle"),
        ("PyG-GNNBenchmarkDataset MNIST", "MNIST_v2.pt"),
        ("PyG-GNNBenchmarkDataset CSL", "graphs_Kary_Deterministic_Graphs.pkl y_Kary_Deterministic_Graphs.pt"),
        ("PyG-ZINC subset", "train.pickle val.pickle test.pickle train.index val.index test.index"),
    ],
)
def test_raw_pickles(tmp_path, marker, data, files):
    (family, name), content = data.split(), pickle.dumps([popen(marker)])
    raw = raw_folder(tmp_path, family.removeprefix("PyG-"), *([name] if name not in ("none", "subset") else []))
    for file in files.split():
        torch.save([popen(marker)], raw / file) if file.endswith("pt") else (raw / file).write_bytes(content)
    refused(tmp_path, format=family, name=name)


class Benchmark(list):
    """A data set like ogb's: a graph, and splits that are loaded on request."""

    root, name = "the data folder", "ogbl-collab"

    def get_idx_split(self):
        return torch.load(self.path, weights_only=False)

    get_edge_split = get_idx_split


@pytest.mark.parametrize("protocol", [2, 4])
def test_splits_of_ogb(tmp_path, marker, protocol):
    dataset = Benchmark([Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0], [1]]))])
    path = dataset.path = tmp_path / "split.pt"
    torch.save({"train": [0, 1], "valid": torch.tensor([2]), "test": np.array([3])}, path, pickle_protocol=protocol)
    assert [part.tolist() for part in ogb.three_parts(dataset)] == [[0, 1], [2], [3]]
    edges = {"edge": torch.tensor([[0, 1], [1, 2]]), "edge_neg": torch.tensor([[0, 3]])}
    split = {"train": {"edge": edges["edge"]}, "valid": edges, "test": edges}
    torch.save(split, path, pickle_protocol=protocol)
    graphs = ogb.link_property(dataset, ogb.TASKS["ogbl-collab"]).graphs
    assert [graph.edge_label.tolist() for graph in graphs] == [[1, 1], [1, 1, 0], [1, 1, 0]]
    assert graphs[1].edge_label_index.tolist() == [[0, 1, 0], [1, 2, 3]]
    torch.save(popen(marker), path, pickle_protocol=protocol)
    message = r"the split of Benchmark could not be read: .*\. Download its folder 'split' again"
    for read in (ogb.three_parts, lambda found: ogb.link_property(found, None)):
        with pytest.raises(RunError, match=message):
            read(dataset)
