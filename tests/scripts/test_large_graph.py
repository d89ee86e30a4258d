"""The bench of a large graph: its labels are what it says, and a small one runs through the command."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.utils import to_dense_adj

pytest.importorskip("lightning")
pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read on Linux only")


@pytest.fixture
def bench(scripts, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    return scripts("large_graph")


def test_labels_join_three_hops_and_the_sign_of_the_community(bench, tmp_path):
    bench.make(tmp_path, 4000)
    source = bench.GraphSource(bench.DiskGraph(tmp_path / "all"))
    data = source.subgraph(torch.arange(4000))
    walk = to_dense_adj(data.edge_index, max_num_nodes=4000)[0]
    walk /= walk.sum(1, keepdim=True).clamp(min=1)
    hops = [walk @ data.x[:, 0]]
    hops += [walk @ hops[0], walk @ walk @ hops[0]]
    near = sum(hop / hop.std() for hop in hops)
    assert ((near > near.median()) == (data.y >= 2)).float().mean() > 0.99  # but for rounding at the median
    for community in torch.arange(4000).split(1000):
        (sign,) = (data.y[community] % 2).unique().tolist()
        assert data.x[community, 1].mean() == pytest.approx(0.25 * (2 * sign - 1), abs=0.1)
    assert (data.train_mask.int() + data.val_mask.int() + data.test_mask.int() == 1).all()
    few = bench.DiskGraph(tmp_path / "few").arrays
    assert 320 < few["train_mask"].sum() < 480


def test_a_small_graph_is_measured(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("pyg_topomask.run.seed_run.write_curves", lambda path, *_: path.touch())
    monkeypatch.setattr(bench, "in_fresh_process", lambda function, *args: function(*args))

    class Here:
        """A command of torchrun in this process."""

        def __init__(self, command, env):
            bench.measure(Path(command[command.index("--within") + 1]), 2)

        def wait(self):
            return 0

    monkeypatch.setattr(bench, "Popen", Here)
    arguments = ["large_graph.py", "--nodes", "4000", "--processes", "1", "--batches", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    cut = bench.GraphParts.cut
    bench.main()
    assert bench.GraphParts.cut is cut  # all measurements are removed
    runs = json.loads((tmp_path / "large_graph.json").read_text())["runs"]
    for rows in runs.values():
        phases = rows[0]["phases"]
        assert {*phases} == {*bench.PHASES}
        assert all(phases[name][0] > 0 for name in ("cut", "walks", "train", "evaluate"))
    assert "| walks, 1 processes, 0 workers each | " in capsys.readouterr().out
