import os
import time

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run.advise.process import ProcessFailedError, in_process
from pyg_topomask.run.advise.sample import Sample, Size, draw_sample
from pyg_topomask.run.advise.trial import run_trial
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.data.loaders import loaders, prepare, read_features
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.task import classification


def sample_of(values):
    config = load(values).config
    dataset = load_dataset(config.dataset)
    graphs, parts, _ = read_features(config, dataset, config.seed)
    return config, dataset, *draw_sample(config, dataset, graphs, parts)


@pytest.fixture
def ring():
    """A sample of one graph with labelled nodes, which each part of the split has."""
    ends = torch.arange(60)
    edges = torch.stack([torch.cat([ends, (ends + 1) % 60]), torch.cat([(ends + 1) % 60, ends])])
    graph = Data(x=torch.randn(60, 4), edge_index=edges, y=ends % 3)
    masks = tuple(ends % 3 == part for part in range(3))
    return Sample([[graph]], [graph], masks, classification("node", 3))


def test_the_sample_has_batches_of_training_graphs(tiny):
    config, dataset, sample, epoch = sample_of(tiny)
    splits = prepare(config, dataset, 0, build_sampling_transforms(config, 0))
    assert sum(map(len, sample.train)) == len(splits.train)
    assert all(len(batch) <= 16 for batch in sample.train)
    assert sample.size(-1) == max(epoch.train, key=lambda size: size.pairs)
    assert sorted(map(sample.size, range(len(sample.train)))) == sorted(epoch.train)
    _, val, _ = loaders(config, splits, 0)
    assert epoch.val == [Size.of(batch.ptr.diff().tolist()) for batch in val]
    assert epoch.num_nodes == sum(graph.num_nodes for graph in dataset.graphs)
    x = sample.train[0][0].x
    assert x.untyped_storage().nbytes() == x.nbytes  # storage of the whole data set would be sent to the process


def test_a_trial_measures_steps_of_full_size(tiny):
    _, _, sample, epoch = sample_of(tiny)
    trial = run_trial(tiny, ["gt.layer_type=GIN+KMIP"], [], sample, 0.2)
    assert trial.problem == ""
    assert {step.size for step in trial.train} <= set(epoch.train)
    assert all(step.seconds > 0 for step in trial.train + trial.val)
    assert trial.parameters > 0
    assert trial.hops is None  # without a mask


def test_a_refused_attention_says_why(tiny):
    _, _, sample, _ = sample_of(tiny)
    trial = run_trial(tiny, ["gt.layer_type=GIN+Masked", "topomask.mask=toeplitz"], [], sample, 0.2)
    assert "grid" in trial.problem
    assert trial.train == []


@pytest.mark.parametrize(
    ("sampler", "evaluated"),
    [("full_batch", "full_batch"), ("random_partition", "full_batch"), ("random_partition", "random_partition")],
)
def test_one_graph_is_tried_in_its_samplers_parts(tiny, ring, sampler, evaluated):
    data = {"format": "PyG-Planetoid", "name": "Cora", "task": "node"}
    values = {**tiny, "dataset": data, "train": {"sampler": sampler, "num_parts": 4}, "val": {"sampler": evaluated}}
    trial = run_trial(values, [], [], ring, 0.2)
    assert trial.problem == ""
    assert 0 < trial.hops < 4
    in_parts = sampler != "full_batch"
    assert trial.parts == (4 if in_parts else 1, 4 if evaluated != "full_batch" else 1)
    assert {step.size.nodes for step in trial.train} == {15 if in_parts else 60}
    assert {step.size.nodes for step in trial.val} == {15 if evaluated != "full_batch" else 60}


@pytest.mark.slow
def test_a_process_returns_a_result_an_error_or_its_end():
    assert in_process(torch.tensor, [1, 2], timeout=100).tolist() == [1, 2]
    with pytest.raises(ProcessFailedError, match="exit code 3"):
        in_process(os._exit, 3, timeout=100)
    with pytest.raises(ProcessFailedError, match="stopped after"):
        in_process(time.sleep, 100, timeout=0.01)
    with pytest.raises(ProcessFailedError, match="t allocate memory"):
        in_process(torch.ones, 2**30, timeout=100, mib=1024)
    with pytest.raises(ProcessFailedError, match="ValueError"):
        in_process(int, "no number", timeout=100)
