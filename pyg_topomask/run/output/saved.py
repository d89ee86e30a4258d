"""What finished runs left in an output folder, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pyg_topomask.run.config import Config
from pyg_topomask.run.config.schema import FREE_KEYS, all_keys
from pyg_topomask.run.config.yaml_files import read_yaml
from pyg_topomask.run.errors import ConfigError, RunError
from pyg_topomask.run.model.budget import WIDTH_KEYS, searches_width


class _Result(BaseModel):
    """What a summary needs of ``result.json``."""

    model_config = ConfigDict(extra="allow", strict=True)

    seed: int
    split_index: int | None = None
    metrics: dict[str, float]
    best_epoch: int
    epochs: int
    wall_time_s: float
    num_parameters: int
    peak_memory_mib: float | None
    peak_cuda_mib: float | None


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of one seed; none where it is not finished.

    Raises:
        RunError: If the file is damaged.
    """
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no mapping")
        _Result.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        reason = " ".join([*map(str, first["loc"]), first["msg"].lower()])
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    else:
        return found
    raise RunError(f"{path} is damaged ({reason}); delete it to run that seed again")


def read_results(folder: Path) -> list[dict[str, Any]]:
    """The results of all finished seeds of a config, in their order.

    Raises:
        RunError: If one is damaged, or they hold different metrics.
    """
    found = {path: result for path in sorted(folder.iterdir()) if (result := read_result(path)) is not None}
    results = sorted(found.values(), key=lambda result: (result["seed"], result.get("split_index") or 0))
    for path, result in found.items():
        other = sorted(result["metrics"].keys() ^ results[0]["metrics"].keys())
        if other:
            raise RunError(
                f"{path / 'result.json'} has other metrics than the seeds beside it ({', '.join(other[:3])}); "
                "delete it to run that seed again"
            )
    return results


def read_config(path: Path) -> Config:
    """The resolved config of a run.

    Raises:
        RunError: If it is missing, damaged or of another version.
    """
    try:
        return Config.model_validate(read_yaml(path)[0])
    except ConfigError as error:
        reason = str(error).removeprefix(str(path)).lstrip(":, ")
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
    raise RunError(f"{path} is missing, damaged or of another version ({reason})")


def refuse_other_runs(folder: Path, config: Config) -> None:
    """Raise if the folder holds runs that differ in more than seed, place and device.

    Raises:
        RunError: With the first differences.
    """
    try:
        paths = sorted(folder.glob("*/config.yaml"))
    except OSError as error:
        raise RunError(f"the output folder {folder} cannot be read: {error.strerror}") from None
    mine = compared(config)
    for path in paths:
        try:
            theirs = compared(read_config(path))
        except RunError as error:
            raise RunError(f"{error}; choose another --out") from None
        different = [f"{key} is {theirs[key]} there and {mine[key]} here" for key in mine if mine[key] != theirs[key]]
        if different:
            more = f", and {len(different) - 3} more" if len(different) > 3 else ""
            tag = config.gt.layer_type if theirs["gt.layer_type"] != config.gt.layer_type else "other"
            untagged = folder.name.removesuffix(f"-{config.name_tag}")
            raise RunError(
                f"{folder} holds a run of another config ({'; '.join(different[:3])}{more}): nothing was overwritten. "
                f"Choose another --out, or a name of its own: name_tag={tag} puts it into {untagged}-{tag}."
            )


def compared(config: Config) -> dict[str, Any]:
    """The keys that make it another experiment, and their values."""
    free = [*FREE_KEYS, "dataset.dir"]  # a place too
    if config.run_multiple_splits:
        free.append("dataset.split_index")  # differs from one run of the folder to the next
    if searches_width(config):
        free += WIDTH_KEYS  # found, whatever was given
    return {key: config.value(key) for key in all_keys() if key not in free and key.partition(".")[0] not in free}
