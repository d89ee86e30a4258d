"""Reading the files of runs in an output folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

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
