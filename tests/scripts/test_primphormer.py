"""The scripts that repeat the Primphormer tables run on small data, go on where they stopped, skip what is missing."""

import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")


@pytest.fixture
def tables(scripts, monkeypatch, tmp_path):
    """``_tables`` on two configs of generated graphs, and one whose files are nowhere."""
    import _tables

    config = yaml.safe_load((ROOT / "configs/grf/motif.yaml").read_text())
    config["dataset"] |= {"num_graphs": 60, "num_nodes": 12}
    config["optim"] |= {"max_epoch": 3, "num_warmup_epochs": 1}
    for method in ("primphormer", "full"):
        (tmp_path / method).mkdir()
    (tmp_path / "primphormer/motif.yaml").write_text(yaml.safe_dump(config))
    missing = (ROOT / "configs/primphormer/peptides-struct.yaml").read_text()
    (tmp_path / "primphormer/absent.yaml").write_text(missing)
    monkeypatch.setattr(_tables, "CONFIGS", tmp_path)
    monkeypatch.setattr(_tables, "QUICK", (30, 10, 10))
    monkeypatch.setattr(_tables, "SAMPLE", (30, 10, 10))
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TOPOMASK_DATA", raising=False)
    return _tables


def reproduce(tables, tmp_path, *options):
    names = {"motif": "accuracy", "absent": "mae"}
    table = {name: tables.Published(name, metric, {"Primphormer": "1.0"}) for name, metric in names.items()}
    out = ["--out", str(tmp_path / "out"), "--results", str(tmp_path / "docs/results")]
    parsed = tables.parser("", list(table), "test").parse_args([*options, *out])
    parsed.quick = True  # which the command line refuses with --results
    tables.reproduce(table, parsed)
    return json.loads((tmp_path / "out/test.json").read_text())["rows"]


def test_rows_of_what_is_there_and_notes_on_what_is_not(tables, tmp_path, monkeypatch):
    real = tables.run_config

    def run_config(path, *arguments, **keywords):
        if path.stem == "absent":  # as without a network, at once
            raise tables.MissingDataError("the raw files of x are nowhere")
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(tables, "run_config", run_config)
    rows = reproduce(tables, tmp_path, "--methods", "Primphormer", "Transformer")
    motif, no_config, absent, _ = rows
    assert motif["epochs"] == [tables.QUICK_EPOCHS]
    assert 0 <= motif["test"]["mean"] <= 1
    assert len(motif["curves"][0]) == tables.QUICK_EPOCHS
    assert no_config["note"] == "no config for Transformer"
    assert absent["note"] == "not available here"
    text = (tmp_path / "docs/results/test.md").read_text()
    assert "| absent | Primphormer | not available here |" in text
    assert (tmp_path / "out/test.png").stat().st_size > 0
    assert json.loads((tmp_path / "results-published/test.json").read_text())["rows"] == rows
    again = reproduce(tables, tmp_path, "--datasets", "motif")
    assert again[0] == motif  # kept, not trained again
    assert (tmp_path / "docs/results/test.md").read_text() == text


def test_a_budget_plans_epochs_and_schedule_once(tables, tmp_path, monkeypatch):
    path = tables.CONFIGS / "primphormer/motif.yaml"
    (tmp_path / "out").mkdir()
    plan = tmp_path / "out/plan-motif-2min.json"
    plan.write_text(json.dumps({"seconds_per_epoch": 20.0, "epochs": 6}))
    options = tables.parser("", ["motif"], "test").parse_args(["--minutes", "2"])
    overrides = tables.shortened(path, tmp_path / "out", options)
    assert "optim.max_epoch=6" in overrides
    assert "optim.num_warmup_epochs=2" in overrides  # 1 of 3, in proportion


def test_a_budget_shows_its_curves(tables):
    row = {"title": "Motif", "method": "GRF", "metric": "ap", "curves": [[(10.0, 0.1), (20.0, 0.2), (30.0, 0.3)]]}
    lines = list(tables._curve_lines([row, {"title": "Motif", "note": "not available here"}]))
    assert lines[1].startswith("| validation after | 20 % | 40 %")
    assert lines[3:] == ["| Motif, GRF | – | 0.1000 | 0.1000 | 0.2000 | 0.3000 |"]


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
