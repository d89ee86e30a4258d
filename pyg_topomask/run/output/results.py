"""Results of runs in an output folder, and what they depend on beside their configs."""

import math
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
import torch_geometric
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from pyg_topomask.run.errors import RunError

_SEED_FOLDER = re.compile(r"\d+(-split\d+)?", re.ASCII)
"""Name of the folder of a seed, or of a split of it."""

EXPERIMENT = "experiment.json"
"""The file of a seed that describes an experiment which was made in Python."""

LAYERS = "gt.layer_type", "topomask.mask"
"""Keys that decide which others are used."""


# Undefined metrics are ``null`` in the file, because JSON has no NaN.
_Metric = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


class _Result(BaseModel):
    """The keys of ``result.json`` that a summary needs."""

    model_config = ConfigDict(extra="allow", strict=True)

    seed: int
    split_index: int | None = None
    metrics: dict[str, _Metric]
    best_epoch: int
    epochs: int
    wall_time_s: float
    num_parameters: int
    peak_memory_mib: float | None
    peak_cuda_mib: float | None
    graphs_or_nodes: dict[str, int] | None = None
    environment: dict[str, str | int | None] | None = None


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of one seed; None if it is not finished.

    Raises:
        RunError: If the file is damaged.
    """
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        return _Result.model_validate_json(path.read_bytes()).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        reason = " ".join([*map(str, first["loc"]), first["msg"].lower()])
        raise RunError(f"{path} is damaged ({reason}); delete it to run that seed again") from None


def has_begun(folder: Path) -> bool:
    """Whether a seed has a result, a checkpoint, or the metrics of an epoch."""
    return any((folder / name).exists() for name in ("result.json", "best.ckpt", "last.ckpt", "metrics.csv"))


def unfinished_note(folder: Path) -> str:
    """The note for readers of a seed's weights if its training has not finished; empty if it has."""
    is_training = any((folder / name).exists() for name in ("last.ckpt", "metrics.csv"))
    if (folder / "result.json").exists() or not is_training:  # a shared model has no such files
        return ""
    return f"the run in {folder} is not finished; its weights are those of its best epoch so far"


def seed_folders(folder: Path) -> list[Path]:
    """The folders of a config's seeds and splits by their numbers; others, such as copies, are left out."""
    found = folder.iterdir() if folder.is_dir() else ()
    seeds = (path for path in found if _SEED_FOLDER.fullmatch(path.name))
    return sorted(seeds, key=lambda path: (len(path.name), path))


def read_results(folder: Path) -> dict[Path, dict[str, Any]]:
    """The results of all finished seeds of a config by their folders, sorted by seed and split.

    Raises:
        RunError: If one is damaged, or two are of the same seed, as copies of a folder are.
    """
    found = {path: result for path in seed_folders(folder) if (result := read_result(path)) is not None}
    results = dict(sorted(found.items(), key=lambda item: seed_and_split(item[1])))
    if len({seed_and_split(result) for result in results.values()}) < len(results):
        raise RunError(f"{folder} contains a seed twice: {', '.join(map(str, results))}; delete one of the folders")
    return results


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """What differs between two experiments by their keys, in words.

    If attention or mask differ, no other keys are named: a key that only one of the two uses has its default in the
    other, which nobody has set.
    """
    shared = [key for key in here if key in there]  # one may search its width, run several splits, or not read a key
    keys = [key for key in shared if here[key] != there[key]]
    keys = [key for key in LAYERS if key in keys] or keys
    return [f"{key} is {there[key]} there and {here[key]} here" for key in keys]


def seed_and_split(result: Mapping[str, Any]) -> tuple[int, int]:
    """The seed and the number of the split, which together identify a result of a config."""
    return result["seed"], result["split_index"] or 0


@cache
def environment() -> dict[str, str | int | None]:
    """Versions, system, threads, and the git commit of the current folder; None without a repository or git."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "system": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit, followed by ``with changes`` if tracked files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= with changes"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
