"""The comparison on molecules: rows differ only in their attention, and a trial writes the table with its curves."""

import importlib
import json

import pytest

from pyg_topomask.run import check_config

pytest.importorskip("matplotlib")


@pytest.fixture
def script(scripts):
    return importlib.import_module("molecules")


def config_of(script, dataset, method):
    path = script.CONFIGS / "primphormer" / f"{dataset}.yaml"
    return check_config(path, script.settings_of(dataset, method, 2, 25))[0].config


@pytest.mark.parametrize("dataset", ["ogbg-molhiv", "peptides-func"])
def test_rows_differ_only_in_their_attention(script, dataset):
    found = {method: config_of(script, dataset, method) for method in script.METHODS}
    first = found["no attention"]
    assert (first.seed, first.optim.max_epoch, first.gt.layer_type) == (2, 25, "CustomGatedGCN+None")
    assert len({config.gt.layer_type for config in found.values()}) == len(found)
    assert len({config.name_tag for config in found.values()}) == len(found)
    layers = {"layer_type": "", "sparse": None}
    for config in found.values():
        assert config.gt.model_copy(update=layers) == first.gt.model_copy(update=layers)
        for section in ("dataset", "optim", "train", "gnn", "model"):
            assert getattr(config, section) == getattr(first, section)


def test_a_shortened_schedule_has_the_same_share_of_warm_up(script):
    path = script.CONFIGS / "primphormer" / "ogbg-molhiv.yaml"  # 5 of 100 epochs
    assert [script.warmup_of(path, epochs) for epochs in (1, 9, 10, 29, 100)] == [0, 0, 1, 1, 5]


def test_runs_fill_the_table_and_draw_curves(script, tmp_path, monkeypatch):
    """Each epoch takes two seconds. A run that has made 6 of its 10 epochs before takes 8 seconds, and 20 in all."""
    clock = [0.0]

    def run_config(path, folder, seeds, overrides):
        parsed = check_config(path, overrides)[0]
        run = folder / parsed.name / str(parsed.config.seed)
        run.mkdir(parents=True, exist_ok=True)
        made = len((run / "metrics.csv").read_text().splitlines()) - 1 if (run / "metrics.csv").is_file() else 0
        clock[0] += 2.0 * (10 - made)
        rows = [f"{epoch},{0.5 + epoch / 100}" for epoch in range(10)]
        (run / "metrics.csv").write_text("\n".join(["epoch,val_auc", *rows]))
        value = 0.7 + 0.01 * parsed.config.seed
        metrics = {part: {"values": [value]} for part in ("val_auc", "test_auc")}
        return {"metrics": metrics, "epochs": [10], "num_parameters": 1234, "wall_time_s": {"total": 21.0}}

    begun = tmp_path / "runs/ogbg-molhiv-Linear-10-0/0/metrics.csv"
    begun.parent.mkdir(parents=True)
    begun.write_text("\n".join(["epoch,val_auc", *["0,0.5"] * 6]))
    monkeypatch.setattr("_folds.run_config", run_config)
    monkeypatch.setattr("_folds.time.process_time", lambda: clock[0])
    arguments = ["--datasets", "ogbg-molhiv", "--methods", "no attention", "Linear", "--runs", "2"]
    script.main([*arguments, "--out", str(tmp_path)])
    report = json.loads((tmp_path / "molecules.json").read_text())
    table = (tmp_path / "molecules.md").read_text()
    assert "\n".join(script.lines(report)) + "\n" == table
    assert "| ogbg-molhiv | Linear | 1,234 | 2 | 10 | 2 | auc | 0.7050 ± 0.0071 | 0.7050 ± 0.0071 | +0.0 |" in table
    for row in report["rows"].values():
        assert row["seconds"] == [20.0, 20.0]
        assert row["curves"][0] == [[2.0 * (epoch + 1), 0.5 + epoch / 100] for epoch in range(10)]
    assert (tmp_path / "molecules.png").stat().st_size > 0
    (tmp_path / "molecules.json").unlink()  # finished runs whose results were not written have only their wall time
    script.main([*arguments, "--out", str(tmp_path)])
    report = json.loads((tmp_path / "molecules.json").read_text())
    assert [row["seconds"] for row in report["rows"].values()] == [[21.0, 21.0]] * 2
