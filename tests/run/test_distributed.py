"""Several processes give the metrics of one process, also if they have different numbers of graphs."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from tests.run.conftest import two_processes

# Starting processes is expensive, so that one start serves both checks.
PROGRAM = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from test_metrics import add_links, labels_with_gaps, link_graphs, metric_of
torch.manual_seed(0)
prediction, target = labels_with_gaps(31, 3)
graphs = link_graphs()

def values(rows, links):
    found = {}
    for kind, group in (("multilabel", "ranks"), ("multilabel", "scores"), ("regression", "scores")):
        metric = metric_of(kind, 3, group)
        metric.update(prediction[rows], target[rows])
        found |= metric.compute()
    ranks = metric_of("binary", 1, "links", ranked=True)
    add_links(ranks, links)
    return {**found, **ranks.compute()}

alone = values(slice(None), graphs)
dist.init_process_group("gloo")
first = dist.get_rank() == 0
together = values(slice(0, 5) if first else slice(5, 31), graphs[:1] if first else graphs[1:])
for name in alone:
    torch.testing.assert_close(together[name], alone[name], rtol=0, atol=1e-12, equal_nan=True)

from pyg_topomask.run.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_two_processes_measure_and_train_as_one_does(tiny, tmp_path):
    from pyg_topomask.run import run_config

    tiny["accelerator"] = "cpu"
    tiny["dataset"] |= {"num_graphs": 45, "split": [0.8, 0.1, 0.1]}  # 36, 4 and 5 graphs: an uneven last batch
    tiny["train"] |= {"batch_size": 4}
    tiny["gt"] |= {"dropout": 0.0, "batch_norm": False, "layer_norm": True}
    tiny["optim"] |= {"max_epoch": 2}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tiny))
    run_config(tmp_path / "config.yaml", tmp_path / "one")
    metrics = Path(__file__).parent / "training"
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = tmp_path / "program.py", metrics, "run", tmp_path / "config.yaml", "--out", tmp_path / "two"
    started = two_processes(*arguments, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    output, _ = started.communicate(timeout=240)
    assert started.returncode == 0, output[-6000:]
    results = [json.loads((tmp_path / n / "config" / "0" / "result.json").read_text()) for n in ("one", "two")]
    assert [result["processes"] for result in results] == [1, 2]
    first, second = (result["metrics"] for result in results)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert second[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name
