"""Checkpoints: read as data only, and checked before use."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.nn import Module

from pyg_topomask import __version__
from pyg_topomask.run.errors import RunError
from pyg_topomask.tensor_files import UnreadableFileError, load_tensors

BEST, LAST = "best.ckpt", "last.ckpt"

OURS = "topomask"
"""Key of a checkpoint with the number of its format, the version that wrote it, and a description of the data."""

FORMAT = 1
"""Number of the format of checkpoints; it increases when older checkpoints can no longer be used."""


def read_checkpoint(path: Path, advice: str, key: str = "") -> dict[str, Any]:
    """Read a checkpoint of this format.

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
    ours = found.get(OURS) if isinstance(found, dict) else None
    if not isinstance(ours, dict):
        raise RunError(f"{name} is damaged (it is no checkpoint of pyg_topomask); {advice}")
    if ours["format"] != FORMAT:
        todo = "update pyg_topomask" if ours["format"] > FORMAT else "train that run again in another folder (--out)"
        raise RunError(
            f"{name} has format {ours['format']}, and pyg_topomask {__version__} reads format {FORMAT}; {todo}, or "
            f"install version {ours['version']}, which wrote it"
        )
    return found


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
        RunError: If names or shapes differ.
    """
    own = module.state_dict()
    wrong = sorted(own.keys() ^ weights.keys())
    wrong += [name for name in own if name in weights and _shape(own[name]) != _shape(weights[name])]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise RunError(f"{origin} is of another model ({', '.join(wrong[:3])}{more} differ); {advice}")
    module.load_state_dict(weights)


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)


def epochs_done(folder: Path) -> int:
    """Number of epochs that an interrupted run has trained; 0 if it starts from the beginning.

    Raises:
        RunError: If its checkpoints are damaged.
    """
    if not ((folder / LAST).exists() and (folder / BEST).exists()):
        return 0
    advice = "delete it to train that seed from the start"
    read_checkpoint(folder / BEST, advice)
    return read_checkpoint(folder / LAST, advice)["epoch"] + 1
