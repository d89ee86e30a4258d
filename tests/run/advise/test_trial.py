import itertools
import os
import time
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run.advise import trial as trials
from pyg_topomask.run.advise.process import ProcessFailedError, in_process
from pyg_topomask.run.advise.trial import Sample, draw_sample, run_trial
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.data.loaders import loaders, prepare, read_features
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.task import classification


def sample_of(values):
    config = load(values).config
    dataset = load_dataset(config.dataset)
    graphs, parts, _ = read_features(config, dataset, config.seed)
    return config, dataset, draw_sample(config, dataset, graphs, parts)


@pytest.fixture
def ring():
    """A sample of one graph with labelled nodes, which each part of the split has."""
    ends = torch.arange(60)
    edges = torch.stack([torch.cat([ends, (ends + 1) % 60]), torch.cat([(ends + 1) % 60, ends])])
    graph = Data(x=torch.randn(60, 4), edge_index=edges, y=ends % 3)
    masks = tuple(ends % 3 == part for part in range(3))
    return Sample([[graph]], [graph], masks, classification("node", 3), None, (1, 1), 60, 0)


def size_of(batch):
    return sum(graph.num_nodes**2 for graph in batch)


def test_the_sample_has_batches_of_training_graphs(tiny, monkeypatch):
    config, dataset, sample = sample_of(tiny)
    splits = prepare(config, dataset, 0, build_sampling_transforms(config, 0))
    assert sum(map(len, sample.train)) == len(splits.train)
    assert all(len(batch) <= 16 for batch in sample.train)
    assert list(map(size_of, sample.train)) == sorted(map(size_of, sample.train))
    assert sample.steps == tuple(map(len, loaders(config, splits, 0)[:2]))
    assert sample.nodes == sum(graph.num_nodes for graph in dataset.graphs)
    assert sample.evaluated_nodes == sum(graph.num_nodes for graph in (*splits.val, *splits.test))
    x = sample.train[0][0].x
    assert x.untyped_storage().nbytes() == x.nbytes  # storage of the whole data set would be sent to the process
    monkeypatch.setattr(trials, "MOST_BATCHES", 2)
    fewer = sample_of(tiny)[2]
    assert (len(fewer.train), size_of(fewer.train[-1])) == (2, size_of(sample.train[-1]))
    assert fewer.steps == sample.steps


def test_a_trial_predicts_an_epoch_and_memory(tiny, monkeypatch):
    """Seconds are counted, not measured: each look at the clock is one second later."""
    clock = itertools.count()
    monkeypatch.setattr(trials, "_now", lambda: float(next(clock)))
    sample = replace(sample_of(tiny)[2], steps=(10, 4), nodes=10**6, evaluated_nodes=10**5)
    found = run_trial(tiny, ["gt.layer_type=GIN+KMIP", "train.eval_period=2"], [], sample, 10**6)
    assert found.problem == ""
    assert found.step_s == 1 / len(sample.train)
    assert found.epoch_s == pytest.approx(10 / len(sample.train) + 4 / 2 + 1)
    assert found.stored_mib > 10**5 * 5 * 4 / 2**20  # the features of evaluated nodes
    assert found.parameters > 0
    assert found.hops is None  # without a mask


def test_a_refused_attention_says_why(tiny):
    sample = sample_of(tiny)[2]
    trial = run_trial(tiny, ["gt.layer_type=GIN+Masked", "topomask.mask=toeplitz"], [], sample, 0.2)
    assert "grid" in trial.problem
    assert trial.epoch_s == 0


@pytest.mark.parametrize(
    ("sampler", "evaluated"),
    [("full_batch", "full_batch"), ("random_partition", "full_batch"), ("random_partition", "random_partition")],
)
def test_one_graph_is_tried_in_its_samplers_parts(tiny, ring, sampler, evaluated, monkeypatch):
    monkeypatch.setattr(trials, "MOST_BATCHES", 2)
    watches, made = [], trials._Stopwatch
    monkeypatch.setattr(trials, "_Stopwatch", lambda: watches.append(made()) or watches[-1])
    data = {"format": "PyG-Planetoid", "name": "Cora", "task": "node"}
    values = {**tiny, "dataset": data, "train": {"sampler": sampler, "num_parts": 4}, "val": {"sampler": evaluated}}
    trial = run_trial(values, [], [], ring, 0.2)
    assert trial.problem == ""
    assert 0 < trial.hops < 4
    assert watches[0].times == (2 if sampler != "full_batch" else 1, 1)
    assert [len(seconds) for seconds in watches[0].seconds.values()] == [2, 2, 2]


@pytest.mark.slow
def test_a_process_returns_a_result_an_error_or_its_end():
    assert in_process(torch.tensor, [1, 2], timeout=100).tolist() == [1, 2]
    with pytest.raises(ProcessFailedError, match="ended without a result"):
        in_process(os._exit, 3, timeout=100)
    with pytest.raises(ProcessFailedError, match="stopped after"):
        in_process(time.sleep, 100, timeout=0.01)
    with pytest.raises(ProcessFailedError, match="t allocate memory"):
        in_process(torch.ones, 2**30, timeout=100, mib=1024)
    with pytest.raises(ProcessFailedError, match="ValueError"):
        in_process(int, "no number", timeout=100)
