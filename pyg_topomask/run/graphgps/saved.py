"""Reading the files of runs in an output folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from pyg_topomask.run.errors import ConfigError, RunError
from pyg_topomask.run.files import write_text
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.load import read_yaml
from pyg_topomask.run.graphgps.config.schema import FREE_KEYS, all_keys
from pyg_topomask.run.graphgps.model.build import WIDTH_KEYS, searches_width

# Keys that choose what a run is named after.
_NAMES = "gt.layer_type", "topomask.mask"


IMPORT_ADVICE = "import the module that registers it first: topomask --import MODULE …"
"""What to do about a name that a user's module registers."""

_SEED_FOLDER = re.compile(r"\d+(-split\d+)?", re.ASCII)
"""Name of the folder of a seed, or of a split of it."""


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


def unfinished_note(folder: Path) -> str | None:
    """The note for readers of a seed's weights if its training has not finished; None if it has."""
    is_training = any((folder / name).exists() for name in ("last.ckpt", "metrics.csv"))
    if (folder / "result.json").exists() or not is_training:  # a shared model has no such files
        return None
    return f"note: the run in {folder} is not finished; its weights are those of its best epoch so far"


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


def seed_and_split(result: Mapping[str, Any]) -> tuple[int, int]:
    """The seed and the number of the split, which together identify a result of a config."""
    return result["seed"], result["split_index"] or 0


@dataclass(frozen=True)
class FinishedRun:
    """The finished seeds of one config.

    Args:
        name: Name of the config, followed by the seed if the run is a single seed's folder.
        folder: The folder that contains the seeds, or the folder of a single seed.
        config: The resolved config of the first seed.
        results: The content of ``result.json`` by the folder of each seed, sorted by seed and split.
        unfinished: Number of seeds that have been started and have no result.
    """

    name: str
    folder: Path
    config: Config
    results: Mapping[Path, dict[str, Any]]
    unfinished: int

    def by_seed(self) -> dict[tuple[int, int], dict[str, Any]]:
        """The results by seed and split."""
        return {seed_and_split(result): result for result in self.results.values()}


def find_run(source: str | Path) -> FinishedRun:
    """The run in a results folder, or in the folder of one seed.

    Raises:
        RunError: If there is none, or its files are damaged.
    """
    path = Path(source).expanduser()
    if not path.is_dir():
        raise RunError(f"{source} is no folder; give a results folder, or the folder of a seed")
    result = read_result(path)
    if result is not None:
        name = f"{path.resolve().parent.name}/{path.resolve().name}"
        return FinishedRun(name, path, read_config(path / "config.yaml"), {path: result}, 0)
    results = read_results(path)
    if not results:
        raise RunError(f"{path} contains no finished run: there is no result.json in it, nor in a folder of a seed")
    started = sum((seed / "config.yaml").exists() for seed in seed_folders(path))
    first = read_config(next(iter(results)) / "config.yaml")
    return FinishedRun(path.resolve().name, path, first, results, started - len(results))


def write_config(path: Path, config: Config) -> None:
    """Write the resolved config of a run.

    Of ``topomask``, only the keys that were given are written: for others, each attention and mask has its own default.
    """
    values = config.model_dump(mode="json")
    values["topomask"] = config.topomask.model_dump(mode="json", exclude_unset=True)
    write_text(path, yaml.safe_dump(values, sort_keys=False))


def read_config(path: Path) -> Config:
    """The resolved config of a run.

    Raises:
        RunError: If the file is missing, damaged or from another version.
    """
    try:
        return Config.model_validate(read_yaml(path)[0])
    except ConfigError as error:
        reason = str(error).removeprefix(str(path)).lstrip(":, ")
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        reason = f"{key}: {first['msg'].lower()}"
        if first["type"] == "extra_forbidden" and key.startswith("topomask.mask_") and key.count(".") == 1:
            reason = f"no mask has the settings {key}; {IMPORT_ADVICE}"
    raise RunError(f"{path} is missing, damaged or of another version ({reason})")


def refuse_other_runs(folder: Path, config: Config) -> None:
    """Check that runs in the folder differ from the config in seed, place and device only.

    Raises:
        RunError: If a run differs in other keys; the message gives the first differences.
    """
    here = compared(config)
    for path in sorted(folder.glob("*/config.yaml")):
        try:
            there = compared(read_config(path))
        except RunError as error:
            raise RunError(f"{error}; choose another --out") from None
        different = differences(here, there)
        if different:
            more = f", and {len(different) - 3} more" if len(different) > 3 else ""
            tag = "-".join(here[key] for key in _NAMES if there[key] != here[key]) or "other"
            untagged = folder.name.removesuffix(f"-{config.name_tag}")
            raise RunError(
                f"{folder} contains a run of another config ({'; '.join(different[:3])}{more}): nothing was "
                f"overwritten. Choose another --out or a name_tag: name_tag={tag} puts it into {untagged}-{tag}."
            )


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """What differs between two results of `compared`, in words.

    If attention or mask differ, no other keys are named: a key that only one of the two uses has its default in the
    other, which nobody has set.
    """
    shared = [key for key in here if key in there]  # one may search its width, run several splits, or not read a key
    keys = [key for key in shared if here[key] != there[key]]
    keys = [key for key in _NAMES if key in keys] or keys
    return [f"{key} is {there[key]} there and {here[key]} here" for key in keys]


def compared(config: Config) -> dict[str, Any]:
    """The keys that define the experiment, with their values; None for keys of ``topomask`` that were not given."""
    free = [*FREE_KEYS, "dataset.dir"]  # only the place of the raw files
    if config.run_multiple_splits:
        free.append("dataset.split_index")  # differs between the runs of one folder
    if searches_width(config):
        free += WIDTH_KEYS  # the values given are replaced
    names = [name for name in (*_NAMES, *all_keys()) if name not in free and name.partition(".")[0] not in free]
    given = {name: config.value(name) for name in names if not name.startswith("topomask.") or config.is_given(name)}
    different = {"run_multiple_splits": bool(config.run_multiple_splits)}  # more splits may follow
    return dict.fromkeys(names) | given | different
