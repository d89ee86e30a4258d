"""The runner's errors, which are shown to the user as one message without a traceback."""

import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


class RunError(Exception):
    """An error that the user can fix: a wrong config, missing data, an output folder of another run."""


class MissingDataError(RunError):
    """Raw files of a data set were neither found nor downloaded."""


class ConfigError(RunError):
    """A config that cannot be run; the message has a line for each problem, with file and line number."""


class NoPictureError(RunError):
    """The layer has nothing that a picture of this kind could show."""


@contextmanager
def storage_errors() -> Iterator[None]:
    """Convert errors of the disk and the memory to a :class:`RunError`.

    These are missing space or permissions, a folder where a file is expected, and arrays that do not fit into memory.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if isinstance(error, BrokenPipeError) or not (full or error.errno == errno.EROFS or error.filename):
            raise
        named = error.filename2 or error.filename
        where = "the disk" if named is None else str(Path(str(named)).parent if ".part-" in str(named) else named)
        advice = "; free some space, and the same command continues the run" if full else ""
        raise RunError(f"{where}: {error.strerror}{advice}") from error
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if isinstance(error, RuntimeError) and not any(words in text for words in _OUT_OF_MEMORY):
            raise
        reason = text.partition("\n")[0][:200]
        raise RunError(f"out of memory ({reason}); lower train.batch_size, gt.dim_hidden or gt.layers") from error


_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "Storage size calculation overflowed")


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that is closest to ``name``, or None if none is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``" Did you mean 'x'?"``, or an empty text if no choice is close."""
    found = nearest(name, choices)
    return f" Did you mean {found!r}?" if found else ""


def no_such(kind: str, name: str, choices: Sequence[str], others: Iterable[str] = ()) -> str:
    """What is wrong with a name that is none of ``choices``; it may be meant as one of ``others``, too."""
    return f"no {kind} is called {name!r}; there are {', '.join(choices)}.{did_you_mean(name, [*choices, *others])}"


def need(package: str, why: str) -> Any:
    """Import an optional package.

    Raises:
        RunError: If it is missing; the message gives the command that installs it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        source = {"sklearn": "scikit-learn"}.get(top, top)
        raise RunError(f"{why} needs {error.name or top}, which is not installed: pip install {source}") from error
