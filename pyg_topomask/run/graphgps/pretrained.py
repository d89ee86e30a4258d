"""Starting from the weights of a finished run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from torch.nn import Module

from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.formats import plain_name, split_of
from pyg_topomask.run.graphgps.model.build import with_width
from pyg_topomask.run.graphgps.saved import differences, read_config
from pyg_topomask.run.output.results import seed_folders
from pyg_topomask.run.training.checkpoint import BEST, load_weights, model_weights, read_checkpoint

HEAD = "head."

Part = TypeVar("Part", bound=BaseModel)
"""A config, or a section of it."""

_OF_THE_MODEL = ("model", "gt", "gnn", "topomask", "prep", "graphormer")
"""Sections that describe a model, in addition to those of the encodings."""


def has_run(config: Config) -> bool:
    """Whether ``pretrained.dir`` contains a run."""
    return _checkpoint(config) is not None


def _checkpoint(config: Config) -> Path | None:
    folder, seed = Path(config.pretrained.dir).expanduser(), str(config.seed)
    same_split = folder / f"{seed}-split{config.dataset.split_index}" / BEST
    found = [folder / BEST, same_split, folder / seed / BEST, *(seed / BEST for seed in seed_folders(folder))]
    return next((path for path in found if path.is_file()), None)


def with_model_of(config: Config) -> Config:
    """The config with missing keys about the model copied from the run in ``pretrained.dir``.

    Raises:
        RunError: If that run has no readable config.
    """
    try:
        finished = read_config(find_checkpoint(config).parent / "config.yaml")
    except RunError as error:
        raise RunError(f"pretrained.dir: {error}") from None
    names = [name for name in type(config).model_fields if name in _OF_THE_MODEL or name.startswith("posenc_")]
    completed = _completed(config, finished, names)
    return with_width(completed, finished.gt.dim_hidden) if completed.model.auto_satisfy_param_budget else completed


def _completed(given: Part, finished: BaseModel, names: Iterable[str]) -> Part:
    """A section or config in which those of the keys ``names`` that were not given are as in the ``finished`` one.

    Keys that neither of them gives stay so, because defaults of some keys depend on the attention.
    """
    copied: dict[str, Any] = {}
    for name in finished.model_fields_set.intersection(names):
        value = getattr(finished, name)
        if name not in given.model_fields_set:
            copied[name] = value
        elif isinstance(value, BaseModel):
            copied[name] = _completed(getattr(given, name), value, type(value).model_fields)
    return given.model_copy(update=copied)


def find_checkpoint(config: Config) -> Path:
    """Path of the best checkpoint in ``pretrained.dir``: of the same seed and split, else of the first seed.

    Raises:
        RunError: If there is none.
    """
    folder, path = Path(config.pretrained.dir).expanduser(), _checkpoint(config)
    if path is None:
        raise RunError(f"pretrained.dir: {folder} contains no run: neither best.ckpt nor <seed>/best.ckpt exists")
    return path


def refuse_other_split(config: Config) -> None:
    """Refuse a run on the same data set with another split, whose training graphs would be tested.

    Raises:
        RunError: If ``pretrained.dir`` contains such a run, or none.
    """
    path = find_checkpoint(config)
    finished = read_config(path.parent / "config.yaml")
    here, there = config.dataset, finished.dataset
    if (here.format, plain_name(here)) != (there.format, plain_name(there)):  # names have several spellings
        return
    other = differences(_split_of(config), _split_of(finished))
    if other:
        raise RunError(
            f"pretrained.dir: {path.parent} was trained on another split of {config.dataset.name} "
            f"({', '.join(other)}), so its training set may be tested; give a run with this split, or choose its"
        )


def _split_of(config: Config) -> dict[str, Any]:
    """The keys that decide the split of a run, with their values."""
    found = split_of(config.dataset).settings | {"dataset.split_index": config.dataset.split_index}
    if found.get("dataset.split_seed", 0) is None:
        found["dataset.split_seed"] = config.seed
    return found


def load_pretrained(model: Module, config: Config, reset: bool, freeze: bool) -> None:
    """Load the weights of ``pretrained.dir`` into a model, in place.

    With ``reset`` the head keeps its initial weights, unless the run is for inference. With
    ``freeze`` only the head is trained.

    Raises:
        RunError: If the checkpoint is damaged or belongs to another model.
    """
    path = find_checkpoint(config)
    weights = model_weights(read_checkpoint(path, "choose a finished run", "pretrained.dir"))
    own = model.state_dict()
    if reset and not config.train.is_inference:
        weights = {name: value for name, value in weights.items() if not name.startswith(HEAD)}
        weights |= {name: value for name, value in own.items() if name.startswith(HEAD)}
    advice = "gt, gnn and the encoders must be those of that run's config.yaml"
    load_weights(model, weights, f"pretrained.dir: {path}", advice)
    if freeze:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(HEAD))
