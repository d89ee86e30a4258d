"""Loaders of data sets on raw files written by the tests, and on real files if they are available."""

import math
import pickle
import random

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.features import Coordinates, Standardize, input_features
from pyg_topomask.run.data.formats import FORMATS, LoadedDataset, clouds, dataset_problems, load_dataset
from pyg_topomask.run.data.formats.base import reading
from pyg_topomask.run.data.formats.clouds import NearestNeighbors
from pyg_topomask.run.data.formats.negatives import ResampleNegatives, ResampleNonEdges
from pyg_topomask.run.data.formats.ogb import pcqm_parts
from pyg_topomask.run.data.formats.words import AddTokenEdges, EncodeWords, vocabulary
from pyg_topomask.run.data.loaders import prepare
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import Task, classification

PARTS = {"train": 4, "val": 2, "test": 3}


@pytest.fixture(autouse=True)
def no_other_data(tmp_path, monkeypatch, request):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("TOPOMASK_DATA", raising=False)


def ring(size):
    nodes = torch.arange(size)
    return torch.stack([nodes, (nodes + 1) % size])


def molecule(number, y):
    size = 3 + number
    return torch.randint(3, (size, 9)), torch.randint(3, (size, 3)), ring(size), y


def write(folder, save, item):
    folder.mkdir(parents=True)
    for part, count in PARTS.items():
        save([item(number) for number in range(count)], folder, part)


def save_pt(items, folder, part):
    torch.save(items, folder / f"{part}.pt")


def save_pickle(items, folder, part):
    (folder / f"{part}.pickle").write_bytes(pickle.dumps(items))


def loaded(tmp_path, **data):
    dataset = load_dataset(DatasetConfig(dir=str(tmp_path / "data"), **data))
    if dataset.parts is not None:
        assert [len(part) for part in dataset.parts] == [4, 2, 3]
        assert torch.cat(dataset.parts).tolist() == list(range(9))
    return dataset


@pytest.mark.parametrize(
    ("name", "folder", "width", "kind"),
    [
        ("peptides-functional", "peptides-func", 10, "multilabel"),
        ("peptides-structural", "peptides-struct", 11, "regression"),
    ],
)
def test_peptides(tmp_path, name, folder, width, kind):
    write(tmp_path / "data" / folder / "raw", save_pt, lambda i: molecule(i, torch.rand(1, width).round()))
    dataset = loaded(tmp_path, format="OGB", name=name)
    assert dataset.task == Task("graph", kind, width)
    assert dataset.graphs[8].num_nodes == 5  # the third graph of the test set
    assert dataset.task.target(dataset.graphs[0]).shape == (1, width)
    again = loaded(tmp_path, format="PyG-LRGBDataset", name=folder.upper())
    assert torch.equal(again.graphs[0].x, dataset.graphs[0].x)


def test_superpixels_and_their_normalisation(tmp_path):
    def item(number):
        size = 4 + number
        return torch.randn(size, 14) * 5 + 7, torch.rand(size, 2), ring(size), [number % 21] * size

    write(tmp_path / "data" / "LRGBDataset" / "pascalvoc-sp" / "raw", save_pickle, item)
    data = {"format": "PyG-VOCSuperpixels", "name": "edge_wt_region_boundary", "slic_compactness": 30}
    dataset = loaded(tmp_path, **data)
    assert dataset.task == classification("node", 21)
    config = load({"dataset": data | {"normalize": True, "edge_encoder": True, "edge_encoder_name": "LinearEdge"}})
    splits = prepare(config.config, dataset, 0, [])
    for name in ("x", "edge_attr"):
        values = torch.cat([graph[name] for graph in splits.train])
        torch.testing.assert_close(values.mean(0), torch.zeros(values.size(1)), atol=1e-5, rtol=0)
        torch.testing.assert_close(values.std(0, correction=0), torch.ones(values.size(1)))
    assert abs(float(torch.cat([graph.x for graph in splits.test]).mean())) > 1e-4  # standardised by training graphs


def test_channels_that_never_change_are_centred():
    graphs = [Data(x=torch.tensor([[1.0, 3.0], [2.0, 3.0]]))]
    assert Standardize.fit(graphs)(graphs[0]).x.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize(("encoder", "expected"), [("Bond", torch.tensor(2)), ("LinearEdge", torch.tensor(1.5))])
def test_categories_of_edges_are_not_averaged(encoder, expected):
    data = {"format": "OGB", "name": "ogbg-molhiv", "to_undirected": True, "node_encoder_name": "Atom"}
    data |= {"edge_encoder": True, "edge_encoder_name": encoder}
    features = input_features(load({"dataset": data}).config)
    edges = torch.tensor([[0, 1, 1], [1, 0, 2]])
    graph = features(Data(x=torch.zeros(3, 9).long(), edge_index=edges, edge_attr=torch.tensor([[1], [2], [3]])))
    assert graph.edge_attr.dtype == expected.dtype
    assert graph.edge_attr[0] == expected


def test_contacts_and_their_negatives(tmp_path):
    def item(number):
        x, edge_attr, edge_index, _ = molecule(number, None)
        pairs = torch.tensor([[0, 2, 0, 1], [2, 0, 1, 1]])
        return x, edge_attr, edge_index, pairs, torch.tensor([1, 1, 0, 0])

    write(tmp_path / "data" / "pcqm-contact" / "raw", save_pt, item)
    data = {"format": "OGB", "name": "PCQM4Mv2Contact-shuffle", "resample_negative": True, "task": "edge"}
    dataset = loaded(tmp_path, **data)
    assert dataset.task == Task("edge", "binary", 1, ranked=True)
    splits = prepare(load({"dataset": data, "metric_best": "mrr"}).config, dataset, 0, [])
    negatives = [graph.edge_label_index[:, graph.edge_label == 0] for graph in splits.test]
    assert all(pairs.size(1) >= 2 for pairs in negatives)
    assert len(splits.serve_transforms) == 1
    splits.set_epoch(9)
    other = prepare(load({"dataset": data, "metric_best": "mrr", "seed": 1}).config, dataset, 1, [])
    for mine, theirs in zip(splits.test, other.test):  # evaluations are the same for all seeds
        assert torch.equal(mine.edge_label_index, theirs.edge_label_index)
    splits.set_epoch(0)
    drawn = [[one.serve_transforms[0](graph).edge_label_index for graph in one.train] for one in (splits, other)]
    assert any(not torch.equal(mine, theirs) for mine, theirs in zip(*drawn))


def test_negatives_follow_epoch_and_graph_and_are_never_positive():
    positive = torch.tensor([[0, 0, 5], [1, 2, 3]])
    graph = Data(edge_index=ring(30), num_nodes=30, edge_label_index=positive, edge_label=torch.ones(3).long())
    transform = ResampleNegatives()
    first = transform(graph)
    assert torch.equal(first.edge_label_index, transform(graph).edge_label_index)
    assert first.edge_label.tolist() == [1] * 3 + [0] * 6
    negative = first.edge_label_index[:, 3:]
    assert negative[0].tolist() == [0, 0, 0, 0, 5, 5]
    pairs = set(map(tuple, negative.T.tolist()))
    assert len(pairs) == 6
    assert not pairs & set(map(tuple, positive.T.tolist()))
    transform.set_epoch(1)
    assert not torch.equal(first.edge_label_index, transform(graph).edge_label_index)
    full = torch.cartesian_prod(torch.arange(2), torch.arange(2)).T  # there are no negatives
    tiny = Data(num_nodes=2, edge_index=ring(2), edge_label_index=full, edge_label=torch.ones(4).long())
    assert transform(tiny).edge_label.tolist() == [1] * 4


def test_pairs_without_an_edge_follow_seed_and_epoch():
    def drawn(seed, epoch, graph):
        transform = ResampleNonEdges(seed)
        transform.set_epoch(epoch)
        return transform(graph).edge_label_index

    positive = torch.tensor([[0, 1, 2], [9, 8, 7]])
    graph = Data(edge_index=ring(30), num_nodes=30, edge_label_index=positive, edge_label=torch.ones(3).long())
    first = drawn(0, 1, graph)
    random.seed(3)
    torch.manual_seed(3)
    assert torch.equal(first, drawn(0, 1, graph))
    assert not torch.equal(first, drawn(0, 2, graph))
    assert not torch.equal(first, drawn(7, 1, graph))


def test_pairs_without_an_edge_are_different_nodes_without_an_edge():
    ends = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    free = {(0, 4), (5, 1), (2, 3)}
    kept = [i != j and (i, j) not in free for i, j in ends.T.tolist()]
    edges = ends[:, torch.tensor(kept)]
    graph = Data(edge_index=edges, num_nodes=6, edge_label_index=edges, edge_label=torch.ones(edges.size(1)).long())
    found = ResampleNonEdges()(graph)
    negative = found.edge_label_index[:, found.edge_label == 0]
    assert set(map(tuple, negative.T.tolist())) == free  # there are fewer than edges
    assert negative.size(1) == 3


def test_a_single_category_of_shapes_has_its_own_labels(monkeypatch):
    monkeypatch.setattr(clouds, "from_parts", lambda raw, data, build, task, key: task)
    bag = clouds.shapenet(DatasetConfig(format="PyG-ShapeNet", name="Bag"))
    assert bag.part_labels == ((4, 5),)
    assert bag.num_classes == 50
    assert len(clouds.shapenet(DatasetConfig(format="PyG-ShapeNet")).part_labels) == 16


def test_superpixels_of_digits_get_their_positions(tmp_path):
    def graph(number):
        size = 3 + number
        return {
            "x": torch.rand(size, 1),
            "edge_index": ring(size),
            "edge_attr": torch.rand(size),
            "pos": torch.rand(size, 2),
            "y": torch.tensor([number]),
        }

    folder = tmp_path / "data" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    torch.save([[graph(i) for i in range(count)] for count in PARTS.values()], folder / "MNIST_v2.pt")
    dataset = loaded(tmp_path, format="PyG-GNNBenchmarkDataset", name="MNIST")
    assert dataset.task == classification("graph", 10)
    assert dataset.graphs[0].x.shape == (3, 3)
    assert "pos" not in dataset.graphs[0]


def test_nodes_with_several_splits(tmp_path):
    folder = tmp_path / "data" / "WebKB" / "texas" / "raw"
    folder.mkdir(parents=True)
    lines = [f"{i}\t{i % 2},1\t{i % 5}" for i in range(10)]
    (folder / "out1_node_feature_label.txt").write_text("\n".join(["head", *lines, ""]))
    edges = [f"{i}\t{(i + 1) % 10}" for i in range(10)]
    (folder / "out1_graph_edges.txt").write_text("\n".join(["head", *edges, ""]))
    for split in range(10):
        masks = np.roll(np.repeat([0, 1, 2], [5, 2, 3]), split)
        arrays = {f"{part}_mask": masks == i for i, part in enumerate(("train", "val", "test"))}
        np.savez(folder / f"texas_split_0.6_0.2_{split}.npz", **arrays)
    data = {"format": "PyG-WebKB", "name": "texas", "task": "node"}
    dataset = loaded(tmp_path, **data)
    assert (len(dataset), dataset.task) == (1, classification("node", 5))
    for split in (0, 3):
        config = load({"dataset": data | {"split_index": split}}).config
        splits = prepare(config, dataset, 0, [])
        assert splits.sizes == {"train": 5, "val": 2, "test": 3}
        assert splits.train[0].counted.nonzero().view(-1).sort().values.tolist() == sorted(
            (i + split) % 10 for i in range(5)
        )
    config = load({"dataset": data | {"split_index": 12}}).config
    with pytest.raises(RunError, match=r"there are 10 splits \(got 12\)"):
        prepare(config, dataset, 0, [])


def test_coordinates_become_waves_by_the_training_nodes():
    x = torch.tensor([[2.0, 40.0, 1.0, 7.0], [4.0, 44.0, 3.0, 7.0], [3.0, 41.0, 9.0, 8.0]])
    graph = Data(x=x)
    out = Coordinates.fit([Data(x=x[:2])])(graph).x
    assert out.shape == (3, 34)
    expected = []
    for low, high, value in ((2, 4, x[:, 0]), (40, 44, x[:, 1])):
        angle = 0.9 * 2 * math.pi * ((value - low) / (high - low) - 0.5)
        expected += [(2**i * angle).sin() for i in range(8)] + [(2**i * angle).cos() for i in range(8)]
    expected += [x[:, 2] - 2.0, x[:, 3] - 7.0]  # the last column is constant in training and only centred
    torch.testing.assert_close(out, torch.stack(expected, dim=1), rtol=0, atol=1e-4)
    assert torch.equal(graph.x, x)


def test_city_networks_are_encoded_by_their_training_nodes():
    x = torch.rand(6, 37)
    mask = torch.tensor([True, True, True, False, False, False])
    graph = Data(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.arange(6) % 3, num_nodes=6)
    graph.train_mask, graph.val_mask, graph.test_mask = mask, ~mask, ~mask
    data = {"format": "PyG-CityNetwork", "name": "Paris", "task": "node", "node_encoder_name": "CityNetworkNode"}
    dataset = LoadedDataset([graph], classification("node", 3))
    splits = prepare(load({"dataset": data}).config, dataset, 0, [])
    assert splits.in_channels == 67
    assert torch.equal(splits.val[0].x, Coordinates.fit([Data(x=x[:3])])(graph).x)


def test_clouds_get_edges_from_their_nearest_points():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.1, 0.0], [10.0, 0.0]])
    cloud = NearestNeighbors(1)(Data(pos=points, x=torch.ones(4, 1)))
    assert cloud.edge_index.T.tolist() == [[1, 0], [0, 1], [1, 2], [2, 3]]
    assert cloud.x.shape == (4, 3)
    assert NearestNeighbors(16)(Data(pos=points[:1])).edge_index.shape == (2, 0)


def test_words_and_edges_of_syntax_trees():
    words = vocabulary([["get", "name"], ["get", "size"], ["set", "name"], ["get"]], size=2)
    assert words == ("get", "name", "__UNK__", "__EOS__")
    tree = Data(
        x=torch.zeros(4, 2),
        edge_index=torch.tensor([[0, 0, 1], [1, 2, 3]]),
        node_is_attributed=torch.tensor([[0], [1], [1], [1]]),
        node_dfs_order=torch.arange(4),
        node_depth=torch.zeros(4, 1),
        y=["get", "size", "name", "of", "all", "rest"],
    )
    assert EncodeWords(words)(tree).y_arr.tolist() == [[0, 2, 1, 2, 2]]
    assert EncodeWords(words, 8)(tree).y_arr.tolist() == [[0, 2, 1, 2, 2, 2, 3, 3]]
    both = AddTokenEdges()(tree)
    assert both.edge_index.T.tolist()[6:] == [[1, 2], [2, 3], [2, 1], [3, 2]]
    assert both.edge_attr.tolist() == [[0, 0]] * 3 + [[0, 1]] * 3 + [[1, 0]] * 2 + [[1, 1]] * 2


def test_parts_of_pcqm_are_those_of_graphgps():
    split = {"train": torch.arange(200_000), "valid": torch.arange(200_000, 200_010)}
    train, val, test = pcqm_parts("PCQM4Mv2-full", split)
    expected = np.random.default_rng(seed=42).permutation(200_000)
    assert val.tolist() == expected[:150_000].tolist()
    assert (train.numel(), test.tolist()) == (50_000, list(range(200_000, 200_010)))
    train, val, _ = pcqm_parts("PCQM4Mv2-subset", split)
    assert (train.numel(), val.numel()) == (5_000, 50_000)


@pytest.mark.parametrize(
    ("data", "key", "text"),
    [
        ({"format": "PyG-ZNIC", "name": "subset"}, "dataset.format", "Did you mean 'PyG-ZINC'"),
        ({"format": "PyG-ZINC", "name": "sub"}, "dataset.name", "there are subset, full"),
        ({"format": "OGB", "name": "ogbg-molhv"}, "dataset.name", "Did you mean 'ogbg-molhiv'"),
        (
            {"format": "PyG-VOCSuperpixels", "name": "edge_wt_region_boundary", "slic_compactness": 10},
            "dataset.slic_compactness",
            "30 only",
        ),
        ({"format": "PyG-ZINC", "name": "full", "split_mode": "errica"}, "dataset.split_mode", "PyG-TUDataset"),
        ({"format": "PyG-Amazon", "name": "photo", "split_mode": "standard"}, "dataset.split_mode", "no standard"),
    ],
)
def test_names_that_are_refused(data, key, text):
    (found,) = dataset_problems(DatasetConfig(**data))
    assert found[0] == key
    assert text in found[1]


def test_every_name_is_accepted():
    for name, entry in FORMATS.items():
        for each in entry.names:
            mode = "random" if each == "CSL" else DatasetConfig(format=name, name=each).split_mode
            slic = {"slic_compactness": 30} if "Superpixels" in name else {}
            data = DatasetConfig(format=name, name=each, split_mode=mode, **slic)
            assert dataset_problems(data) == [], (name, each)
    assert dataset_problems(DatasetConfig(format="OGB", name="ogbg_molhiv")) == []


def test_missing_package_is_named(tmp_path, monkeypatch):
    from pyg_topomask.run.data.formats import base

    def missing(name):
        raise ImportError(name="ogb")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(RunError, match="needs ogb, which is not installed: pip install ogb"):
        base.need("ogb.graphproppred", "the data set ogbg-molhiv")


@pytest.mark.data
def test_real_peptides_both_ways(real_data, tmp_path):
    pytest.importorskip("ogb")
    whole = load_dataset(DatasetConfig(format="OGB", name="peptides-functional"))
    assert [len(part) for part in whole.parts] == [10873, 2331, 2331]
    sample = load_dataset(DatasetConfig(format="OGB", name="peptides-functional", dir=str(real_data / "LRGB-sample")))
    assert [len(part) for part in sample.parts] == [300, 100, 100]
    assert whole.task == sample.task
    for part in range(3):
        for number in (0, 99):
            one, other = (d.graphs[int(d.parts[part][number])] for d in (whole, sample))
            for name in ("x", "edge_index", "edge_attr"):
                assert torch.equal(one[name], other[name]), name
            assert torch.equal(whole.task.target(one), sample.task.target(other))


@pytest.mark.data
def test_real_molhiv(real_data):
    pytest.importorskip("ogb")
    dataset = load_dataset(DatasetConfig(format="OGB", name="ogbg-molhiv"))
    assert [len(part) for part in dataset.parts] == [32901, 4113, 4113]
    assert dataset.task == Task("graph", "binary", 1)
    graph = dataset.graphs[0]
    assert (graph.x.dtype, graph.x.size(1), graph.edge_attr.size(1)) == (torch.int64, 9, 3)


@pytest.mark.data
@pytest.mark.parametrize(("name", "sizes"), [("ENZYMES", (486, 54, 60)), ("PROTEINS", None), ("IMDB-BINARY", None)])
def test_real_published_folds(real_data, name, sizes):
    data = {"format": "PyG-TUDataset", "name": name, "split_mode": "errica"}
    dataset = load_dataset(DatasetConfig(**data))
    tests = []
    for fold in range(10):
        config = load({"dataset": data | {"split_index": fold}}).config
        splits = prepare(config, dataset, 0, [])
        tests += splits.test
        assert sizes is None or tuple(splits.sizes.values()) == sizes
    assert len(tests) == len(dataset)


@pytest.mark.data
@pytest.mark.parametrize("name", ["ogbg-molhiv", "peptides-functional"])
def test_real_runs_report_what_ogb_does(real_data, tmp_path, name, monkeypatch):
    """After a few steps on the first graphs of each part, the runner's metric equals that of OGB's evaluator."""
    known = "ogbg-molhiv" if name == "ogbg-molhiv" else "ogbg-molpcba"
    evaluator = pytest.importorskip("ogb.graphproppred").Evaluator(known)
    from pyg_topomask.run import run_config, runner
    from pyg_topomask.run.model.build import build_model

    def first_graphs(data):
        dataset = load_dataset(data)
        parts = tuple(part[:300] for part in dataset.parts)
        graphs = [dataset.graphs[int(i)] for part in parts for i in part]
        dataset.graphs, dataset.parts = graphs, tuple(torch.arange(900).split(300))
        return dataset

    monkeypatch.setattr(runner, "load_dataset", first_graphs)
    metric, other = ("auc", "rocauc") if name == "ogbg-molhiv" else ("ap", "ap")
    config = {
        "metric_best": metric,
        "dataset": {"format": "OGB", "name": name},
        "train": {"batch_size": 64},
        "gt": {"layer_type": "GCN+None", "layers": 1, "dim_hidden": 8},
        "optim": {"max_epoch": 1, "base_lr": 0.01},
    }
    summary = run_config(config, tmp_path)
    dataset, config = first_graphs(DatasetConfig(**config["dataset"])), load(config).config
    splits = prepare(config, dataset, 0, [])
    model = build_model(config, splits.in_channels, dataset.task.num_outputs)
    state = torch.load(tmp_path / "config" / "0" / "best.ckpt", weights_only=True)["state_dict"]
    model.load_state_dict({key.removeprefix("model."): value for key, value in state.items()})
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(graph) for graph in splits.test])
    if name != "ogbg-molhiv":  # OGB's evaluator has the metric, but for another number of labels
        evaluator.num_tasks = 10
    true = torch.cat([graph.y for graph in splits.test])
    expected = evaluator.eval({"y_true": true.numpy(), "y_pred": predicted.numpy()})[other]
    assert summary["metrics"][f"test_{metric}"]["mean"] == pytest.approx(expected, abs=1e-5)


def test_messages_of_libraries_are_no_results(capsys):
    with reading("a file", "advice"):
        print("Downloading a.zip")
    assert capsys.readouterr() == ("", "Downloading a.zip\n")
