"""Evaluation of one graph in parts: every node once, on parts that stay the same, with the metrics of a reference."""

import csv
import io
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

import pyg_topomask
from pyg_topomask.run import run_config
from pyg_topomask.run.commands.predict import predict
from pyg_topomask.run.config.load import ConfigError, load
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.data.loaders import evaluation_loaders, loaders, prepare
from pyg_topomask.run.data.parts import at_epoch_0
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.task import classification
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.transforms import AddRandomWalks

SAMPLERS = ["random_partition", "cluster", "neighbor"]
NODES = classification("node", 2)


def source(sampler="random_partition", **train):
    return {
        "dataset": {"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "random"},
        "train": {"sampler": sampler, "num_parts": 3, "neighbor_sizes": [3], "batch_size": 8, **train},
        "val": {"sampler": sampler},
        "gt": {"layer_type": "GCN+GRF", "layers": 1, "dim_hidden": 8},
        "optim": {"max_epoch": 2, "base_lr": 0.01},
        "topomask": {"num_walks": 4, "max_length": 2},
        "accelerator": "cpu",
        "precision": "64-true",
    }


@pytest.fixture
def graph(monkeypatch):
    """A ring with chords and two classes, which is the data set of a run; a node's feature is its number."""
    index = torch.arange(36)
    one, other = torch.cat([index, index]), torch.cat([index.roll(1), index.roll(7)])
    edges = torch.stack([torch.cat([one, other]), torch.cat([other, one])])
    found = Data(x=index[:, None].float(), edge_index=edges, y=(index >= 18).long())
    for module in ("runner", "commands.predict"):
        monkeypatch.setattr(f"pyg_topomask.run.{module}.load_dataset", lambda data: LoadedDataset([found], NODES))
    monkeypatch.setattr("pyg_topomask.run.data.parts.clusters", lambda graph, count: index.split(12))
    monkeypatch.setattr("pyg_topomask.run.data.samplers.NeighborSampler", Neighbors)
    monkeypatch.setattr("pyg_topomask.run.runner.sampler_problems", lambda config: [])
    return found


class Neighbors:
    """Stands for PyG's sampler, which needs a compiled package: the start nodes, and half of their neighbours."""

    def __init__(self, graph, sizes):
        self.edges = graph.edge_index

    def sample_from_nodes(self, start):
        near = self.edges[1][torch.isin(self.edges[0], start.node)].unique()
        near = near[~torch.isin(near, start.node)]
        drawn = torch.randperm(near.numel())[: near.numel() // 2]
        return SimpleNamespace(node=torch.cat([start.node, near[drawn]]))


@pytest.fixture
def seen(monkeypatch):
    """What each evaluation has counted: part of the split, epoch, counted nodes, all nodes and walks."""
    steps, original = [], GraphModule._step

    def step(self, data, part):
        numbers = data.x.view(-1).long()
        if part != "train":
            counted = numbers[data.counted].tolist()
            steps.append((part, self.current_epoch, counted, numbers.tolist(), data.walk_index.tolist()))
        return original(self, data, part)

    monkeypatch.setattr(GraphModule, "_step", step)
    return steps


def split_of(config, graph):
    """The loaders' parts of the split of a config."""
    parsed = load(config).config
    dataset = LoadedDataset([graph], NODES)
    return parsed, prepare(parsed, dataset, 0, build_sampling_transforms(parsed, 0))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_node_is_counted_once_on_parts_that_stay_the_same(tmp_path, graph, seen, sampler):
    first = run_config(source(sampler), tmp_path / "a")["metrics"]
    _, splits = split_of(source(sampler), graph)
    wanted = {
        name: part[0].counted.nonzero().view(-1).tolist() for name, part in (("val", splits.val), ("test", splits.test))
    }
    evaluations = {}
    for part, epoch, *served in seen:
        evaluations.setdefault((part, epoch), []).append(served)
    assert {key[0] for key in evaluations} == {"val", "test"}
    assert len(evaluations) == 3  # two validations and a test
    for (part, _), served in evaluations.items():
        assert sorted(node for counted, _, _ in served for node in counted) == wanted[part]
        assert all(counted and len(nodes) < 36 for counted, nodes, _ in served)
    assert evaluations["val", 0] == evaluations["val", 1]  # the same parts, nodes, walks and order
    before = list(seen)
    seen.clear()
    again = run_config(source(sampler), tmp_path / "b", overrides=["num_workers=2"])["metrics"]
    assert seen == before
    assert str(again) == str(first)  # as text, because some are NaN


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_metrics_and_predictions_are_those_of_a_reference_on_the_same_parts(tmp_path, graph, seen, sampler):
    metrics = run_config(source(sampler), tmp_path)["metrics"]
    folder = tmp_path / "config" / "0"
    model, _ = pyg_topomask.load(folder)
    dense = torch.zeros(36, 36)
    dense[graph.edge_index[0], graph.edge_index[1]] = 1
    logits = {}
    for part, _, counted, nodes, _ in seen:
        if part == "test":
            alone = Data(x=graph.x[nodes].double(), edge_index=dense[nodes][:, nodes].nonzero().t())
            walks = AddRandomWalks(4, 2, seed=0)
            with torch.no_grad():
                values = model(walks(alone)).view(-1)
            logits |= {node: float(values[nodes.index(node)]) for node in counted}
    nodes = torch.tensor(sorted(logits))
    values = torch.tensor([logits[int(node)] for node in nodes], dtype=torch.float64)
    loss = torch.nn.functional.softplus(torch.where(graph.y[nodes] == 1, -values, values)).mean()
    right = ((values > 0).long() == graph.y[nodes]).double().mean()
    assert metrics["test_loss"]["mean"] == pytest.approx(float(loss), rel=1e-6)
    assert metrics["test_accuracy"]["mean"] == pytest.approx(float(right), abs=1e-6)
    rows = list(csv.DictReader(io.StringIO(predict(folder, "test"))))
    assert [int(row["node"]) for row in rows] == nodes.tolist()
    predicted = torch.tensor([float(row["probability_1"]) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(predicted, values.sigmoid(), rtol=1e-6, atol=1e-7)
    everything = list(csv.DictReader(io.StringIO(predict(folder, "all"))))
    assert [int(row["node"]) for row in everything] == [*range(36)]


@pytest.mark.parametrize("evaluated", ["random_partition", "full_batch"])
def test_inference_gives_the_metrics_of_the_run(tmp_path, graph, evaluated):
    config = {**source(), "val": {"sampler": evaluated}}
    first = run_config(config, tmp_path / "first")["metrics"]
    again = [f"pretrained.dir={tmp_path / 'first' / 'config'}", "train.mode=inference-only"]
    second = run_config(config, tmp_path / "second", overrides=again)["metrics"]
    for name in ("val_loss", "val_accuracy", "test_loss", "test_accuracy"):
        assert second[name]["mean"] == pytest.approx(first[name]["mean"], rel=1e-6), name
    assert second["train_loss"]["mean"] > 0


def test_parts_without_a_counted_node_are_left_out_and_processes_share_the_others(graph, monkeypatch):
    config, splits = split_of(source(num_parts=36), graph)
    alone = [part.x.tolist() for part in loaders(config, splits, 0)[2]]
    assert len(alone) == int(splits.test[0].counted.sum()) < 36
    monkeypatch.setattr("pyg_topomask.run.data.parts.world_size", lambda: 2)
    shares = []
    for number in (0, 1):
        monkeypatch.setattr("pyg_topomask.run.data.parts.rank", lambda number=number: number)
        shares.append([part.x.tolist() for part in evaluation_loaders(config, splits)[2]])
    assert [shares[i % 2][i // 2] for i in range(len(alone))] == alone
    monkeypatch.setattr("pyg_topomask.run.data.parts.world_size", lambda: 40)
    for sampler, change in (("random_partition", r"raise train\.num_parts"), ("neighbor", r"lower train\.batch_size")):
        config, splits = split_of(source(sampler, batch_size=40), graph)
        with pytest.raises(RunError, match=rf"val\.sampler: 40 processes cannot share \d parts; {change}"):
            loaders(config, splits, 0)


def test_nothing_is_drawn_on_the_whole_graph(graph):
    _, splits = split_of(source(), graph)
    parts = [part[0] for part in (splits.train, splits.val, splits.test)]
    assert not any("walk_index" in part for part in parts)
    assert len({part.edge_index.data_ptr() for part in parts}) == 1  # one copy of the graph


def test_the_draws_of_evaluations_do_not_follow_the_epoch(graph):
    walks = AddRandomWalks(4, 2, seed=0)
    expected = walks(graph.clone()).walk_index
    walks.set_epoch(3)
    fixed = at_epoch_0(walks)
    walks.set_epoch(4)
    assert torch.equal(fixed(graph.clone()).walk_index, expected)
    assert at_epoch_0(None) is None


def test_parts_of_another_kind_are_refused():
    message = r"val\.sampler: must be full_batch or the value of train\.sampler, random_partition \(got neighbor\)"
    with pytest.raises(ConfigError, match=message):
        load(source(), ["val.sampler=neighbor"])
    with pytest.raises(ConfigError, match=r"val\.sampler"):
        load(source(), ["train.sampler=full_batch"])
