"""Draw all tables and pictures of docs/results again from the reports in results-published, and write the verdicts.

    python scripts/reproduce/redraw.py                                       # pictures go to results/published
    python scripts/reproduce/redraw.py results/reproduce/grf_real/grf_real.json    # store this report first

A report NAME.json gives the table of the page NAME.md by ``lines(report)`` of the script NAME.py or of its
``COMPARISON``, and its picture by ``plot(report, path)``. The text before the table stays, and so do pages without a
report. The words of RESULTS.md and its pages follow from the reports by _verdicts.py. Rows of
a stored report that a new one lacks are kept. Nothing is run.
"""

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _bench import read_json
from _papers import choices, first_page, page, verdicts
from _tables import publish_table, reports_of, save_json, start

from pyg_topomask.run import RunError

ROOT = Path(__file__).parents[2]


def script_of(name: str) -> Any:
    """What has the functions ``lines`` and ``plot`` of a report: the `Comparison` of a script, or the script."""
    script = importlib.import_module(name)
    return getattr(script, "COMPARISON", script)


def redrawn(name: str, report: Mapping[str, Any]) -> str:
    """The table that a report gives."""
    return "\n".join(script_of(name).lines(report)) + "\n"


def checked(path: Path) -> dict[str, Any]:
    """A new report.

    Raises:
        RunError: If it cannot be read, is of no script, a trial or empty, or its script cannot make a table of it.
    """
    if path.stem.startswith("_") or not (Path(__file__).parent / f"{path.stem}.py").is_file():
        raise RunError(f"{path} is not named after a script of {Path(__file__).parent.name}/")
    try:
        report: dict[str, Any] = json.loads(path.read_text())
        if report.get("quick") or not report["rows"]:
            raise RunError(f"{path} is a trial, or has no rows")
        redrawn(path.stem, report)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is no report of {path.stem}.py ({type(error).__name__}: {error})") from error
    return report


def joined(old: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A new report of runs, with the stored rows that it lacks."""
    if "commits" not in new:
        return new
    commits = sorted({*old.get("commits", []), *new["commits"]})
    return new | {"rows": old.get("rows", {}) | new["rows"], "commits": commits}


def main(arguments: Sequence[str] | None = None) -> None:
    """Store the given reports, then write every table and picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("reports", nargs="*", type=Path, help="new reports, each named after its script")
    parser.add_argument("--results", type=Path, default=ROOT / "docs/results", help="folder of the pages")
    parser.add_argument("--pictures", type=Path, default=Path("results/published"), help="folder of the pictures")
    options = parser.parse_args(arguments)
    stored = reports_of(options.results)
    for path in options.reports:
        save_json(stored / path.name, joined(read_json(stored / path.name), checked(path)))
    for path in sorted(stored.glob("*.json")):
        report = json.loads(path.read_text())
        publish_table(options.results / f"{path.stem}.md", redrawn(path.stem, report))
        script_of(path.stem).plot(report, options.pictures / f"{path.stem}.png")
    docs = options.results.resolve().parent
    publish_table(docs / "papers.md", page(stored))
    publish_table(docs / "verdicts.md", verdicts(stored))
    publish_table(docs.parent / "RESULTS.md", first_page(stored))
    publish_table(docs.parent / "README.md", choices(stored))


if __name__ == "__main__":
    start(main)
