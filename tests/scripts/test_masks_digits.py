"""The experiment on digits: a trial of two rows writes its table and keeps its runs."""

import json

import pytest


def test_a_trial_writes_the_table(scripts, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    script = scripts("masks_digits")
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
