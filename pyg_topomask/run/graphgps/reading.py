"""Read an experiment from a config, and run it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from torch.nn import Module

from pyg_topomask.run.data.source import Sizes
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.experiment import Experiment
from pyg_topomask.run.graphgps.check import check_config, notes_of, read_valid, try_model
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.load import ConfigSource, ParsedConfig, load
from pyg_topomask.run.graphgps.formats import load_dataset
from pyg_topomask.run.graphgps.model import build_model, sized
from pyg_topomask.run.graphgps.parts import parts_of
from pyg_topomask.run.graphgps.saved import (
    compared,
    find_checkpoint,
    fitted_constants,
    load_pretrained,
    read_config,
    refuse_other_split,
    write_config,
)
from pyg_topomask.run.output.progress import Display
from pyg_topomask.run.output.results import unfinished_note


@dataclass(frozen=True)
class ConfigExperiment(Experiment):
    """An experiment that was read from a config.

    Args:
        parsed: The config and its origin.
        unused: Keys that an overridden ``gt.layer_type`` does not use.
        tensorboard: Whether curves are also written for TensorBoard.
        wandb: Owner, project and name of the runs at Weights & Biases; None if they are not logged there.
    """

    parsed: ParsedConfig = field(kw_only=True)
    unused: tuple[str, ...] = ()
    tensorboard: bool = False
    wandb: Mapping[str, str] | None = None
    is_as_read: bool = field(default=False, init=False)  # false in what dataclasses.replace makes

    record, other_record = "config.yaml", Experiment.record

    @property
    def config(self) -> Config:
        """The config."""
        return self.parsed.config

    @property
    def labels(self) -> dict[str, Any]:
        return {"layer_type": self.config.gt.layer_type, "mask": self.config.mask_name}

    @property
    def _data_differ_by_split(self) -> bool:
        return self.config.dataset.format == "PyG-GraphLandDataset"

    def at(self, seed: int, split: int | None = None) -> "ConfigExperiment":
        if not self.is_as_read:  # its runs would be those of the config, which is also what their folders record
            raise RunError(f"{self.name} was read from a config, and then changed: give the change to graphgps.read()")
        config = self.config.model_copy(update={"seed": seed})
        if split is not None:
            config = config.model_copy(update={"dataset": config.dataset.model_copy(update={"split_index": split})})
        return experiment_of(replace(self.parsed, config=config), self.unused)

    def _notes(self) -> list[str]:
        given = [key for key in self.unused if key in self.parsed.overridden]  # others may be for the file's attention
        notes = [
            *notes_of(self.parsed),
            f"{self.config.gt.layer_type} does not use {', '.join(given)}" if given else "",
        ]
        if self.config.pretrained.dir:
            refuse_other_split(self.config)
            notes.append(unfinished_note(find_checkpoint(self.config).parent))
        return [note for note in notes if note]

    def refuse(self, problems: Iterable[tuple[str, str]]) -> None:
        self.parsed.refuse(problems)

    def _record(self, folder: Path, sizes: Sizes) -> None:
        write_config(folder / self.record, sized(self.config, *sizes))

    def _fitted(self) -> Sequence[Mapping[str, Any]] | None:
        return fitted_constants(self.config) if self.config.train.is_inference else None

    def _description(self) -> dict[str, Any]:
        return compared(self.config)

    def _recorded(self, path: Path) -> dict[str, Any]:
        return compared(read_config(path))

    def _loggers(self, folder: Path, title: str, note: Callable[[str], None]) -> list[Logger]:
        """TensorBoard and Weights & Biases; the latter writes below the folder of the run.

        If ``$WANDB_MODE`` is ``offline``, it writes only there.
        """
        made: list[Callable[[], Logger]] = []
        if self.tensorboard:
            made.append(partial(TensorBoardLogger, str(folder), name="", version="tensorboard"))
        if self.wandb is not None:
            given: dict[str, Any] = {"project": self.wandb["project"], "entity": self.wandb["entity"] or None}
            values = self.config.model_dump(mode="json")
            made.append(partial(WandbLogger, self.wandb["name"] or title, str(folder), config=values, **given))
        loggers = []
        for make in made:
            try:
                loggers.append(make())
            except ModuleNotFoundError as error:
                note(f"note: the run continues without a logger that is not installed: {error}")
        return loggers


def experiment_of(parsed: ParsedConfig, unused: Iterable[str] = (), graphs: Any = None) -> ConfigExperiment:
    """The experiment that a valid config describes; on ``graphs``, if its data were loaded before."""
    parts = parts_of(parsed.config)
    parts["data"] = replace(parts["data"], graphs=graphs or parts["data"].graphs)
    build = partial(_build, parsed.config, parts.pop("start"))
    experiment = ConfigExperiment(**parts, build=build, name=parsed.name, parsed=parsed, unused=tuple(unused))
    object.__setattr__(experiment, "is_as_read", True)
    return experiment


def _build(config: Config, start: Mapping[str, bool] | None, sizes: Sizes) -> Module:
    """The model at its final width, with pretrained weights if the config names a run."""
    config = sized(config, *sizes)
    model = build_model(config, *sizes)
    if start is not None:
        load_pretrained(model, config, **start)
    return model


def read(source: ConfigSource, overrides: Sequence[str] = (), name: str = "config") -> ConfigExperiment:
    """The experiment that a config describes, after its model was built and tried on a fake graph.

    Use ``overrides`` to change it; what ``dataclasses.replace`` makes of it cannot be run.

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
    parsed.refuse(parsed.config.dataset.problems())
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
    """``read(source, overrides, name).run(out, repeat)``: see :func:`read` and :meth:`Experiment.run`.

    The first run of a config loads the data before it tries the model, so that missing data are told first.
    """
    parsed, first = read_valid(source, overrides, name), None
    if not (Path(str(out or parsed.config.out_dir)).expanduser() / parsed.name).exists():
        with display.working(f"loading {parsed.config.dataset.name}") if display else nullcontext():
            first = load_dataset(parsed.config.dataset)
    return experiment_of(*try_model(parsed), first).run(out, repeat, display=display)
