"""The page docs/papers.md: every table and figure of the four papers, published and ours, from papers.yaml."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from _fitting import mean_and_spread

PAPERS = Path(__file__).with_name("papers.yaml")
FIGURE = re.compile(r"\{(\w+) \| (.+?) \| (.+?) \| (\d)(%?)\}")
"""A figure in papers.yaml: report, names of the row, place in the row, decimals, and a sign for per cent."""


def numbers(row: Any, place: str) -> list[float]:
    """The numbers at a place of a row, such as ``"epochs.test"``; a name takes that entry of each element of a list."""
    for name in place.split("."):
        if isinstance(row, list):
            row = row[int(name)] if name.isdecimal() else [one[name] for one in row]
        else:
            row = row[name]
    row = row["values"] if isinstance(row, dict) else row
    return row if isinstance(row, list) else [row]


def figure(stored: Path, found: re.Match[str]) -> str:
    """A figure of a report: mean and deviation, or the quotient of two medians; "–" without the report.

    Raises:
        ValueError: If not exactly one row has all names.
    """
    name, names, place, decimals, percent = found.groups()
    if not (stored / f"{name}.json").is_file():
        return "–"
    report = json.loads((stored / f"{name}.json").read_text())
    rows = report["rows"].items() if isinstance(report["rows"], dict) else (("", row) for row in report["rows"])
    wanted = set(names.split(" & "))
    chosen = [row for key, row in rows if wanted <= {str(key), *map(str, row.values())}] if names != "*" else [report]
    if len(chosen) != 1:
        raise ValueError(f"{len(chosen)} rows of {name}.json have the names {names!r}; papers.yaml must name one")
    if " ÷ " in place:
        first, second = (statistics.median(numbers(chosen[0], part)) for part in place.split(" ÷ "))
        return f"{first / second:.{decimals}f}"
    return mean_and_spread([100 ** (percent == "%") * value for value in numbers(chosen[0], place)], int(decimals))


def lines(paper: Mapping[str, Any], stored: Path) -> Iterator[str]:
    """The part of one paper."""
    states = Counter(row["state"] for row in paper["rows"])
    yield f"\n## {paper['name']}\n"
    yield f"[{paper['title']}]({paper['link']}): " + ", ".join(f"{count} {state}" for state, count in states.items())
    yield "\n| | claims | published | ours | state |\n|---|---|---|---|---|"
    for row in paper["rows"]:
        ours = FIGURE.sub(partial(figure, stored), row.get("ours", "–"))
        ours += f" ([page]({row['page']}.md))" if "page" in row else ""
        state = f"**{row['state']}**" + (f": {row['why']}" if "why" in row else "")
        yield f"| {row['item']} | {row['claim']} | {row['published']} | {ours} | {state} |"
    yield f"\n{paper['others']} Theorems: {paper['theorems']}"


def page(stored: Path) -> str:
    """The page after its introduction, by the reports in that folder."""
    papers = yaml.safe_load(PAPERS.read_text())
    return "\n".join(line for paper in papers for line in lines(paper, stored)) + "\n"
