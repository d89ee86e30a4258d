"""The attentions that advice compares, as settings to add to a config, and the config of a data set by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.run.config import Config
from pyg_topomask.run.config.dataset import DEFAULT_NAMES, DatasetConfig
from pyg_topomask.run.data.formats import FORMATS, possible_tasks
from pyg_topomask.run.errors import RunError, did_you_mean
from pyg_topomask.run.model.attentions import MASK_KEY, layers_text, mask_of
from pyg_topomask.run.model.build import convs_of

CONFIGS = (Path("configs"), Path(__file__).parents[3] / "configs")
"""Folders that are searched for a data set's config: that of the current folder, and that of the source tree."""

_DEFAULT_FOLDER = "grf"  # it has a file for every data set

OWN_MASKS = {"GRF": "grf", "GKAT": "rwgnk"}
"""Masks of attentions that have one of their own; they are not tried a second time as masks."""

_PARTS = ("none", "all", "subset", "full", "LocalDegreeProfile", "Constant", "edge_wt_region_boundary")
"""Values of ``dataset.name`` that choose a part or features; the data set is then named by its family."""

_TYPES = {"multilabel": "classification_multilabel", "regression": "regression"}


@dataclass(frozen=True)
class Candidate:
    """An attention to try.

    Args:
        name: What is shown, such as ``KMIP`` or ``Masked heat``.
        attention: Name of the attention; empty for message passing alone.
        mask: Name of the mask, or None.
        settings: What to add to the config, as on the command line.
    """

    name: str
    attention: str
    mask: str | None
    settings: tuple[str, ...]


def candidates(config: Config, only: Sequence[str] = ()) -> list[Candidate]:
    """Message passing alone, every attention, and every mask, beside the convolutions of a config.

    Args:
        config: The config.
        only: Names to keep; all if empty.

    Raises:
        RunError: If a name is unknown.
    """
    every = list(_every(config))
    unknown = next((name for name in only if name not in {one.name for one in every}), None)
    if unknown is not None:
        names = [one.name for one in every]
        raise RunError(
            f"--attention: nothing is called {unknown!r}; there are {', '.join(names)}." + did_you_mean(unknown, names)
        )
    return [one for one in every if not only or one.name in only]


def _every(config: Config) -> Iterator[Candidate]:
    convs = "+".join(convs_of(config)) or "None"
    kind = () if config.model.type in ("GPSModel", "MultiModel") else ("model.type=GPSModel",)
    if convs != "None":
        yield _candidate("none", "", None, (f"gt.layer_type={convs}+None", *kind), config)
    for name in ATTENTION:
        if name != "Masked":
            unmasked = (f"{MASK_KEY}=none",) if name == "Linear" and config.topomask.mask != "none" else ()
            yield _candidate(name, name, None, (f"gt.layer_type={convs}+{name}", *unmasked, *kind), config)
    for mask in MASK:
        if mask not in OWN_MASKS.values():
            settings = (f"gt.layer_type={convs}+Masked", f"{MASK_KEY}={mask}", *kind)
            yield _candidate(f"Masked:{mask}", "Masked", mask, settings, config)


def _candidate(name: str, attention: str, mask: str | None, settings: tuple[str, ...], config: Config) -> Candidate:
    same = settings[0] == f"gt.layer_type={config.gt.layer_type}" and mask == mask_of(config)
    return Candidate(name, attention, mask, () if same else settings)


def config_of(source: str) -> tuple[str | Mapping[str, Any], str]:
    """A config by its file or by the name of its data set, and a line that says where it comes from.

    Raises:
        RunError: If there is neither.
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return source, f"config {source}"
    for folder in CONFIGS:
        found = folder / _DEFAULT_FOLDER / f"{source.lower()}.yaml"
        if source and found.is_file():
            return str(found), f"config {found}"
    names = _names()
    if source.lower() not in names:
        stems = sorted(path.stem for folder in CONFIGS for path in (folder / _DEFAULT_FOLDER).glob("*.yaml"))
        choices = [*dict.fromkeys(stems), *names]
        raise RunError(
            f"{source!r} is neither a config file nor a data set with a known name; give a YAML file, or a name such "
            "as ENZYMES, Cora or peptides-func. For another data set of a family, change its name: topomask advise "
            "configs/grf/enzymes.yaml dataset.name=MUTAG." + did_you_mean(source, choices)
        )
    family, name = names[source.lower()]
    values = _minimal(family, name)
    return values, f"a minimal config of {family} {name} ({layers_text(values['gt']['layer_type'], None)})"


def _names() -> dict[str, tuple[str, str]]:
    """Family and ``dataset.name`` of each data set by its name in lower case, such as ``cora`` or ``aqsol``."""
    found: dict[str, tuple[str, str]] = {}
    for family, entry in FORMATS.items():
        found |= {name.lower(): (family, name) for name in entry.names if name not in _PARTS}
        if not set(_PARTS).isdisjoint(entry.names):
            found[family.removeprefix("PyG-").lower()] = family, DEFAULT_NAMES.get(family, entry.names[0])
    return found


def _minimal(family: str, name: str) -> dict[str, Any]:
    """A small model for a data set without a config."""
    task = possible_tasks(DatasetConfig(format=family, name=name))[0]
    data = {"format": family, "name": name, "task": task.level, "task_type": _TYPES.get(task.kind, "classification")}
    loss = "l1" if task.kind == "regression" else "cross_entropy"
    layers = {"layer_type": "GCN+GRF", "layers": 3, "n_heads": 4, "dim_hidden": 64}
    return {"dataset": data, "model": {"loss_fun": loss}, "gt": layers}
