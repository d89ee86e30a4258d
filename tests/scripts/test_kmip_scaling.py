"""The benchmark and the reproduction of k-MIP attention run at small sizes and store what they promise."""

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")
STAGES = ["projection", "tree", "search", "softmax and gather", "backward"]


@pytest.fixture
def run(scripts, monkeypatch, tmp_path):
    """``run(script, *options) -> report``, in this process."""

    def call(script, *options):
        import _measure

        monkeypatch.setattr(_measure, "in_fresh_process", lambda function, *arguments: function(*arguments))
        monkeypatch.setattr(sys, "argv", [script, *options, "--out", str(tmp_path)])
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
        (report,) = tmp_path.rglob("*.json")
        return json.loads(report.read_text())

    return call


def test_benchmark(run, capsys):
    report = run("bench/kmip.py", "--quick", "--num-nodes", "300", "--repeats", "1")
    text = capsys.readouterr().out
    for kind in ("gauss", "clust0.3"):
        assert {"chosen", "torch", "sdpa", "sdpa, padded"} <= set(report["comparison"][kind]["milliseconds"])
        assert list(report["stages"][kind]) == STAGES
        search = report["searches"][kind]["300"]
        assert set(search["milliseconds"]) == {"ours", "faiss", "keops"} - set(search["left out"])
        assert all(ratio["wall"] > 0 for ratio in search["ours / peer"].values())
        assert all(share > 0.99 for share in search["share of equal keys"].values())
    for name in search["left out"]:
        assert f"{name} is left out: " in text
    for name in search["ours / peer"]:
        assert f"ours / {name}" in text
    assert "stages, gauss, N = 300, ms: projection " in text


def test_reproduction_of_the_scaling_figure(run, capsys):
    report = run("reproduce/kmip_scaling.py", "--quick", "--largest", "3")
    names = ["k-MIP, gauss", "k-MIP, clust0.3", "full"]
    sizes = [(row["method"], row["num_nodes"]) for row in report["rows"]]
    assert sizes == [(name, number) for name in names for number in (100, 316, 1000)]
    first, full = report["rows"][0], report["rows"][6]
    assert first["training ratio"] == full["training ms"] / first["training ms"]
    for name in names:
        assert set(report["exponents"][name]) == {"forward ms", "training ms", "forward MiB", "training MiB"}
        assert report["exponents"][name]["training ms"] is not None
    assert list(report["stages"]["gauss"]) == STAGES
    assert "| full | exponent |" in capsys.readouterr().out
