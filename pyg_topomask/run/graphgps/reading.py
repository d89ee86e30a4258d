"""Read an experiment from a config, and run it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config.load import ConfigSource, ParsedConfig, load
from pyg_topomask.run.graphgps.experiment import ConfigExperiment, experiment_of
from pyg_topomask.run.graphgps.formats import dataset_problems
from pyg_topomask.run.graphgps.saved import read_config
from pyg_topomask.run.output.progress import Display


def read(source: ConfigSource, overrides: Sequence[str] = (), name: str = "config") -> ConfigExperiment:
    """The experiment that a config describes, after its model was built and tried on a fake graph.

    Args:
        source: A YAML file, a nested mapping, or a :class:`~pyg_topomask.run.Config`.
        overrides: ``"key=value"`` entries, or ``"key", "value"`` pairs.
        name: Name of the experiment if ``source`` is not a file.

    Raises:
        ConfigError: If the config cannot be run; the message says what to change.
    """
    return experiment_of(*check_config(source, overrides, name))


def read_data(source: ConfigSource, overrides: Sequence[str] = ()) -> ConfigExperiment:
    """The same without a check of the model, for commands that need the data alone."""
    parsed = load(source, overrides)
    parsed.refuse(dataset_problems(parsed.config.dataset))
    return experiment_of(parsed)


def finished(folder: Path) -> ConfigExperiment:
    """The experiment of a seed that was run, from its folder.

    Raises:
        RunError: If its file is missing, damaged or from another version.
    """
    return experiment_of(ParsedConfig(read_config(folder / "config.yaml"), folder.name))


def run_config(
    source: ConfigSource,
    out: str | Path | None = None,
    repeat: int = 1,
    overrides: Sequence[str] = (),
    name: str = "config",
    display: Display | None = None,
) -> dict[str, Any]:
    """``read(source, overrides, name).run(out, repeat)``: see :func:`read` and :meth:`Experiment.run`."""
    return read(source, overrides, name).run(out, repeat, display=display)
