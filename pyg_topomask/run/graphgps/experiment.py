"""From a config to an experiment: its data, its model and its training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from torch.nn import Module

from pyg_topomask.run.data.loaders import Sizes
from pyg_topomask.run.data.source import Serving, Source, Split
from pyg_topomask.run.experiment import Experiment
from pyg_topomask.run.graphgps.check import notes_of
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.load import ParsedConfig
from pyg_topomask.run.graphgps.features import fitted_features, input_features
from pyg_topomask.run.graphgps.formats import load_dataset
from pyg_topomask.run.graphgps.model.attentions import mask_of
from pyg_topomask.run.graphgps.model.build import build_model, sized
from pyg_topomask.run.graphgps.model.encoders import build_encodings
from pyg_topomask.run.graphgps.model.sampling import build_sampling_transforms, key_to_set
from pyg_topomask.run.graphgps.optim import build_optimizer, build_scheduler
from pyg_topomask.run.graphgps.pretrained import find_checkpoint, load_pretrained, refuse_other_split
from pyg_topomask.run.graphgps.saved import refuse_other_runs, write_config
from pyg_topomask.run.output.report import layers_text
from pyg_topomask.run.output.results import unfinished_note
from pyg_topomask.run.training.settings import Training

_IDENTITY = ("name", "format", "task", "task_type", "num_graphs", "num_nodes", "slic_compactness", "dir")


@dataclass(frozen=True)
class ConfigExperiment(Experiment):
    """An experiment that was read from a config.

    Args:
        parsed: The config and its origin.
        unused: Keys that an overridden ``gt.layer_type`` does not use.
    """

    parsed: ParsedConfig = field(kw_only=True)
    unused: tuple[str, ...] = ()

    @property
    def config(self) -> Config:
        """The config."""
        return self.parsed.config

    @property
    def labels(self) -> dict[str, Any]:
        return {"layer_type": self.config.gt.layer_type, "mask": mask_of(self.config)}

    def at(self, seed: int, split: int | None = None) -> ConfigExperiment:
        config = self.config.model_copy(update={"seed": seed})
        if split is not None:
            config = config.model_copy(update={"dataset": config.dataset.model_copy(update={"split_index": split})})
        return experiment_of(replace(self.parsed, config=config), self.unused)

    def _notes(self) -> list[str]:
        given = [key for key in self.unused if key in self.parsed.overridden]  # others may be for the file's attention
        return [
            *notes_of(self.parsed),
            *([f"{self.config.gt.layer_type} does not use {', '.join(given)}"] if given else []),
        ]

    def _start_notes(self) -> list[str]:
        if not self.config.pretrained.dir:
            return []
        refuse_other_split(self.config)
        note = unfinished_note(find_checkpoint(self.config).parent)
        return [] if note is None else [note]

    def refuse(self, problems: Iterable[tuple[str, str]]) -> None:
        self.parsed.refuse(problems)

    def _record(self, folder: Path, sizes: Sizes) -> None:
        write_config(folder / "config.yaml", sized(self.config, *sizes))

    def _refuse_others(self, folder: Path) -> None:
        refuse_other_runs(folder, self.config)

    def _loggers(self, folder: Path, title: str, note: Callable[[str], None]) -> list[Logger]:
        """TensorBoard and Weights & Biases; the latter writes below the folder of the run.

        If ``$WANDB_MODE`` is ``offline``, it writes only there.
        """
        made: list[Callable[[], Logger]] = []
        wandb = self.config.wandb
        if self.config.tensorboard_each_run:
            made.append(partial(TensorBoardLogger, str(folder), name="", version="tensorboard"))
        if wandb.use:
            given: dict[str, Any] = {"project": wandb.project, "entity": wandb.entity or None}
            values = self.config.model_dump(mode="json")
            made.append(partial(WandbLogger, wandb.name or title, str(folder), config=values, **given))
        loggers = []
        for make in made:
            try:
                loggers.append(make())
            except ModuleNotFoundError as error:
                note(f"note: the run continues without a logger that is not installed: {error}")
        return loggers


def experiment_of(parsed: ParsedConfig, unused: Iterable[str] = ()) -> ConfigExperiment:
    """The experiment that a valid config describes."""
    config = parsed.config
    parts = source_of(config), partial(_build, config), training_of(config), parsed.name, config.seed
    more: dict[str, Any] = {"splits": tuple(config.run_multiple_splits), "out": config.out_dir}
    return ConfigExperiment(*parts, **more, parsed=parsed, unused=tuple(unused))


def _build(config: Config, sizes: Sizes) -> Module:
    """The model at its final width, with pretrained weights if the config names a run."""
    config = sized(config, *sizes)
    model = build_model(config, *sizes)
    if config.pretrained.dir:
        load_pretrained(model, config)
    return model


def source_of(config: Config) -> Source:
    """The data of a config, how they are prepared, split and served."""
    data = config.dataset
    return Source(
        partial(load_dataset, data),
        name=data.name,
        features=input_features(config),
        encodings=build_encodings(config),
        draws=partial(build_sampling_transforms, config),
        fitted=fitted_features(config),
        split=Split(data.split_mode, data.split, data.split_index, data.split_seed, data.split_dir),
        serving=serving_of(config),
        follows_attention=config.topomask.transition == "attention",
        title=layers_text(config.gt.layer_type, mask_of(config)),
        hint=partial(key_to_set, config=config),
        identity={f"dataset.{key}": getattr(data, key) for key in _IDENTITY},
    )


def serving_of(config: Config) -> Serving:
    """How the data are put into batches."""
    train = config.train
    return Serving(
        batch_size=train.batch_size, shuffle=train.shuffle, num_workers=config.num_workers, sampler=train.sampler,
        num_parts=train.num_parts, neighbor_sizes=train.neighbor_sizes, max_nodes=train.max_nodes,
        evaluation=config.val.sampler, redraw=config.topomask.redraw,
    )  # fmt: skip


def training_of(config: Config) -> Training:
    """How the model of a config is trained."""
    train, optim = config.train, config.optim
    return Training(
        loss=config.model.loss_fun,
        metric=config.metric_best,
        epochs=optim.max_epoch,
        optimizer=partial(build_optimizer, config),
        scheduler=partial(build_scheduler, config),
        clip=optim.clip_grad_norm_value if optim.clip_grad_norm else None,
        accumulation=optim.batch_accumulation,
        eval_period=train.eval_period,
        ckpt_period=train.ckpt_period,
        patience=train.early_stop_patience,
        auxiliary=config.topomask.eta,
        accelerator=config.accelerator,
        precision=config.precision,
        compile=config.compile,
        inference=train.is_inference,
        submission=train.mode == "PCQM4Mv2-inference",
    )
