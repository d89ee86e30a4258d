"""The attentions that advice compares, as settings to add to a config."""

from __future__ import annotations

from collections.abc import Sequence

from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.run.config import Config
from pyg_topomask.run.errors import RunError, did_you_mean
from pyg_topomask.run.model.attentions import MASK_KEY
from pyg_topomask.run.model.build import convs_of

_OWN_MASKS = ("grf", "rwgnk")
"""Masks of GRF and GKAT, which are attentions already; they are not tried a second time as masks."""


def candidates(config: Config, only: Sequence[str] = ()) -> dict[str, list[str]]:
    """Message passing alone, every attention, and every mask, beside the convolutions of a config.

    Returns:
        By a name such as ``KMIP``, ``Masked:heat`` or ``none``, what to add to the config, as on the command line.

    Args:
        config: The config.
        only: Names to keep; all if empty.

    Raises:
        RunError: If a name is unknown.
    """
    convs = "+".join(convs_of(config)) or "None"
    layers: dict[str, tuple[str, str | None]] = {} if convs == "None" else {"none": ("None", None)}
    layers |= {name: (name, "none" if name == "Linear" else None) for name in ATTENTION if name != "Masked"}
    layers |= {f"Masked:{mask}": ("Masked", mask) for mask in MASK if mask not in _OWN_MASKS}
    unknown = next((name for name in only if name not in layers), None)
    if unknown is not None:
        choices = ", ".join(layers)
        raise RunError(
            f"--attention: nothing is called {unknown!r}; there are {choices}." + did_you_mean(unknown, layers)
        )
    found = {}
    for name in only or layers:
        attention, mask = layers[name]
        settings = [f"gt.layer_type={convs}+{attention}"]
        settings += [f"{MASK_KEY}={mask}"] if mask is not None and mask != config.topomask.mask else []
        settings += [] if config.model.type in ("GPSModel", "MultiModel") else ["model.type=GPSModel"]
        found[name] = settings
    return found
