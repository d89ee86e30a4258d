"""Several processes: the same metrics as one on the same batches, and whole-split metrics from uneven shares."""

import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

SHARES = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from test_metrics import add_links, labels_with_gaps, link_graphs
from pyg_topomask.run.training.metrics import *
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
prediction, target = labels_with_gaps(31, 3)
graphs = link_graphs()
def values(take, links):
    found = {}
    for metric in (RankScores(("auc", "ap")), LabelAccuracy(3), RegressionScores()):
        metric.sync_on_compute = take is not None
        metric.update(prediction[take or slice(None)], target[take or slice(None)])
        found |= metric.compute()
    ranks = LinkRanks()
    ranks.sync_on_compute = take is not None
    add_links(ranks, links)
    return {**found, **ranks.compute()}
share = slice(0, 5) if rank == 0 else slice(5, 31)
together = values(share, graphs[:1] if rank == 0 else graphs[1:])
alone = values(None, graphs)
for name in alone:
    torch.testing.assert_close(together[name], alone[name], rtol=0, atol=1e-12, equal_nan=True)
dist.destroy_process_group()
"""


def start(script, *arguments, folder, processes=2):
    """Run a script, or a module, on some processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, *script, *map(str, arguments)], env=surroundings, cwd=folder, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_metrics_of_uneven_shares_are_those_of_the_whole(tmp_path, pytestconfig):
    (tmp_path / "shares.py").write_text(SHARES)
    start([str(tmp_path / "shares.py")], pytestconfig.rootpath / "tests" / "run" / "training", folder=tmp_path)


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_two_processes_train_as_one_does_on_the_same_batches(tiny, tmp_path):
    from pyg_topomask.run import run_config

    tiny["accelerator"] = "cpu"
    tiny["dataset"] |= {"num_graphs": 45, "split": [0.8, 0.1, 0.1]}  # 36, 4 and 5 graphs: an uneven last batch
    tiny["train"] |= {"batch_size": 4}
    tiny["gt"] |= {"dropout": 0.0, "batch_norm": False, "layer_norm": True}
    tiny["optim"] |= {"max_epoch": 2}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tiny))
    run_config(tmp_path / "config.yaml", tmp_path / "one")
    start(["-m", "pyg_topomask"], "run", tmp_path / "config.yaml", "--out", tmp_path / "two", folder=tmp_path)
    results = [json.loads((tmp_path / n / "config" / "0" / "result.json").read_text()) for n in ("one", "two")]
    assert [result["processes"] for result in results] == [1, 2]
    first, second = (result["metrics"] for result in results)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert second[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name
