"""Pages of docs/results say what the stored reports give, and `redraw.py` writes them again without any runs."""

import importlib
import inspect
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED, PAGES = ROOT / "results-published", ROOT / "docs/results"
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


@pytest.fixture
def tables(scripts):
    return importlib.import_module("_tables")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_gives_a_table_and_a_picture(redraw, name):
    script = importlib.import_module(name)
    assert list(inspect.signature(script.lines).parameters) == ["report"]
    assert list(inspect.signature(script.plot).parameters) == ["report", "path"]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_what_its_report_gives(tables, redraw, name):
    table = tables.published_table(PAGES / f"{name}.md")
    assert redraw.redrawn(name, json.loads((STORED / f"{name}.json").read_text())) == table


def test_every_table_with_a_report_has_a_page_and_reports_are_small(tables):
    assert {path.stem for path in PAGES.glob("*.md") if tables.MADE in path.read_text()} == set(NAMES)
    assert sum(path.stat().st_size for path in STORED.iterdir()) < 2e6


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
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(redraw.RunError, match=message):
        redraw.main([str(tmp_path / f"{name}.json"), "--results", str(tmp_path / "docs/results")])
    assert not (tmp_path / "results-published").exists()


def test_drawing_again(redraw, tmp_path):
    """A page whose table is damaged gets it back and keeps its text, and a new report gets a page."""
    results, stored = tmp_path / "docs/results", tmp_path / "results-published"
    for folder in (results, stored):
        folder.mkdir(parents=True)
    shutil.copy(STORED / "grf_estimates.json", stored)
    whole, row = (PAGES / "grf_estimates.md").read_text(), "| kNN | symmetrised | 2 × 8 |"
    assert row in whole
    (results / "grf_estimates.md").write_text(whole.replace(row, "| damaged | symmetrised | 2 × 8 |"))
    shutil.copy(STORED / "grf_particles.json", tmp_path)
    redraw.main([str(tmp_path / "grf_particles.json"), "--results", str(results), "--pictures", str(tmp_path / "png")])
    assert (results / "grf_estimates.md").read_text() == whole
    assert (results / "grf_particles.md").read_text().startswith("# grf_particles\n")
    assert {path.stem for path in (tmp_path / "png").glob("*.png")} == {"grf_estimates", "grf_particles"}
    assert (stored / "grf_particles.json").is_file()
