"""Every mask and attention with the settings of its examples, and the graphs that they need."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.transforms import that_add


def examples(table: Mapping[str, Any], grid_shape: Sequence[int] = (5,)) -> dict[str, partial[Any]]:
    """Functions that build the examples of all classes in ``MASK`` or ``ATTENTION``, by their names and settings.

    Args:
        table: The table; a class with several names is taken once.
        grid_shape: The largest grid, for masks that need to know it.
    """
    found = {}
    for cls, name in {cls: name for name, cls in table.items()}.items():
        for settings in cls.examples():
            text = [f"{key}={value}" for key, value in settings.items() if key != "grid_shape"]
            fitted = settings | ({"grid_shape": grid_shape} if "grid_shape" in settings else {})
            found[" ".join([name, *text])] = partial(cls, **fitted)
    return found


def prepared(module: Module, graphs: Iterable[Data], **settings: Any) -> list[Data]:
    """Copies of graphs with what a mask or attention requires; ``settings`` are for the transforms."""
    own = getattr(module, "transform_settings", {})
    transform = that_add(module.requires, **{"seed": 0, **settings, **own})  # type: ignore[arg-type]
    return [transform(copy.copy(graph)) for graph in graphs]
