"""Attention-only stacks on real graphs: a trial writes both comparisons and keeps its runs."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "reproduce"
TINY = ["gt.dim_hidden=8", "gt.layers=1", "topomask.num_walks=2"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("grf_real", FOLDER / "grf_real.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = {name: [*settings, *TINY] for name, settings in module.METHODS.items() if settings}
    monkeypatch.setattr(module, "METHODS", {**small, "message passing": ["gt.layer_type=GIN+None", *TINY[:2]]})
    return module


@pytest.fixture
def proteins(tmp_path, monkeypatch):
    """40 paths of three nodes in place of PROTEINS."""
    raw = tmp_path / "data" / "TUDataset" / "PROTEINS" / "raw"
    raw.mkdir(parents=True)
    edges = [(i + 3 * g, j + 3 * g) for g in range(40) for i, j in ((1, 2), (2, 1), (2, 3), (3, 2))]
    (raw / "PROTEINS_A.txt").write_text("".join(f"{i}, {j}\n" for i, j in edges))
    (raw / "PROTEINS_graph_indicator.txt").write_text("".join(f"{g + 1}\n" * 3 for g in range(40)))
    (raw / "PROTEINS_graph_labels.txt").write_text("".join(f"{g % 2}\n" for g in range(40)))
    (raw / "PROTEINS_node_labels.txt").write_text("0\n1\n1\n" * 40)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "data"))


def test_a_trial_writes_the_table(script, tmp_path, capsys, proteins):
    arguments = ["--quick", "--datasets", "proteins", "--methods", "message passing", "--out", str(tmp_path / "out")]
    script.main(arguments)
    report = json.loads((tmp_path / "out" / "grf_real.json").read_text())
    rows = report["rows"]
    assert [row["method"] for row in rows] == ["GRF", "message passing"]
    assert rows[0]["by"]["time"] == rows[0]["by"]["epochs"]
    assert all(row["by"]["epochs"]["epochs"] == 2 <= row["by"]["time"]["epochs"] <= 3 for row in rows)
    assert len((tmp_path / "out" / "grf_real.md").read_text().splitlines()) == 6
    capsys.readouterr()
    script.main(arguments)
    again = capsys.readouterr().out
    assert "finished before, kept" in again
    assert "done in" not in again
    assert json.loads((tmp_path / "out" / "grf_real.json").read_text()) == report
