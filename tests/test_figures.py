"""Every figure and word of README.md, RESULTS.md and its pages of verdicts, computed again from the reports.

This shares no code with redraw.py: only the lists of what is claimed, papers.yaml, questions.yaml and choices.yaml.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.special import stdtrit

ROOT = Path(__file__).parents[1]
PAPERS, QUESTIONS, CHOICES = (
    yaml.safe_load((ROOT / f"scripts/reproduce/{name}.yaml").read_text()) for name in ("papers", "questions", "choices")
)
PUBLISHED = [row for paper in PAPERS for row in paper["rows"]]
WITHOUT_REPORT = ("results/gkat_citation", "results/gkat_tu", "measured")


def report(name):
    path = ROOT / f"results-published/{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {"rows": {}}


def chosen(name, names):
    """The one row with all names, or None."""
    found = report(name)
    if names == "*":
        return found if found["rows"] else None
    rows = found["rows"].values() if isinstance(found["rows"], dict) else found["rows"]
    keys = list(found["rows"]) if isinstance(found["rows"], dict) else [""] * len(rows)
    texts = [[key, *(str(value) for value in row.values())] for key, row in zip(keys, rows)]
    fitting = [row for row, text in zip(rows, texts) if all(part in text for part in names.split(" & "))]
    assert len(fitting) < 2, (name, names)
    return fitting[0] if fitting else None


def values(row, place):
    """The numbers at a place, ``"a.b"``, where a part may be an index or a key of each entry of a list."""
    for part in place.split("."):
        if isinstance(row, list):
            row = row[int(part)] if part.isdigit() else [entry[part] for entry in row]
        else:
            row = row[part]
    return np.atleast_1d(row["values"] if isinstance(row, dict) else row)


def quotient(row, place):
    return np.divide(*(np.median(values(row, part)) for part in place.split(" ÷ "))) if " ÷ " in place else None


def mean_and_deviation(numbers, places):
    deviation = f" ± {np.std(numbers, ddof=1):.{places}f}" if len(numbers) > 1 else ""
    return f"{np.mean(numbers):.{places}f}{deviation}"


def with_figures(text):
    """A text whose braces are replaced by means and deviations."""

    def one(match):
        name, names, place, form = match[1].split(" | ")
        row, places = chosen(name, names), int(form[0])
        if row is None:
            return "–"
        if " ÷ " in place:
            return f"{quotient(row, place):.{places}f}"
        return mean_and_deviation(values(row, place) * (100 if "%" in form else 1), places)

    return re.sub(r"\{(.+?)\}", one, " ".join(text.split()))


def half_width(variance, freedom, looks=1):
    return stdtrit(freedom, 1 - 0.05 / looks / 2) * np.sqrt(variance)


def verdict(claim, row):
    """The word for one claim, by the definition in docs/verdicts.md, and the middle and bounds of its interval."""
    looks = row.get("looks", 1)
    if claim.startswith("measured"):
        _, name, names, order = claim.split(" | ")
        found = chosen(name, names)
        if found is None:
            return "not run", None
        left, sign, right = re.fullmatch(r"(.+) ([<>=]) (.+)", order).groups()
        first = quotient(found, left) if " ÷ " in left else np.median(values(found, left))
        plain = re.fullmatch(r"[\d.]+", right)
        second = float(right) if plain else np.median(values(found, right))
        digits = len(right.partition(".")[2])
        holds = {"<": first < second, ">": first > second, "=": f"{first:.{digits}f}" == right}[sign]
        return ("confirmed" if holds else "not confirmed"), None
    ours, sign, theirs = re.fullmatch(r"(.+) ([<>=]) (.+)", claim).groups()
    if sign == "=":
        if ours.startswith("given"):
            mean, deviation, runs = map(float, re.findall(r"[\d.]+", ours))
        else:
            name, key = ours.split(" | ")
            if key not in report(name)["rows"]:
                return "not run", None
            tests = np.array(report(name)["rows"][key]["test"]) * (100 if "%" in theirs else 1)
            if len(tests) < 2:
                return "open", None
            mean, deviation, runs = tests.mean(), tests.std(ddof=1), len(tests)
        half, published = half_width(deviation**2 / runs, runs - 1, looks), [*map(float, re.findall(r"[\d.]+", theirs))]
        if abs(mean - published[0]) > half:
            return "not confirmed", (mean, mean - half, mean + half)
        sharp = len(published) > 1 and half <= 2 * published[1]
        return ("confirmed" if sharp else "open"), (mean, mean - half, mean + half)
    name, *place, key = ours.split(" | ")
    rows = report(name)["rows"]
    if key not in rows or theirs not in rows:
        return "not run", None
    x, y = (np.array(rows[one][place[0] if place else "test"]) for one in (key, theirs))
    gap = x.mean() - y.mean()
    if row.get("paired"):
        half = half_width(np.var(x - y, ddof=1) / len(x), len(x) - 1, looks)
    elif min(len(x), len(y)) < 2:
        return "open", None
    else:
        parts = np.array([x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)])
        half = half_width(parts.sum(), parts.sum() ** 2 / (parts**2 / [len(x) - 1, len(y) - 1]).sum(), looks)
    claimed = gap if sign == ">" else -gap
    word = "confirmed" if claimed > half else "not confirmed" if claimed < -half else "open"
    return word, (gap, gap - half, gap + half)


def words(row):
    """The words for the claims of a row, with the one for all of them first, and their intervals."""
    if not row.get("comparable", True):
        return ["nothing to compare with"], []
    found = [verdict(claim, row) for claim in row.get("claims", [])]
    every = {word for word, _ in found}
    whole = "not confirmed" if "not confirmed" in every else every.pop() if len(every) == 1 else "open"
    return [whole if found else "not run", *(word for word, _ in found)], [bounds for _, bounds in found]


def line_of(page, start):
    (found,) = (line for line in (ROOT / page).read_text().splitlines() if line.startswith(start))
    return found


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['item']}: {row['claim']}"[:60])
def test_published_claims(row):
    line = line_of("docs/papers.md", f"| {row['item']} | {row['claim']} |")
    assert f"| {with_figures(row.get('ours', '–'))} " in line
    assert f"**{words(row)[0][0]}**" in line
    if row.get("page") not in WITHOUT_REPORT:
        typed = re.sub(r"\{.+?\}", "", row.get("ours", ""), flags=re.DOTALL)
        assert not re.search(r"\d\.\d", typed), "a figure that no report gives"


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row["question"][:60])
def test_own_questions(row):
    line = line_of("docs/verdicts.md", f"| [{row['question']}]")
    assert f" | {with_figures(row['figures'])} | " in line
    found, intervals = words(row)
    assert line.endswith(f"| **{found[0]}** |")
    assert f"[{row['question']}](docs/results/{row['page']}.md)" in line_of("RESULTS.md", f"| **{found[0]}** |")
    shown = [bounds for bounds in intervals if bounds is not None]
    for gap, low, high in shown if len(shown) < 4 else ():
        text = "{:+.1f} ({:+.1f} to {:+.1f})" if row.get("points") else "{:+.3f} ({:+.3f} to {:+.3f})"
        factor = 100 if row.get("points") else 1
        assert text.format(factor * gap, factor * low, factor * high) in line


@pytest.mark.parametrize("row", CHOICES, ids=lambda row: row["data"])
def test_what_to_take(row):
    line = line_of("README.md", f"| {row['data']} |")
    assert f" | {row['take']} | {with_figures(row['figures'])} ([page](docs/results/{row['page']}.md), " in line
    assert line.endswith(f" {row['seeds']} seeds) | **{words(row)[0][0]}** |")
    runs = set()
    for claim in row["claims"]:
        ours, theirs = re.split(" [<>] ", claim)
        name, *_, ours = ours.split(" | ")
        runs |= {len(report(name)["rows"][key]["test"]) for key in (ours, theirs)}
    assert " to ".join(map(str, sorted({min(runs), max(runs)}))) == str(row["seeds"])


@pytest.mark.parametrize(
    ("page", "text", "question", "word"),
    [
        ("README.md", "whether the mask adds to it is open", "On Peptides-func, is half hop ahead of no mask", "open"),
        (
            "README.md",
            "random-walk encodings, a hop mask is behind",
            "Beside GINE with RWSE on molecules, in",
            "not confirmed",
        ),
        ("RESULTS.md", "the difference is open", "Beside GINE on molecules, in equal time", "open"),
    ],
)
def test_words_in_sentences_are_those_of_the_questions(page, text, question, word):
    assert text in " ".join((ROOT / page).read_text().split())
    (row,) = (row for row in QUESTIONS if row["question"].startswith(question))
    assert words(row)[0][0] == word
