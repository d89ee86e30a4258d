"""Experiments that are made in Python: own data, model and loss, Lightning's loggers and callbacks."""

import math
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from torch_geometric.data import Data

from pyg_topomask.nn import GPSModel, GRFAttention
from pyg_topomask.run import Experiment, RunError, Serving, Source, Split, Task, Training, run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.data.loaders import read_features
from pyg_topomask.run.graphgps import read
from pyg_topomask.run.training.checkpoint import model_weights
from pyg_topomask.tensor_files import load_tensors
from pyg_topomask.transforms import AddRandomWalks

RING = torch.stack([torch.arange(6).repeat(2), torch.cat([torch.arange(6).roll(1), torch.arange(6).roll(-1)])])


def graphs():
    x = torch.randn(30, 6, 3, generator=torch.Generator().manual_seed(0))
    return [Data(x=one, edge_index=RING, y=torch.stack([one.sum(), 10 * one[:, 0].mean()])) for one in x]


def build(sizes):
    attn = lambda layer: GRFAttention(8, heads=2)  # noqa: E731
    return GPSModel(sizes.in_channels, 8, sizes.out_channels, 1, attn=attn, pool="add", dropout=0.1)


def call(model, batch):
    return model(batch.x, batch.edge_index, batch.batch, graph=batch)


def double_l1(prediction, target):
    return 2 * (prediction - target).abs().mean()


def experiment(**more):
    walks = lambda seed: [AddRandomWalks(seed=seed)]  # noqa: E731
    data = Source(graphs, Task("graph", "regression", 1), draws=walks, serving=Serving(batch_size=8, redraw=1))
    training = Training(loss=double_l1, metric="mae", epochs=4, ckpt_period=1)
    parts = {"data": data, "build": build, "training": training, "name": "own", "call": call}
    return Experiment(**parts | more)


def source(changed, **attributes):
    """Three sets, of which graph 2 of the first or all of the second have other attributes."""
    sets = graphs()[:10], graphs()[10:20], graphs()[20:]
    for graph in sets[0][2:3] if changed == "graph 2" else sets[1]:
        graph.update(attributes)
    return Source(sets, Task("graph", "regression", 2))


class Seen(Callback):
    """Records epochs, and ends the program in one of them."""

    def __init__(self, stop=None):
        self.epochs, self.stop = [], stop

    def on_validation_end(self, trainer, pl_module):
        self.epochs.append(trainer.current_epoch)
        if trainer.current_epoch == self.stop:
            raise InterruptedError("pruned")


def weights(folder):
    return model_weights(load_tensors(folder / "best.ckpt"))


def test_own_model_and_loss_are_trained_and_scored(tmp_path):
    summary = experiment().run(tmp_path)
    folder, made = tmp_path / "own" / "0", graphs()
    split = torch.randperm(30, generator=torch.Generator().manual_seed(0))[27:].sort().values
    model = build(type("Sizes", (), {"in_channels": 3, "out_channels": 2})).eval()
    model.load_state_dict(weights(folder))
    walked = [AddRandomWalks(seed=0)(made[i]) for i in split.tolist()]
    with torch.no_grad():
        error = torch.stack([model(g.x, g.edge_index, graph=g).view(2) - g.y for g in walked]).abs().mean()
    assert summary["metrics"]["test_mae"]["mean"] == pytest.approx(float(error), rel=1e-5)
    assert summary["metrics"]["test_loss"]["mean"] == pytest.approx(2 * float(error), rel=1e-5)
    assert {path.name for path in folder.iterdir()} >= {"experiment.json", "metrics.csv", "result.json", "best.ckpt"}


def test_objects_serve_one_run_and_functions_of_the_seed_several(tmp_path):
    seen, made = Seen(), {}
    experiment().run(tmp_path / "a", loggers=[CSVLogger(tmp_path, "log")], callbacks=[seen])
    assert seen.epochs == [0, 1, 2, 3]
    assert "val_mae" in next(tmp_path.glob("log/*/metrics.csv")).read_text()
    many = lambda seed: made.setdefault(seed, Seen())  # noqa: E731
    experiment(seed=3).run(tmp_path / "b", repeat=2, callbacks=many, loggers=[lambda n: CSVLogger(tmp_path, f"{n}")])
    assert {seed: len(one.epochs) for seed, one in made.items()} == {3: 4, 4: 4}
    assert len([*tmp_path.glob("[34]/*/metrics.csv")]) == 2
    with pytest.raises(RunError, match="2 runs cannot share loggers or callbacks: give functions of the seed"):
        experiment().run(tmp_path / "c", repeat=2, callbacks=[Seen()])


def test_a_run_that_a_callback_ended_resumes_and_equals_an_undisturbed_one(tmp_path):
    whole = experiment().run(tmp_path / "whole")
    with pytest.raises(InterruptedError, match="pruned"):
        experiment().run(tmp_path / "cut", callbacks=[Seen(stop=2)])
    seen = Seen()
    assert experiment().run(tmp_path / "cut", callbacks=[seen])["metrics"] == whole["metrics"]
    assert seen.epochs == [2, 3]
    one, other = (weights(tmp_path / name / "own" / "0") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_experiment_does_not_get_into_the_same_folder(tmp_path):
    experiment(settings={"width": 8}).run(tmp_path)
    with pytest.raises(RunError, match=r"experiment \(settings is \{'width': 8\} there and \{'width': 9\} here\)"):
        experiment(settings={"width": 9}).run(tmp_path)
    assert experiment(settings={"width": 8}, seed=1).run(tmp_path)["seeds"] == [0, 1]
    data = replace(experiment().data, serving=Serving(batch_size=4, redraw=1))
    with pytest.raises(RunError, match=r"serving\.batch_size is 8 there and 4 here"):
        experiment(data=data, settings={"width": 8}).run(tmp_path)


def test_runs_of_configs_and_of_experiments_are_not_mixed(tiny, run, tmp_path, capsys):
    made, own = experiment(name="config"), tmp_path / "own"
    with pytest.raises(RunError, match=r"config\.yaml is of a run of the other kind .*: nothing was overwritten\. "):
        made.run(tmp_path)
    made.run(own)
    with pytest.raises(RunError, match=r"experiment\.json is of a run of the other kind"):
        run_config(tiny, own)
    for command in ("compare", "predict", "report"):
        assert main([command, str(own / "config")]) == 1
        assert f"{own / 'config' / '0'} is a run of an Experiment in Python, and" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["three sets", "masks"])
def test_a_split_of_ones_own_is_kept(kind):
    made, task = graphs(), Task("graph", "regression", 2)
    given = tuple(made[i : i + 10] for i in (0, 10, 20))
    if kind == "masks":
        given, task = Data(x=torch.ones(30, 1), y=torch.arange(30) % 2), Task("node", "binary", 1)
        for i, part in enumerate(("train", "val", "test")):
            given[f"{part}_mask"] = torch.arange(30) // 10 == i
    source = Source(given, task)
    parts = read_features(source, source.load(), 0)[1]
    numbers = [part.nonzero().view(-1).tolist() if kind == "masks" else part for part in parts]
    assert numbers == [[*range(10)], [*range(10, 20)], [*range(20, 30)]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": Training(loss="cross_entropy")}, "cross_entropy needs classes, and the task is regression"),
        ({"training": Training(loss="l1", metric="auc")}, "the task has no 'auc'; there are .*mae"),
        ({"training": Training(loss=lambda p, t: (p - t).abs())}, r"return one number, .* \(got shape \[8, 2\]\)"),
        ({"data": Source(graphs)}, r"the data need a 'task'"),
        ({"data": Source([], Task("graph", "regression", 1))}, "a list of them that is not empty"),
        ({"call": lambda model, batch: batch.x[:, :2]}, r"return 2 number\(s\) for each graph \(got 96 for 8\)"),
        ({"call": lambda model, batch: batch.x[:, :1].repeat(1, 3)[:3]}, r"return 2 .* graph \(got shape \[3, 3\]\)"),
        ({"data": Source(graphs, Task("graph", "regression", 1), split=Split("cv-kfold-40"))}, "40 folds need"),
        ({"data": source("graph 2", edge_weight=torch.ones(12))}, "of graphs 0 and 2, only one has 'edge_weight'"),
        ({"data": source("graph 2", y=torch.tensor([0.0, math.inf]))}, r"'y' must hold 2 numbers, finite or NaN, for"),
        ({"data": source("val", y=torch.full((2,), math.nan))}, r"all targets of the val set are NaN \(unknown\)"),
        ({"splits": (0, 1)}, r"split_index: data has 1 split\(s\) \(got 1\)"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, changes, message):
    with pytest.raises(RunError, match=message):
        experiment(**changes).run(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Split("kfold-5"), "no split is called 'kfold-5'; .* Did you mean 'cv-kfold-K'"),
        (lambda: Task("graphs", "regression", 1), "no level is called 'graphs'; .* Did you mean 'graph'"),
        (lambda: Task("graph", "regresion", 1), "no kind of target is called 'regresion'; .* mean 'regression'"),
        (lambda: Serving(sampler="neighbour"), "no sampler is called 'neighbour'; .* Did you mean 'neighbor'"),
        (lambda: Serving(evaluation="cluster"), r"must be full_batch or 'sampler', full_batch \(got cluster\)"),
        (lambda: Training(epochs=2, eval_period=5), r"must be from 1 to 'epochs' \(got 5 and 2\)"),
        (lambda: Training(patience=-1), r"'patience' must be at least 0 \(got -1\)"),
        (lambda: Training(ckpt_period=0), r"'ckpt_period' must be at least 1 \(got 0\)"),
        (lambda: Training(clip=0.0), r"'clip' must be positive; None clips nothing \(got 0.0\)"),
        (lambda: Serving(batch_size=0), r"'batch_size' must be at least 1 \(got 0\)"),
    ],
)
def test_settings_that_nothing_knows_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_data_of_several_splits_are_loaded_once(tmp_path):
    loaded, folds = [], Split("cv-kfold-3")
    data = Source(lambda: loaded.append(1) or graphs(), Task("graph", "regression", 1), split=folds)
    training = Training(loss=double_l1, metric="mae", epochs=1)
    plain = lambda sizes: GPSModel(sizes.in_channels, 8, 2, 1, conv="gcn", pool="add")  # noqa: E731
    one = experiment(data=data, build=plain, training=training, splits=(0, 2))
    assert one.run(tmp_path)["splits"] == [0, 2]
    assert len(loaded) == 1
    assert replace(one, splits=(0, 1)).run(tmp_path)["splits"] == [0, 1, 2]


def test_a_config_is_read_into_an_experiment(tiny, tmp_path):
    found = read(tiny, ["optim.max_epoch=2", "train.batch_size=24"])
    assert (found.training.epochs, found.data.serving.batch_size, found.name) == (2, 24, "config")
    seen = Seen()
    summary = found.run(tmp_path / "a", callbacks=[seen])
    other = run_config(tiny, tmp_path / "b", overrides=["optim.max_epoch=2", "train.batch_size=24"])
    assert summary["metrics"] == other["metrics"]
    assert seen.epochs == [0, 1]


def test_an_experiment_that_was_read_cannot_be_changed_beside_its_config(tiny, tmp_path):
    """Its folders would record the config, and not what ran."""
    found = read(tiny)
    changed = replace(found, training=replace(found.training, epochs=1))
    with pytest.raises(RunError, match=r"was read from a config, and then changed: .* graphgps.read"):
        changed.run(tmp_path)
    assert not (tmp_path / found.name).exists()
