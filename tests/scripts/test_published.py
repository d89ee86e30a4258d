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


def test_verdicts_are_what_the_reports_give(tables, redraw):
    """Every report that is named exists or was not run, every row has a word, and says what is against it."""
    papers = importlib.import_module("_papers")
    verdicts = importlib.import_module("_verdicts")
    listed = papers.yaml.safe_load(papers.PAPERS.read_text())
    assert tables.published_table(ROOT / "docs/papers.md") == papers.page(STORED)
    assert tables.published_table(ROOT / "docs/verdicts.md") == papers.verdicts(STORED)
    assert tables.published_table(ROOT / "RESULTS.md") == papers.first_page(STORED)
    assert tables.published_table(ROOT / "README.md").partition(tables.END)[0] == papers.choices(STORED)
    published = [row for paper in listed for row in paper["rows"]]
    words = {verdicts.CONFIRMED, verdicts.REFUTED, verdicts.OPEN, verdicts.NOT_RUN, verdicts.NOTHING}
    for row in published + papers.yaml.safe_load(papers.QUESTIONS.read_text()):
        word = papers.finding(row, STORED).word
        assert word in words, row
        assert word == verdicts.CONFIRMED or "why" in row or "question" in row, row["item"]
        assert not papers.FIGURE.sub("", row.get("ours", "") + row.get("figures", "")).count("{"), row
    assert {name for name, *_ in papers.FIGURE.findall(papers.PAPERS.read_text())} <= set(NAMES)


@pytest.mark.parametrize(
    ("claim", "how", "word"),
    [
        ("own | a > b", {}, "confirmed"),
        ("own | a < b", {}, "not confirmed"),
        ("own | b < a", {"looks": 1000}, "open"),
        ("own | a > c", {}, "open"),  # one run
        ("own | a > d", {}, "not run"),
        ("own | near > b", {}, "open"),
        ("own | near > b", {"paired": True}, "confirmed"),  # each run by 0.1, but for rounding
        ("own | val | b < a", {}, "confirmed"),
        ("own | a = 9.2 ± 0.4", {}, "confirmed"),
        ("own | a = 9.2 ± 0.2", {}, "open"),  # our half-width is 0.52
        ("own | a = 9.2", {}, "open"),
        ("own | a = 9.8 ± 5.0", {}, "not confirmed"),
        ("own | a = 910 ± 50 %", {}, "confirmed"),
        ("given 9.0 ± 0.3, 3 runs = 9.7 ± 0.5", {}, "confirmed"),  # 9.0 ± 0.745
        ("given 9.0 ± 0.3, 3 runs = 9.8 ± 0.5", {}, "not confirmed"),
        ("measured | own | c | ms.GRF < ms.GIN", {}, "confirmed"),
        ("measured | own | c | ms.GIN ÷ ms.GRF = 1.4", {}, "not confirmed"),
        ("measured | own | c | ms.GIN ÷ ms.GRF = 2", {}, "confirmed"),
        ("measured | none | c | ms.GRF < ms.GIN", {}, "not run"),
    ],
)
def test_the_rule_of_verdicts(redraw, tmp_path, claim, how, word):
    """Means of a, b: 9 and 5; the t of a mean of four is 3.182, of three 4.303."""
    verdicts = importlib.import_module("_verdicts")
    rows = {
        "a": {"test": [8.6, 9.0, 9.0, 9.4], "val": [2.0, 3.0]},
        "b": {"test": [4.0, 5.0, 5.0, 6.0], "val": [-7.0, -8.0]},
        "near": {"test": [4.1, 5.1, 5.1, 6.11]},
        "c": {"test": [1.0], "ms": {"GRF": [1.0, 2.0, 3.0], "GIN": [3.0]}},
    }
    (tmp_path / "own.json").write_text(json.dumps({"rows": rows}))
    assert verdicts.judge(claim, tmp_path, verdicts.How(**how)).word == word


def test_words_of_several_claims(redraw):
    overall = importlib.import_module("_verdicts").overall
    assert overall(["confirmed", "confirmed"]) == "confirmed"
    assert overall(["confirmed", "open"]) == overall(["confirmed", "not run"]) == "open"
    assert overall(["not run", "not run"]) == "not run"
    assert overall(["confirmed", "open", "not confirmed"]) == "not confirmed"
    with pytest.raises(ValueError, match="'ahead' is no claim"):
        importlib.import_module("_verdicts").judge("ahead", STORED, None)


def test_a_figure_must_be_that_of_one_row(redraw, tmp_path):
    papers = importlib.import_module("_papers")
    rows = {"a": {"data": "x", "test": [0.5, 0.7], "ms": {"GIN": [4.0, 1.0, 3.0]}}, "b": {"data": "x", "test": [1.0]}}
    (tmp_path / "own.json").write_text(json.dumps({"rows": rows}))

    def of(text):
        return papers.FIGURE.sub(lambda found: papers.figure(tmp_path, found), text)

    assert of("{own | a & x | test | 1%} and {own | b | test | 2}") == "60.0 ± 14.1 and 1.00"
    assert of("{own | a | ms.GIN ÷ ms.GIN.1 | 1}, {own | * | rows.b.test | 0}, {other | a | test | 1}") == "3.0, 1, –"
    with pytest.raises(ValueError, match=r"2 rows have the names 'x'"):
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


def test_rows_that_a_new_report_of_runs_lacks_are_kept(redraw):
    old, new = {"rows": {"a": 1, "b": 1}, "commits": ["1"]}, {"rows": {"b": 2}, "commits": ["2"], "epochs": None}
    assert redraw.joined(old, new) == {"rows": {"a": 1, "b": 2}, "commits": ["1", "2"], "epochs": None}
    assert redraw.joined(old, {"rows": {"b": 2}}) == {"rows": {"b": 2}}
