"""Interrupted and finished runs: what is resumed, kept, or refused."""

import json
import subprocess
import sys

import pytest
import torch

from pyg_topomask.run import run_config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.training.callbacks import Recorder
from pyg_topomask.run.training.lightning_module import GraphModule


class KilledError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["topomask.redraw=1", "gt.attn_dropout=0.2", "train.early_stop_patience=2"]])
def test_an_interrupted_run_goes_on_to_the_same_numbers(tiny, tmp_path, monkeypatch, more):
    tiny["train"]["ckpt_period"] = 2  # the epoch after the checkpoint is lost and repeated
    overrides = ["optim.max_epoch=6", *more]
    run_config(tiny, tmp_path / "a", overrides=overrides)
    original = Recorder.on_train_epoch_end

    def die(self, trainer, pl_module):
        original(self, trainer, pl_module)
        if trainer.current_epoch == 2:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_train_epoch_end", die)
        with pytest.raises(KilledError):
            run_config(tiny, tmp_path / "b", overrides=overrides)
    assert not (tmp_path / "b" / "config" / "0" / "result.json").exists()
    run_config(tiny, tmp_path / "b", overrides=overrides)
    first, second = (tmp_path / x / "config" / "0" for x in "ab")
    assert (first / "metrics.csv").read_text() == (second / "metrics.csv").read_text()
    results = [json.loads((folder / "result.json").read_text()) for folder in (first, second)]
    assert results[0]["metrics"] == results[1]["metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("eval_period", [1, 2])
@pytest.mark.parametrize("scheduler", ["plateau", "reduce_on_plateau"])
def test_a_checkpoint_contains_the_step_of_a_schedule_by_the_loss(tiny, tmp_path, scheduler, eval_period):
    run_config(tiny, tmp_path, overrides=[f"optim.scheduler={scheduler}", f"train.eval_period={eval_period}"])
    (schedule,) = torch.load(tmp_path / "config" / "0" / "last.ckpt", weights_only=False)["lr_schedulers"]
    assert schedule["last_epoch"] == 4 // eval_period  # evaluations


@pytest.mark.slow
def test_a_run_that_stopped_early_is_not_trained_further(tiny, tmp_path, monkeypatch):
    overrides = ["optim.base_lr=1e-12", "optim.max_epoch=9", "train.early_stop_patience=2"]
    run_config(tiny, tmp_path, overrides=overrides)
    folder = tmp_path / "config" / "0"
    rows, result = (folder / "metrics.csv").read_text(), json.loads((folder / "result.json").read_text())
    assert result["epochs"] < 9
    (folder / "result.json").unlink()
    run_config(tiny, tmp_path, overrides=overrides)
    assert (folder / "metrics.csv").read_text() == rows
    assert json.loads((folder / "result.json").read_text())["metrics"] == result["metrics"]


def test_finished_seeds_are_kept_and_more_can_be_added(tiny, tmp_path, capsys):
    run_config(tiny, tmp_path)
    stamp = (tmp_path / "config" / "0" / "best.ckpt").stat().st_mtime_ns
    summary = run_config(tiny, tmp_path, repeat=2, overrides=["num_workers=0", "accelerator=cpu"])
    assert summary["seeds"] == [0, 1]
    assert (tmp_path / "config" / "0" / "best.ckpt").stat().st_mtime_ns == stamp
    assert "config (GIN+GRF) seed 0: finished before, kept" in capsys.readouterr().out


def test_a_best_checkpoint_of_another_epoch_is_not_tested(tiny, tmp_path):
    tiny["optim"] |= {"max_epoch": 1, "num_warmup_epochs": 0}
    metrics = run_config(tiny, tmp_path)["metrics"]
    folder = tmp_path / "config" / "0"
    (folder / "result.json").unlink()
    best = torch.load(folder / "best.ckpt", weights_only=True)
    torch.save(best | {"epoch": best["epoch"] + 1}, folder / "best.ckpt")
    with pytest.raises(RunError, match=r"best\.ckpt does not belong to the metrics \(it is of epoch"):
        run_config(tiny, tmp_path)
    (folder / "best.ckpt").unlink()  # without it, a run is not resumed
    assert run_config(tiny, tmp_path)["metrics"] == metrics


@pytest.mark.slow
def test_a_best_epoch_is_not_repeated_by_a_resumed_run(tiny, tmp_path, monkeypatch):
    """A device whose numbers differ after the interruption may not find it again."""
    tiny["train"]["ckpt_period"] = 4
    monkeypatch.setattr(Recorder, "_is_best", lambda self, row: row["epoch"] in (0, 2))
    wanted = run_config(tiny, tmp_path / "whole")
    step = GraphModule.training_step

    def die(self, *arguments):
        if self.current_epoch == 3:
            raise KilledError
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GraphModule, "training_step", die)
        with pytest.raises(KilledError):
            run_config(tiny, tmp_path / "killed")
    monkeypatch.setattr(Recorder, "_is_best", lambda self, row: False)
    found = run_config(tiny, tmp_path / "killed")
    assert found["best_epochs"] == [2]
    assert found["metrics"] == wanted["metrics"]


@pytest.mark.slow
def test_weights_in_double_precision_are_not_rounded_when_a_run_is_resumed(tiny, tmp_path, monkeypatch):
    tiny |= {"precision": "64-true", "accelerator": "cpu"}
    tiny["train"] |= {"ckpt_period": 1}
    original = GraphModule.training_step

    def die(self, *args):
        if self.current_epoch == 1:
            raise KeyboardInterrupt
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(GraphModule, "training_step", die)
        with pytest.raises(KeyboardInterrupt):
            run_config(tiny, tmp_path / "resumed")
    for name in ("whole", "resumed"):
        run_config(tiny, tmp_path / name)
    whole, resumed = (
        torch.load(tmp_path / name / "config" / "0" / "last.ckpt", weights_only=True)["state_dict"]
        for name in ("whole", "resumed")
    )
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-11, atol=1e-13)  # rounded to float32: 1e-8


HOLDER = """
import sys, time
from pathlib import Path
from pyg_topomask.cache import locked
with locked(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(100)
"""


@pytest.mark.slow
def test_a_second_run_of_a_seed_that_is_being_written_is_refused(tiny, tmp_path):
    pytest.importorskip("fcntl")
    tiny["optim"]["max_epoch"] = 1
    seed = tmp_path / "config" / "0"
    seed.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(seed)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match=f"^another process is writing {seed}; wait until .* --out or name_tag$"):
            run_config(tiny, tmp_path)
        assert not seed.exists()
        holder.kill()
    wanted = run_config(tiny, tmp_path)["metrics"]  # a killed process leaves no lock
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(seed)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert run_config(tiny, tmp_path)["metrics"] == wanted  # a finished seed is only read
        holder.kill()
