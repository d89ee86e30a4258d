"""The bench of scale: it stops before a size that does not fit, and finds exponents that exceed the declared ones."""

import json
import sys

import pytest
import torch


@pytest.mark.parametrize(("power", "status"), [(1.0, 0), (1.3, 1)])
def test_exponents_and_the_largest_graph(script, monkeypatch, tmp_path, capsys, power, status):
    cost = {"seconds": lambda size: 1e-6 * size**power, "mib": lambda size: 0.01 * size}
    measured = lambda function, name, size: {key: of(size) for key, of in cost.items()}  # noqa: E731
    monkeypatch.setattr(script.bench, "in_fresh_process", measured)
    monkeypatch.setattr(sys, "argv", ["scale.py", "--only", "Linear", "--gib", "1", "--out", str(tmp_path)])
    assert script.main() == status
    found = json.loads((tmp_path / "scale.json").read_text())["cases"]["Linear"]
    assert found["exponents"]["seconds"] == pytest.approx(power)
    assert found["largest"] == pytest.approx(102_400, rel=1e-3)
    assert max(map(int, found["rows"])) == 2**16  # the next one would need 1.3 GiB
    assert (tmp_path / "scale.png").stat().st_size > 0
    text = capsys.readouterr().out
    assert f"| Linear | {power:.2f} (1) | 1.00 (1) | 65,536 | 0." in text or power > 1
    assert text.count("| 655 | 100,000 |") == 1  # MiB measured, nodes that fit
    assert ("exponent 1.30 of seconds, declared 1.00" in text) == bool(status)


def test_every_case_runs(script):
    for name in script.CARDS:
        attn = script.build(name)
        out = attn(torch.randn(32, script.CHANNELS), None, script.prepare(attn, 32))
        assert out.shape == (32, script.CHANNELS)
