"""Interrupted and finished runs: what is resumed, kept, or refused."""

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from pyg_topomask.run import run_config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.saved import write_config
from pyg_topomask.run.training.callbacks import Recorder
from pyg_topomask.run.training.lightning_module import GraphModule
from tests.test_cache import HOLDER


@contextmanager
def interrupted(monkeypatch, epoch):
    """Training ends with an error in this epoch."""
    step = GraphModule.training_step

    def fail(self, *arguments):
        if self.current_epoch == epoch:
            raise KeyboardInterrupt
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GraphModule, "training_step", fail)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.mark.slow
@pytest.mark.parametrize("eval_period", [1, 2])
@pytest.mark.parametrize("scheduler", ["plateau", "reduce_on_plateau"])
def test_a_checkpoint_contains_the_step_of_a_schedule_by_the_loss(tiny, tmp_path, scheduler, eval_period):
    run_config(tiny, tmp_path, overrides=[f"optim.scheduler={scheduler}", f"train.eval_period={eval_period}"])
    (schedule,) = torch.load(tmp_path / "config" / "0" / "last.ckpt", weights_only=False)["lr_schedulers"]
    assert schedule["last_epoch"] == 4 // eval_period  # evaluations


def test_a_seed_that_failed_in_its_first_epoch_may_get_other_settings(tiny, tmp_path, monkeypatch):
    for epoch, rate in ((0, 9), (1, 0.01)):
        with interrupted(monkeypatch, epoch):
            run_config(tiny, tmp_path, overrides=[f"optim.base_lr={rate}"])
    assert "base_lr: 0.01\n" in (tmp_path / "config" / "0" / "config.yaml").read_text()
    with pytest.raises(RunError, match=r"optim.base_lr is 0.01 there and 9.0 here"):
        run_config(tiny, tmp_path, overrides=["optim.base_lr=9"])


def test_finished_seeds_are_kept_and_more_can_be_added(tiny, run, tmp_path, capsys):
    stamp = (run / "best.ckpt").stat().st_mtime_ns
    summary = run_config(tiny, tmp_path, repeat=2, overrides=["num_workers=0", "accelerator=cpu"])
    assert summary["seeds"] == [0, 1]
    assert (run / "best.ckpt").stat().st_mtime_ns == stamp
    assert "config (GIN+GRF) seed 0: finished before, kept" in capsys.readouterr().out


def test_a_best_checkpoint_of_another_epoch_is_not_tested(tiny, run, tmp_path):
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    (run / "result.json").unlink()
    best = torch.load(run / "best.ckpt", weights_only=True)
    torch.save(best | {"epoch": best["epoch"] + 1}, run / "best.ckpt")
    with pytest.raises(RunError, match=r"of epoch (\d+), and the best epoch was (?!\1)\d+\)"):
        run_config(tiny, tmp_path)
    (run / "best.ckpt").unlink()  # without it, a run is not resumed
    run_config(tiny, tmp_path)
    assert json.loads((run / "result.json").read_text())["metrics"] == metrics


@pytest.mark.slow
def test_a_best_epoch_is_not_repeated_by_a_resumed_run(tiny, tmp_path, monkeypatch):
    """A device whose numbers differ after the interruption may not find it again."""
    tiny["train"]["ckpt_period"] = 4
    monkeypatch.setattr(Recorder, "_is_best", lambda self, row: row["epoch"] in (1, 3))
    wanted = run_config(tiny, tmp_path / "whole")
    with interrupted(monkeypatch, 3):
        run_config(tiny, tmp_path / "killed")
    monkeypatch.setattr(Recorder, "_is_best", lambda self, row: False)
    found = run_config(tiny, tmp_path / "killed")
    assert found["best_epochs"] == [3]
    assert found["metrics"] == wanted["metrics"]


@pytest.mark.slow
def test_weights_in_double_precision_are_not_rounded_when_a_run_is_resumed(tiny, tmp_path, monkeypatch):
    tiny |= {"precision": "64-true", "accelerator": "cpu"}
    with interrupted(monkeypatch, 1):
        run_config(tiny, tmp_path / "resumed")
    weights = []
    for name in ("whole", "resumed"):
        run_config(tiny, tmp_path / name)
        weights.append(torch.load(tmp_path / name / "config" / "0" / "last.ckpt", weights_only=True)["state_dict"])
    torch.testing.assert_close(*weights, rtol=1e-11, atol=1e-13)  # rounded to float32: 1e-8


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


@pytest.mark.slow
def test_a_second_run_of_a_seed_that_is_being_written_is_refused(tiny, tmp_path):
    pytest.importorskip("fcntl")
    tiny["optim"]["max_epoch"] = 1
    seed = tmp_path / "config" / "0"
    seed.parent.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(seed)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(RunError, match=f"^another process is writing {seed}; wait until .* --out or name_tag$"):
            run_config(tiny, tmp_path)
        assert not seed.exists()
        seed.mkdir()
        write_config(seed / "config.yaml", load(tiny, ["gt.layers=2"]).config)
        with pytest.raises(RunError, match="is a run of another experiment"):  # in its first epoch
            run_config(tiny, tmp_path, overrides=["seed=1"])
        holder.kill()
    wanted = run_config(tiny, tmp_path)["metrics"]  # a killed process leaves no lock
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(seed)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        assert run_config(tiny, tmp_path)["metrics"] == wanted  # a finished seed is only read
        holder.kill()
