"""From a data set to batches: features, splits, negatives, walks and memory."""

import json
import math

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run.data.features import Standardize
from pyg_topomask.run.data.loaders import (
    check_memory,
    evaluation_loaders,
    loaders,
    prepare,
    read_features,
    served_features,
)
from pyg_topomask.run.data.source import LoadedDataset, Source, node_masks, split_items
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.attentions import build_sampling_transforms
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.formats import load_dataset
from pyg_topomask.run.graphgps.formats.ogb import ResampleNegatives
from pyg_topomask.run.graphgps.parts import Coordinates, input_features, source_of
from pyg_topomask.run.task import Task, classification


def tu(**more):
    return source_of(load({"dataset": {"format": "PyG-TUDataset", "name": "TINY", **more}}).config)


@pytest.mark.parametrize("size", [10, 19, 1113])
@pytest.mark.parametrize("mode", ["random", "fixed", "cv-kfold-5", "cv-stratifiedkfold-5"])
def test_parts_are_disjoint_and_complete(mode, size):
    classes = torch.arange(size) % 10 % 3
    parts = split_items(tu(split_mode=mode), size, classes, None, seed=1)
    assert torch.cat(parts).sort().values.tolist() == list(range(size))
    shares = (0.8, 0.1, 0.1) if mode in ("random", "fixed") else (0.6, 0.2, 0.2)
    assert all(abs(len(part) - share * size) <= 2 for part, share in zip(parts, shares))
    if mode == "fixed":
        assert torch.cat(parts).tolist() == list(range(size))
    if "stratified" in mode:
        val, test = (classes[part].bincount(minlength=3) for part in parts[1:])
        assert (val - test).abs().max() <= 1


def test_shares_below_one_leave_items_out_and_counts_are_kept():
    assert sum(map(len, split_items(tu(split=(0.4, 0.2, 0.2)), 19, None, None, seed=1))) <= round(0.8 * 19) + 1
    assert list(map(len, split_items(tu(split=(4, 2, 1)), 19, None, None, seed=1))) == [4, 2, 1]


def test_random_splits_follow_the_run_and_folds_do_not():
    def tested(seed, **more):
        return split_items(tu(**more), 50, None, None, seed)[2].tolist()

    folds = {"split_mode": "cv-kfold-5"}
    assert tested(0) != tested(1)
    assert tested(0, split_seed=4) == tested(1, split_seed=4)
    assert tested(0, **folds) == tested(1, **folds) != tested(0, split_seed=4, **folds)
    assert sorted(item for i in range(5) for item in tested(0, split_index=i, **folds)) == list(range(50))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "5 items are too few"),
        ({"split_mode": "standard"}, "has no standard split"),
        ({"split_mode": "cv-kfold-6"}, r"6 folds need as many graphs \(got 5\)"),
        ({"split_mode": "cv-stratifiedkfold-5"}, "need one class for each item"),
        ({"split_mode": "errica", "split_dir": "nowhere"}, r"no TINY_splits.json was found \(nowhere"),
    ],
)
def test_splits_that_cannot_be_made(monkeypatch, settings, message):
    monkeypatch.delenv("TOPOMASK_DATA", raising=False)
    with pytest.raises(RunError, match=message):
        split_items(tu(**settings), 5, None, None, seed=0)


def test_published_splits_are_looked_for_in_groups_and_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TOPOMASK_DATA", raising=False)
    path = tmp_path / "CHEMICAL" / "TINY_full_splits.json"
    path.parent.mkdir()
    fold = {"model_selection": [{"train": [0, 1], "validation": [2]}], "test": [3]}
    path.write_text(json.dumps([fold]))
    data = tu(split_mode="errica", split_dir="~")
    assert [part.tolist() for part in split_items(data, 4, None, None, seed=0)] == [[0, 1], [2], [3]]
    with pytest.raises(RunError, match="is for another data set: it lists graphs beyond the 3 of TINY"):
        split_items(data, 3, None, None, seed=0)
    for content in ("[]", "{", "3", '[{"test": []}]'):
        path.write_text(content)
        with pytest.raises(RunError, match=f"{path} is not a file of splits with fold 0"):
            split_items(data, 4, None, None, seed=0)


def test_masks_of_zeros_and_ones_are_masks():
    graph = Data(x=torch.ones(6, 1), y=torch.arange(6) % 2)
    for number, part in enumerate(("train", "val", "test")):
        graph[f"{part}_mask"] = (torch.arange(6) % 3 == number).long()
    source = Source(graph, Task("node", "binary", 1))
    assert [mask.nonzero().view(-1).tolist() for mask in node_masks(source, graph, 0)] == [[0, 3], [1, 4], [2, 5]]
    graph.val_mask = torch.zeros(6)
    with pytest.raises(RunError, match="'val_mask' of data marks no node"):
        node_masks(source, graph, 0)
    graph.train_mask = torch.tensor([0, 3])
    with pytest.raises(RunError, match=r"'train_mask' must be a mask of the 6 nodes \(got shape \[2\]\)"):
        node_masks(source, graph, 0)
    del graph.train_mask
    with pytest.raises(RunError, match="data has masks, but no 'train_mask'; add it, or choose a random split"):
        node_masks(source, graph, 0)


def parts_of(config, sampling_transforms=()):
    return prepare(source_of(config), load_dataset(config.dataset), 0, sampling_transforms)


def test_features_where_there_are_none_and_dummy_edges(tu_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    source = {"dataset": {"format": "PyG-TUDataset", "name": "TINY", "dir": str(tu_folder), "edge_encoder": True}}
    plain, edges = (parts_of(load(source, more).config) for more in (["dataset.edge_encoder=false"], []))
    assert (plain.sizes.in_channels, plain.train[0].x.tolist()) == (1, [[1.0]] * 3)
    assert (plain.sizes.edge_channels, plain.train[0].edge_attr) == (None, None)
    assert (edges.sizes.edge_channels, edges.train[0].edge_attr.tolist()) == (1, [[1.0]] * 4)
    with pytest.raises(RunError, match="no edge features; use DummyEdge"):
        parts_of(load(source, ["dataset.edge_encoder_name=LinearEdge"]).config)


def test_feature_options(tiny):
    walks = ["posenc_RWSE.enable=true", "posenc_RWSE.kernel.times=[1, 2]", "posenc_RWSE.dim_pe=4"]
    walks.append("posenc_RWSE.model=Linear")
    for encoder, width in (("Constant", 1), ("RWSE+Constant", 1), ("Constant + RWSE", 1), ("Constant", 5)):
        more = (walks if "RWSE" in encoder else []) + [f"dataset.node_encoder={str(width == 1).lower()}"]
        assert parts_of(load(tiny, [f"dataset.node_encoder_name={encoder}", *more]).config).sizes.in_channels == width
    scaled = parts_of(load(tiny, ["topomask.normalize_features=true"]).config).train[0].x.sum(1)
    torch.testing.assert_close(scaled[scaled > 0], torch.ones(int((scaled > 0).sum())))


def test_only_a_single_graph_gets_self_loops():
    data = Data(x=torch.eye(2), edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=torch.full((2,), 3.0))
    cora, zinc = {"format": "PyG-Planetoid", "name": "Cora", "task": "node"}, {"format": "PyG-ZINC", "name": "subset"}
    for dataset, loops in ((cora, [0, 1]), (zinc, [])):
        source = {"dataset": dataset, "prep": {"add_self_loops": True}}
        found = input_features(load(source).config)(data.clone())
        assert found.edge_index.tolist() == [[0, 1, *loops], [1, 0, *loops]]
        assert found.edge_weight.tolist() == [3, 3, *[1 for _ in loops]]


@pytest.mark.parametrize(("encoder", "expected"), [("Bond", torch.tensor(2)), ("LinearEdge", torch.tensor(1.5))])
def test_categories_of_edges_are_not_averaged(encoder, expected):
    data = {"format": "OGB", "name": "ogbg-molhiv", "to_undirected": True, "node_encoder_name": "Atom"}
    data |= {"edge_encoder": True, "edge_encoder_name": encoder}
    features = input_features(load({"dataset": data}).config)
    edges = torch.tensor([[0, 1, 1], [1, 0, 2]])
    graph = Data(x=torch.zeros(3, 9).long(), edge_index=edges, edge_attr=torch.tensor([[1], [2], [3]]))
    found = features(graph)
    assert found.edge_attr.dtype == expected.dtype
    assert found.edge_attr[0] == expected
    with pytest.raises(RunError, match="Atom takes integer categories"):
        features(Data(x=torch.zeros(3, 9), edge_index=edges, edge_attr=graph.edge_attr))


def test_reverse_edges_leave_targets_alone_and_keep_the_larger_type():
    data = {"format": "OGB", "name": "ogbg-molhiv", "to_undirected": True}
    graph = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([3.0, 5.0]))
    graph.edge_type, graph.edge_weight = torch.tensor([0, 2]), torch.tensor([1.0, 2.0])
    graph.edge_label_index, graph.edge_label = graph.edge_index, torch.tensor([0, 1])
    found = input_features(load({"dataset": data}).config)(graph)
    assert found.y.tolist() == [3, 5]  # two targets of a graph with two edges
    assert (found.edge_label_index.tolist(), found.edge_label.tolist()) == ([[0, 1], [1, 0]], [0, 1])
    assert (found.edge_type.tolist(), found.edge_weight.tolist()) == ([2, 2], [1.5, 1.5])
    assert input_features(load({"dataset": data}).config)(Data(x=torch.ones(3, 2))).edge_index is None


def test_channels_that_never_change_are_centred():
    graphs = [Data(x=torch.tensor([[1.0, 3.0], [2.0, 3.0]]))]
    assert Standardize.fit(graphs)(graphs[0]).x.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_features_of_several_graphs_are_fitted_once(tiny, monkeypatch):
    source, fit, fitted = source_of(load(tiny, ["dataset.normalize=true"]).config), Standardize.fit, []
    monkeypatch.setattr(Standardize, "fit", lambda graphs: fitted.append(len(graphs)) or fit(graphs))
    dataset = source.load()
    every = read_features(source, dataset, 0)[0]
    for number, graph in zip((3, 0), served_features(source, dataset, [3, 0], 0)):
        assert torch.equal(graph.x, every[number].x)
    assert len(fitted) == 2


def test_coordinates_become_waves_by_the_training_nodes():
    x = torch.tensor([[2.0, 40.0, 1.0, 7.0], [4.0, 44.0, 3.0, 7.0], [3.0, 41.0, 9.0, 8.0]])
    graph = Data(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.arange(3))
    graph.train_mask = torch.tensor([True, True, False])
    graph.val_mask = graph.test_mask = ~graph.train_mask
    data = {"format": "PyG-CityNetwork", "name": "Paris", "task": "node", "node_encoder_name": "CityNetworkNode"}
    dataset = LoadedDataset([graph], classification("node", 3))
    splits = prepare(source_of(load({"dataset": data}).config), dataset, 0, [])
    expected = []
    for low, high, value in ((2, 4, x[:, 0]), (40, 44, x[:, 1])):
        angle = 0.9 * 2 * math.pi * ((value - low) / (high - low) - 0.5)
        expected += [(2**i * angle).sin() for i in range(8)] + [(2**i * angle).cos() for i in range(8)]
    expected += [x[:, 2] - 2.0, x[:, 3] - 7.0]  # the last column is constant in training and only centred
    torch.testing.assert_close(splits.val[0].x, torch.stack(expected, dim=1), rtol=0, atol=1e-4)
    assert torch.equal(graph.x, x)
    again = Coordinates(splits.fitted[0])(graph).x  # as a trained model does
    assert torch.equal(again, splits.val[0].x)


def test_redrawing_changes_training_walks_only(tiny):
    config = load(tiny, ["topomask.redraw=1"]).config
    splits, drawn = parts_of(config, build_sampling_transforms(config, 0)), []
    for epoch in (0, 1):
        splits.set_epoch(epoch)
        train, val, _ = loaders(source_of(config).serving, splits, seed=0)
        drawn.append([[batch.walk_load.tolist() for batch in loader] for loader in (train, val)])
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] == drawn[1][1]


def test_walks_that_will_not_fit_into_memory_are_refused_early(tiny, monkeypatch):
    monkeypatch.setattr("pyg_topomask.run.data.loaders._GRAPHS_TOGETHER", 2)
    monkeypatch.setattr("pyg_topomask.run.data.loaders.available_mib", lambda: 1e-3)
    config, done = load(tiny).config, []
    walks, dataset = build_sampling_transforms(config, 0), load_dataset(config.dataset)
    with pytest.raises(RunError, match=r"not fit into memory: 46 more graphs need .*num_walks"):
        prepare(source_of(config), dataset, 0, walks, lambda *to: done.append(to))
    assert ("walks, edges and trees", 2) not in done
    given = [Data(x=torch.ones(2**20, dtype=torch.float64))] * 3  # 8 MiB, which are there already
    drawn = [Data(x=given[0].x, walk=torch.ones(size * 2**20, dtype=torch.uint8)) for size in (1, 2, 3)]
    monkeypatch.setattr("pyg_topomask.run.data.loaders.available_mib", lambda: 20.5)
    check_memory(source_of(config), given, drawn, remaining=10)
    with pytest.raises(RunError, match="11 more graphs need about 22 MiB, and 20 MiB are left; lower"):
        check_memory(source_of(config), given, drawn, remaining=11)


def test_training_graphs_of_an_evaluation_have_the_negatives_of_seed_0():
    link = {"edge_label_index": torch.tensor([[0, 1], [2, 3]]), "edge_label": torch.ones(2).long()}
    graph = Data(x=torch.ones(9, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), **link)
    task = Task("edge", "binary", 1, hits_at=50)
    dataset = LoadedDataset([graph] * 3, task, torch.arange(3).split(1), ResampleNegatives)
    config = {"dataset": {"format": "OGB", "name": "ogbl-collab"}, "seed": 4}
    trained = prepare(source_of(load(config).config), dataset, 4, [])
    assert trained.train[0].edge_label.tolist() == [1, 1]  # negatives are drawn when the graph is served
    evaluation = ["train.mode=inference-only", "pretrained.dir=finished"]
    source = source_of(load(config, evaluation).config)
    (evaluated,) = prepare(source, dataset, 4, [], inference=True).train
    assert evaluated.edge_label.tolist() == [1, 1, 0, 0]
    assert torch.equal(evaluated.edge_label_index, ResampleNegatives(0)(graph).edge_label_index)


def test_each_training_graph_is_evaluated_once_on_several_processes(tiny, monkeypatch):
    config = load(tiny, ["dataset.split=[0.8, 0.1, 0.1]"]).config
    splits, served = parts_of(config), 0
    for name, value in (("LOCAL_RANK", "0"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    for process in range(4):
        monkeypatch.setenv("RANK", str(process))
        served += sum(batch.num_graphs for batch in evaluation_loaders(source_of(config).serving, splits, 0)[0])
    assert served == len(splits.train) == 38
    monkeypatch.setenv("WORLD_SIZE", "40")
    with pytest.raises(RunError, match=r"the \w+ part has \d+ graphs for 40 processes"):
        evaluation_loaders(source_of(config).serving, splits, 0)
