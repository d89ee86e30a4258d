"""Raw and processed files of data sets that would execute a program are refused."""

import io
import os
import pickle
import subprocess
import tarfile

import numpy as np
import pytest
import scipy.sparse
import torch

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats import load_dataset, ogb
from pyg_topomask.run.data.formats.ogb_files import three_parts
from pyg_topomask.run.errors import RunError


class Popen:
    """An object outside of torch's allow-list; after torch's message, PyG would load the file without the list."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return subprocess.Popen, (["touch", str(self.marker)],)


class System(Popen):
    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


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
@pytest.mark.parametrize("hostile", [Popen, System])
def test_processed_files(tmp_path, marker, tu_folder, name, hostile):
    data = {"format": "PyG-TUDataset", "name": "TINY"}
    assert len(load_dataset(DatasetConfig(dir=str(tu_folder), **data))) == 12
    (path,) = (tmp_path / "cache").rglob(name)
    for write in (torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))):
        write(hostile(marker), path)
        refused(tmp_path, **data)


@pytest.mark.parametrize("hostile", [Popen, System])
@pytest.mark.parametrize("part", ["x", "ty", "graph"])
def test_planetoid(tmp_path, marker, part, hostile):
    folder = raw_folder(tmp_path, "Planetoid", "Cora")
    matrix, labels = scipy.sparse.eye(510, 3, format="csr"), np.eye(510, 2)
    parts = {"x": matrix[:2], "tx": matrix[:4], "allx": matrix, "y": labels[:2], "ty": labels[:4], "ally": labels}
    parts["graph"] = {i: [(i + 1) % 514] for i in range(514)}
    for name, value in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.cora.test.index").write_text("510\n511\n512\n513\n")
    data = {"format": "PyG-Planetoid", "name": "Cora"}
    assert load_dataset(DatasetConfig(dir=str(tmp_path / "data"), **data)).graphs[0].num_nodes == 514
    (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(hostile(marker), protocol=2))
    refused(tmp_path, **data)


@pytest.mark.parametrize(
    ("data", "folder", "files", "kind"),
    [
        ({"format": "PyG-LRGBDataset", "name": "pascalvoc-sp"}, "LRGBDataset/pascalvoc-sp", "train val test", "pickle"),
        ({"format": "PyG-LRGBDataset", "name": "peptides-func"}, "LRGBDataset/peptides-func", "train val test", "pt"),
        ({"format": "PyG-AQSOL", "name": "none"}, "AQSOL", "train val test atom_dict bond_dict", "pickle"),
        ({"format": "PyG-GNNBenchmarkDataset", "name": "MNIST"}, "GNNBenchmarkDataset/MNIST", "MNIST_v2", "pt"),
        (
            {"format": "PyG-GNNBenchmarkDataset", "name": "CSL"},
            "GNNBenchmarkDataset/CSL",
            "graphs_Kary_Deterministic_Graphs y_Kary_Deterministic_Graphs",
            "pkl pt",
        ),
    ],
)
def test_raw_pickles(tmp_path, marker, data, folder, files, kind):
    raw = raw_folder(tmp_path, *folder.split("/"))
    for position, name in enumerate(files.split()):
        ending = kind.split()[position % len(kind.split())]
        content = io.BytesIO()
        (torch.save if ending == "pt" else pickle.dump)([Popen(marker)], content)
        (raw / f"{name}.{ending}").write_bytes(content.getvalue())
    refused(tmp_path, **data)


def test_zinc(tmp_path, marker):
    raw = raw_folder(tmp_path, "ZINC")
    for part in ("train", "val", "test"):
        (raw / f"{part}.pickle").write_bytes(pickle.dumps([Popen(marker)]))
        (raw / f"{part}.index").write_text("0\n")
    refused(tmp_path, format="PyG-ZINC", name="subset")


def test_archives_of_city_networks(tmp_path, marker):
    raw = raw_folder(tmp_path, "CityNetwork", "paris")
    content = io.BytesIO()
    torch.save(Popen(marker), content)
    with tarfile.open(raw / "paris.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("paris/node_features_augmented.pt")
        member.size = len(content.getvalue())
        archive.addfile(member, io.BytesIO(content.getvalue()))
    refused(tmp_path, format="PyG-CityNetwork", name="paris")


class Benchmark:
    """A data set like ogb's: a graph, and splits that are loaded on request."""

    root = "the data folder"

    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        return torch.load(self.path.with_name("graph.pt"), weights_only=False)

    def get_idx_split(self):
        return torch.load(self.path, weights_only=False)

    get_edge_split = get_idx_split


def test_splits_of_ogb(tmp_path, marker, monkeypatch):
    from torch_geometric.data import Data

    path = tmp_path / "split.pt"
    torch.save({"train": [0, 1], "valid": torch.tensor([2]), "test": np.array([3])}, path)
    assert [part.tolist() for part in three_parts(Benchmark(path))] == [[0, 1], [2], [3]]
    torch.save(Popen(marker), path)
    with pytest.raises(
        RunError, match=r"the split of Benchmark could not be read: .*\. Download its folder 'split' again"
    ):
        three_parts(Benchmark(path))
    monkeypatch.setattr(ogb, "open_dataset", lambda *arguments: Benchmark(path))
    torch.save(Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0], [1]])), path.with_name("graph.pt"))
    data = DatasetConfig(format="OGB", name="ogbl-collab")
    with pytest.raises(RunError, match="the split of Benchmark could not be read"):
        ogb.link_property(data, "ogbl-collab")
    edges = {"edge": torch.tensor([[0, 1], [1, 2]]), "edge_neg": torch.tensor([[0, 3]])}
    torch.save({"train": {"edge": edges["edge"]}, "valid": edges, "test": edges}, path)
    dataset = ogb.link_property(data, "ogbl-collab")
    assert [graph.edge_label.tolist() for graph in dataset.graphs] == [[1, 1], [1, 1, 0], [1, 1, 0]]
    assert dataset.graphs[1].edge_label_index.tolist() == [[0, 1, 0], [1, 2, 3]]
