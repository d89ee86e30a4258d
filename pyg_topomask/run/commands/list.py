"""``topomask list``: every name that a config may use, with the class behind it, and when to take an attention."""

import inspect
import re
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from pyg_topomask.run.errors import RunError, no_such

NAMES = Path(__file__).with_name("names.txt")
"""What :func:`names` returns for this package, written down so that the list needs no torch; a test compares them."""


def main(arguments: Namespace, rest: list[str]) -> None:
    """Run the command."""
    if arguments.kind == "keys":
        from pyg_topomask.run.graphgps.reference import reference_text

        print(reference_text())
        return
    # Only a module that imports torch can register a name.
    text = names() if "torch" in sys.modules else NAMES.read_text(encoding="utf-8")
    tables = {table.partition("\n")[0]: table for table in text.rstrip().split("\n\n")}
    if arguments.kind not in (None, *tables):
        raise RunError(f"list: {no_such('kind', arguments.kind, [*tables, 'keys'])}")
    print(text.rstrip() if arguments.kind is None else tables[arguments.kind])


def names() -> str:
    """Each kind, and below it its names with their sources; attentions and masks also with when to take them."""
    from pyg_topomask.datasets import REGISTERED
    from pyg_topomask.nn import (
        ATTENTION,
        EDGE_ENCODERS,
        EVERY_ATTENTION,
        HEADS,
        MASK,
        NODE_ENCODERS,
        POSITIONAL_ENCODERS,
    )
    from pyg_topomask.run.graphgps.config.model import PEER_ATTENTIONS
    from pyg_topomask.run.graphgps.convs import CONVS
    from pyg_topomask.run.graphgps.formats import FORMATS
    from pyg_topomask.run.graphgps.parts import OPTIMIZERS
    from pyg_topomask.run.training.losses import LOSSES

    peers = {name: ATTENTION[ours] for name, ours in PEER_ATTENTIONS.items() if ours in ATTENTION}
    tables: dict[str, dict[str, Any]] = {
        "attentions": {**ATTENTION, **peers, **EVERY_ATTENTION},
        "masks": {**MASK},
        "convolutions": {name: entry.source for name, entry in CONVS.items()},
        "node encoders": {**NODE_ENCODERS},
        "edge encoders": {**EDGE_ENCODERS},
        "positional encodings": {**POSITIONAL_ENCODERS},
        "heads": {**HEADS},
        "losses": {**LOSSES},
        "datasets": {name: _loader(entry.load) for name, entry in FORMATS.items()} | REGISTERED,
        "optimizers": {**OPTIMIZERS},
    }
    texts = []
    for kind, table in tables.items():
        rows = [(name, _source(entry), _when(entry)) for name, entry in table.items()]
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = (f"  {name:<{first}}  {source:<{second}}  {when}".rstrip() for name, source, when in rows)
        texts.append("\n".join([kind, *lines]))
    return "\n\n".join(texts) + "\n"


def _loader(load: Any) -> Any:
    """The class of a data set if it is an argument of our function, else our function."""
    return load.args[0] if isinstance(load, partial) and load.args else load


def _source(entry: Any) -> str:
    """The full name of a class or function, also of one with some arguments."""
    entry = getattr(entry, "func", entry)
    module = inspect.getmodule(entry)
    home = module.__name__ if module is not None else type(entry).__module__
    return f"{home}.{getattr(entry, '__qualname__', type(entry).__qualname__)}"


def _when(entry: Any) -> str:
    """When to take an attention or a mask, without the links of its card; empty for others."""
    card = getattr(getattr(entry, "func", entry), "card", None)
    return re.sub(r"\[(.+?)\]\(.+?\)", r"\1", card.when) if card else ""
