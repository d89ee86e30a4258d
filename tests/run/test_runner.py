import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.loggers import Logger

import pyg_topomask
from pyg_topomask.run import run_config, seed_run
from pyg_topomask.run.data.loaders import prepare
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps import reading
from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.parts import source_of
from pyg_topomask.run.graphgps.saved import compared

CONFIGS = Path(__file__).parents[2] / "configs"


def rows_of(folder):
    """The rows of ``metrics.csv`` as numbers by name."""
    names, *rows = (line.split(",") for line in (folder / "metrics.csv").read_text().splitlines())
    return [dict(zip(names, map(float, row))) for row in rows]


def weights_of(folder, name="best"):
    return torch.load(folder / f"{name}.ckpt", weights_only=True)["state_dict"]


def test_a_run_leaves_what_it_promises(tiny, tmp_path, curves):
    summary = run_config(tiny, tmp_path, repeat=2, overrides=["seed=3"], name="tiny")
    folder = tmp_path / "tiny"
    assert {path.name for path in folder.glob("[!.]*")} == {"3", "4", "summary.json"}
    files = {"config.yaml", "metrics.csv", "curves.png", "best.ckpt", "last.ckpt", "result.json"}
    assert {path.name for path in (folder / "4").iterdir()} == files
    best, last = (torch.load(folder / "4" / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    assert "optimizer_states" in last
    assert "optimizer_states" not in best  # runs resume only from last.ckpt
    saved = json.loads((folder / "summary.json").read_text())
    assert saved == {key: value for key, value in summary.items() if key != "folder"}
    assert (saved["seeds"], saved["layer_type"]) == ([3, 4], "GIN+GRF")
    names = ("loss", "accuracy", "f1", "precision", "recall", "auc", "ap")
    assert {name.partition("_")[2] for name in list(saved["metrics"])[:6]} == {"loss", "accuracy"}  # asked for
    assert set(saved["metrics"]) == {f"{p}_{m}" for p in ("train", "val", "test") for m in names}
    a, b = saved["metrics"]["test_accuracy"]["values"]
    assert saved["metrics"]["test_accuracy"]["mean"] == pytest.approx((a + b) / 2)
    assert saved["metrics"]["test_accuracy"]["std"] == pytest.approx(abs(a - b) / 2**0.5)
    assert min(saved["num_parameters"], saved["peak_memory_mib"], saved["wall_time_s"]["total"]) > 0
    resolved = load(folder / "4" / "config.yaml").config
    assert resolved.seed == 4
    assert compared(resolved) == compared(load(tiny).config)
    assert (folder / "3" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert len(rows_of(folder / "3")) == 4


def test_notes_name_unused_settings_and_missing_loggers(tiny, tmp_path, monkeypatch, capsys):
    def missing(*_, **settings):
        raise ModuleNotFoundError("no such package")

    monkeypatch.setattr(reading, "WandbLogger", missing)
    monkeypatch.setattr(reading, "TensorBoardLogger", missing)
    other = ["gt.layer_type=GIN+None", "optim.max_epoch=1", "optim.num_warmup_epochs=0", "topomask.num_walks=3"]
    run_config(tiny, tmp_path, overrides=[*other, "wandb.use=true", "tensorboard_each_run=true"])
    text = capsys.readouterr().out
    assert text.count("note: the run continues without a logger that is not installed: no such package\n") == 2
    assert "note: GIN+None does not use topomask.num_walks\n" in text  # others are not of the command line


def test_reported_metrics_are_those_of_the_whole_split(tiny, tmp_path):
    tiny["train"]["batch_size"] = 7  # the last batch is smaller, so that a mean over batches would be wrong
    tiny["dataset"]["split"] = [0.5, 0.2, 0.3]
    summary = run_config(tiny, tmp_path)
    config = load(tiny).config
    source = source_of(config)
    test = prepare(source, source.load(), 0, source.draws(0)).test
    model = pyg_topomask.load(tmp_path / "config").model
    with torch.no_grad():
        logits = torch.cat([model(graph).view(1) for graph in test])
    target = torch.cat([graph.y for graph in test]).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
    assert len(target) == 15
    assert summary["metrics"]["test_accuracy"]["mean"] == pytest.approx(float(((logits > 0) == target).float().mean()))
    assert summary["metrics"]["test_loss"]["mean"] == pytest.approx(float(loss), rel=1e-4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("gt.layers=2", r"another experiment \(gt\.layers is 1 there and 2 here\): nothing was overwritten"),
        ("gt.layer_type=GIN+Linear", r"experiment \(gt.layer_type is \S+ there and GIN\+Linear here\).* a name_tag"),
        (
            "gt.layer_type=GIN+Masked topomask.mask=heat",
            r"and GIN\+Masked here; topomask.mask is \S+ there and heat here\)",
        ),
        ("model.auto_satisfy_param_budget=true model.param_budget=20000", "is a run of another experiment"),
        ("dataset.split_mode=cv-kfold-4 run_multiple_splits=[0]", "is a run of another experiment"),
    ],
)
def test_another_config_in_the_same_folder_is_refused(tiny, run, tmp_path, overrides, message):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=message):
        run_config(tiny, tmp_path, overrides=overrides.split())
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_diverging_run_says_so(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pyg_topomask.nn.auxiliary_loss",
        lambda model: math.nan * sum(parameter.sum() for parameter in model.parameters()),
    )
    with pytest.raises(RunError, match=r"training diverged in epoch 1: the weights are no longer finite; try a lower"):
        run_config(tiny, tmp_path / "attention")
    tiny["gt"]["layer_type"], tiny["topomask"] = "GIN+None", {}
    with pytest.raises(RunError, match=r"training diverged in epoch \d: the (training|validation) loss is nan"):
        run_config(tiny, tmp_path / "none")


@pytest.mark.slow
def test_settings_of_training_change_the_run(tiny, tmp_path, monkeypatch):
    tiny["optim"] |= {"max_epoch": 2, "scheduler": "none"}
    clip = ["optim.clip_grad_norm=true", "optim.clip_grad_norm_value=1e-9"]
    losses = [
        run_config(tiny, tmp_path / str(i), overrides=more)["metrics"]["val_loss"]["mean"]
        for i, more in enumerate(([], clip, ["optim.weight_decay=50"], ["precision=bf16-mixed"]))
    ]
    assert len(set(losses)) == 4
    assert losses[3] == pytest.approx(losses[0], rel=0.1)
    monkeypatch.setattr(
        "pyg_topomask.nn.auxiliary_loss",
        lambda model: 100 * sum(parameter.square().sum() for parameter in model.parameters()),
    )
    tiny["gt"]["layer_type"], tiny["topomask"] = "GIN+Primphormer", {}
    pulled = run_config(tiny, tmp_path / "pulled")["metrics"]["val_loss"]["mean"]
    monkeypatch.undo()
    # The auxiliary loss is trained on, and not reported.
    assert run_config(tiny, tmp_path / "own")["metrics"]["val_loss"]["mean"] != pulled < 10


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "choose"), [("loss", min), ("accuracy", max)])
def test_best_epoch_is_the_first_of_the_best(tiny, tmp_path, capsys, metric, choose):
    overrides = [f"metric_best={metric}", "optim.max_epoch=6", "train.eval_period=2"]
    summary = run_config(tiny, tmp_path, overrides=overrides)
    rows = rows_of(tmp_path / "config" / "0")
    assert [row["epoch"] for row in rows] == [2, 4, 6]
    best = choose(rows, key=lambda row: row[f"val_{metric}"])  # min and max return the first of equal values
    assert summary["best_epochs"] == [best["epoch"]]
    assert f"(best epoch: {best['epoch']:.0f} of 6)" in capsys.readouterr().out  # counted as in metrics.csv
    assert summary["metrics"][f"val_{metric}"]["mean"] == pytest.approx(best[f"val_{metric}"], rel=1e-6)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("metric_best=mrr", r"metric_best: the task has no 'mrr'; there are accuracy, .*, auc"),
        ("dataset.split_index=1", r"dataset\.split_index: only folds .* split_mode is 'random'"),
        ("run_multiple_splits=[0,1]", r"run_multiple_splits: only folds .* split_mode is 'random'"),
        ("accelerator=cuda", "accelerator: there is no CUDA device; use cpu or auto"),
        ("precision=16-mixed", "precision: 16-mixed needs a CUDA device; use bf16-mixed or 32-true"),
    ],
)
def test_what_data_or_devices_do_not_have_is_refused_before_a_run(tiny, tmp_path, monkeypatch, setting, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if setting.startswith(("accelerator", "precision")):
        assert check_config(tiny, [setting])  # as on the login node of a cluster
    with pytest.raises(RunError, match=message):
        run_config(tiny, tmp_path, overrides=[setting])
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_gradients_of_accumulated_batches_are_summed(tiny, tmp_path):
    tiny["dataset"]["split"] = [0.5, 0.25, 0.25]
    tiny["gt"] |= {"dropout": 0.0, "batch_norm": False}
    tiny["optim"] = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "max_epoch": 1, "scheduler": "none"}
    run_config(tiny, tmp_path, overrides=["train.batch_size=24", "optim.base_lr=0.02"], name="whole")
    halves = ["train.batch_size=12", "optim.batch_accumulation=2", "optim.base_lr=0.01"]
    run_config(tiny, tmp_path, overrides=halves, name="halves")
    whole, halves = (weights_of(tmp_path / name / "0") for name in ("whole", "halves"))
    torch.testing.assert_close(halves, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_patience_counts_evaluations_without_a_score(tiny, tmp_path):
    overrides = ["metric_best=auc", "dataset.split=[36,1,11]", "train.early_stop_patience=2", "optim.max_epoch=6"]
    summary = run_config(tiny, tmp_path, overrides=overrides)
    assert math.isnan(summary["metrics"]["val_auc"]["mean"])  # one graph has one class
    assert summary["epochs"] == [2]
    texts = [(tmp_path / "config" / name).read_text() for name in ("summary.json", "0/result.json")]
    assert all("null" in text and "NaN" not in text for text in texts)  # JSON has no NaN
    assert str(run_config(tiny, tmp_path, overrides=overrides)["metrics"]) == str(summary["metrics"])


@pytest.mark.slow
def test_tensorboard_and_csv_hold_the_same_curves(tiny, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_config(tiny, tmp_path, overrides=["tensorboard_each_run=true", "optim.max_epoch=3"])
    folder = tmp_path / "config" / "0"
    events = accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for name in ("train_loss", "val_loss", "val_accuracy"):
        column = [row[name] for row in rows_of(folder)]
        assert [point.value for point in events.Scalars(name)] == pytest.approx(column, rel=1e-5), name


@pytest.mark.slow
def test_a_compiled_model_is_the_one_that_is_called(tiny, tmp_path, monkeypatch):
    calls, compiler = [], torch.compile

    def traced(model, **settings):  # the real back end takes a minute
        called = compiler(model, backend="eager", **settings)
        return lambda data, plan: (
            calls.append((settings, model.training, data.get("plan") is plan)),
            called(data, plan),
        )[1]

    monkeypatch.setattr(torch, "compile", traced)
    plain, compiled = (
        run_config(tiny, tmp_path / x, overrides=[f"train.compile={x}"])["metrics"] for x in ("false", "true")
    )
    assert plain.keys() == compiled.keys()
    settings = {"dynamic": True, "fullgraph": True}
    assert calls.count((settings, True, True)) == 4 * 3  # with plans of the loader
    assert calls.count((settings, False, False)) == len(calls) - 4 * 3 == 4 + 1
    first, second = (weights_of(tmp_path / x / "config" / "0") for x in ("false", "true"))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)  # a run with the other setting can start from them


@pytest.mark.slow
def test_a_model_that_cannot_be_compiled_in_one_graph(tiny, tmp_path, monkeypatch):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **settings: compiler(model, backend="eager", **settings))
    with pytest.raises(RunError, match=r"train.compile: torch cannot compile the model \(.+\); set it to false"):
        run_config(tiny, tmp_path, overrides=["train.compile=true", "share.gradient_checkpointing=true"])


@pytest.mark.slow
def test_two_runs_are_identical_on_two_threads_and_two_seeds_are_not(tmp_path):
    """The batches are so large that torch uses both threads."""
    torch.set_num_threads(2)
    shrunk = ["dataset.num_graphs=160", "optim.max_epoch=3", "optim.num_warmup_epochs=1"]
    folders = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(17)
        run_config(CONFIGS / "grf" / "motif.yaml", tmp_path / name, overrides=[*shrunk, f"seed={seed}"])
        folders.append(tmp_path / name / "motif" / str(seed))
    first, second, other = ((folder / "metrics.csv").read_text() for folder in folders)
    assert first == second != other
    torch.testing.assert_close(weights_of(folders[0], "last"), weights_of(folders[1], "last"), rtol=0, atol=0)


def test_folders_that_cannot_be_written(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"the output folder .*file.* cannot be"):
        run_config(tiny, tmp_path / "file" / "out")
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "file"))
    with pytest.raises(RunError, match=r"the cache folder .* cannot be written to"):
        run_config(tiny, tmp_path)


@pytest.mark.slow
def test_several_splits_of_one_seed(tiny, tmp_path):
    tiny["dataset"]["split_mode"] = "cv-kfold-4"
    summary = run_config(tiny, tmp_path, overrides=["run_multiple_splits=[0, 2]", "optim.max_epoch=2"])
    assert (summary["seeds"], summary["splits"]) == ([0, 0], [0, 2])
    assert {path.name for path in (tmp_path / "config").glob("[!.]*")} == {"0-split0", "0-split2", "summary.json"}
    values = summary["metrics"]["test_loss"]["values"]
    assert values[0] != values[1]
    more = run_config(tiny, tmp_path, overrides=["run_multiple_splits=[0, 2, 3]", "optim.max_epoch=2"])
    assert more["metrics"]["test_loss"]["values"][:2] == values
    assert more["splits"] == [0, 2, 3]
    with pytest.raises(RunError, match="use one of them"):
        run_config(tiny, tmp_path, repeat=2, overrides=["run_multiple_splits=[0, 2]"])


class FakeWandb(Logger):
    """A logger of Weights & Biases that notes the metrics and the end of its run."""

    name = version = "fake"

    def __init__(self, *_, config, **settings):
        super().__init__()
        self.notes = [f"seed {config['seed']}"]
        self.runs.append(self.notes)
        self.experiment = SimpleNamespace(finish=lambda exit_code: self.notes.append(f"finished {exit_code}"))

    def log_hyperparams(self, params):
        """Not called."""

    def log_metrics(self, metrics, step=None):
        self.notes += ["tested"] if "test_loss" in metrics else []
        if self.breaks:
            raise OSError("no space")


@pytest.mark.slow
def test_each_seed_is_a_finished_run_of_wandb(tiny, tmp_path, monkeypatch):
    for module in (reading, seed_run):
        monkeypatch.setattr(module, "WandbLogger", FakeWandb)
    monkeypatch.setattr(FakeWandb, "runs", [], raising=False)
    monkeypatch.setattr(FakeWandb, "breaks", True, raising=False)
    config = tiny | {"wandb": {"use": True}, "optim": {"max_epoch": 1}}
    with pytest.raises(OSError, match="no space"):
        run_config(config, tmp_path)
    FakeWandb.breaks = False
    run_config(config, tmp_path, repeat=2)
    assert FakeWandb.runs == [["seed 0", "finished 1"], *([f"seed {seed}", "tested", "finished 0"] for seed in (0, 1))]
