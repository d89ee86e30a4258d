"""Weights of a finished run to start from."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from torch.nn import Module

from pyg_topomask.run.config import Config
from pyg_topomask.run.errors import RunError

HEAD = "head."


def find_checkpoint(config: Config) -> Path:
    """Best checkpoint of the run in ``pretrained.dir``: of the same seed, else of the first.

    Raises:
        RunError: If there is none.
    """
    folder = Path(config.pretrained.dir).expanduser()
    found = [folder / "best.ckpt", folder / str(config.seed) / "best.ckpt", *sorted(folder.glob("*/best.ckpt"))]
    path = next((path for path in found if path.is_file()), None)
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
