"""RESULTS.md says what the stored reports give, and `redraw.py` writes it again without any runs."""

import importlib
import inspect
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results-published"
NAMES = sorted(path.stem for path in STORED.glob("*.json"))
SCRIPTS = sorted(
    path.stem
    for path in (ROOT / "scripts/reproduce").glob("*.py")
    if path.stem != "redraw" and not path.stem.startswith("_")
)
pytest.importorskip("matplotlib")


@pytest.fixture
def redraw(scripts):
    return importlib.import_module("redraw")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_gives_a_table_and_a_picture(redraw, name):
    script = importlib.import_module(name)
    assert list(inspect.signature(script.lines).parameters) == ["report"]
    assert list(inspect.signature(script.plot).parameters) == ["report", "path"]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_what_its_report_gives(redraw, name):
    table = redraw.sections(ROOT / "RESULTS.md")[name]
    assert redraw.redrawn(name, json.loads((STORED / f"{name}.json").read_text())) == table


def test_every_table_is_stored_as_csv(redraw):
    tables = redraw.sections(ROOT / "RESULTS.md")
    assert set(NAMES) <= set(tables) == {path.stem for path in STORED.glob("*.csv")}
    for name, section in tables.items():
        assert (STORED / f"{name}.csv").read_text() == redraw.as_csv(section), name


def test_reports_are_small():
    assert sum(path.stat().st_size for path in STORED.iterdir()) < 2e6


def test_sections_and_their_csv(redraw, tmp_path):
    tables = "| x | y |\n|--:|---|\n| 1,200.5 | b, c |\n\n| z |\n|---|\n| – |\n"
    text = f"# R\n<!-- begin a -->\nm.\n\n{tables}<!-- end a -->\ntail"
    (tmp_path / "R.md").write_text(text)
    section = redraw.sections(tmp_path / "R.md")["a"]
    assert section.startswith("m.\n")
    assert redraw.as_csv(section) == 'x,y\n1200.5,"b, c"\n\nz\n–\n'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tu_folds", '{"quick": true, "epochs": 2, "rows": {"a": {}}}', "is a trial, or has no rows"),
        ("tu_folds", '{"quick": false, "rows": {}}', "is a trial, or has no rows"),
        ("tu_folds", '{"epochs": 2}', "no report of tu_folds.py"),
        ("tu_folds", '{"rows": {"enzymes: GIN": {"test": [0.5]}}}', "no report of tu_folds.py"),
        ("tu_folds", '{"rows": ', "no report of tu_folds.py"),
        ("typo", '{"rows": [1]}', "not named after a script"),
    ],
)
def test_what_is_no_report_is_not_stored(redraw, tmp_path, name, text, message):
    stored = tmp_path / "results-published"
    stored.mkdir()
    (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "RESULTS.md").write_text("# Results\n")
    with pytest.raises(redraw.RunError, match=message):
        redraw.main([str(tmp_path / f"{name}.json"), "--results", str(tmp_path / "RESULTS.md")])
    assert list(stored.iterdir()) == []


def test_drawing_again(redraw, tmp_path, capsys):
    """A copy whose table is damaged gets its table back, a new report its section, and a table without one stays."""
    results, stored = tmp_path / "RESULTS.md", tmp_path / "results-published"
    stored.mkdir()
    shutil.copy(STORED / "grf_estimates.json", stored)
    whole = (ROOT / "RESULTS.md").read_text()
    row = "| kNN | symmetrised | 2 × 8 |"
    assert row in whole
    results.write_text(whole.replace(row, "| damaged | symmetrised | 2 × 8 |"))
    shutil.copy(STORED / "grf_particles.json", tmp_path)
    redraw.main([str(tmp_path / "grf_particles.json"), "--results", str(results), "--pictures", str(tmp_path / "png")])
    assert results.read_text() == whole
    assert {path.stem for path in (tmp_path / "png").glob("*.png")} == {"grf_estimates", "grf_particles"}
    assert (stored / "grf_particles.json").is_file()
    left = capsys.readouterr().out.splitlines()[-1]
    assert "gkat_motif" in left
    assert "grf_estimates" not in left
