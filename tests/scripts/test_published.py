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
    script = redraw.script_of(name)
    assert list(inspect.signature(script.lines).parameters) == ["report"]
    assert list(inspect.signature(script.plot).parameters) == ["report", "path"]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_what_its_report_gives(tables, redraw, name):
    table = tables.published_table(PAGES / f"{name}.md")
    assert redraw.redrawn(name, json.loads((STORED / f"{name}.json").read_text())) == table


def test_the_list_of_the_papers_is_what_the_reports_give(tables, redraw):
    """Every report that it names exists, and every row says what is against it or what it needs."""
    papers = importlib.import_module("_papers")
    listed = papers.yaml.safe_load(papers.PAPERS.read_text())
    assert tables.published_table(ROOT / "docs/papers.md") == papers.page(STORED)
    assert {name for name, *_ in papers.FIGURE.findall(papers.PAPERS.read_text())} <= set(NAMES)
    for row in (row for paper in listed for row in paper["rows"]):
        assert row["state"] in ("confirmed", "not confirmed", "not run"), row["item"]
        assert row["state"] == "confirmed" or "why" in row, row["item"]
        assert not papers.FIGURE.sub("", row.get("ours", "")).count("{"), row["item"]


def test_a_figure_must_be_that_of_one_row(redraw, tmp_path):
    papers = importlib.import_module("_papers")
    rows = {"a": {"data": "x", "test": [0.5, 0.7], "ms": {"GIN": [4.0, 1.0, 3.0]}}, "b": {"data": "x", "test": [1.0]}}
    (tmp_path / "own.json").write_text(json.dumps({"rows": rows}))

    def of(text):
        return papers.FIGURE.sub(lambda found: papers.figure(tmp_path, found), text)

    assert of("{own | a & x | test | 1%} and {own | b | test | 2}") == "60.0 ± 14.1 and 1.00"
    assert of("{own | a | ms.GIN ÷ ms.GIN.1 | 1}, {own | * | rows.b.test | 0}, {other | a | test | 1}") == "3.0, 1, –"
    with pytest.raises(ValueError, match=r"2 rows of own.json have the names 'x'"):
        of("{own | x | test | 1}")


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
