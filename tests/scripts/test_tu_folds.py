"""The comparison on TU data: rows differ only in their layers, a trial writes the table, and finished runs are kept."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyg_topomask.run import RunError, check_config
from pyg_topomask.run.training.checkpoint import BEST, FORMAT, LAST, OURS
from pyg_topomask.tensor_files import save_tensors

image = pytest.importorskip("matplotlib.image")

FOLDERS = {"GKAT": "gkat", "GIN + GRF": "grf", "GIN + k-MIP": "kmip", "GIN + Primphormer": "primphormer"}


@pytest.fixture
def script(scripts, tmp_path, monkeypatch):
    (tmp_path / "splits/errica2020/COLLABORATIVE_DEGREE").mkdir(parents=True)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path))
    return importlib.import_module("tu_folds")


def config_of(script, dataset, method, run=1, epochs=10):
    path = script.CONFIGS / "gkat" / f"{dataset}.yaml"
    return check_config(path, script.settings_of(dataset, method, run, epochs))[0].config


def assert_differ_only_in_layers(found, first):
    """And in the names of their folders."""
    assert len({config.name_tag for config in found.values()}) == len(found)
    layers = {"layer_type": "", "sparse": None}
    for config in found.values():
        assert config.gt.model_copy(update=layers) == first.gt.model_copy(update=layers)
        for section in ("dataset", "optim", "train", "gnn", "model"):
            assert getattr(config, section) == getattr(first, section)


@pytest.mark.parametrize("dataset", ["imdb-binary", "imdb-multi", "enzymes", "nci1", "reddit-binary", "collab"])
def test_rows_differ_only_in_their_layers(script, dataset):
    found = {method: config_of(script, dataset, method) for method in script.METHODS}
    assert len({config.gt.layer_type for config in found.values()}) == len(found)
    first = found["baseline"]
    assert (first.seed, first.dataset.split_index, first.optim.max_epoch) == (1, 1, 10)
    assert first.dataset.split_dir.endswith("COLLABORATIVE_DEGREE") == (dataset not in ("enzymes", "nci1"))
    assert_differ_only_in_layers(found, first)


@pytest.mark.parametrize("method", FOLDERS)
def test_attentions_have_the_settings_of_their_configs(script, method):
    """The walks of GKAT, and everything but the number of layers for the others."""
    config = config_of(script, "enzymes", method, epochs=100)
    own = check_config(script.CONFIGS / FOLDERS[method] / "enzymes.yaml")[0].config
    if method == "GKAT":
        own = own.model_copy(update={"topomask": own.topomask.model_copy(update={"feed_forward": True})})
        assert config.topomask.model_copy(update={"encoder_dropout": 0.0}) == own.topomask
        return
    kernel = {"kernel"}  # neither reads it
    assert config.topomask.model_dump(exclude=kernel) == own.topomask.model_dump(exclude=kernel)
    assert config.optim.model_dump() == own.optim.model_dump()
    assert config.gt.model_dump() == own.gt.model_copy(update={"layers": 2}).model_dump()


def test_runs_fill_the_table_and_are_kept(script, tmp_path, monkeypatch):
    made = []

    def run_config(path, folder, seeds, overrides):
        made.append(overrides)
        fold = next(int(text.split("=")[1]) for text in overrides if text.startswith("dataset.split_index"))
        value = 0.5 + 0.1 * fold + (0.02 * (fold + 1) if "gt.layer_type=GIN+None" in overrides else 0.0)
        metrics = {f"{part}_accuracy": {"values": [part_value]} for part, part_value in (("val", 0.1), ("test", value))}
        return {"metrics": metrics, "epochs": [8], "num_parameters": 99}

    monkeypatch.setattr("_folds.run_config", run_config)
    arguments = ["--datasets", "imdb-multi", "--out", str(tmp_path / "out")]
    machines = {cpu: {"cpu": cpu, "threads": 1, "torch": "2"} for cpu in ("first", "second")}
    monkeypatch.setattr("_folds.machine", lambda: machines["first"])
    script.COMPARISON.main([*arguments, "--runs", "1"])
    rows = len(script.METHODS) + 1  # GIN in the time of the dearest, too
    assert len(made) == rows
    monkeypatch.setattr("_folds.machine", lambda: machines["second"])
    script.COMPARISON.main([*arguments, "--runs", "2"])
    assert len(made) == 2 * rows  # only the second fold
    table = (tmp_path / "out/tu_folds.md").read_text()
    report = json.loads((tmp_path / "out/tu_folds.json").read_text())
    assert all(row["val"] == [0.1, 0.1] for row in report["rows"].values())
    assert "\n".join(script.COMPARISON.lines(report)) + "\n" == table
    first, second = (f"imdb-multi (8 runs): {cpu}, one thread, torch 2" for cpu in machines)
    last = "The seconds of a row are those of the machine of its last run"
    assert table.startswith(f"{first}; {second}. {last}.")
    # t = 12.706 with one degree of freedom: 55 ± 12.706 · 5; gaps of 2 and 4 points, 3 ± 12.706 · 1
    assert "| 55.00 ± 7.07 | -8.53 to 118.53 | – | -3.0 (-15.7 to +9.7) | 49.1 ± 3.5 |" in table
    assert "| +3.0 (-9.7 to +15.7) | – | 48.5 ± 3.3 |" in table
    assert "| 0.00 | 10.00 ± 0.00 | 55.00 ± 7.07 | -8.53 to 118.53 | +0.0 |" in table  # equal: no interval
    assert (tmp_path / "out/tu_folds.png").stat().st_size > 0


def test_message_passing_has_a_row_of_equal_time(script, tmp_path, monkeypatch):
    """Its epochs are as many as take the time of the dearest row; without that run, the table says so."""

    def run_once(path, out, overrides):
        config = check_config(path, overrides)[0].config
        dear = config.gt.layer_type == "GIN+GRF"
        return {"val": 0.5, "test": 0.5, "seconds": config.optim.max_epoch * (2.5 if dear else 1.0), "parameters": 99}

    monkeypatch.setattr(script, "run_once", run_once)
    own = f"GIN{importlib.import_module('_folds').DEAREST}"
    arguments = ["--datasets", "enzymes", "--runs", "1", "--out", str(tmp_path), "--methods"]
    script.COMPARISON.main([*arguments, "GIN", "GIN + GRF"])
    assert f"| enzymes | {own} | – | – | – | – | – | not run |" in (tmp_path / "tu_folds.md").read_text()
    script.COMPARISON.main([*arguments, own])
    report = json.loads((tmp_path / "tu_folds.json").read_text())
    assert report["rows"][f"enzymes: {own}"]["trained"] == [75]
    assert "not run" not in (tmp_path / "tu_folds.md").read_text()


def test_long_schedules_are_run_on_request_alone(script, tmp_path, monkeypatch):
    made = []

    def run_once(path, out, overrides):
        made.append((path.stem, check_config(path, overrides)[0].config.optim.max_epoch))
        return {"val": 0.5, "test": 0.5, "seconds": 1.0, "parameters": 99}

    monkeypatch.setattr(script, "run_once", run_once)
    arguments = ["--methods", "GIN", "--runs", "1", "--out"]
    script.COMPARISON.main([*arguments, str(tmp_path / "all")])
    assert len(made) == 7
    assert ("enzymes", 200) not in made
    script.COMPARISON.main([*arguments, str(tmp_path / "long"), "--datasets", "enzymes-long"])
    assert made[7:] == [("enzymes", 200)]


@pytest.mark.parametrize(
    ("done", "epochs", "finished", "seconds"),
    [
        (0, 30, False, 4.0),
        (18, 30, False, 10.0),  # a better epoch is a checkpoint, too
        (30, 30, True, 77.0),
        (12, 15, False, 20.0),  # it stops early
    ],
)
def test_seconds_of_an_interrupted_run_are_those_after_its_checkpoint(
    scripts, monkeypatch, tmp_path, done, epochs, finished, seconds
):
    import _folds

    times = iter([0.0, 4.0])
    summary = {"metrics": {}, "epochs": [epochs], "wall_time_s": {"total": 77.0}, "num_parameters": 1}
    summary["metrics"] = {f"{part}_accuracy": {"values": [0.5]} for part in ("val", "test")}
    monkeypatch.setattr(_folds, "run_config", lambda *_: summary)
    monkeypatch.setattr(_folds.time, "process_time", lambda: next(times))
    settings = ["optim.max_epoch=30", "train.ckpt_period=10", "name_tag=a"]
    path = importlib.import_module("_tables").CONFIGS / "grf" / "enzymes.yaml"
    folder = _folds.run_folder(path, tmp_path, settings)
    folder.mkdir(parents=True)
    for name in (BEST, LAST) if done else ():
        save_tensors({"epoch": done - 1, OURS: {"format": FORMAT}}, folder / name)
    if finished:
        (folder / "result.json").touch()
    assert _folds.run_once(path, tmp_path, settings)["seconds"] == pytest.approx(seconds)


def fixed_runs(script, monkeypatch):
    results = {"val": 0.5, "test": 0.5, "seconds": 1.0, "parameters": 99}
    monkeypatch.setattr(script, "run_once", lambda path, out, overrides: dict(results))


def test_a_report_is_not_replaced_by_a_trial_or_by_one_of_other_settings(script, tmp_path, monkeypatch):
    fixed_runs(script, monkeypatch)
    arguments = ["--datasets", "enzymes", "--methods", "GIN", "--runs", "1", "--out", str(tmp_path)]
    script.COMPARISON.main(arguments)
    whole = (tmp_path / "tu_folds.json").read_bytes()
    script.COMPARISON.main([*arguments, "--quick"])
    assert (tmp_path / "quick/tu_folds.md").read_text().startswith("A trial of 2 epochs")
    with pytest.raises(RunError, match=r"tu_folds.json has other settings \(epochs: None\); choose another folder"):
        script.COMPARISON.main([*arguments, "--epochs", "3"])
    assert (tmp_path / "tu_folds.json").read_bytes() == whole


def test_a_published_table_is_not_replaced_by_one_with_fewer_rows(script, tmp_path, monkeypatch, capsys):
    fixed_runs(script, monkeypatch)
    results, stored = tmp_path / "docs/results", tmp_path / "results-published/tu_folds.json"
    begin = ["--datasets", "enzymes", "--runs", "1", "--results", str(results)]
    script.COMPARISON.main([*begin, "--out", str(tmp_path / "all")])
    page = results / "tu_folds.md"
    whole = page.read_text(), stored.read_bytes()
    assert whole[0].count("| enzymes |") == len(script.METHODS) + 1
    script.COMPARISON.main([*begin, "--methods", "GIN", "--out", str(tmp_path / "one")])
    assert (page.read_text(), stored.read_bytes()) == whole
    assert f"keeps its table, which has {len(script.METHODS) - 1} more rows" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        script.COMPARISON.main([*begin, "--quick"])
    assert "--quick: not allowed with argument --results" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script",
    [
        *("ablations", "gkat_tu", "grf_long_range", "grf_real", "grf_smooth", "masks_digits", "molecules"),
        *("primphormer_gnn_benchmark", "primphormer_lrgb", "tu_folds"),
    ],
)
def test_how_threads_wait_is_set_before_torch_is_imported(script, tmp_path):
    (tmp_path / "torch.py").write_text("import os\nraise SystemExit(os.environ.get('OMP_WAIT_POLICY', 'unset'))\n")
    folder = Path(__file__).parents[2]
    found = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(folder)]), "PATH": os.environ["PATH"]}
    command = [sys.executable, str(folder / "scripts/reproduce" / f"{script}.py"), "--help"]
    assert subprocess.run(command, env=found, capture_output=True, text=True).stderr.strip() == "passive"
