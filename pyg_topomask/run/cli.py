"""The command line: ``topomask run``, ``check``, ``list``, ``schema``, ``expressivity``, ``show`` and more."""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from pyg_topomask import __version__
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.options import COMMANDS, OVERRIDES, WITH_OVERRIDES
from pyg_topomask.run.user_modules import import_modules


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, which is 0 only on success."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    unknown = next((token for token in rest if token.startswith("--")), None)
    if unknown is not None:
        parser.error(f"unknown option {unknown}")
    if rest and arguments.command not in WITH_OVERRIDES:
        parser.error(f"'{arguments.command}' does not take {' '.join(rest)}")
    os.environ["MPLBACKEND"] = "Agg"  # pictures are only written to files
    if arguments.command != "doctor":  # which shows the settings of the caller
        # OpenMP threads that spin while they wait make each small operation cost milliseconds on cores that are shared
        # with other programs. OpenMP reads this when torch is first imported, which is later.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import_modules(arguments.modules)
        with storage_errors():
            return _command(arguments.command)(arguments, rest) or 0
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        if error.name is None or error.name.startswith("pyg_topomask"):
            raise
        print(f"error: {error.name} is missing; the runner needs: pip install 'pyg_topomask[run]'", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the output, such as head, has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as error:
        print("; ".join(["interrupted", *error.args]), file=sys.stderr)
        return 130


def _command(name: str) -> Callable[..., int | None]:
    """The function of a command, whose exit code is 0 unless it returns another.

    It is imported without collecting garbage: there is none, and looking takes a second.
    """
    gc.disable()
    try:
        return import_module(f"pyg_topomask.run.commands.{name}").main
    finally:
        gc.enable()


def _parser() -> argparse.ArgumentParser:
    """The options of every command ``x``, which is the function ``main`` of ``commands/x.py``."""
    parser = argparse.ArgumentParser("topomask", description="Train graph transformers with topological masks.")
    parser.add_argument("--version", action="version", version=f"pyg_topomask {__version__}")
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module first, such as one that calls register_attention; may be repeated",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, options) in COMMANDS.items():
        epilog = OVERRIDES if name in WITH_OVERRIDES else None
        command = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=epilog, allow_abbrev=False
        )
        for usage, meaning, settings in options:
            flag, _, value = usage.partition(" ")
            command.add_argument(flag, metavar=value or None, help=meaning, **settings)
    return parser
