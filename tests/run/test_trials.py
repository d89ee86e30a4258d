import os
import time
from dataclasses import replace
from itertools import chain

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run import trials
from pyg_topomask.run.data.loaders import loaders, prepare, read_features
from pyg_topomask.run.data.source import LoadedDataset
from pyg_topomask.run.graphgps.reading import read, read_data
from pyg_topomask.run.task import classification
from pyg_topomask.run.trials import ProcessFailedError, Sample, draw_sample, in_process, run_trial


def sample_of(values):
    source = read_data(values).data
    dataset = source.load()
    graphs, parts, _ = read_features(source, dataset, 0)
    return source, dataset, draw_sample(dataset, graphs, parts, source.serving.batch_size, 0)


@pytest.fixture
def ring():
    """A sample of one graph with labelled nodes, which each part of the split has."""
    ends = torch.arange(60)
    edges = torch.stack([torch.cat([ends, (ends + 1) % 60]), torch.cat([(ends + 1) % 60, ends])])
    graph = Data(x=torch.randn(60, 4), edge_index=edges, y=ends % 3)
    masks = tuple(ends % 3 == part for part in range(3))
    return Sample(LoadedDataset([graph], classification("node", 3)), masks, [], (1, 1), 60)


@pytest.fixture
def trainers(monkeypatch):
    """The trainers of all trials, in their order."""
    made, build = [], trials.build_trainer
    monkeypatch.setattr(trials, "build_trainer", lambda *args, **more: made.append(build(*args, **more)) or made[-1])
    return made


def size_of(sample, batch):
    return sum(sample.dataset.graphs[number].num_nodes ** 2 for number in batch)


def test_the_sample_has_batches_of_training_graphs(tiny, monkeypatch):
    source, dataset, sample = sample_of(tiny)
    splits = prepare(source, dataset, 0, source.draws(0))
    assert sorted(chain.from_iterable(sample.batches)) == sample.parts[0].tolist() == [*range(len(splits.train))]
    assert len(sample.dataset.graphs) == len(splits.train) + len(sample.parts[1])
    assert all(len(batch) <= 16 for batch in sample.batches)
    sizes = [size_of(sample, batch) for batch in sample.batches]
    assert sizes[0] == max(sizes)
    assert sample.steps == tuple(map(len, loaders(source.serving, splits, 0)[:2]))
    assert sample.nodes == sum(graph.num_nodes for graph in dataset.graphs)
    x = sample.dataset.graphs[0].x
    assert x.untyped_storage().nbytes() == x.nbytes  # storage of the whole data set would be sent to the process
    monkeypatch.setattr(trials, "MOST_BATCHES", 2)
    fewer = sample_of(tiny)[2]
    assert (len(fewer.batches), size_of(fewer, fewer.batches[0])) == (2, sizes[0])
    assert fewer.steps == sample.steps


def test_a_trial_predicts_an_epoch_and_memory(tiny, monkeypatch):
    """Seconds are not measured: training takes 10, of which each of two evaluations takes 4."""
    monkeypatch.setattr(trials.Timer, "time_elapsed", lambda _, stage="train": {"train": 10, "validate": 4}.get(stage))
    sample = replace(sample_of(tiny)[2], steps=(10, 5), nodes=10**6)
    found = run_trial(read(tiny, ["gt.layer_type=GIN+KMIP", "train.eval_period=4"]), sample, 10**6)
    assert found.problem == ""
    in_two_epochs = 2 * len(sample.batches)
    assert found.epoch_s == pytest.approx(10 * (10 - 2 * 4) / in_two_epochs + 5 * 4 / 4)
    assert found.stored_mib > 10**6 * 5 * 4 / 2**20  # their features
    assert found.parameters > 0
    assert found.hops is None  # without a mask


def test_a_trial_ends_when_its_time_is_over(tiny, trainers):
    sample = sample_of(tiny)[2]
    experiment = read(tiny, ["gt.layer_type=GIN+None"])
    assert run_trial(experiment, sample, 1e-6).epoch_s > 0
    assert [trainer.global_step for trainer in trainers] == [2, 1]
    run_trial(experiment, sample, 10**6)
    assert trainers[-1].global_step == 2 * len(sample.batches)


def test_a_refused_attention_says_why(tiny):
    sample = sample_of(tiny)[2]
    trial = run_trial(
        read(tiny, ["gt.layer_type=GIN+Masked", "topomask.mask=toeplitz", "topomask.mask_toeplitz.grid_shape=[2]"]),
        sample,
        0.2,
    )
    assert "grid" in trial.problem
    assert trial.epoch_s == 0


@pytest.mark.parametrize(
    ("sampler", "evaluated"),
    [("full_batch", "full_batch"), ("random_partition", "full_batch"), ("random_partition", "random_partition")],
)
def test_one_graph_is_tried_in_its_samplers_parts(tiny, ring, sampler, evaluated, trainers):
    data = {"format": "PyG-Planetoid", "name": "Cora", "task": "node"}
    values = {**tiny, "dataset": data, "train": {"sampler": sampler, "num_parts": 4}, "val": {"sampler": evaluated}}
    trial = run_trial(read(values), ring, 10**6)
    assert trial.problem == ""
    assert 0 < trial.hops < 4
    assert [trainer.global_step for trainer in trainers] == [2, 8 if sampler != "full_batch" else 2]


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
