"""The bench of a large graph: its graph is what it says, and a small one runs through the command in parts."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightning")
pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read on Linux only")


@pytest.fixture
def bench(scripts):
    return scripts("large_graph")


def test_the_graph_has_five_edges_in_both_directions_mostly_within_classes(bench):
    data = bench.graph(1000)
    assert data["edges"].shape == (5000, 2)
    assert 0 <= data["edges"].min() <= data["edges"].max() < 1000
    classes = data["node_labels"][data["edges"]]
    assert 0.78 < np.mean(classes[:, 0] == classes[:, 1]) < 0.86  # four of five, and a tenth of the rest
    parts = np.concatenate([data[f"{name}_masks"] for name in ("train", "val", "test")])
    assert (parts.sum(axis=0) == 1).all()


def test_a_small_graph_runs_in_parts(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("pyg_topomask.run.seed_run.write_curves", lambda path, *_: path.touch())
    monkeypatch.setattr(bench, "in_fresh_process", lambda function, *args: function(*args))
    arguments = ["large_graph.py", "--quick", "--layers", "GCN+GRF", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    loader = bench.GraphParts.__getitem__
    assert bench.main() == 0
    assert bench.GraphParts.__getitem__ is loader  # all measurements are removed
    row = json.loads((tmp_path / "large_graph.json").read_text())["runs"]["GCN+GRF"]
    assert {*row["phases"]} == {*bench.PHASES}
    assert all(phase["peak_mib"] > row["graph_mib"] for phase in row["phases"].values())
    assert (row["nodes"], 0 <= row["accuracy"] <= 1) == (2000, True)
    assert "| `GCN+GRF` | " in capsys.readouterr().out
