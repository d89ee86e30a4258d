"""Importing a user's modules, which register attentions, masks and more."""

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from pyg_topomask.run.errors import RunError


def import_modules(names: Sequence[str]) -> None:
    """Import a user's modules, which may be in the current folder.

    Raises:
        RunError: If one cannot be imported; the message has the lines of the user's code that lead to the error.
    """
    if names and "" not in sys.path:
        sys.path.insert(0, "")
    for name in names:
        try:
            import_module(name)
        except (Exception, SystemExit) as error:  # a user's module may raise anything, and end the program
            reason = "".join(traceback.format_exception(error)).rstrip()
            raise RunError(f"--import must name a module that can be imported (got {name!r}):\n{reason}") from error
