"""Finished runs, found by their folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.experiment import Experiment
from pyg_topomask.run.graphgps.reading import finished
from pyg_topomask.run.output.results import read_result, read_results, seed_and_split, seed_folders


@dataclass(frozen=True)
class FinishedRun:
    """The finished seeds of one config.

    Args:
        name: Name of the config, followed by the seed if the run is a single seed's folder.
        folder: The folder that contains the seeds, or the folder of a single seed.
        experiment: The experiment of the first seed.
        results: The content of ``result.json`` by the folder of each seed, sorted by seed and split.
        unfinished: Number of seeds that have been started and have no result.
    """

    name: str
    folder: Path
    experiment: Experiment
    results: Mapping[Path, dict[str, Any]]
    unfinished: int

    def by_seed(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The results by seed and split."""
        return {seed_and_split(result): result for result in self.results.values()}


def find_run(source: str | Path) -> FinishedRun:
    """The run in a results folder, or in the folder of one seed.

    Raises:
        RunError: If there is none, or its files are damaged.
    """
    path = Path(source).expanduser()
    if not path.is_dir():
        raise RunError(f"{source} is no folder; give a results folder, or the folder of a seed")
    result = read_result(path)
    if result is not None:
        name = f"{path.resolve().parent.name}/{path.resolve().name}"
        return FinishedRun(name, path, finished(path), {path: result}, 0)
    results = read_results(path)
    if not results:
        raise RunError(f"{path} contains no finished run: there is no result.json in it, nor in a folder of a seed")
    started = sum((seed / "config.yaml").exists() for seed in seed_folders(path))
    first = finished(next(iter(results)))
    return FinishedRun(path.resolve().name, path, first, results, started - len(results))
