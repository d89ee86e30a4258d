"""One rule for verdicts: the word for a claim, from the reports alone.

A claim is a line of papers.yaml or questions.yaml:

    moses | logP: hop < logP: Linear                 the mean of the first row is less than that of the second
    moses | val | logP: hop < logP: Linear           the same on the validation part
    gkat_tu | proteins: GKAT = 75.8 ± 3.8 %          the mean is the published one
    given 75.3 ± 3.6, 3 runs = 75.8 ± 3.8            the same for a page without a report
    measured | gkat_cost | motif | ms.GKAT.1 < ms.GAT.1    counts and medians of times, which have no interval
    measured | grf_cost | * | exponents.GRF.madds = 1      the same, rounded as the published number

Rows are named by their keys in ``rows`` of the report; those of a measurement as in papers.yaml.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

CONFIRMED, REFUTED, OPEN, NOT_RUN = "confirmed", "not confirmed", "open", "not run"
NOTHING = "nothing to compare with"
LEVEL = 0.95
FIGURE = re.compile(r"(\w+) \| (.+) = ([\d.]+)(?: ± ([\d.]+))?( %)?")
GIVEN = re.compile(r"given ([\d.]+) ± ([\d.]+), (\d+) runs = ([\d.]+) ± ([\d.]+)")
ORDER = re.compile(r"(\w+) \| (?:(\w+) \| )?(.+) ([<>]) (.+)")
MEASURED = re.compile(r"measured \| (\w+) \| (.+?) \| (.+) ([<>=]) (.+)")
Interval = tuple[float, float]


class Finding(NamedTuple):
    """The word for a claim, and the figures behind it."""

    word: str
    figures: str = "–"


def report_of(path: Path) -> Mapping[str, Any]:
    """A report; empty if there is none."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"rows": {}}
    return found


def row_of(report: Mapping[str, Any], names: str) -> Mapping[str, Any] | None:
    """The row that has all names, ``"*"`` for the report; None if there is none.

    Raises:
        ValueError: If several have.
    """
    if names == "*":
        return report if report["rows"] else None
    rows = report["rows"]
    wanted = set(names.split(" & "))
    pairs = rows.items() if isinstance(rows, dict) else (("", row) for row in rows)
    chosen = [row for key, row in pairs if wanted <= {str(key), *map(str, row.values())}]
    if len(chosen) > 1:
        raise ValueError(f"{len(chosen)} rows have the names {names!r}; only one may have them")
    return chosen[0] if chosen else None


def numbers(row: Any, place: str) -> list[float]:
    """The numbers at a place of a row, such as ``"epochs.test"``; a name takes that entry of each element of a list."""
    for name in place.split("."):
        if isinstance(row, list):
            row = row[int(name)] if name.isdecimal() else [one[name] for one in row]
        else:
            row = row[name]
    row = row["values"] if isinstance(row, dict) else row
    return row if isinstance(row, list) else [row]


def median(row: Any, place: str) -> float:
    """The median of the numbers at a place of a row, or the quotient of two medians, ``"a ÷ b"``."""
    first, *second = (statistics.median(numbers(row, part)) for part in place.split(" ÷ "))
    return first / second[0] if second else first


def mean_interval(mean: float, deviation: float, runs: int, level: float) -> Interval:
    """The interval of a mean by Student's t."""
    half = float(stats.t.ppf((1 + level) / 2, runs - 1)) * deviation / runs**0.5
    return mean - half, mean + half


def gap_interval(
    first: Sequence[float], second: Sequence[float], paired: bool, level: float = LEVEL
) -> Interval | None:
    """The interval of a difference of means: Welch's, or that of the paired t-test; None if nothing varies."""
    if paired:
        gaps = [one - other for one, other in zip(first, second)]
        if len(gaps) < 2 or min(gaps) == max(gaps):
            return None
        return mean_interval(statistics.fmean(gaps), statistics.stdev(gaps), len(gaps), level)
    if min(len(first), len(second)) < 2 or statistics.stdev(first) + statistics.stdev(second) == 0:
        return None
    low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(level)
    return float(low), float(high)


def overall(words: Iterable[str]) -> str:
    """The word for several claims together."""
    found = set(words)
    if REFUTED in found:
        return REFUTED
    return found.pop() if len(found) == 1 else OPEN


class How(NamedTuple):
    """How intervals are made.

    Args:
        looks: How often the question was looked at; intervals are corrected for it by Bonferroni.
        paired: Whether both rows share what differs between runs: folds, or the order of batches and first weights.
        points: Whether differences are shown in percentage points.
    """

    looks: int = 1
    paired: bool = False
    points: bool = False

    @property
    def level(self) -> float:
        """The level of an interval."""
        return 1 - (1 - LEVEL) / self.looks


def judge(claim: str, stored: Path, how: How) -> Finding:
    """The verdict on a claim, by the reports in that folder.

    Raises:
        ValueError: If it has another form.
    """
    for form, finder in FORMS.items():
        found = form.fullmatch(claim)
        if found is not None:
            return finder(found, stored, how)
    raise ValueError(f"{claim!r} is no claim; the forms are in {Path(__file__).name}")


def _figure(found: re.Match[str], stored: Path, how: How) -> Finding:
    name, key, mean, deviation, percent = found.groups()
    row = row_of(report_of(stored / f"{name}.json"), key)
    if row is None:
        return Finding(NOT_RUN)
    values = [100 ** bool(percent) * value for value in row["test"]]
    if len(values) < 2:
        return Finding(OPEN, f"{values[0]:.4g}, one run")
    return _published(statistics.fmean(values), statistics.stdev(values), len(values), mean, deviation, how.level)


def _given(found: re.Match[str], _: Path, how: How) -> Finding:
    ours, spread, runs, mean, deviation = found.groups()
    return _published(float(ours), float(spread), int(runs), mean, deviation, how.level)


def _published(ours: float, spread: float, runs: int, mean: str, deviation: str | None, level: float) -> Finding:
    low, high = mean_interval(ours, spread, runs, level)
    text = f"{ours:.4g} ({low:.4g} to {high:.4g})"
    if not low <= float(mean) <= high:
        return Finding(REFUTED, text)
    sharp = deviation is not None and (high - low) / 2 <= 2 * float(deviation)
    return Finding(CONFIRMED if sharp else OPEN, text)


def _order(found: re.Match[str], stored: Path, how: How) -> Finding:
    name, place, *keys = found.groups()
    report = report_of(stored / f"{name}.json")
    rows = [report["rows"].get(key) for key in (keys[0], keys[2])]
    if None in rows:
        return Finding(NOT_RUN)
    first, second = (row[place or "test"] for row in rows)
    bounds = gap_interval(first, second, how.paired, how.level)
    gap = shown(statistics.fmean(first) - statistics.fmean(second), how)
    if bounds is None:
        return Finding(OPEN, f"{gap}, {len(first)} run{'s' * (len(first) > 1)}")
    sides = {bound > 0 for bound in bounds}
    word = OPEN if len(sides) > 1 else CONFIRMED if sides == {keys[1] == ">"} else REFUTED
    return Finding(word, f"{gap} ({shown(bounds[0], how)} to {shown(bounds[1], how)})")


def shown(gap: float, how: How) -> str:
    """A difference as text."""
    return f"{100 * gap:+.1f}" if how.points else f"{gap:+.3f}"


def _measured(found: re.Match[str], stored: Path, _: How) -> Finding:
    name, names, place, sign, other = found.groups()
    row = row_of(report_of(stored / f"{name}.json"), names)
    if row is None:
        return Finding(NOT_RUN)
    first = median(row, place)
    number = re.fullmatch(r"\d+(?:\.(\d+))?", other)
    second = float(other) if number else median(row, other)
    if sign == "=":
        holds = round(first, len((number and number[1]) or "")) == second
    else:
        holds = first < second if sign == "<" else first > second
    return Finding(CONFIRMED if holds else REFUTED, f"{first:.3g}, {second:.3g}")


FORMS: dict[re.Pattern[str], Callable[[re.Match[str], Path, How], Finding]] = {
    MEASURED: _measured,
    GIVEN: _given,
    FIGURE: _figure,
    ORDER: _order,
}
