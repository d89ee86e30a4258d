"""The experiment on digits: a trial of two rows writes its table and encodings have parameters."""

import json

import pytest


def test_a_trial_writes_the_table(scripts, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    kinds = ["--datasets", "plain", "plain-positions"]
    methods = ["--methods", "linear", "toeplitz"]
    scripts("masks_digits").COMPARISON.main(["--quick", *kinds, *methods, "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "quick/masks_digits.json").read_text())["rows"]
    encoder = 2 * 8 * 32  # a vector for each row and each column
    for method in ("linear", "toeplitz"):
        bare, encoded = (rows[f"{kind}: {method}"]["parameters"][0] for kind in kinds[1:])
        assert encoded - bare == encoder
    assert "| plain-positions | toeplitz |" in (tmp_path / "quick/masks_digits.md").read_text()
