"""Loaders of data sets on raw files written by the tests, and on real files if they are available."""

import gzip
import json
import pickle
import sys
import tarfile
import urllib.error
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import ShapeNet

from pyg_topomask.run import run_config
from pyg_topomask.run.data.loaders import prepare
from pyg_topomask.run.errors import MissingDataError, RunError, need
from pyg_topomask.run.graphgps.config.dataset import DatasetConfig
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.formats import FORMATS, base, load_dataset, ogb
from pyg_topomask.run.graphgps.formats.graphs import NearestNeighbors
from pyg_topomask.run.graphgps.formats.ogb import ResampleNegatives
from pyg_topomask.run.graphgps.parts import source_of
from pyg_topomask.run.task import Task, classification
from tests.hostile import unpacks_safely

PARTS = {"train": 4, "val": 2, "test": 3}
THREE = torch.tensor([[0, 0, 5], [1, 2, 3]])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, request):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("TOPOMASK_DATA", raising=False)
    return tmp_path / "cache"


def ring(size):
    nodes = torch.arange(size)
    return torch.stack([nodes, (nodes + 1) % size])


def molecule(number, *y):
    size = 3 + number
    return torch.randint(3, (size, 9)), torch.randint(3, (size, 3)), ring(size), *y


def write(tmp_path, folder, item):
    """Write the raw files of three parts, as torch.save or pickle writes them."""
    raw, suffix = tmp_path / "data" / folder / "raw", "pickle" if folder.endswith("-sp") else "pt"
    raw.mkdir(parents=True)
    for part, count in PARTS.items():
        items, path = [item(number) for number in range(count)], raw / f"{part}.{suffix}"
        torch.save(items, path) if suffix == "pt" else path.write_bytes(pickle.dumps(items))


def loaded(tmp_path, **data):
    dataset = load_dataset(DatasetConfig(dir=str(tmp_path / "data"), **data))
    if dataset.parts is not None:
        assert [len(part) for part in dataset.parts] == [4, 2, 3]
        assert torch.cat(dataset.parts).tolist() == list(range(9))
    return dataset


def tu(folder, **more):
    return DatasetConfig(format="PyG-TUDataset", name="TINY", dir=str(folder), **more)


def files(cache):
    return [path for path in (cache / "TUDataset").iterdir() if not path.name.endswith(".lock")]


def test_raw_files_stay_as_they_are_and_processed_ones_go_to_the_cache(tu_folder, cache, tmp_path, monkeypatch):
    before = sorted(tu_folder.rglob("*"))
    dataset = load_dataset(tu(tu_folder))
    assert (len(dataset), dataset.task.num_classes, dataset.graphs[0].num_nodes) == (12, 2, 3)
    assert sorted(tu_folder.rglob("*")) == before
    (processed,) = cache.rglob("data.pt")
    stamp = processed.stat().st_mtime_ns
    monkeypatch.setenv("TOPOMASK_DATA", str(tu_folder))
    assert len(load_dataset(tu(tmp_path))) == 12  # the environment is looked in after the config
    assert processed.stat().st_mtime_ns == stamp
    labels = tu_folder / "TUDataset" / "TINY" / "raw" / "TINY_graph_labels.txt"
    labels.write_text("".join(f"{1 + g % 3}  \n" for g in range(12)))
    assert load_dataset(tu(tu_folder)).task.num_classes == 3  # changed files are processed anew
    labels.unlink()
    labels.with_name("TINY_graph_attributes.txt").write_text("".join(f"{g / 2}\n" for g in range(12)))
    dataset = load_dataset(tu(tu_folder, task_type="regression"))  # it needs no labels
    assert [float(graph.y) for graph in dataset.graphs] == [g / 2 for g in range(12)]


def test_missing_files_name_both_folders(tmp_path, cache, monkeypatch):
    no_network = Mock(side_effect=urllib.error.URLError("no network"))
    monkeypatch.setattr("torch_geometric.datasets.tu_dataset.TUDataset.download", no_network)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "two"))
    (tmp_path / "one" / "TUDataset" / "TINY" / "raw").mkdir(parents=True)
    with pytest.raises(MissingDataError) as caught:
        load_dataset(tu(tmp_path / "one"))
    for text in (
        "the raw files of TINY (PyG-TUDataset) were neither found nor downloaded",
        "lacks TINY_A.txt, TINY_graph_indicator.txt, TINY_graph_labels.txt",
        f"{tmp_path / 'two' / 'TUDataset' / 'TINY'} does not exist",
        "no network",
        "raw/TINY_graph_labels.txt into DIR/TUDataset/TINY, and set TOPOMASK_DATA=DIR",
    ):
        assert text in str(caught.value)
    assert files(cache) == []


def test_unreadable_raw_files_and_messages_of_libraries(tu_folder, cache, capsys):
    (tu_folder / "TUDataset" / "TINY" / "raw" / "TINY_A.txt").write_text("one, two\n")
    with pytest.raises(RunError, match="could not be read: ValueError"):
        load_dataset(tu(tu_folder))
    assert files(cache) == []
    capsys.readouterr()
    with base.reading("a file", "advice"):
        print("Downloading a.zip")
    assert capsys.readouterr() == ("", "Downloading a.zip\n")
    with pytest.raises(RunError, match=r"the data set x needs nosuchpackage, which .*: pip install nosuchpackage"):
        need("nosuchpackage.inner", "the data set x")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("graph_labels", lambda text: text[:-1]),  # PyG takes a line without a line break for no line
        ("A", lambda text: text + "3, 4\n"),
        ("A", lambda text: text + "4, 3\n"),
        ("A", lambda text: text + "1, 99\n"),
    ],
    ids=["a label is missing", "to another graph", "from another graph", "to no node"],
)
def test_tu_files_that_do_not_fit_each_other_are_refused(tu_folder, cache, part, change):
    path = tu_folder / "TUDataset" / "TINY" / "raw" / f"TINY_{part}.txt"
    path.write_text(change(path.read_text()))
    with pytest.raises(RunError, match=r"TINY-\w+ could not be read: "):
        load_dataset(tu(tu_folder))
    assert files(cache) == []


@pytest.mark.parametrize(("name", "short"), [("peptides-functional", "func"), ("peptides-structural", "struct")])
def test_peptides(tmp_path, name, short):
    width, kind = (10, "multilabel") if short == "func" else (11, "regression")
    write(tmp_path, f"peptides-{short}", lambda i: molecule(i, torch.rand(1, width).round()))
    dataset = loaded(tmp_path, format="OGB", name=name)
    assert dataset.task == Task("graph", kind, width)
    assert dataset.graphs[8].num_nodes == 5  # the third graph of the test set
    assert dataset.task.target(dataset.graphs[0]).shape == (1, width)
    again = loaded(tmp_path, format="PyG-LRGBDataset", name=f"PEPTIDES-{short}")
    assert torch.equal(again.graphs[0].x, dataset.graphs[0].x)


def test_superpixels_and_their_normalisation(tmp_path):
    def item(number):
        size = 4 + number
        return torch.randn(size, 14) * 5 + 7, torch.rand(size, 2), ring(size), [number % 21] * size

    write(tmp_path, "LRGBDataset/pascalvoc-sp", item)
    data = {"format": "PyG-VOCSuperpixels", "name": "edge_wt_region_boundary", "slic_compactness": 30}
    dataset = loaded(tmp_path, **data)
    assert dataset.task == classification("node", 21)
    config = load({"dataset": data | {"normalize": True, "edge_encoder": True, "edge_encoder_name": "LinearEdge"}})
    splits = prepare(source_of(config.config), dataset, 0, [])
    for name in ("x", "edge_attr"):
        values = torch.cat([graph[name] for graph in splits.train])
        assert values.mean(0).abs().max() < 1e-5
        assert (values.std(0, correction=0) - 1).abs().max() < 1e-5
    assert abs(float(torch.cat([graph.x for graph in splits.test]).mean())) > 1e-4  # standardised by training graphs


def test_contacts_and_their_negatives(tmp_path):
    pairs, label = torch.tensor([[0, 2, 0, 1], [2, 0, 1, 1]]), torch.tensor([1, 1, 0, 0])
    write(tmp_path, "pcqm-contact", lambda i: molecule(i, pairs, label))
    data = {"format": "OGB", "name": "PCQM4Mv2Contact-shuffle", "resample_negative": True, "task": "edge"}
    dataset = loaded(tmp_path, **data)
    assert dataset.task == Task("edge", "binary", 1, ranked=True)
    config = {"dataset": data, "metric_best": "mrr"}
    one, other = (prepare(source_of(load(config | {"seed": seed}).config), dataset, seed, []) for seed in (0, 1))
    assert all(int((graph.edge_label == 0).sum()) >= 2 for graph in one.test)
    for mine, theirs in zip(one.test, other.test):  # evaluations are the same for all seeds
        assert torch.equal(mine.edge_label_index, theirs.edge_label_index)
    first, second = ([splits.serve_transforms[0](graph) for graph in one.train] for splits in (one, other))
    assert any(not torch.equal(a.edge_label_index, b.edge_label_index) for a, b in zip(first, second))


def positives(ends, **graph):
    return Data(edge_label_index=ends, edge_label=torch.ones(ends.size(1)).long(), **graph)


@pytest.mark.parametrize("starts", [None, 2])
def test_negatives_follow_seed_epoch_and_graph_alone(starts):
    def drawn(seed, epoch, size=30):
        transform = ResampleNegatives(seed, starts)
        transform.set_epoch(epoch)
        return transform(positives(THREE, edge_index=ring(30), num_nodes=size)).edge_label_index

    first = drawn(0, 1)
    torch.manual_seed(3)
    assert torch.equal(first, drawn(0, 1))
    assert torch.equal(first[:, :3], THREE)
    assert not any(torch.equal(first, drawn(*other)) for other in ((0, 2), (7, 1), (0, 1, 31)))


def test_negatives_are_never_positive_nor_edges():
    found = ResampleNegatives(0, 2)(positives(THREE, edge_index=ring(30), num_nodes=30))
    assert found.edge_label.tolist() == [1] * 3 + [0] * 6
    negative = found.edge_label_index[:, 3:]
    assert negative[0].tolist() == [0, 0, 0, 0, 5, 5]
    pairs = set(map(tuple, negative.T.tolist()))
    assert len(pairs) == 6
    assert not pairs & set(map(tuple, THREE.T.tolist()))
    ends, free = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T, [(0, 4), (2, 3), (5, 1)]
    edges = ends[:, torch.tensor([i != j and (i, j) not in free for i, j in ends.T.tolist()])]
    full = positives(ends, edge_index=edges, num_nodes=6)
    assert ResampleNegatives(0, 2)(full).edge_label.tolist() == [1] * 36  # there are no negatives
    negative = ResampleNegatives()(full).edge_label_index[:, 36:]  # fewer than edges
    assert sorted(map(tuple, negative.T.tolist())) == free


@pytest.mark.parametrize(("name", "categories"), [("Bag", ["Bag"]), ("all", [*ShapeNet.category_ids])])
def test_shapes_through_the_class_of_pyg(tmp_path, name, categories):
    """A single category has its own labels and the number 0."""
    raw = tmp_path / "data" / "ShapeNet" / "raw"
    (raw / "train_test_split").mkdir(parents=True)
    for category, folder in ShapeNet.category_ids.items():
        (raw / folder).mkdir()
        points = np.random.default_rng(0).random((12, 7))
        points[:, 6] = ShapeNet.seg_classes[category][-1]
        for part in PARTS:
            np.savetxt(raw / folder / f"{part}.txt", points)
    for part in PARTS:
        listed = [f"shape_data/{folder}/{part}" for folder in ShapeNet.category_ids.values()]
        (raw / "train_test_split" / f"shuffled_{part}_file_list.json").write_text(json.dumps(listed))
    found = load_dataset(DatasetConfig(format="PyG-ShapeNet", name=name, dir=str(tmp_path / "data"), task="node"))
    labels = tuple(tuple(ShapeNet.seg_classes[category]) for category in categories)
    assert found.task == classification("node", 50, part_labels=labels)
    assert [len(part) for part in found.parts] == [len(categories)] * 3
    for number in range(len(categories)):
        graph = found.graphs[number]
        assert (graph.x.shape, graph.edge_index.shape, int(graph.category)) == ((12, 6), (2, 96), number)
        assert graph.y.unique().tolist() == [labels[number][-1]]


def test_rooms_through_the_class_of_pyg(tmp_path, monkeypatch):
    """One area is the test part, and every tenth other block is for validation."""
    generator, raw = np.random.default_rng(0), tmp_path / "data" / "S3DIS" / "raw"
    raw.mkdir(parents=True)
    (raw / "all_files.txt").write_text("indoor/blocks.h5\n")
    (raw / "room_filelist.txt").write_text("Area_1_hall\n" * 21 + "Area_5_office\n" * 2)
    blocks = {"data": generator.random((23, 40, 9), dtype=np.float32), "label": np.arange(23)[:, None].repeat(40, 1)}
    package = SimpleNamespace(File=lambda path: blocks)
    monkeypatch.setitem(sys.modules, "h5py", package)
    found = load_dataset(DatasetConfig(format="PyG-S3DIS", name="Area_5", dir=str(tmp_path / "data"), task="node"))
    labels = [[int(found.graphs[int(i)].y[0]) for i in part] for part in found.parts]
    assert labels == [[i for i in range(21) if i not in (9, 19)], [9, 19], [21, 22]]
    assert found.graphs[0].edge_index.shape == (2, 40 * 32)


def test_superpixels_of_digits_get_their_positions(tmp_path):
    def graph(number):
        size = 3 + number
        x, pos, edge_attr = torch.rand(size, 1), torch.rand(size, 2), torch.rand(size)
        return {"x": x, "edge_index": ring(size), "edge_attr": edge_attr, "pos": pos, "y": torch.tensor([number])}

    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    torch.save([[graph(i) for i in range(count)] for count in PARTS.values()], folder / "MNIST_v2.pt")
    dataset = loaded(tmp_path, format="PyG-GNNBenchmarkDataset", name="MNIST")
    assert dataset.task == classification("graph", 10)
    assert dataset.graphs[0].x.shape == (3, 3)
    assert "pos" not in dataset.graphs[0]


def test_generated_data_and_digits(tmp_path, cache):
    made = load_dataset(DatasetConfig(format="PyG-LongRangeDataset", name="tree", num_graphs=3, num_nodes=12))
    assert (len(made), made.task, made.graphs[0].num_nodes) == (3, classification("node", 10), 12)
    pytest.importorskip("sklearn")
    names = ("plain", "plain-positions")
    plain, placed = (load_dataset(DatasetConfig(format="PyG-DigitsDataset", name=name)).graphs[5] for name in names)
    assert torch.equal(placed.x[:, :1], plain.x)
    assert placed.x[9, 1:].nonzero().view(-1).tolist() == [1, 8 + 1]  # row 1, column 1


def test_nodes_with_several_splits(tmp_path):
    folder = tmp_path / "data" / "WebKB" / "texas" / "raw"
    folder.mkdir(parents=True)
    for name, line in (("node_feature_label", "{0}\t1,1\t{1}\n"), ("graph_edges", "{0}\t{1}\n")):
        (folder / f"out1_{name}.txt").write_text("head\n" + "".join(line.format(i, (i + 1) % 5) for i in range(10)))
    for split in range(10):
        part = np.roll(np.repeat(list(PARTS), [5, 2, 3]), split)
        np.savez(folder / f"texas_split_0.6_0.2_{split}.npz", **{f"{name}_mask": part == name for name in PARTS})
    data = {"format": "PyG-WebKB", "name": "Texas", "task": "node"}
    dataset = loaded(tmp_path, **data)
    assert (len(dataset), dataset.task) == (1, classification("node", 5))
    for split in (0, 3):
        splits = prepare(source_of(load({"dataset": data | {"split_index": split}}).config), dataset, 0, [])
        assert splits.counts == {"train": 5, "val": 2, "test": 3}
        assert set(splits.train[0].counted.nonzero().view(-1).tolist()) == {(i + split) % 10 for i in range(5)}
    with pytest.raises(RunError, match=r"has 10 splits \(got 12\)"):
        prepare(source_of(load({"dataset": data | {"split_index": 12}}).config), dataset, 0, [])


def test_clouds_get_edges_from_their_nearest_points():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.1, 0.0], [10.0, 0.0]])
    cloud = NearestNeighbors(1)(Data(pos=points, x=torch.ones(4, 1)))
    assert cloud.edge_index.T.tolist() == [[1, 0], [0, 1], [1, 2], [2, 3]]
    assert cloud.x.shape == (4, 3)
    assert NearestNeighbors(16)(Data(pos=points[:1])).edge_index.shape == (2, 0)


def test_names_of_functions_are_encoded_by_the_words_of_the_training_set(monkeypatch):
    class Functions(list):
        name, root, transform = "ogbg-code2", "", None
        get_idx_split = staticmethod(lambda: {"train": torch.arange(2), "valid": torch.tensor([2]), "test": [2]})

    def function(*name, size=4):
        edges = torch.stack([torch.arange(size - 1) // 2, torch.arange(1, size)])
        attributed, depth = (torch.arange(size) > 0).long().view(-1, 1), torch.arange(size).view(-1, 1)
        return Data(torch.zeros(size, 2).long(), edges, y=[*name], node_is_attributed=attributed, node_depth=depth)

    functions = Functions([function("set", "get"), function("get"), function("get", *["size"] * 5)])
    monkeypatch.setattr(ogb, "from_raw", lambda *arguments: functions)
    task = load_dataset(DatasetConfig(format="OGB", name="ogbg-code2")).task
    assert task == Task("graph", "subtoken", 4, ("get", "set", "__UNK__", "__EOS__"))
    tree, large = functions.transform(functions[2]), functions.transform(function("set", size=1002))
    assert (tree.y.tolist(), large.y.tolist()) == ([[0, 2, 2, 2, 2]], [[1, 3, 3, 3, 3]])
    assert tree.words == ["get", *["size"] * 5]
    assert tree.x.tolist() == [[0, 0, depth] for depth in range(4)]
    assert tree.edge_index.T.tolist()[3:] == [[1, 0], [2, 0], [3, 1], [1, 2], [2, 3], [2, 1], [3, 2]]
    assert tree.edge_attr.tolist() == [[0, 0]] * 3 + [[0, 1]] * 3 + [[1, 0]] * 2 + [[1, 1]] * 2
    assert (large.num_nodes, large.num_edges, int(large.edge_index.max()), int(large.x.max())) == (1000, 3994, 999, 20)


def test_parts_of_pcqm_are_those_of_graphgps(monkeypatch):
    hidden = {"test-dev": torch.arange(3), "test-challenge": torch.arange(2)}
    split = {"train": torch.arange(200_000), "valid": torch.arange(200_000, 200_010), **hidden}
    monkeypatch.setattr(ogb, "need", lambda *names: SimpleNamespace(PygPCQM4Mv2Dataset=None))
    monkeypatch.setattr(ogb, "from_raw", lambda *arguments: SimpleNamespace(root="", get_idx_split=lambda: split))
    for name, sizes in {"full": [50_000, 150_000, 10], "subset": [5_000, 50_000, 10]}.items():
        parts = load_dataset(DatasetConfig(format="OGB", name=f"PCQM4Mv2-{name}")).parts
        assert [len(part) for part in parts] == sizes
        assert parts[1].tolist() == np.random.default_rng(seed=42).permutation(200_000)[: sizes[1]].tolist()
        assert torch.equal(parts[2], split["valid"])
    parts = load_dataset(DatasetConfig(format="OGB", name="PCQM4Mv2-inference")).parts
    assert [part.tolist() for part in parts] == [split[part].tolist() for part in ("valid", *hidden)]


def write_graphland(tmp_path, name, task, targets):
    """The raw files of GraphLand, as its authors publish them."""
    folder = tmp_path / "data" / "GraphLandDataset" / name / "raw" / name
    folder.mkdir(parents=True)
    info = {"numerical_features_names": ["n", "f"], "fraction_features_names": ["f"], "target_name": "t", "task": task}
    (folder / "info.yaml").write_text(json.dumps(info | {"categorical_features_names": ["c"]}))
    rows = [f"{i},{'' if i == 3 else i},{i / 12},{i % 3}" for i in range(12)]
    (folder / "features.csv").write_text("\n".join([",n,f,c", *rows]) + "\n")
    (folder / "targets.csv").write_text("\n".join([",t", *(f"{i},{t}" for i, t in enumerate(targets))]) + "\n")
    (folder / "edgelist.csv").write_text("source,target\n" + "".join(f"{i},{i + 1}\n" for i in range(11)))
    for split, step in (("RL", 1), ("RH", 2), ("TH", 3)):
        rows = [f"{i}," + ",".join(str((i // step) % 3 == part) for part in range(3)) for i in range(12)]
        (folder / f"split_masks_{split}.csv").write_text("\n".join([",train,val,test", *rows]) + "\n")


@pytest.mark.filterwarnings("ignore:n_quantiles:UserWarning:sklearn")  # the data have thousands of nodes
@pytest.mark.parametrize("name", ["hm-categories", "hm-prices"])
def test_graphland_through_the_class_of_pyg(tmp_path, name):
    targets = ["", *range(5), *range(6)]
    write_graphland(tmp_path, name, "regression" if name == "hm-prices" else "multiclass_classification", targets)
    for split, step in enumerate((1, 2, 3)):
        data = {"format": "PyG-GraphLandDataset", "name": name.upper(), "task": "node", "split_index": split}
        dataset = loaded(tmp_path, **data)
        (graph,) = dataset.graphs
        assert graph.x.shape == (12, 5)  # a number, a fraction, and one of three categories
        assert graph.x.isfinite().all()
        assert graph.edge_index.size(1) == 22  # both directions
        splits = prepare(source_of(load({"dataset": data}).config), dataset, 0, [])
        for number, part in enumerate((splits.train, splits.val, splits.test)):
            counted = set(part[0].counted.nonzero().view(-1).tolist())
            assert counted == {i for i in range(1, 12) if (i // step) % 3 == number}  # node 0 has no target
        if name == "hm-prices":
            assert dataset.task == Task("node", "regression", 1)
            train = [float(targets[i]) for i in range(1, 12) if (i // step) % 3 == 0]
            expected = (torch.tensor([float(t) for t in targets[1:]]) - np.mean(train)) / np.std(train)
            torch.testing.assert_close(graph.y[1:], expected, check_dtype=False)
        else:
            assert dataset.task == classification("node", 6)
            assert graph.y[1:].tolist() == targets[1:]
    random = DatasetConfig(format="PyG-GraphLandDataset", name=name, task="node", split_mode="random")
    assert "have no target; use standard" in random.problems()[0][1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:n_quantiles:UserWarning:sklearn")
def test_each_split_of_graphland_is_trained_on_its_own_nodes(tmp_path):
    write_graphland(tmp_path, "hm-prices", "regression", ["", *range(5), *range(6)])
    data = {"format": "PyG-GraphLandDataset", "name": "hm-prices", "task": "node", "dir": str(tmp_path / "data")}
    config = {"dataset": data | {"task_type": "regression"}, "model": {"loss_fun": "l1"}, "optim": {"max_epoch": 1}}
    config |= {"gt": {"layer_type": "GCN+None", "dim_hidden": 4}, "run_multiple_splits": [0, 2]}
    assert run_config(config, tmp_path / "out")["splits"] == [0, 2]
    counts = [json.loads(path.read_text())["graphs_or_nodes"] for path in sorted(tmp_path.glob("out/*/*/result.json"))]
    assert [list(found.values()) for found in counts] == [[3, 4, 4], [5, 3, 3]]


@unpacks_safely
@pytest.mark.parametrize("name", ["Paris", "LA"])
def test_city_networks_through_the_class_of_pyg(tmp_path, name):
    """The archive as its authors publish it: tensors in a folder of the city's name."""
    masks = dict(zip(("train_mask", "valid_mask", "test_mask"), (torch.arange(9) % 3 == torch.arange(3)[:, None])))
    tensors = masks | {
        "node_features_augmented": torch.randn(9, 37),
        "node_features": torch.zeros(9, 12),
        "edge_indices": torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        "10-chunk_16-hop_node_labels": torch.arange(9),
    }
    raw = tmp_path / "data" / "CityNetwork" / name.lower() / "raw"
    raw.mkdir(parents=True)
    with tarfile.open(raw / f"{name.lower()}.tar.gz", "w:gz") as archive:
        for file, tensor in tensors.items():
            torch.save(tensor, tmp_path / "one.pt")
            archive.add(tmp_path / "one.pt", f"{name.lower()}/{file}.pt")
    dataset = loaded(tmp_path, format="PyG-CityNetwork", name=name, task="node")
    (graph,) = dataset.graphs
    assert dataset.task.level == "node"
    assert torch.equal(graph.x, tensors["node_features_augmented"])
    assert torch.equal(graph.edge_index, tensors["edge_indices"])
    assert torch.equal(graph.y, torch.arange(9))
    assert torch.equal(graph.val_mask.view(-1), masks["valid_mask"])


def test_every_name_is_accepted_in_any_case():
    for family, entry in FORMATS.items():
        slic = {"slic_compactness": 30} if "Superpixels" in family else {}
        for each in entry.names:
            mode = "random" if each == "CSL" else DatasetConfig(format=family, name=each).split_mode
            for name in (each, each.upper(), each.replace("-", "_")):
                data = DatasetConfig(format=family, name=name, split_mode=mode, **slic)
                assert data.plain_name == each
                assert data.problems() == [] or name != each, (family, name)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "more", "sizes", "parts"),
    [
        ("PyG-TUDataset ENZYMES", {"use_node_attr": True, "split_mode": "errica"}, (600, 21, 6), [486, 54, 60]),
        ("PyG-Planetoid Cora", {"task": "node"}, (1, 1433, 7), [140, 500, 1000]),
        pytest.param("OGB ogbg-molhiv", {}, (41127, 9, 2), [32901, 4113, 4113], marks=pytest.mark.slow),
        pytest.param("OGB peptides-functional", {}, (15535, 9, 10), [10873, 2331, 2331], marks=pytest.mark.slow),
    ],
)
def test_real_files(real_data, name, more, sizes, parts):
    data = dict(zip(("format", "name"), name.split())) | more
    dataset = load_dataset(DatasetConfig(**data))
    assert (len(dataset), dataset.graphs[0].num_node_features, dataset.task.num_classes) == sizes
    if dataset.parts is not None:
        assert [len(part) for part in dataset.parts] == parts
        return
    for fold in range(10 if "errica" in more.values() else 1):
        splits = prepare(source_of(load({"dataset": data | {"split_index": fold}}).config), dataset, 0, [])
        assert [*splits.counts.values()] == parts


def write_tables(folder, tables):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in tables.items():
        with gzip.open(folder / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, content, delimiter=",", fmt="%g")


@pytest.mark.parametrize(("name", "kind"), [("arxiv", "time"), ("products", "sales_ranking"), ("proteins", "species")])
def test_nodes_of_ogb_through_its_own_class(tmp_path, name, kind):
    """The graph is undirected; nodes of proteins get the mean of their edges' features."""
    pytest.importorskip("ogb")
    folder, draw = tmp_path / "data" / "OGB" / f"ogbn_{name}", np.random.default_rng(0)
    labels = draw.integers(2, size=(9, 112 if name == "proteins" else 1))
    features = {"edge-feat": np.eye(6, 8)} if name == "proteins" else {"node-feat": draw.random((9, 3))}
    tables = {"num-node-list": [[9]], "num-edge-list": [[6]], "edge": [[i, i + 1] for i in range(6)]} | features
    tables |= {"node-label": labels} | dict.fromkeys(["node_year", "node_species"], [[1]] * 9)
    write_tables(folder / "raw", tables)
    write_tables(folder / "split" / kind, {"train": range(5), "valid": [5, 6], "test": [7, 8]})
    (folder / "RELEASE_v1.txt").write_text("")
    dataset = load_dataset(DatasetConfig(format="OGB", name=f"ogbn-{name}", dir=str(tmp_path / "data"), task="node"))
    (graph,) = dataset.graphs
    assert (graph.num_edges, graph.is_undirected(), graph.has_self_loops()) == (12, True, False)
    assert [graph[f"{part}_mask"].nonzero().view(-1).tolist() for part in PARTS] == [[*range(5)], [5, 6], [7, 8]]
    assert np.array_equal(graph.y.reshape(labels.shape), labels)
    if name == "proteins":
        assert dataset.task == Task("node", "multilabel", 112)
        assert (graph.x[0].tolist(), graph.x[8].tolist()) == ([1, *[0] * 7], [0] * 8)  # one edge, no edge
        assert graph.x[1].tolist() == [0.5, 0.5, *[0] * 6]  # two edges
    else:
        assert dataset.task == classification("node", {"arxiv": 40, "products": 47}[name])


LINKS = {"ogbl-collab": (True, 50), "ogbl-ppa": (True, 100), "ogbl-ddi": (True, 20), "ogbl-citation2": (False, None)}
LINKS["ogbl-vessel"] = (False, None)


def write_links(folder, name, num_nodes=9):
    """The raw files that OGB distributes, with six edges, of which OGB's classes add the inverse of some."""
    raw, split = folder / "OGB" / name.replace("-", "_") / "raw", {"collab": "time", "ppa": "throughput"}
    kind = split | {"ddi": "target", "citation2": "time", "vessel": "spatial"}
    splits = raw.parent / "split" / kind[name.removeprefix("ogbl-")]
    raw.mkdir(parents=True)
    splits.mkdir(parents=True)
    (raw.parent / "RELEASE_v1.txt").write_text("")
    edges = np.stack([np.arange(6), np.arange(6) + 1])
    features = np.random.default_rng(0).random((num_nodes, 3)).astype("float32")
    if name == "ogbl-vessel":
        counts = {"num_nodes_list": np.array([num_nodes]), "num_edges_list": np.array([6])}
        np.savez(raw / "data.npz", edge_index=edges, node_feat=features, edge_feat=np.ones((6, 1)), **counts)
    else:
        tables = {"num-node-list": [[num_nodes]], "num-edge-list": [[6]], "edge": edges.T}
        tables |= {} if name == "ogbl-ddi" else {"node-feat": features}
        tables |= {"node_year": np.ones((num_nodes, 1))} if name == "ogbl-citation2" else {}
        tables |= dict.fromkeys(("edge_weight", "edge_year"), np.ones((6, 1))) if name == "ogbl-collab" else {}
        write_tables(raw, tables)
    for part, count in (("train", 6), ("valid", 2), ("test", 3)):
        ends = np.stack([np.arange(count), np.arange(count) + 2], axis=1)
        content = {"edge": ends}
        if name == "ogbl-citation2":
            content = {"source_node": ends[:, 0], "target_node": ends[:, 1]}
        if part != "train" and name == "ogbl-citation2":
            content["target_node_neg"] = np.arange(4 * count).reshape(count, 4) % num_nodes
        elif part != "train" or name == "ogbl-vessel":
            content["edge_neg"] = ends[:, ::-1].copy()
        torch.save(content, splits / f"{part}.pt")


@pytest.mark.parametrize("name", LINKS)
def test_links_of_ogb_through_its_own_class(tmp_path, name):
    pytest.importorskip("ogb")
    write_links(tmp_path / "data", name)
    dataset = load_dataset(DatasetConfig(format="OGB", name=name, dir=str(tmp_path / "data"), task="edge"))
    inverse, hits = LINKS[name]
    assert dataset.task == Task("edge", "binary", 1, hits_at=hits, own_negatives=name == "ogbl-citation2")
    train, val, test = dataset.graphs
    assert [part.tolist() for part in dataset.parts] == [[0], [1], [2]]
    assert train.edge_index.size(1) == (12 if inverse else 6)
    assert (train.x is None) == (name == "ogbl-ddi")
    assert train.edge_label.tolist() == [1] * 6 + [0] * (6 if name == "ogbl-vessel" else 0)
    assert test.edge_label_index[:, :3].tolist() == [[0, 1, 2], [2, 3, 4]]
    negatives = 4 if name == "ogbl-citation2" else 1
    assert val.edge_label.tolist() == [1, 1] + [0] * 2 * negatives
    if negatives == 4:  # the negatives of a link follow each other
        assert val.edge_label_index[:, 2:].tolist() == [[0] * 4 + [1] * 4, [0, 1, 2, 3, 4, 5, 6, 7]]
    assert len(ResampleNegatives()(train.clone()).edge_label) > 6
