"""Finished runs by their folders: their results, and the trained model with the transform that prepares its graphs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import Module
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.nn import redraw_walks
from pyg_topomask.run.data.source import width
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.experiment import Experiment
from pyg_topomask.run.graphgps.check import name_problems
from pyg_topomask.run.graphgps.model import build_model
from pyg_topomask.run.graphgps.reading import finished
from pyg_topomask.run.graphgps.saved import IMPORT_ADVICE
from pyg_topomask.run.output.results import read_result, read_results, seed_and_split, seed_folders
from pyg_topomask.run.task import Task
from pyg_topomask.run.training.checkpoint import BEST, OURS, load_weights, model_weights, read_checkpoint
from pyg_topomask.transforms import AddRandomWalks


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


class TrainedModel(NamedTuple):
    """A trained model and its transform, used as ``model(transform(data))``.

    Args:
        model: The model on the CPU, in evaluation mode. It returns logits, or the values of a regression: a row for
            each graph, node, or column of ``edge_label_index``.
        transform: Prepares a graph as the run did: features, encodings, walks.
    """

    model: Module
    transform: "RunTransform"


def load(folder: str | Path) -> TrainedModel:
    """See :func:`pyg_topomask.load`."""
    seed = seed_folder(Path(folder).expanduser())
    experiment = finished(seed)
    for key, problem in name_problems(experiment.config):
        raise RunError(f"{seed / 'config.yaml'}: {key}: {problem} If it is your own, {IMPORT_ADVICE}")
    saved = read_checkpoint(seed / BEST, "train that seed again")
    data = saved[OURS]["data"]
    task = Task(**data["task"])
    sizes = data["in_channels"], task.num_outputs, data["edge_channels"], task.level
    fitted = [cls(constants) for cls, constants in zip(experiment.data.fitted, data["fitted"], strict=True)]
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced
        model = build_model(experiment.config, *sizes).eval()
    advice = f"{seed / 'config.yaml'} must be the file that the run has written"
    load_weights(model, model_weights(saved), str(seed / BEST), advice)
    widths = {"x": data["in_channels"], "edge_attr": data["edge_channels"]}
    return TrainedModel(model, RunTransform(experiment, task, fitted, widths, model))


def seed_folder(folder: Path) -> Path:
    """The folder itself if it has a trained model, else that of its only seed.

    Raises:
        RunError: If there is none, or there are several.
    """
    if (folder / BEST).exists():
        return folder
    if not folder.exists():
        raise RunError(f"{folder} does not exist; give the folder of a run")
    found = [seed for seed in seed_folders(folder) if (seed / BEST).exists()]
    if len(found) == 1:
        return found[0]
    if not found:
        raise RunError(f"{folder} contains no trained model: neither {BEST} nor <seed>/{BEST} exists")
    names = ", ".join(path.name for path in found)
    raise RunError(f"{folder} contains several seeds ({names}); choose one, such as {found[0]}")


class RunTransform(BaseTransform):
    """Prepares a graph as a run does: features, encodings, and the walks or edges that attentions and masks need.

    Random draws are those of the run's evaluations: a function of the run's seed and the graph. A graph may have
    targets, which are kept. The graph itself is not changed.

    Args:
        experiment: The experiment of the run.
        task: What the model predicts.
        fitted: Transforms with the constants of the training graphs.
        widths: Number of columns of ``x`` and ``edge_attr`` that the model takes; None without edge features.
        model: The model, whose attention the walks follow if ``topomask.transition`` is ``attention``.
    """

    def __init__(
        self, experiment: Experiment, task: Task, fitted: list[Any], widths: dict[str, int | None], model: Module
    ) -> None:
        self.experiment, self.task, self.widths, self.model = experiment, task, widths, model
        self.source = experiment.data
        self.features = Compose([self.source.features, *fitted])
        self.sampling = self.source.draws(experiment.seed)

    def forward(self, data: Data) -> Data:
        """The prepared graph."""
        data = self.encoded(data)
        with self.source.refusing():
            data = Compose(self.sampling)(data)
        return self._follow_attention(data) if self.source.follows_attention else data

    def encoded(self, data: Data) -> Data:
        """The graph with features and encodings, without walks and edges."""
        data = self.features(data)
        self._check_widths(data)
        with self.source.refusing():
            return Compose(list(self.source.encodings))(data)

    def _check_widths(self, data: Data) -> None:
        for name, expected in self.widths.items():
            found = width(data.get(name))
            if (found or 1) != (expected or 1):
                raise ValueError(
                    f"'{name}' must have {expected} columns, as in training (got {found}). Is the graph from "
                    f"{self.source.identity['dataset.format']} {self.source.name}, and does it have all features?"
                )

    def _follow_attention(self, data: Data) -> Data:
        walks = next(step for step in self.sampling if isinstance(step, AddRandomWalks))
        layer = next(part for part in self.model.modules() if hasattr(part, "edge_attention"))
        device = next(self.model.parameters()).device
        return redraw_walks([data], walks, 0, layer, lambda batch: self.model(batch.to(device)), batch_size=1)[0]
