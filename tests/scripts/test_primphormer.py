"""The scripts that repeat the Primphormer tables: rows, epochs, turns; what is missing is skipped."""

import importlib
from pathlib import Path

import pytest

from pyg_topomask.run.errors import MissingDataError

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")


def test_rows_have_the_epochs_of_the_configs_and_stand_beside_published_ones(scripts, monkeypatch, tmp_path):
    script, common = scripts("primphormer_lrgb"), importlib.import_module("_primphormer")
    made = []

    def run_once(path, out, overrides, metric, curves):
        made.append(overrides)
        if path.stem != "peptides-func":
            raise MissingDataError("the raw files are nowhere")
        curve = [(1.0, 0.5), (2.0, 0.6)]
        seconds = 2.0 if path.parent.name == "full" else 1.0
        return {"val": 0.6, "test": 0.6, "seconds": seconds, "ran": 250, "parameters": 9, "curves": curve}

    monkeypatch.setattr(common, "run_once", run_once)
    methods = ["--methods", "Primphormer", "Transformer", "--runs", "1", "--out", str(tmp_path)]
    script.COMPARISON.main(["--datasets", "peptides-func", "pcqm-contact", *methods])
    assert [next(text for text in overrides if "max_epoch" in text) for overrides in made[:3]] == [
        f"optim.max_epoch={epochs}" for epochs in (250, 250, 125)
    ]
    table = (tmp_path / "primphormer_lrgb.md").read_text()
    assert "| peptides-func | Primphormer | epochs | 9 | 1 | 250 | 0.00 | 0.6000 | 0.6000 | 0.6612 ± 0.0065 |" in table
    assert table.count("0.6535 ± 0.0041") == 2
    assert (tmp_path / "primphormer_lrgb.png").stat().st_size > 0


@pytest.mark.parametrize("name", ["none", "GPSConv multihead", "Primphormer", "Exphormer"])
def test_attention_benchmark_on_a_small_batch(scripts, monkeypatch, name):
    import attention

    small = attention.Workload(20, (10, 30), 45, 8, 4, 2, 16, heads=2)
    monkeypatch.setitem(attention.WORKLOADS, "CIFAR10", small)
    row = attention.measure("CIFAR10", name, 1)
    assert row["epoch_s"] == pytest.approx(row["step_ms"] / 1e3 * 2)
    assert ("attention_ms" in row) == (name != "none")


def test_methods_take_turns_and_an_interrupted_measurement_continues(scripts, monkeypatch, tmp_path):
    import primphormer_efficiency as script

    calls = []

    def measured(_, dataset, method, *rest):
        if len(calls) == 10:
            monkeypatch.setattr(script, "in_fresh_process", measured_after)
            raise KeyboardInterrupt
        calls.append(method)
        return {"epoch_s": 10.0 ** (len(calls) // len(script.PUBLISHED)), "step_mib": 500.0}

    def measured_after(_, dataset, method, *rest):
        calls.append(method)
        return {"epoch_s": 30.0, "step_mib": 500.0}

    path, methods = tmp_path / "report.json", list(script.PUBLISHED)
    monkeypatch.setattr(script, "in_fresh_process", measured)
    with pytest.raises(KeyboardInterrupt):
        script.measured(path, 3, 9, ["CIFAR10"])
    report = script.measured(path, 3, 9, ["CIFAR10"])
    assert calls == 3 * methods
    assert [row["epoch_s"] for row in report["rows"]["CIFAR10"]["none"]] == [1.0, 10.0, 30.0]
    assert script.typical(report["rows"]["CIFAR10"])["none"]["epoch_s"] == 10.0
    assert "in 3 rounds" in next(script.lines(report))
