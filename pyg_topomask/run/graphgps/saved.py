"""Reading the files of runs in an output folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from torch.nn import Module

from pyg_topomask.run.errors import ConfigError, RunError
from pyg_topomask.run.files import write_text
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.load import read_yaml
from pyg_topomask.run.graphgps.config.schema import FREE_KEYS, all_keys
from pyg_topomask.run.graphgps.model import WIDTH_KEYS, with_width
from pyg_topomask.run.output.results import EXPERIMENT, LAYERS, differences, seed_folders
from pyg_topomask.run.training.checkpoint import BEST, OURS, load_weights, model_weights, read_checkpoint

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
        RunError: If the file is missing, damaged or from another version, or the run is not of a config.
    """
    folder = path.parent
    if not path.exists() and (folder / EXPERIMENT).exists():
        raise RunError(
            f"{folder} is a run of an Experiment in Python, and only runs of configs can be read here. Its metrics are "
            f"in {folder / 'result.json'}, and its weights in {folder / BEST}, which torch.load reads: they are its "
            "'state_dict', with 'model.' before their names"
        )
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


def compared(config: Config) -> dict[str, Any]:
    """The keys that define the experiment, with their values; None for keys of ``topomask`` that were not given."""
    free = [*FREE_KEYS, "dataset.dir"]  # only the place of the raw files
    if config.run_multiple_splits:
        free.append("dataset.split_index")  # differs between the runs of one folder
    if config.searches_width:
        free += WIDTH_KEYS  # the values given are replaced
    names = [name for name in (*LAYERS, *all_keys()) if name not in free and name.partition(".")[0] not in free]
    given = {name: config.value(name) for name in names if not name.startswith("topomask.") or config.is_given(name)}
    different = {"run_multiple_splits": bool(config.run_multiple_splits)}  # more splits may follow
    return dict.fromkeys(names) | given | different


HEAD = "head."

Part = TypeVar("Part", bound=BaseModel)
"""A config, or a section of it."""

_OF_THE_MODEL = ("model", "gt", "gnn", "topomask", "prep", "graphormer")
"""Sections that describe a model, in addition to those of the encodings."""


def checkpoint_of(config: Config) -> Path | None:
    """Path of the best checkpoint in ``pretrained.dir``: of the same seed and split, else of the first seed."""
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
    """The same, if it must exist.

    Raises:
        RunError: If it does not.
    """
    path = checkpoint_of(config)
    if path is None:
        folder = Path(config.pretrained.dir).expanduser()
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
    if (here.format, here.plain_name) != (there.format, there.plain_name):  # names have several spellings
        return
    other = differences(_split_of(config), _split_of(finished))
    if other:
        raise RunError(
            f"pretrained.dir: {path.parent} was trained on another split of {config.dataset.name} "
            f"({', '.join(other)}), so its training set may be tested; give a run with this split, or choose its"
        )


def _split_of(config: Config) -> dict[str, Any]:
    """The keys that decide the split of a run, with their values."""
    found = config.dataset.division.settings | {"dataset.split_index": config.dataset.split_index}
    if found.get("dataset.split_seed", 0) is None:
        found["dataset.split_seed"] = config.seed
    return found


def fitted_constants(config: Config) -> Sequence[Mapping[str, Any]]:
    """The constants by which the run in ``pretrained.dir`` has normalised the features of its graphs.

    Raises:
        RunError: If the checkpoint is damaged, or the config normalises and the run did not, or the other way round.
    """
    path = find_checkpoint(config)
    given = config.dataset.normalize
    if read_config(path.parent / "config.yaml").dataset.normalize != given:
        raise RunError(f"dataset.normalize: it must be as in the training of {path.parent} (got {given})")
    return read_checkpoint(path, "choose a finished run", "pretrained.dir")[OURS]["data"]["fitted"]


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
