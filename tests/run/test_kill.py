"""A run that is killed repeatedly with SIGKILL ends with the numbers of an undisturbed run."""

import copy
import json
import os
import subprocess
import sys

import pytest
import yaml

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

# One process imports the program, which takes far longer than the runs, and forks a child for each start of it.
# A child counts its steps (training, validation and test steps, replaced files) and kills itself before a given one,
# like kill -9.
STARTER = """
import json, os, random, signal, sys
import torch
from pyg_topomask.run import cli, seed_run
from pyg_topomask.run.training import lightning_module

def count(owner, name, step):
    original = getattr(owner, name)
    def counted(*args, **kwargs):
        step(name)
        return original(*args, **kwargs)
    setattr(owner, name, counted)

def start(out, kill_at, done):  # with the current config
    child = os.fork()
    if child == 0:
        seen = []
        def step(name):
            if len(seen) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(name)
        for owner, name in [(os, "replace")] + [(lightning_module.GraphModule, f"{p}_step") for p in PARTS]:
            count(owner, name, step)
        epochs_done = seed_run.epochs_done
        def resume(*args):
            print(epochs_done(*args), file=open(done + ".resumed", "a"))
            return epochs_done(*args)
        seed_run.epochs_done = resume
        seed_run.write_curves = lambda path, *_: path.touch()  # drawing takes as long as the rest of the run
        torch.set_num_threads(1)
        os.dup2(os.open(done + ".log", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(1, 2)
        code = cli.main(["run", config, "--out", out, "--repeat", repeat])
        with open(done, "w") as file:
            json.dump(seen, file)
        os._exit(code or 0)
    return os.waitpid(child, 0)[1]

PARTS = ("training", "validation", "test")
draw, report = random.Random(0), []
for config, folder, repeat in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
    assert start(folder + "/whole", -1, folder + "/done") == 0
    steps, killed = json.load(open(folder + "/done")), []
    for _ in range(3):
        killed.append(draw.randrange(len(steps) // 6, len(steps) // 2))
        status = start(folder + "/killed", killed[-1], folder + "/done")
        if status == 0:  # the run ended before that step
            break
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    assert start(folder + "/killed", -1, folder + "/done") == 0
    resumed = open(folder + "/done.resumed").read().split()
    report.append({"resumed": resumed, "kinds": sorted(set(steps)), "killed": killed})
print(json.dumps(report))
"""

KINDS = [
    # Redrawn walks, dropout, a schedule with warm-up, early stopping, accumulated gradients; two seeds.
    [
        "topomask.redraw=2", "gt.attn_dropout=0.2", "train.early_stop_patience=3", "optim.batch_accumulation=2",
        "train.ckpt_period=2",
    ],
    # Walks that follow the attention, a schedule by the validation loss; one seed.
    [
        "gt.layer_type=GCN+GKAT", "topomask.redraw=2", "topomask.transition=attention",
        "optim.scheduler=reduce_on_plateau", "optim.schedule_patience=0", "train.eval_period=2",
    ],
]  # fmt: skip


def write(tiny, folder, overrides):
    """The config as a file, for the command line."""
    for override in overrides:
        key, _, value = override.partition("=")
        section, name = key.split(".")
        tiny[section][name] = yaml.safe_load(value)
    tiny["accelerator"] = "cpu"
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return path


def finished(folder):
    """The files of every seed, without times."""
    found = {}
    for path in sorted(folder.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        kept = ("seed", "metrics", "best_epoch", "epochs", "graphs_or_nodes", "num_parameters")
        found[path.parent.name] = [{key: result[key] for key in kept}, (path.parent / "metrics.csv").read_text()]
    (path,) = folder.glob("*/summary.json")
    summary = json.loads(path.read_text())
    return found, summary["metrics"], summary["best_epochs"], summary["seeds"]


@pytest.mark.slow
def test_killed_at_random_steps_a_run_ends_with_the_same_numbers(tiny, tmp_path):
    folders, arguments = [], []
    for number, overrides in enumerate(KINDS):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        arguments += [write(copy.deepcopy(tiny), folders[-1], overrides), folders[-1], str(2 - number)]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", STARTER, *arguments]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=240, check=False)
    logs = "".join(path.read_text()[-2000:] for path in tmp_path.glob("*/done.log"))
    assert done.returncode == 0, done.stderr[-3000:] + logs
    for number, (folder, report) in enumerate(zip(folders, json.loads(done.stdout.splitlines()[-1]))):
        assert set(report["kinds"]) == {"replace", "test_step", "training_step", "validation_step"}
        assert len(report["killed"]) >= 2
        assert {"1", "2", "3", "4", "5"} & {*report["resumed"]}, report  # some runs resume after the start
        whole, killed = finished(folder / "whole"), finished(folder / "killed")
        assert len(whole[0]) == 2 - number
        assert whole == killed, folder
