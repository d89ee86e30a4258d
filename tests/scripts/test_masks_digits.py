"""The experiment on digits: a trial of two rows writes its table and keeps its runs."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts" / "reproduce"


def test_a_trial_writes_the_table(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    spec = importlib.util.spec_from_file_location("masks_digits", FOLDER / "masks_digits.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    arguments = ["--quick", "--images", "plain", "--methods", "linear", "toeplitz", "--out", str(tmp_path / "out")]
    script.main([*arguments, "--positions", "yes"])
    report = json.loads((tmp_path / "out/quick/masks_digits.json").read_text())
    assert [(row["method"], row["positions"]) for row in report["rows"]] == [("linear", True), ("toeplitz", True)]
    encoder = 2 * 8 * 32  # a vector for each row and each column
    table = (tmp_path / "out/quick/masks_digits.md").read_text()
    assert "| 8 × 8 | encoded | toeplitz |" in table
    script.main([*arguments, "--positions", "no"])
    bare = json.loads((tmp_path / "out/quick/masks_digits.json").read_text())["rows"]
    assert [a["parameters"] - b["parameters"] for a, b in zip(report["rows"], bare)] == [encoder] * 2
    capsys.readouterr()
    script.main([*arguments, "--positions", "yes"])
    assert "finished before, kept" in capsys.readouterr().out
    script.main([*arguments, "--finished", "--methods", "linear", "softmax", "toeplitz"])  # nothing is trained
    rows = json.loads((tmp_path / "out/quick/masks_digits.json").read_text())["rows"]
    assert [(row["method"], row["positions"]) for row in rows] == [
        ("linear", False),
        ("toeplitz", False),
        ("linear", True),
        ("toeplitz", True),
    ]
    assert "done in" not in capsys.readouterr().out
