"""The answer of ``topomask advise`` as tables for a terminal, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pyg_topomask.run.advise.ranking import percent
from pyg_topomask.run.output.report import between_lines, fits

if TYPE_CHECKING:
    from pyg_topomask.run.advise.graph_statistics import GraphStatistics
    from pyg_topomask.run.advise.ranking import Advice
    from pyg_topomask.run.commands.advise import Report

_TEXTS = ("why", "settings")
_CAPTION = """\
Predicted from trials of {what} on this machine, fastest first. They say nothing about accuracy.
per epoch: training and validation. before: walks, edges, trees and encodings of all graphs, once. memory: {memory}."""
_EXTRAPOLATED = "~: extrapolated from smaller batches."
_BUSY = "Other programs slow this machine down by a factor of {slowdown:.1f}. Times are processor time, without them."


def as_text(report: Report, console: Console) -> Group:
    """Tables for a terminal; texts that do not fit beside the numbers become a list below them."""
    graphs = between_lines(f"{report.name}: {report.source}", _facts(report.graphs), "")
    return Group(graphs, *_encodings(report, console), _attentions(report, console))


def _facts(graphs: GraphStatistics) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column()
    least, mean, most = graphs.nodes
    several = graphs.num_graphs > 1
    table.add_row("graphs", f"{graphs.num_graphs:,}")
    table.add_row("nodes", f"{least:,} to {most:,}, mean {mean:,.1f}" if several else f"{most:,}")
    least, mean, most = graphs.edges
    table.add_row("directed edges", f"{least:,} to {most:,}, mean {mean:,.1f}" if several else f"{most:,}")
    table.add_row("out-degree", f"mean {graphs.mean_degree:.1f}, largest {graphs.max_degree:,}")
    if graphs.isolated > 0:
        table.add_row("isolated nodes", percent(graphs.isolated))
    median, longest = graphs.diameter
    found = f"median {median:g}, largest {longest}" if several else str(longest)
    notes = [f"{graphs.sampled_graphs} graphs"] if graphs.sampled_graphs < graphs.num_graphs else []
    notes += [] if graphs.is_exact else ["lower bound"]
    table.add_row("diameter", found + (f" ({', '.join(notes)})" if notes else ""))
    if graphs.homophily is not None:
        table.add_row("edge homophily", f"{graphs.homophily:.2f} of the edges connect nodes of one class")
    widths = f"{graphs.node_features:,} per node"
    table.add_row("features", widths + (f", {graphs.edge_features:,} per edge" if graphs.edge_features else ""))
    return table


def _encodings(report: Report, console: Console) -> list[Group]:
    if not report.encodings:
        return []
    rows = [row for row in report.encodings if row.share is not None]
    cells = {
        "encoding": [row.name for row in rows],
        "pairs of graphs told apart": [percent(row.share or 0.0) for row in rows],
        "time for all graphs": [duration(row.seconds) if row.settings else "" for row in rows],
        "settings": [" ".join(row.settings) for row in rows],
    }
    others = ", ".join(row.name for row in report.encodings if row.share is None)
    title = f"S-SEG-WL test of {report.compared_graphs} graphs"
    caption = "Of the pairs that are not isomorphic. An upper bound for models that read graphs by it."
    caption += f" Not comparable: {others}.\n" if others else "\n"
    return [between_lines(title, _fitting(cells, console), caption)]


def _attentions(report: Report, console: Console) -> Group:
    train, gt = report.config.train, report.config.gt
    what = f"{gt.layers} layers of width {gt.dim_hidden}"
    what += f" with batches of {train.batch_size}" if report.graphs.num_graphs > 1 else ""
    memory = "peak of tensors on the GPU" if report.on_cuda else "peak of the whole process"
    lines = [_CAPTION.format(what=what, memory=memory)]
    if any(row.prediction is not None and row.prediction.is_extrapolated for row in report.advice):
        lines.append(_EXTRAPOLATED)
    if report.clock == "processor":
        lines.append(_BUSY.format(slowdown=report.slowdown))
    title = f"attentions ({report.device}, {report.memory_mib / 1024:,.1f} GiB free)"
    return between_lines(title, _fitting(columns(report), console), "\n".join(lines))


def _fitting(cells: Mapping[str, list[str]], console: Console) -> Group:
    """One table, or, if it is too wide for the console, a table of the numbers and a list of the texts."""
    if fits(_table(cells), console):
        return Group(_table(cells))
    numbers = {name: column for name, column in cells.items() if name not in _TEXTS}
    table = _table(numbers) if fits(_table(numbers), console) else _table(numbers, lines=False)
    return Group(table, *_listed(cells))


def _listed(cells: Mapping[str, list[str]]) -> Iterator[RenderableType]:
    """A paragraph for each row that has settings: its name and reason, and below them the settings, never broken."""
    names = next(iter(cells.values()))
    for name, reason, settings in zip(names, cells.get("why", [""] * len(names)), cells["settings"]):
        if settings:
            yield Text.assemble((name, "bold"), f": {reason}" if reason else "")
            yield Text(f"  {settings}", no_wrap=True, overflow="ignore")


def _table(cells: Mapping[str, list[str]], lines: bool = True) -> Table:
    table = Table() if lines else Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for position, name in enumerate(cells):
        is_text = position == 0 or name in _TEXTS
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in zip(*cells.values()):
        table.add_row(*map(Text, row))  # brackets in names are no markup
    return table


def columns(report: Report) -> dict[str, list[str]]:
    """The cells of each column as text, by the column's name."""
    rows = report.advice
    return {
        "attention": [row.candidate.name for row in rows],
        "per epoch": [_cost(row, "epoch", report.clock) for row in rows],
        "before": [_cost(row, "prepare", report.clock) for row in rows],
        "memory": [_memory(row) for row in rows],
        "parameters": [f"{row.parameters:,}" if row.parameters else "–" for row in rows],
        "why": [why(row) for row in rows],
        "settings": [" ".join(row.candidate.settings) or "as the config is" for row in rows],
    }


def why(row: Advice) -> str:
    """The reasons of a line, after its problem if it has one."""
    problem = f"{row.status}: {' '.join(row.problem.split())}" if row.status != "fits" else ""
    return "; ".join(filter(None, [problem, *row.reasons]))


def _cost(row: Advice, name: str, clock: str) -> str:
    if row.prediction is None:
        return "–"
    return ("~" if row.prediction.is_extrapolated else "") + duration(getattr(getattr(row.prediction, name), clock))


def _memory(row: Advice) -> str:
    if row.prediction is None or row.total_mib is None:
        return "–"
    sign = "~" if row.prediction.is_extrapolated else ""
    return f"{sign}{row.total_mib:,.0f} MiB" if row.total_mib < 10_240 else f"{sign}{row.total_mib / 1024:,.0f} GiB"


def duration(seconds: float) -> str:
    """A time with two or three digits, such as ``12 ms``, ``1.5 s`` or ``3.2 h``."""
    for limit, factor, unit in (
        (1.0, 1e3, "ms"),
        (120.0, 1.0, "s"),
        (7200.0, 1 / 60, "min"),
        (math.inf, 1 / 3600, "h"),
    ):
        if seconds < limit:
            value = seconds * factor
            return f"{value:,.{1 if value < 10 else 0}f} {unit}"
    return "∞"


def as_json(report: Report) -> str:
    """All values; times in seconds, memory in MiB."""
    rows: list[dict[str, Any]] = []
    for row in report.advice:
        rows.append(
            {
                "attention": row.candidate.name,
                "settings": row.candidate.settings,
                "status": row.status,
                "problem": row.problem,
                "reasons": row.reasons,
                "parameters": row.parameters,
                "total_mib": row.total_mib,
                "prediction": _plain(row.prediction),
            }
        )
    values = {
        "dataset": report.name,
        "source": report.source,
        "device": report.device,
        "available_mib": report.memory_mib,
        "clock": report.clock,
        "slowdown": report.slowdown,
        "graphs": asdict(report.graphs),
        "encodings": [asdict(row) for row in report.encodings],
        "compared_graphs": report.compared_graphs,
        "attentions": rows,
    }
    return json.dumps(values, indent=2)


def _plain(prediction: Any) -> dict[str, Any] | None:
    if prediction is None:
        return None
    values = asdict(prediction)
    for name in ("epoch", "prepare"):
        values[name] = getattr(prediction, name)._asdict()
    return values
