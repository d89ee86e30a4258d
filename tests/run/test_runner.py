import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from lightning.pytorch.loggers import Logger

from pyg_topomask.run import run_config
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.data.loaders import prepare
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.model.build import build_model
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.output import loggers
from pyg_topomask.run.output.report import summarize
from pyg_topomask.run.output.saved import compared
from pyg_topomask.run.runner import check_config
from pyg_topomask.run.training.lightning_module import GraphModule

CONFIGS = Path(__file__).parents[2] / "configs"


def test_a_run_leaves_what_it_promises(tiny, tmp_path, curves):
    summary = run_config(tiny, tmp_path, repeat=2, overrides=["seed=3"], name="tiny")
    folder = tmp_path / "tiny"
    assert {path.name for path in folder.iterdir()} == {"3", "4", "summary.json"}
    files = {"config.yaml", "metrics.csv", "curves.png", "best.ckpt", "last.ckpt", "result.json"}
    assert {path.name for path in (folder / "4").iterdir()} == files
    best, last = (torch.load(folder / "4" / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    assert "optimizer_states" in last
    assert "optimizer_states" not in best  # runs resume only from last.ckpt
    saved = json.loads((folder / "summary.json").read_text())
    assert saved == {key: value for key, value in summary.items() if key != "folder"}
    assert saved["seeds"] == [3, 4]
    assert saved["layer_type"] == "GIN+GRF"
    names = ("loss", "accuracy", "f1", "precision", "recall", "auc", "ap")
    assert {name.partition("_")[2] for name in list(saved["metrics"])[:6]} == {"loss", "accuracy"}  # asked for
    assert max(len(f"{value}") for values in saved["metrics"].values() for value in values["values"]) <= 12
    assert set(saved["metrics"]) == {f"{p}_{m}" for p in ("train", "val", "test") for m in names}
    accuracy = saved["metrics"]["test_accuracy"]
    a, b = accuracy["values"]
    assert accuracy["mean"] == pytest.approx((a + b) / 2)
    assert accuracy["std"] == pytest.approx(abs(a - b) / 2)
    assert saved["num_parameters"] > 0
    assert saved["peak_memory_mib"] > 0
    assert saved["wall_time_s"]["total"] > 0
    resolved = load(folder / "4" / "config.yaml").config
    assert resolved.seed == 4
    assert compared(resolved) == compared(load(tiny).config)
    assert (folder / "3" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert len((folder / "3" / "metrics.csv").read_text().splitlines()) == 5


def test_notes_name_unused_settings_and_missing_loggers(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pyg_topomask.run.output.loggers.is_installed", lambda package: False)
    other = ["gt.layer_type=GIN+None", "optim.max_epoch=1", "optim.num_warmup_epochs=0"]
    other += ["wandb.use=true", "tensorboard_each_run=true"]
    run_config(tiny, tmp_path, overrides=other)
    text = capsys.readouterr().out
    assert "does not use" not in text  # only settings of the command line are noted
    assert "wandb.use is true, but wandb is not installed; the run continues without it" in text
    assert "tensorboard_each_run is true, but tensorboard is not installed" in text
    run_config(tiny, tmp_path, overrides=[*other, "topomask.num_walks=3", "name_tag=more"])
    assert "note: GIN+None does not use topomask.num_walks\n" in capsys.readouterr().out


@pytest.mark.slow
def test_two_runs_are_identical_on_two_threads_and_two_seeds_are_not(tmp_path):
    """The batches are so large that torch uses both threads."""
    torch.set_num_threads(2)
    shrunk = ["dataset.num_graphs=160", "optim.max_epoch=3", "optim.num_warmup_epochs=1"]
    curves, weights = [], []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(17)
        run_config(CONFIGS / "grf" / "motif.yaml", tmp_path / name, overrides=[*shrunk, f"seed={seed}"])
        folder = tmp_path / name / "motif" / str(seed)
        curves.append((folder / "metrics.csv").read_text())
        weights.append(torch.load(folder / "last.ckpt", weights_only=True)["state_dict"])
    assert curves[0] == curves[1] != curves[2]
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


def test_reported_metrics_are_those_of_the_whole_split(tiny, tmp_path):
    tiny["train"]["batch_size"] = 7  # the last batch is smaller, so that a mean over batches would be wrong
    tiny["dataset"]["split"] = [0.5, 0.2, 0.3]
    summary = run_config(tiny, tmp_path)
    config = load(tiny).config
    splits = prepare(config, load_dataset(config.dataset), 0, build_sampling_transforms(config, 0))
    model = build_model(config, splits.in_channels, splits.task.num_outputs)
    state = torch.load(tmp_path / "config" / "0" / "best.ckpt", weights_only=True)["state_dict"]
    model.load_state_dict({key.removeprefix("model."): v for key, v in state.items() if key.startswith("model.")})
    model.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for graph in splits.test:
            logits = model(graph)
            right += int((logits.view(-1) > 0) == graph.y)
            loss += float(torch.nn.functional.binary_cross_entropy_with_logits(logits.view(-1), graph.y.float()))
    count = len(splits.test)
    assert count == 15
    assert summary["metrics"]["test_accuracy"]["mean"] == pytest.approx(right / count)
    assert summary["metrics"]["test_loss"]["mean"] == pytest.approx(loss / count, rel=1e-4)


def test_another_config_in_the_same_folder_is_refused(tiny, tmp_path):
    tiny["optim"] |= {"max_epoch": 1, "num_warmup_epochs": 0}
    run_config(tiny, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refusals = {
        "gt.layers=2": r"another config \(gt\.layers is 1 there and 2 here\): nothing was overwritten",
        "gt.layer_type=GIN+Linear": r"name_tag=GIN\+Linear puts it into config-GIN\+Linear\.$",
        "gt.layer_type=GIN+Masked topomask.mask=heat": r"name_tag=GIN\+Masked-heat puts it",
        "model.auto_satisfy_param_budget=true model.param_budget=20000": "contains a run of another config",
        "dataset.split_mode=cv-kfold-4 run_multiple_splits=[0]": "contains a run of another config",
    }
    for overrides, message in refusals.items():
        with pytest.raises(RunError, match=message):
            run_config(tiny, tmp_path, overrides=overrides.split())
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    run_config(tiny, tmp_path, overrides=["gt.layers=2", "name_tag=deep"])
    assert (tmp_path / "config-deep" / "summary.json").exists()
    (tmp_path / "config" / "0" / "config.yaml").write_text("dataset: 3\n")
    with pytest.raises(RunError, match="damaged or of another version"):
        run_config(tiny, tmp_path)


def test_folders_that_cannot_be_written(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"the output folder .*file.* cannot be"):
        run_config(tiny, tmp_path / "file" / "out")
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match=r"the cache folder .* cannot be written to"):
        run_config(tiny, tmp_path)


def test_a_diverging_run_says_so(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pyg_topomask.run.training.lightning_module.auxiliary_loss",
        lambda model: math.nan * sum(parameter.sum() for parameter in model.parameters()),
    )
    with pytest.raises(RunError, match=r"training diverged in epoch 0: the weights are no longer finite; try a lower"):
        run_config(tiny, tmp_path / "attention")
    tiny["gt"]["layer_type"], tiny["topomask"] = "GIN+None", {}
    with pytest.raises(RunError, match=r"training diverged in epoch \d: the (training|validation) loss is nan"):
        run_config(tiny, tmp_path / "none")


@pytest.mark.slow
def test_auxiliary_loss_is_trained_on_and_not_reported(tiny, tmp_path, monkeypatch):
    overrides = ["optim.max_epoch=2", "optim.scheduler=none"]
    plain = run_config(tiny, tmp_path / "a", overrides=overrides)
    monkeypatch.setattr(
        "pyg_topomask.run.training.lightning_module.auxiliary_loss",
        lambda model: 100 * sum(parameter.square().sum() for parameter in model.parameters()),
    )
    pulled = run_config(tiny, tmp_path / "b", overrides=overrides)
    values = [s["metrics"]["train_loss"]["mean"] for s in (plain, pulled)]
    assert values[0] != values[1]
    assert max(values) < 10


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_best_epoch_is_the_first_of_the_best(tiny, tmp_path, capsys, metric):
    summary = run_config(
        tiny, tmp_path, overrides=[f"metric_best={metric}", "optim.max_epoch=6", "train.eval_period=2"]
    )
    lines = (tmp_path / "config" / "0" / "metrics.csv").read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), map(float, line.split(",")))) for line in lines[1:]]
    assert [row["epoch"] for row in rows] == [1, 3, 5]
    choose = min if metric == "loss" else max
    best = choose(rows, key=lambda row: row[f"val_{metric}"])  # min and max return the first of equal values
    assert summary["best_epochs"] == [best["epoch"]]
    assert f"(best epoch: {best['epoch']:.0f}, counted from 0)" in capsys.readouterr().out  # counted as in metrics.csv
    assert summary["metrics"][f"val_{metric}"]["mean"] == pytest.approx(best[f"val_{metric}"], rel=1e-6)


@pytest.mark.slow
def test_clipping_and_decay_change_the_run(tiny, tmp_path):
    tiny["optim"] |= {"max_epoch": 2, "scheduler": "none"}
    clip = ["optim.clip_grad_norm=true", "optim.clip_grad_norm_value=1e-9"]
    values = [
        run_config(tiny, tmp_path / str(i), overrides=more)["metrics"]["val_loss"]["mean"]
        for i, more in enumerate(([], clip, ["optim.weight_decay=50"]))
    ]
    assert len(set(values)) == 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gnn.head=inductive_node", r"gnn\.head: inductive_node is for nodes; circle has graphs"),
        ("metric_best=mrr", r"metric_best: the task has no 'mrr'; there are accuracy, .*, auc"),
        ("dataset.split_index=1", r"dataset\.split_index: only folds .* split_mode is 'random'"),
        ("run_multiple_splits=[0,1]", r"run_multiple_splits: only folds .* split_mode is 'random'"),
    ],
)
def test_settings_that_the_data_do_not_have_are_refused(tiny, setting, message):
    with pytest.raises(RunError, match=message):
        check_config(tiny, [setting])


@pytest.mark.slow
def test_gradients_of_accumulated_batches_are_summed(tiny, tmp_path):
    tiny["dataset"]["split"] = [0.5, 0.25, 0.25]
    tiny["gt"] |= {"dropout": 0.0, "batch_norm": False}
    tiny["optim"] = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "max_epoch": 1, "scheduler": "none"}
    halves = ["train.batch_size=12", "optim.batch_accumulation=2", "optim.base_lr=0.01"]
    weights = []
    for name, overrides in {"whole": ["train.batch_size=24", "optim.base_lr=0.02"], "halves": halves}.items():
        run_config(tiny, tmp_path, overrides=overrides, name=name)
        weights.append(torch.load(tmp_path / name / "0" / "best.ckpt", weights_only=True)["state_dict"])
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", ["grf/enzymes", "grf/cora", "kmip/enzymes"])
def test_real_data_train(real_data, tmp_path, name, pytestconfig):
    path = pytestconfig.rootpath / "configs" / f"{name}.yaml"
    overrides = ["optim.max_epoch=2", "optim.num_warmup_epochs=0"]
    if "early_stop_patience" in yaml.safe_load(path.read_text()).get("train", {}):
        overrides.append("train.early_stop_patience=0")
    summary = run_config(path, tmp_path, overrides=overrides)
    assert 0 < summary["metrics"]["test_accuracy"]["mean"] <= 1


def test_what_the_devices_of_the_machine_lack_is_refused_before_a_run(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for setting, message in (
        ("accelerator=cuda", "accelerator: there is no CUDA device; use cpu or auto"),
        ("precision=16-mixed", "precision: 16-mixed needs a CUDA device; use bf16-mixed or 32-true"),
    ):
        assert check_config(tiny, [setting])  # as on the login node of a cluster
        with pytest.raises(RunError, match=message):
            run_config(tiny, tmp_path, overrides=[setting])


@pytest.mark.slow
def test_patience_counts_evaluations_without_a_score(tiny, tmp_path):
    overrides = ["metric_best=auc", "dataset.split=[36,1,11]", "train.early_stop_patience=2", "optim.max_epoch=6"]
    summary = run_config(tiny, tmp_path, overrides=overrides)
    assert math.isnan(summary["metrics"]["val_auc"]["mean"])  # one graph has one class
    assert summary["epochs"] == [2]
    texts = [(tmp_path / "config" / name).read_text() for name in ("summary.json", "0/result.json")]
    assert all("null" in text and "NaN" not in text for text in texts)  # JSON has no NaN
    again = run_config(tiny, tmp_path, overrides=overrides)  # reads the file
    assert str(again["metrics"]) == str(summary["metrics"])


@pytest.mark.slow
def test_several_splits_of_one_seed(tiny, tmp_path):
    tiny["dataset"]["split_mode"] = "cv-kfold-4"
    summary = run_config(tiny, tmp_path, overrides=["run_multiple_splits=[0, 2]", "optim.max_epoch=2"])
    assert (summary["seeds"], summary["splits"]) == ([0, 0], [0, 2])
    assert {path.name for path in (tmp_path / "config").iterdir()} == {"0-split0", "0-split2", "summary.json"}
    values = summary["metrics"]["test_loss"]["values"]
    assert values[0] != values[1]
    more = run_config(tiny, tmp_path, overrides=["run_multiple_splits=[0, 2, 3]", "optim.max_epoch=2"])
    assert more["metrics"]["test_loss"]["values"][:2] == values
    assert more["splits"] == [0, 2, 3]
    with pytest.raises(RunError, match="use one of them"):
        run_config(tiny, tmp_path, repeat=2, overrides=["run_multiple_splits=[0, 2]"])


@pytest.mark.slow
def test_tensorboard_and_csv_hold_the_same_curves(tiny, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_config(tiny, tmp_path, overrides=["tensorboard_each_run=true", "optim.max_epoch=3"])
    folder = tmp_path / "config" / "0"
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    names, *rows = (line.split(",") for line in (folder / "metrics.csv").read_text().splitlines())
    for name in ("train_loss", "val_loss", "val_accuracy"):
        column = [float(row[names.index(name)]) for row in rows]
        assert [point.value for point in events.Scalars(name)] == pytest.approx(column, rel=1e-5), name


def test_a_folder_that_is_called_wandb_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()  # as W&B leaves it
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not loggers.is_installed("wandb")


class FakeWandb(Logger):
    """A logger of Weights & Biases that notes the metrics and the end of its run."""

    name = version = "fake"

    def __init__(self, **settings):
        super().__init__()
        self.notes = []
        self.runs.append(self.notes)
        self.experiment = SimpleNamespace(finish=lambda exit_code: self.notes.append(f"finished with {exit_code}"))

    def log_hyperparams(self, params):
        self.notes.append(f"seed {params['seed']}")

    def log_metrics(self, metrics, step=None):
        self.notes += ["tested"] if "test_loss" in metrics else []


@pytest.mark.slow
def test_each_seed_is_a_finished_run_of_wandb(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "is_installed", lambda package: True)
    monkeypatch.setattr(loggers, "WandbLogger", FakeWandb)
    monkeypatch.setattr(FakeWandb, "runs", [], raising=False)
    tiny |= {"wandb": {"use": True}, "optim": {"max_epoch": 1}}
    run_config(tiny, tmp_path, repeat=2)
    assert FakeWandb.runs == [[f"seed {seed}", "tested", "finished with 0"] for seed in (0, 1)]

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(GraphModule, "training_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_config(tiny, tmp_path, name="interrupted")
    assert FakeWandb.runs[-1] == ["seed 0", "finished with 1"]  # W&B shows it as failed


@pytest.mark.slow
def test_a_compiled_model_is_the_one_that_is_called(tiny, tmp_path, monkeypatch):
    calls = []

    def traced(model, **settings):  # the real compiler takes a minute
        def called(data):
            calls.append((settings, model.training))
            return model(data)

        return called

    monkeypatch.setattr(torch, "compile", traced)
    plain, compiled = (run_config(tiny, tmp_path / x, overrides=[f"compile={x}"])["metrics"] for x in ("false", "true"))
    assert plain == compiled
    steps, evaluations = ([mode for _, mode in calls].count(mode) for mode in (True, False))
    assert (steps, evaluations) == (4 * 3, 4 + 1)
    assert all(settings == {"dynamic": True} for settings, _ in calls)
    states = [torch.load(tmp_path / x / "config" / "0" / "best.ckpt")["state_dict"].keys() for x in ("false", "true")]
    assert states[0] == states[1]  # a run with the other setting can start from the weights


@pytest.mark.slow
def test_half_precision_trains(tiny, tmp_path):
    full, half = (
        run_config(tiny, tmp_path / p, overrides=[f"precision={p}"])["metrics"]["val_loss"]["mean"]
        for p in ("32-true", "bf16-mixed")
    )
    assert full != half
    assert half == pytest.approx(full, rel=0.1)


def test_a_score_that_a_small_part_does_not_have_is_no_number():
    times = {"epochs": 1, "best_epoch": 0, "wall_time_s": 1.0, "peak_memory_mib": None, "peak_cuda_mib": None}
    more = {"num_parameters": 1, "graphs_or_nodes": {}, "processes": 1, "torch": "", "version": ""}
    results = [{"seed": i, "metrics": {"test_auc": value}, **times, **more} for i, value in enumerate([math.nan, 0.5])]
    for count in (1, 2):
        auc = summarize("x", "0", results[:count])["metrics"]["test_auc"]
        assert math.isnan(auc["mean"])
        assert math.isnan(auc["std"])
    auc = summarize("x", "0", results[1:])["metrics"]["test_auc"]
    assert (auc["mean"], auc["std"]) == (0.5, 0.0)
