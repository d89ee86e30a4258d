"""``topomask expressivity``: which pairs of a config's graphs encodings help to distinguish."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Group
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform

from pyg_topomask.expressivity import PairReport, pairs
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.reading import ConfigExperiment, read_data
from pyg_topomask.run.output.progress import Display, error_output, standard_output
from pyg_topomask.run.output.report import titled_table

ENCODINGS: dict[str, Callable[[int], BaseTransform | None]] = {
    "none": lambda size: None,
    "rwse": lambda size: AddRandomWalkPE(walk_length=size),
    "lappe": lambda size: AddLaplacianEigenvectorPE(k=size),
}
"""Transform by the name of the encoding, as a function of the number of steps or eigenvectors."""

_CAPTION = """\
An upper bound for models whose attention reads only node features; attention with a mask may distinguish more pairs."""


def main(arguments: Namespace, overrides: Sequence[str]) -> None:
    """Run the command."""
    experiment = read_data(arguments.config, overrides)
    with Display(error_output()) as display, display.working("comparing graphs"):
        report = measure(experiment, arguments.encoding, arguments.size, arguments.limit, arguments.rounds)
    standard_output().print(expressivity_table(report, arguments.encoding, Path(arguments.config).stem))


def measure(
    experiment: ConfigExperiment, encoding: str, size: int = 8, limit: int | None = None, rounds: int | None = None
) -> PairReport:
    """Count the pairs of graphs in a config's data set that the features of its model distinguish.

    The config's attention is not used: the counts hold for attention that reads only node features.

    Args:
        experiment: The experiment of the config.
        encoding: ``"none"``, ``"rwse"`` or ``"lappe"``.
        size: Number of steps of the random walk, or of eigenvectors.
        limit: Number of graphs, from the first; all if :obj:`None`.
        rounds: Number of rounds of refinement; until no colour splits if :obj:`None`.

    Raises:
        RunError: If a setting is wrong; the message says what to change.
    """
    for name, value, least in (("--size", size, 1), ("--limit", limit, 2), ("--rounds", rounds, 0)):
        if value is not None and value < least:
            raise RunError(f"{name} must be at least {least} (got {value})")
    if experiment.config.dataset.level != "graph":
        experiment.refuse([("dataset.task", "pairs of graphs are compared, but the task is not about whole graphs")])
    dataset, features = experiment.data.load().graphs, experiment.data.features
    count = len(dataset) if limit is None else min(limit, len(dataset))
    try:
        graphs, transform = [features(dataset[i]) for i in range(count)], ENCODINGS[encoding](size)
        return pairs(graphs, transform, rounds)
    except (ValueError, TypeError) as error:
        raise RunError(f"dataset: {error}") from error


def expressivity_table(report: PairReport, encoding: str, name: str) -> Group:
    """The counts as a table for a terminal."""
    counts = {"all": report.num_pairs, "distinguished by features": report.apart_without}
    if encoding != "none":
        counts[f"distinguished by features and {encoding}"] = report.apart_with
    shares = [f"{100 * count / report.num_pairs:.2f} %" if report.num_pairs else "–" for count in counts.values()]
    columns = {"": list(counts), "pairs": [f"{count:,}" for count in counts.values()], "share": shares}
    return titled_table(f"{name}: {report.num_graphs:,} graphs", columns, _CAPTION)
