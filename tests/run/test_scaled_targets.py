"""Targets that are standardised for training, and unlike ones."""

import copy
import json

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import pyg_topomask
from pyg_topomask.run import Experiment, RunError, Scaled, Source, Split, Task, Training, run_config
from pyg_topomask.run.commands.predict import predict
from tests.run.conftest import TINY, table


def graphs(std=(1000.0, 0.01), mean=(5000.0, 3.0)):
    """Paths with two targets of unlike scale, the first of which is unknown in some graphs."""
    random, made = torch.Generator().manual_seed(0), []
    for number in range(40):
        x = torch.randn(6, 3, generator=random)
        index = torch.stack([torch.arange(5), torch.arange(5) + 1])
        y = torch.stack([x[:, 0].sum(), x[:, 1].prod()]) * torch.tensor(std) + torch.tensor(mean)
        if number % 9 == 0:
            y[0] = float("nan")
        made.append(Data(x=x, edge_index=torch.cat([index, index.flip(0)], 1), y=y[None]))
    return made


def trained(folder, data, **settings):
    torch.save(data, folder / "data.pt")
    config = copy.deepcopy(TINY)
    config |= {"metric_best": "mae", "model": {"loss_fun": "l1"}}
    config["dataset"] = {"format": "Files", "dir": str(folder / "data.pt"), "task_type": "regression"}
    config["dataset"] |= {"split_mode": "fixed", "split": [24, 8, 8], **settings}
    run_config(config, folder)
    return json.loads((folder / "config" / "0" / "result.json").read_text())["metrics"]


def test_the_same_is_learned_as_from_standardised_targets(tmp_path):
    data = graphs()
    training = torch.cat([graph.y for graph in data[:24]]).double()
    mean, std = training.nanmean(0), (training - training.nanmean(0)).square().nanmean(0).sqrt()
    by_hand = [Data(x=graph.x, edge_index=graph.edge_index, y=((graph.y - mean) / std).float()) for graph in data]
    for name in ("scaled", "by_hand"):
        (tmp_path / name).mkdir()
    found = trained(tmp_path / "scaled", data, normalize_targets=True)
    wanted = trained(tmp_path / "by_hand", by_hand)
    for part in ("train", "val", "test"):
        assert found[f"{part}_loss"] == pytest.approx(wanted[f"{part}_loss"], rel=1e-3)
        for target in range(2):
            name = f"{part}_mae/{target}"
            assert found[name] == pytest.approx(wanted[name] * float(std[target]), rel=1e-3)

    seed = tmp_path / "scaled" / "config" / "0"
    rows = table(predict(seed))
    model, transform = pyg_topomask.load(seed)
    for row, graph in zip(rows, data[32:]):
        predicted = [float(row["predicted_0"]), float(row["predicted_1"])]
        assert predicted == pytest.approx(model(transform(graph))[0].tolist(), rel=1e-5)
        assert [float(row["target_1"])] == pytest.approx(graph.y[0, 1:].tolist())
    errors = [abs(float(row["predicted_1"]) - float(row["target_1"])) for row in rows]
    assert sum(errors) / len(errors) == pytest.approx(found["test_mae/1"], rel=1e-4)


def test_constant_and_unknown_targets_are_not_divided_by_zero():
    scaled = Scaled(torch.nn.Identity(), 3)
    unknown = float("nan")
    scaled.fit(torch.tensor([[0.1, 1.0, unknown], [0.1, 3.0, unknown], [0.1, unknown, unknown]]))
    torch.testing.assert_close(scaled(torch.ones(1, 3)), torch.tensor([[1.1, 3.0, 1.0]]))


def test_a_model_of_ones_own_is_fitted_to_its_training_targets(tmp_path):
    data, made = graphs(), []
    source = Source(data, Task("graph", "regression", 2), split=Split("fixed", (24, 8, 8)))

    def build(sizes):
        made.append(Scaled(torch.nn.Linear(sizes.in_channels, 2), 2))
        return made[0]

    call = lambda model, batch: model(global_add_pool(batch.x, batch.batch))  # noqa: E731
    Experiment(source, build, Training(loss="l1", metric="mae", epochs=1), call=call).run(tmp_path)
    torch.testing.assert_close(made[0].mean, torch.cat([graph.y for graph in data[:24]]).nanmean(0))


def test_only_numbers_are_scaled(tiny, tmp_path):
    with pytest.raises(RunError, match=r"dataset\.normalize_targets: only numbers are scaled, and the task is binary"):
        run_config(tiny, tmp_path, overrides=["dataset.normalize_targets=true"])
