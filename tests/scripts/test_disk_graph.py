"""The bench of graphs on disk: it measures all works, and their exponents."""

import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("pydantic")
pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read on Linux only")


def test_small_graphs_are_measured(scripts, monkeypatch, tmp_path, capsys):
    bench = scripts("disk_graph")
    monkeypatch.setattr(bench.bench, "in_fresh_process", lambda function, *args: function(*args))
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "STARTS", 1000)
    monkeypatch.setattr(torch, "set_num_threads", abs)  # processes take it, too
    arguments = ["disk_graph.py", "--nodes", "2000", "4000", "--engines", "processes", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    bench.main()
    rows = json.loads((tmp_path / "disk_graph.json").read_text())["rows"]
    assert 18_000 < rows["2000"]["edges"] < 20_000
    assert all(row[work]["seconds"] > 0 and row[work]["own"] > 0 for row in rows.values() for work in bench.WORKS)
    printed = capsys.readouterr().out
    assert "| exponent | |" in printed
    assert "processes, 2 workers: " in printed
    assert printed.count("same bits: True") == 2
