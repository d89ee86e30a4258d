"""``topomask expressivity``: which pairs of a config's graphs can be distinguished, without and with encodings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform

from pyg_topomask.expressivity import PairReport, pairs
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.features import input_features
from pyg_topomask.run.data.formats import dataset_problems, load_dataset
from pyg_topomask.run.errors import RunError, did_you_mean

ENCODINGS: dict[str, Callable[[int], BaseTransform | None]] = {
    "none": lambda size: None,
    "rwse": lambda size: AddRandomWalkPE(walk_length=size),
    "lappe": lambda size: AddLaplacianEigenvectorPE(k=size),
}
"""Transforms by the name of the encoding, as functions of the number of steps or eigenvectors."""

SHOWN_CLASSES, SHOWN_GRAPHS = 5, 8


def measure(
    config: str | Path,
    encoding: str = "rwse",
    size: int = 8,
    limit: int | None = None,
    rounds: int | None = None,
    overrides: Sequence[str] = (),
) -> PairReport:
    """Count the pairs of graphs in a config's data set that the features of its model distinguish.

    The config's attention is not used: the counts hold for attention that reads only node features.

    Args:
        config: YAML file.
        encoding: ``"none"``, ``"rwse"`` or ``"lappe"``.
        size: Number of steps of the random walk, or of eigenvectors.
        limit: Number of graphs, from the first; all if :obj:`None`.
        rounds: Number of rounds of refinement; until no colour splits if :obj:`None`.
        overrides: Settings that override the file's.

    Raises:
        RunError: If a setting is wrong; the message says what to change.
    """
    if encoding not in ENCODINGS:
        choices = ", ".join(ENCODINGS)
        raise RunError(f"--encoding must be one of {choices} (got {encoding!r})." + did_you_mean(encoding, ENCODINGS))
    for name, value, least in (("--size", size, 1), ("--limit", limit, 2), ("--rounds", rounds, 0)):
        if value is not None and value < least:
            raise RunError(f"{name} must be at least {least} (got {value})")
    parsed = load(config, overrides)
    parsed.refuse(dataset_problems(parsed.config.dataset))
    if parsed.config.dataset.task != "graph":
        parsed.refuse([("dataset.task", "pairs of graphs are compared, but the task is not about whole graphs")])
    dataset = load_dataset(parsed.config.dataset).graphs
    features = input_features(parsed.config)
    count = len(dataset) if limit is None else min(limit, len(dataset))
    try:
        return pairs([features(dataset[i]) for i in range(count)], ENCODINGS[encoding](size), rounds)
    except ValueError as error:
        raise RunError(f"dataset: {error}") from error


def expressivity_table(report: PairReport, encoding: str, name: str) -> Table:
    """The counts as a table for a terminal."""
    table = Table(title=f"{name}: {report.num_graphs:,} graphs", title_justify="left")
    table.add_column("")
    table.add_column("pairs", justify="right")
    table.add_column("of non-isomorphic", justify="right")
    table.add_row("all", f"{report.num_pairs:,}", "")
    table.add_row("isomorphic", f"{report.isomorphic:,}", "")
    if report.undecided:
        table.add_row("undecided", f"{report.undecided:,}", "")
    table.add_row("non-isomorphic", f"{report.non_isomorphic:,}", _share(report.non_isomorphic, report))
    table.add_row("distinguished by features", f"{report.apart_without:,}", _share(report.apart_without, report))
    if encoding != "none":
        table.add_row(
            f"distinguished by features and {encoding}", f"{report.apart_with:,}", _share(report.apart_with, report)
        )
    lines = [
        "An upper bound for models whose attention reads only node features; attention with a mask may distinguish "
        "more pairs (mask= of pyg_topomask.expressivity.distinguishes).",
    ]
    classes = sorted(report.classes_with, key=len, reverse=True)
    if classes:
        lines += ["graphs that are not distinguished:", *(_class_line(members) for members in classes[:SHOWN_CLASSES])]
        lines += [f"and {len(classes) - SHOWN_CLASSES} more"] if len(classes) > SHOWN_CLASSES else []
    table.caption, table.caption_justify = "\n".join(lines), "left"
    return table


def _share(count: int, report: PairReport) -> str:
    return f"{100 * count / report.non_isomorphic:.2f} %" if report.non_isomorphic else "–"


def _class_line(members: Sequence[int]) -> str:
    shown = ", ".join(map(str, members[:SHOWN_GRAPHS]))
    return f"  {shown}" + (f", … ({len(members)})" if len(members) > SHOWN_GRAPHS else "")
