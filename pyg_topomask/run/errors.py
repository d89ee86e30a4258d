"""The runner's errors: what a user can mend is said in one message, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RunError(Exception):
    """Something the user can mend: a wrong config, missing data, an output folder that is taken."""


class ConfigError(RunError):
    """A config that cannot be run; the message holds one line for each problem, with file and line number."""


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that ``name`` was probably meant to be, if any is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``" Did you mean 'x'?"``, or nothing where no choice is close."""
    found = nearest(name, choices)
    return f" Did you mean {found!r}?" if found else ""
