"""Weights of a finished run to start from."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
import yaml
from pydantic import ValidationError
from torch.nn import Module

from pyg_topomask.run.config import Config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.model.budget import with_width

HEAD = "head."


_OF_THE_MODEL = ("gt", "gnn", "topomask", "prep", "graphormer")
"""Sections, beside the encodings', that describe a model."""


def has_run(config: Config) -> bool:
    """Whether ``pretrained.dir`` holds a run."""
    return _checkpoint(config) is not None


def _checkpoint(config: Config) -> Path | None:
    folder = Path(config.pretrained.dir).expanduser()
    found = [folder / "best.ckpt", folder / str(config.seed) / "best.ckpt", *sorted(folder.glob("*/best.ckpt"))]
    return next((path for path in found if path.is_file()), None)


def with_model_of(config: Config) -> Config:
    """The config, with those sections on the model that it lacks from the run in ``pretrained.dir``, as in GraphGPS.

    Raises:
        RunError: If that run has no readable config.
    """
    path = find_checkpoint(config).parent / "config.yaml"
    try:
        theirs = Config.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"pretrained.dir: {path} is missing, damaged or of another version ({reason})") from None
    names = [name for name in type(config).model_fields if name in _OF_THE_MODEL or name.startswith("posenc_")]
    made = config.model_copy(
        update={name: getattr(theirs, name) for name in names if name not in config.model_fields_set}
    )
    return with_width(made, theirs.gt.dim_hidden) if made.model.auto_satisfy_param_budget else made


def find_checkpoint(config: Config) -> Path:
    """Best checkpoint of the run in ``pretrained.dir``: of the same seed, else of the first.

    Raises:
        RunError: If there is none.
    """
    folder, path = Path(config.pretrained.dir).expanduser(), _checkpoint(config)
    if path is None:
        raise RunError(f"pretrained.dir: {folder} holds no run: neither best.ckpt nor <seed>/best.ckpt is there")
    return path


def load_pretrained(model: Module, config: Config) -> None:
    """Give a model the weights of ``pretrained.dir``, in place.

    With ``reset_prediction_head`` the head keeps its fresh weights, but not where nothing is trained; with
    ``freeze_main`` all but the head is left out of training.

    Raises:
        RunError: If the checkpoint is damaged or of another model.
    """
    path = find_checkpoint(config)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except (OSError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise RunError(f"pretrained.dir: {path} is damaged ({str(error).partition(chr(10))[0]})") from None
    weights = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    own = model.state_dict()
    if config.pretrained.reset_prediction_head and not config.train.is_inference:
        weights = {name: value for name, value in weights.items() if not name.startswith(HEAD)}
        weights |= {name: value for name, value in own.items() if name.startswith(HEAD)}
    wrong = sorted(own.keys() ^ weights.keys())
    wrong += [name for name in own if name in weights and own[name].shape != weights[name].shape]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise RunError(
            f"pretrained.dir: {path} is of another model: {', '.join(wrong[:3])}{more} differ; gt, gnn and the "
            "encoders must be as in that run's config.yaml"
        )
    model.load_state_dict(weights)
    if config.pretrained.freeze_main:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(HEAD))
