"""Checkpoints: written atomically, read as data only, and checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor
from torch.nn import Module

from pyg_topomask import __version__
from pyg_topomask.run.errors import RunError
from pyg_topomask.tensor_files import UnreadableFileError, load_tensors, reason_of, save_tensors

BEST, LAST = "best.ckpt", "last.ckpt"

OURS = "topomask"
"""Key of a checkpoint with the number of its format, the version that wrote it, and a description of the data."""

FORMAT = 1
"""Number of the format of checkpoints; it increases when older checkpoints can no longer be used."""


class CheckpointFiles(TorchCheckpointIO):
    """Lightning's plugin for files: writes checkpoints completely or not at all, and executes nothing from them."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint."""
        save_tensors(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint onto the CPU."""
        return load_tensors(Path(path))


def read_checkpoint(path: Path, advice: str, key: str = "") -> dict[str, Any]:
    """Read a checkpoint and check its format, its weights (``state_dict``) and the number of their ``epoch``.

    Args:
        path: The file.
        advice: What to do if the file is unusable, for messages.
        key: The setting that gave the path, for messages.

    Raises:
        RunError: If the file is missing, damaged, not a checkpoint, or of an older or newer format.
    """
    name = f"{key}: {path}" if key else str(path)
    try:
        found = load_tensors(path)
    except FileNotFoundError:
        raise RunError(f"{name} does not exist; {advice}") from None
    except UnreadableFileError as error:
        reason = str(error).removeprefix(f"{path} cannot be read: ")
        raise RunError(f"{name} is damaged ({reason}); {advice}") from None
    weights = found.get("state_dict") if isinstance(found, dict) else None
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and (isinstance(value, Tensor) or name.endswith("_extra_state"))
        for name, value in weights.items()
    ):
        raise RunError(f"{name} is damaged (it contains no weights); {advice}")
    if type(found.get("epoch")) is not int or found["epoch"] < 0:
        raise RunError(f"{name} is damaged (its epoch is {found.get('epoch')!r}); {advice}")
    _refuse_other_format(found.get(OURS), name)
    return found


def _refuse_other_format(ours: Any, name: str) -> None:
    found = ours if isinstance(ours, dict) else {}
    number = found.get("format")
    if number == FORMAT:
        return
    which = "no format number, like those of older versions" if number is None else f"format {number}"
    newer = isinstance(number, int) and number > FORMAT
    todo = "update pyg_topomask" if newer else "train that run again in another folder (--out)"
    writer = f", or install version {found['version']}, which wrote it" if "version" in found else ""
    raise RunError(f"{name} has {which}, and pyg_topomask {__version__} reads format {FORMAT}; {todo}{writer}")


def model_weights(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Weights of the model of a :class:`~pyg_topomask.run.training.lightning_module.GraphModule`, by their names."""
    prefix, weights = "model.", checkpoint["state_dict"]
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def load_weights(module: Module, weights: Mapping[str, Any], origin: str, advice: str) -> None:
    """Load the weights of a checkpoint into a module, in place.

    Args:
        module: The module.
        weights: Its ``state_dict``.
        origin: The file and the key that gave its path, for messages.
        advice: What to do if the weights do not fit, for messages.

    Raises:
        RunError: If names, shapes or kinds of numbers differ, or a value is wrong.
    """
    wrong = differences(module.state_dict(), weights)
    try:
        if not wrong:
            module.load_state_dict(weights)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
        wrong = f"{type(error).__name__}: {reason_of(error)}"
    if wrong:
        raise RunError(f"{origin} is of another model ({wrong}); {advice}")


def differences(own: Mapping[str, Any], weights: Mapping[str, Any]) -> str:
    """Text with the first three weights that only one of a model and a checkpoint has, or whose forms differ."""
    wrong = sorted(own.keys() ^ weights.keys())
    wrong += [name for name in own if name in weights and _form(own[name]) != _form(weights[name])]
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"{', '.join(wrong[:3])}{more} differ" if wrong else ""


def epochs_done(folder: Path, own: Mapping[str, Any], max_epoch: int, eval_period: int = 1) -> int:
    """Number of epochs that an interrupted run has trained; 0 if it starts from the beginning.

    Args:
        folder: Folder of the seed.
        own: Weights of the model to be trained.
        max_epoch: Number of epochs of the run.
        eval_period: Number of epochs from one evaluation to the next.

    Raises:
        RunError: If the checkpoints are damaged, or belong to another model.
    """
    if not ((folder / LAST).exists() and (folder / BEST).exists()):
        return 0
    done = 0
    for name in (BEST, LAST):
        path, advice = folder / name, "delete it to train that seed from the start"
        found = read_checkpoint(path, advice)
        done = found["epoch"] + 1
        wrong = differences(own, found["state_dict"])
        if done > max_epoch:
            wrong = f"after {done} epochs of {max_epoch}"
        elif name == LAST and not _can_be_resumed(found):
            wrong = "the state of the training is missing"
        elif name == LAST and not _is_record(found["callbacks"]["Recorder"], done, eval_period):
            wrong = "the metrics of an epoch are missing"
        if wrong:
            raise RunError(f"{path} is damaged, or of another run ({wrong}); {advice}")
    return done


def _form(value: Any) -> Any:
    """Shape and kind of numbers of a tensor. Floats of another precision are converted, other numbers are not."""
    if not isinstance(value, Tensor):
        return type(value)
    return value.shape, "float" if value.is_floating_point() else value.dtype


def _can_be_resumed(found: dict[str, Any]) -> bool:
    callbacks = found.get("callbacks")
    recorded = isinstance(callbacks, dict) and isinstance(callbacks.get("Recorder"), dict)
    return recorded and all(name in found for name in ("optimizer_states", "lr_schedulers", "loops"))


def _is_record(state: dict[str, Any], done: int, eval_period: int) -> bool:
    """Whether the recorder's rows are those of the epochs evaluated so far."""
    rows = state.get("rows")
    epochs = [row.get("epoch") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else None
    return epochs == list(range(eval_period - 1, done, eval_period))
