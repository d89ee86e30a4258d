"""A comparison of runs as a table for a terminal, as Markdown or as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pyg_topomask.run.output.report import DEVIATION, PERCENT, between_lines, fits, format_metric, rounded

if TYPE_CHECKING:
    from pyg_topomask.run.commands.compare import Comparison, Row

_COSTS = ("parameters", "wall s/epoch", "memory MiB", "CUDA MiB")
"""Columns that move to a second table if the terminal is narrow."""


def title(comparison: Comparison) -> str:
    """What the table shows."""
    return f"{comparison.dataset}: mean ± {DEVIATION} over {comparison.kind}, at the best validation epoch"


def caption(comparison: Comparison) -> list[str]:
    """How to read the table, a line each."""
    lines = [f"{'Higher' if comparison.best_is_max else 'Lower'} is better."]
    if len(comparison.rows) > 1:
        shared = f"Differences to {comparison.baseline} are over shared {comparison.kind}"
        lines[0] += f" {shared}; intervals are of a paired t-test."
    return [*lines, *comparison.notes]


def columns(comparison: Comparison) -> dict[str, list[str]]:
    """The cells of each column as text, by the column's name."""
    rows, metric = comparison.rows, comparison.metric
    unit, points = (" (%)", " (points)") if metric in PERCENT else ("", "")
    found = {
        "run": [row.name for row in rows],
        comparison.kind: [str(row.seeds) for row in rows],
        f"test {metric}{unit}": [format_metric(metric, row.mean, row.std) for row in rows],
    }
    if len(rows) > 1:
        found[f"difference{points}"] = [_difference(comparison, row) for row in rows]
        found["95 % interval"] = [_interval(metric, row) for row in rows]
    found["parameters"] = [f"{row.parameters:,}" for row in rows]
    found["wall s/epoch"] = [f"{row.seconds_per_epoch:.{3 if row.seconds_per_epoch < 1 else 1}f}" for row in rows]
    found["memory MiB"] = [_whole(row.memory_mib) for row in rows]
    found["CUDA MiB"] = [_whole(row.cuda_mib) for row in rows]
    return {name: cells for name, cells in found.items() if "MiB" not in name or any(cell != "–" for cell in cells)}


def _difference(comparison: Comparison, row: Row) -> str:
    if row.name == comparison.baseline:
        return "baseline"
    return "–" if row.difference is None else signed(comparison.metric, row.difference)


def _interval(metric: str, row: Row) -> str:
    return "–" if row.low is None or row.high is None else f"{signed(metric, row.low)} to {signed(metric, row.high)}"


def signed(metric: str, value: float) -> str:
    """A difference of two values of a metric, with its sign."""
    text = format_metric(metric, value).replace("-", "−")
    return text if text.startswith("−") else f"+{text}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def as_text(comparison: Comparison, console: Console) -> Group:
    """The table for a terminal; two tables, of results and of costs, if one is too wide for it."""
    cells = columns(comparison)
    tables = [_table(cells)]
    if not fits(tables[0], console):
        results = {name: column for name, column in cells.items() if name not in _COSTS}
        costs = {name: column for name, column in cells.items() if name in ("run", *_COSTS)}
        tables = [_table(results), _table(costs)]
    return between_lines(title(comparison), Group(*tables), "\n".join(caption(comparison)))


def _table(cells: Mapping[str, list[str]]) -> Table:
    table = Table()
    for name in cells:
        is_name = name == "run"
        table.add_column(
            name.replace(" (", "\n("), justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name
        )
    for row in zip(*cells.values()):
        table.add_row(*map(Text, row))  # brackets in names are no markup
    return table


def as_markdown(comparison: Comparison) -> str:
    """The table in Markdown."""
    cells = columns(comparison)
    lines = [list(cells), ["---", *["---:"] * (len(cells) - 1)], *map(list, zip(*cells.values()))]
    table = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    return "\n".join([title(comparison), "", *table, "", " ".join(caption(comparison))])


def as_csv(comparison: Comparison) -> str:
    """All values with 8 digits, not in percent; cells of values that do not exist are empty."""
    text = io.StringIO()
    rows = [asdict(row) for row in comparison.rows]
    common = {"metric": f"test_{comparison.metric}", "baseline": comparison.baseline}
    writer = csv.DictWriter(text, [*rows[0], *common], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: rounded(value) if isinstance(value, float) else value for name, value in row.items()}
        writer.writerow(cells | common)
    return text.getvalue().rstrip("\n")
