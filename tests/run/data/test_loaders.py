import json
import re
import urllib.error

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.loader import EpochSampler
from pyg_topomask.run.config import Config
from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.features import input_features
from pyg_topomask.run.data.formats import LoadedDataset, load_dataset
from pyg_topomask.run.data.formats.negatives import ResampleNonEdges
from pyg_topomask.run.data.loaders import evaluation_loaders, loaders, prepare
from pyg_topomask.run.data.splits import folds, split_items
from pyg_topomask.run.errors import MissingDataError, RunError
from pyg_topomask.run.model.sampling import build_sampling_transforms, check_memory
from pyg_topomask.run.task import Task


def tu(folder, **more):
    return DatasetConfig(format="PyG-TUDataset", name="TINY", dir=str(folder), **more)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_raw_files_stay_as_they_are_and_processed_ones_go_to_the_cache(tu_folder, own_cache):
    before = sorted(tu_folder.rglob("*"))
    dataset = load_dataset(tu(tu_folder))
    assert (len(dataset), dataset.task.num_classes, dataset.graphs[0].num_nodes) == (12, 2, 3)
    assert sorted(tu_folder.rglob("*")) == before
    (processed,) = own_cache.rglob("data.pt")
    stamp = processed.stat().st_mtime_ns
    load_dataset(tu(tu_folder))
    assert processed.stat().st_mtime_ns == stamp
    assert not list(own_cache.rglob(".building-*"))


def test_changed_raw_files_are_processed_anew(tu_folder, own_cache):
    load_dataset(tu(tu_folder))
    labels = tu_folder / "TUDataset" / "TINY" / "raw" / "TINY_graph_labels.txt"
    labels.write_text("".join(f"{1 + g % 3}  \n" for g in range(12)))
    assert load_dataset(tu(tu_folder)).task.num_classes == 3


def test_regression_needs_attributes_of_graphs_and_no_labels(tu_folder, own_cache):
    raw = tu_folder / "TUDataset" / "TINY" / "raw"
    (raw / "TINY_graph_labels.txt").unlink()
    (raw / "TINY_graph_attributes.txt").write_text("".join(f"{g / 2}\n" for g in range(12)))
    dataset = load_dataset(tu(tu_folder, task_type="regression"))
    assert [float(graph.y) for graph in dataset.graphs] == [g / 2 for g in range(12)]


def test_environment_is_looked_in_after_the_config(tu_folder, own_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("TOPOMASK_DATA", str(tu_folder))
    assert len(load_dataset(tu(tmp_path))) == 12


def test_missing_files_name_both_folders(tmp_path, own_cache, monkeypatch):
    def no_network(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("torch_geometric.datasets.tu_dataset.TUDataset.download", no_network)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "two"))
    (tmp_path / "one" / "TUDataset" / "TINY" / "raw").mkdir(parents=True)
    with pytest.raises(MissingDataError) as caught:
        load_dataset(tu(tmp_path / "one"))
    text = str(caught.value)
    assert "the raw files of TINY were neither found nor downloaded" in text
    assert "lacks TINY_A.txt, TINY_graph_indicator.txt, TINY_graph_labels.txt" in text
    assert str(tmp_path / "two" / "TUDataset" / "TINY" / "raw") in text
    assert "no network" in text
    assert list((own_cache / "TUDataset").iterdir()) == []


def test_unreadable_raw_files(tu_folder, own_cache):
    (tu_folder / "TUDataset" / "TINY" / "raw" / "TINY_A.txt").write_text("one, two\n")
    with pytest.raises(RunError, match="could not be read: ValueError"):
        load_dataset(tu(tu_folder))
    assert list((own_cache / "TUDataset").iterdir()) == []


def test_folds_share_every_class():
    classes = torch.tensor([0] * 23 + [1] * 40 + [2] * 7)[torch.randperm(70)]
    fold = folds(classes, 10, seed=3)
    assert fold.bincount(minlength=10).tolist() == [7] * 10
    for c in range(3):
        counts = fold[classes == c].bincount(minlength=10)
        assert counts.max() - counts.min() <= 1
    assert torch.equal(fold, folds(classes, 10, seed=3))
    assert not torch.equal(fold, folds(classes, 10, seed=4))


@pytest.mark.parametrize("mode", ["random", "cv-kfold-5", "cv-stratifiedkfold-5"])
def test_parts_are_disjoint_and_complete(mode):
    data = DatasetConfig(format="PyG-TUDataset", name="X", split_mode=mode)
    parts = split_items(data, 50, torch.arange(50) % 3, None, seed=1)
    assert torch.cat(parts).sort().values.tolist() == list(range(50))
    assert [len(part) for part in parts] == ([40, 5, 5] if mode == "random" else [30, 10, 10])


@pytest.mark.parametrize("size", [10, 19, 36, 1113])
def test_shares_that_make_one_leave_nothing_out(size):
    data = DatasetConfig(format="PyG-TUDataset", name="X")
    parts = split_items(data, size, None, None, seed=1)
    assert torch.cat(parts).sort().values.tolist() == list(range(size))
    some = DatasetConfig(format="PyG-TUDataset", name="X", split=(0.4, 0.2, 0.2))
    assert sum(map(len, split_items(some, size, None, None, seed=1))) <= round(0.8 * size) + 1


def test_random_splits_follow_the_run_and_folds_do_not():
    labels = torch.arange(50) % 2

    def tested(seed, **more):
        data = DatasetConfig(format="PyG-TUDataset", name="X", **more)
        return split_items(data, 50, labels, None, seed)[2].tolist()

    assert tested(0) != tested(1)
    assert tested(0, split_seed=4) == tested(1, split_seed=4)
    assert tested(0, split_mode="cv-kfold-5") == tested(1, split_mode="cv-kfold-5")
    every = [tested(0, split_mode="cv-kfold-5", split_index=i) for i in range(5)]
    assert sorted(i for part in every for i in part) == list(range(50))


def test_too_few_graphs_for_the_shares():
    data = DatasetConfig(format="PyG-TUDataset", name="X")
    with pytest.raises(RunError, match="5 items are too few"):
        split_items(data, 5, None, None, seed=0)


def test_the_folder_of_published_splits_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TOPOMASK_DATA", raising=False)
    inner = {"train": [0, 1], "validation": [2]}
    (tmp_path / "TINY_splits.json").write_text(json.dumps([{"model_selection": [inner], "test": [3]}]))
    parts = split_items(tu("", split_mode="errica", split_dir="~"), 4, None, None, seed=0)
    assert [part.tolist() for part in parts] == [[0, 1], [2], [3]]


def parts_of(config, sampling_transforms=()):
    dataset = load_dataset(config.dataset)
    return prepare(config, dataset, seed=0, sampling_transforms=sampling_transforms)


def test_features_where_there_are_none_and_dummy_edges(tu_folder, own_cache):
    source = {"dataset": tu(tu_folder).model_dump(exclude_unset=True)}
    plain = parts_of(load(source).config)
    assert plain.train[0].x.tolist() == [[1.0]] * 3
    assert (plain.in_channels, plain.edge_channels, plain.train[0].edge_attr) == (1, None, None)
    edges = parts_of(load(source, ["dataset.edge_encoder=true"]).config)
    assert (edges.edge_channels, edges.train[0].edge_attr.tolist()) == (1, [[1.0]] * 4)
    with pytest.raises(RunError, match="no edge features; use DummyEdge"):
        parts_of(load(source, ["dataset.edge_encoder=true", "dataset.edge_encoder_name=LinearEdge"]).config)


def test_feature_options(tiny):
    constant = parts_of(load(tiny, ["dataset.node_encoder_name=Constant"]).config)
    assert constant.in_channels == 1
    for name in ("RWSE+Constant", "Constant + RWSE"):
        overrides = [f"dataset.node_encoder_name={name}", "posenc_RWSE.enable=true", "posenc_RWSE.kernel.times=[1, 2]"]
        overrides.append("posenc_RWSE.dim_pe=4")
        assert parts_of(load(tiny, overrides).config).in_channels == 1
    unused = ["dataset.node_encoder_name=Constant", "dataset.node_encoder=false"]
    assert parts_of(load(tiny, unused).config).in_channels == 5
    scaled = parts_of(load(tiny, ["topomask.normalize_features=true"]).config).train[0].x
    torch.testing.assert_close(scaled.sum(1)[scaled.sum(1) > 0], torch.ones(int((scaled.sum(1) > 0).sum())))


def test_self_loops_of_one_graph():
    cora = {"format": "PyG-Planetoid", "name": "Cora", "task": "node"}
    data = Data(x=torch.eye(2), edge_index=torch.tensor([[0, 1], [1, 0]]))
    for family, loops in ((cora, 2), ({"format": "PyG-ZINC", "name": "subset"}, 0)):
        config = Config.model_validate({"dataset": family, "prep": {"add_self_loops": True}})
        edges = input_features(config)(data.clone()).edge_index
        assert edges.size(1) == 2 + loops
        assert int((edges[0] == edges[1]).sum()) == loops


def test_order_of_an_epoch_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        sampler = EpochSampler(20, seed)
        sampler.set_epoch(epoch)
        torch.rand(epoch + 1)
        return list(sampler)

    assert order(0, 3) == order(0, 3)
    assert sorted(order(0, 3)) == list(range(20))
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_redrawing_changes_training_walks_only(tiny):
    config = load(tiny, ["topomask.redraw=1"]).config
    splits = parts_of(config, build_sampling_transforms(config, 0))

    def drawn():
        train, val, _ = loaders(config, splits, seed=0)
        return [torch.cat([batch.walk_load for batch in loader]) for loader in (train, val)]

    first = drawn()
    splits.set_epoch(1)
    second = drawn()
    assert first[0].shape != second[0].shape or not torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_walks_that_will_not_fit_into_memory_are_refused_early(tiny, monkeypatch):
    monkeypatch.setattr("pyg_topomask.run.data.loaders._FIRST_GRAPHS", 2)
    monkeypatch.setattr("pyg_topomask.run.model.sampling.available_mib", lambda: 1e-3)
    config = load(tiny).config
    dataset, done = load_dataset(config.dataset), []
    with pytest.raises(RunError, match=rf"not fit into memory: {len(dataset.graphs) - 2} more graphs need .*num_walks"):
        prepare(config, dataset, 0, build_sampling_transforms(config, 0), lambda doing, count: done.append(count))
    assert 2 not in done
    monkeypatch.setattr("pyg_topomask.run.model.sampling.available_mib", lambda: 1e3)
    prepare(config, dataset, 0, build_sampling_transforms(config, 0))


def test_memory_is_that_of_the_new_attributes_of_the_remaining_graphs(tiny, monkeypatch):
    config, given = load(tiny).config, [Data(x=torch.ones(2**20, dtype=torch.float64))] * 3
    drawn = [graph.clone() for graph in given]
    for graph, size in zip(drawn, (1, 2, 3)):
        graph.walk = torch.ones(size * 2**20, dtype=torch.uint8)  # 2 MiB on average, beside 8 that were there
    monkeypatch.setattr("pyg_topomask.run.model.sampling.available_mib", lambda: 20.5)
    check_memory(config, given, drawn, remaining=10)
    message = "11 more graphs need about 22 MiB, and 20 MiB are left; lower"
    with pytest.raises(RunError, match=re.escape(message)):
        check_memory(config, given, drawn, remaining=11)


def test_training_graphs_of_an_evaluation_have_the_negatives_of_seed_0():
    link = {"edge_label_index": torch.tensor([[0, 1], [2, 3]]), "edge_label": torch.ones(2).long()}
    graph = Data(x=torch.ones(9, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), **link)
    parts = tuple(torch.tensor([i]) for i in range(3))
    dataset = LoadedDataset([graph] * 3, Task("edge", "binary", 1, hits_at=50), parts, ResampleNonEdges)
    config = {"dataset": {"format": "OGB", "name": "ogbl-collab"}, "seed": 4}
    trained = prepare(load(config).config, dataset, 4, [])
    assert trained.train[0].edge_label.tolist() == [1, 1]  # negatives are drawn when the graph is served
    evaluation = ["train.mode=inference-only", "pretrained.dir=finished"]
    (evaluated,) = prepare(load(config, evaluation).config, dataset, 4, []).train
    assert evaluated.edge_label.tolist() == [1, 1, 0, 0]
    assert torch.equal(evaluated.edge_label_index, ResampleNonEdges(0)(graph).edge_label_index)


def test_each_training_graph_is_evaluated_once_on_several_processes(tiny, monkeypatch):
    from pyg_topomask.run.data import loaders as data

    config = load(tiny, ["dataset.split=[0.8, 0.1, 0.1]"]).config
    splits = parts_of(config)
    served = 0
    for process in range(4):
        monkeypatch.setattr(data, "world_size", lambda: 4)
        monkeypatch.setattr(data, "rank", lambda process=process: process)
        served += sum(batch.num_graphs for batch in evaluation_loaders(config, splits)[0])
    assert served == len(splits.train)
    assert served % 4 != 0


@pytest.mark.data
@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ({"format": "PyG-TUDataset", "name": "ENZYMES", "use_node_attr": True}, (600, 21, 6)),
        ({"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "standard"}, (1, 1433, 7)),
    ],
)
def test_real_files(real_data, own_cache, data, sizes):
    dataset = load_dataset(DatasetConfig(**data))
    graph = dataset.graphs[0]
    assert (len(dataset), graph.num_node_features, dataset.task.num_classes) == sizes
    config = load({"dataset": data}).config
    splits = prepare(config, dataset, seed=0, sampling_transforms=[])
    if data["name"] == "Cora":
        assert splits.sizes == {"train": 140, "val": 500, "test": 1000}
