"""``topomask list``: every name that a config may use, with the class behind it."""

from __future__ import annotations

import inspect
from argparse import Namespace
from functools import partial
from typing import Any

from pyg_topomask.datasets.registry import REGISTERED
from pyg_topomask.nn import ATTENTION, EDGE_ENCODERS, HEADS, MASK, NODE_ENCODERS, POSITIONAL_ENCODERS
from pyg_topomask.nn.attention.pyg import PYG_ATTENTION
from pyg_topomask.run.config.model import PEER_ATTENTIONS
from pyg_topomask.run.config.reference import reference_text
from pyg_topomask.run.data.formats import FORMATS
from pyg_topomask.run.errors import RunError, did_you_mean
from pyg_topomask.run.model.convs import CONVS
from pyg_topomask.run.training.losses import LOSSES
from pyg_topomask.run.training.optim import OPTIMIZERS


def main(arguments: Namespace, rest: list[str]) -> int:
    """Run the command."""
    if arguments.kind == "keys":
        print(reference_text())
        return 0
    tables = []
    for kind, names in registered(arguments.kind).items():
        width = max(map(len, names), default=0)
        tables.append("\n".join([kind, *(f"  {name:<{width}}  {source}" for name, source in names.items())]))
    print("\n\n".join(tables))
    return 0


def registered(kind: str | None = None) -> dict[str, dict[str, str]]:
    """The source of each name, for one kind or for all kinds except ``keys``, which is printed differently.

    Raises:
        RunError: If there is no such kind.
    """
    peers = {name: ATTENTION[ours] for name, ours in PEER_ATTENTIONS.items() if ours in ATTENTION}
    tables: dict[str, dict[str, Any]] = {
        "attentions": {**ATTENTION, **peers, **PYG_ATTENTION},
        "masks": dict(MASK),
        "convolutions": {name: entry.source for name, entry in CONVS.items()},
        "node encoders": dict(NODE_ENCODERS),
        "edge encoders": dict(EDGE_ENCODERS),
        "positional encodings": dict(POSITIONAL_ENCODERS),
        "heads": dict(HEADS),
        "losses": dict(LOSSES),
        "datasets": {name: _loader(entry.load) for name, entry in FORMATS.items()} | REGISTERED,
        "optimizers": dict(OPTIMIZERS),
    }
    if kind is not None and kind not in tables:
        kinds = [*tables, "keys"]
        raise RunError(f"list: no kind is called {kind!r}; there are {', '.join(kinds)}." + did_you_mean(kind, kinds))
    chosen = tables if kind is None else {kind: tables[kind]}
    return {name: {key: source_of(entry) for key, entry in table.items()} for name, table in chosen.items()}


def _loader(load: Any) -> Any:
    """The class of a data set if it is an argument of our function, else our function."""
    return load.args[0] if isinstance(load, partial) and load.args else load


def source_of(entry: Any) -> str:
    """The full name of a class or function, also of one with some arguments."""
    entry = getattr(entry, "func", entry)
    module = inspect.getmodule(entry)
    home = module.__name__ if module is not None else type(entry).__module__
    return f"{home}.{getattr(entry, '__qualname__', type(entry).__qualname__)}"
