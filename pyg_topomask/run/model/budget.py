"""The width of a model with a given number of parameters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from pyg_topomask.run.config import Config
from pyg_topomask.run.config.schema import contradictions
from pyg_topomask.run.errors import ConfigError

MIN_WIDTH, MAX_WIDTH = 32, 512
"""Range of widths that k-MIP's authors search."""

WIDTH_KEYS = ("gt.dim_hidden", "gt.dim_edge", "gt.sparse.val_dim", "gnn.dim_inner")
"""Keys that are set to the width that was found."""


def searches_width(config: Config) -> bool:
    """Whether the width is found by ``model.param_budget``.

    As in the authors' code, it is not for a MultiModel. It is not if the model starts from the weights of a finished
    run, either.
    """
    return (
        config.model.auto_satisfy_param_budget
        and config.model.type in ("GPSModel", "custom_gnn")
        and not config.pretrained.dir
    )


def with_width(config: Config, width: int) -> Config:
    """The config with layers of that width, and with the same width for all keys that must equal it."""
    gt: dict[str, Any] = {"dim_hidden": width}
    if config.gt.dim_edge is not None:
        gt["dim_edge"] = width
    if "KMIP" in config.gt.parts and config.gt.sparse.val_dim is not None:
        gt["sparse"] = config.gt.sparse.model_copy(update={"val_dim": width // config.gt.n_heads})
    gnn = {} if config.gnn.dim_inner is None else {"dim_inner": width}
    return config.model_copy(update={"gt": config.gt.model_copy(update=gt), "gnn": config.gnn.model_copy(update=gnn)})


def within_budget(config: Config, count: Callable[[Config], int]) -> Config:
    """The config with the largest width, a multiple of the heads, whose model is within ``model.param_budget``.

    Args:
        config: The config.
        count: Function that counts the parameters of a config's model; they increase with the width.

    Raises:
        ConfigError: If no width is within the budget.
    """
    heads, budget = config.gt.n_heads, config.model.param_budget
    first = -(-MIN_WIDTH // heads) * heads
    candidates = (with_width(config, width) for width in range(first, MAX_WIDTH + heads, heads))
    allowed = [candidate for candidate in candidates if not contradictions(candidate)]
    fitting = bisect_right(allowed, budget, key=count)
    if fitting == 0:
        least = f"; the narrowest one has {count(allowed[0])}" if allowed else ""
        raise ConfigError(f"model.param_budget: no model has so few parameters (got {budget}){least}")
    return allowed[fitting - 1]
