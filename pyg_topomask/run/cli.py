"""The command line: ``topomask run``, ``check``, ``list``, ``schema``, ``expressivity`` and ``show``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pyg_topomask import __version__
from pyg_topomask.run.errors import RunError, storage_errors

_OVERRIDES = "settings that override the file's: key=value, or key value pairs, such as optim.base_lr 0.01"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, which is 0 only on success."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    unknown = next((token for token in rest if token.startswith("--")), None)
    if unknown is not None:
        parser.error(f"unknown option {unknown}")
    try:
        if arguments.command in _WITHOUT_OVERRIDES and rest:
            parser.error(f"'{arguments.command}' does not take {' '.join(rest)}")
        _import_modules(arguments.modules)
        with storage_errors():
            return _COMMANDS[arguments.command](arguments, rest)
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
    except KeyboardInterrupt:
        print("interrupted; the same command resumes from the last checkpoint", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
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
    run = commands.add_parser(
        "run",
        help="train and test a config",
        usage="topomask run CONFIG [--repeat N] [--out DIR] [key=value | key value ...]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    run.add_argument("config", metavar="CONFIG", help="YAML file")
    run.add_argument("--repeat", type=int, default=1, metavar="N", help="number of seeds, counting up from 'seed'")
    run.add_argument("--out", metavar="DIR", help="folder of the results (default: the config's out_dir)")
    _add_check(commands)
    express = commands.add_parser(
        "expressivity",
        help="count the pairs of graphs that features, encodings and a mask distinguish",
        usage="topomask expressivity CONFIG [--encoding NAME] [--size K] [--mask NAME] [--limit N] [--rounds R] "
        "[key=value ...]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    express.add_argument("config", metavar="CONFIG", help="YAML file")
    express.add_argument(
        "--encoding",
        choices=("none", "rwse", "lappe"),
        default="rwse",
        help="random-walk return probabilities (default), Laplacian eigenvectors, or none",
    )
    express.add_argument("--size", type=int, default=8, metavar="K", help="number of steps or vectors (default: 8)")
    express.add_argument(
        "--mask",
        default="none",
        metavar="NAME",
        help="for attention that also reads the graph through this mask, such as rwgnk (default: none)",
    )
    express.add_argument("--limit", type=int, metavar="N", help="only the first N graphs (default: all)")
    express.add_argument("--rounds", type=int, metavar="R", help="rounds of refinement, one per layer (default: all)")
    _add_show(commands)
    return parser


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="validate configs and build their models, without data",
        usage="topomask check CONFIG [CONFIG ...] [key=value ...]",
        epilog=f"{_OVERRIDES.partition(':')[0]}: key=value, for all configs",
    )
    check.add_argument("configs", nargs="+", metavar="CONFIG", help="YAML files, or folders of them")
    listing = commands.add_parser("list", help="print every name that a config may use, and its source")
    listing.add_argument(
        "kind",
        nargs="?",
        metavar="KIND",
        help="attentions, convolutions, ..., keys (default: all but keys)",
    )
    commands.add_parser("schema", help="print the JSON schema of configs, for editors that complete and check YAML")


def _add_show(commands: Any) -> None:
    show = commands.add_parser(
        "show",
        help="draw the attention, mask or walks of a layer, on one graph of a config's data set",
        usage="topomask show KIND CONFIG --out FILE [--graph I] [--layer L] [--head H] [--node V] [--checkpoint PATH] "
        "[key=value ...]",
        epilog=_OVERRIDES,
        allow_abbrev=False,
    )
    show.add_argument(
        "kind",
        choices=("attention", "mask", "walks"),
        metavar="KIND",
        help="attention: the pairs that k-MIP attention keeps, as arrows or a matrix; mask: a mask and one of its "
        "rows; walks: coverage and errors of a GRF mask by the number of walks",
    )
    show.add_argument("config", metavar="CONFIG", help="YAML file")
    show.add_argument("--out", required=True, metavar="FILE", help="picture to write; its suffix gives the format")
    for name, letter, text in (("graph", "I", "graph of the data set"), ("layer", "L", "layer"), ("head", "H", "head")):
        show.add_argument(f"--{name}", type=int, default=0, metavar=letter, help=f"{text}, counted from 0 (default: 0)")
    show.add_argument("--node", type=int, metavar="V", help="draw only the row of this node")
    show.add_argument(
        "--checkpoint", metavar="PATH", help="best.ckpt of a run, or its folder (default: an untrained model)"
    )


def _import_modules(names: Sequence[str]) -> None:
    """Import a user's modules, which may be in the current folder."""
    if names and "" not in sys.path:
        sys.path.insert(0, "")
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise RunError(
                f"--import must give the name of a module, such as own_module or package.module (got {name!r})"
            )
        try:
            import_module(name)
        except Exception as error:  # a user's module may raise anything
            if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
                reason = "no such module is installed or in the current folder"
            else:
                reason = _reason_in_module(error)
            raise RunError(f"--import {name}: {reason}") from error


def _reason_in_module(error: Exception) -> str:
    """One line with the error of an import and the line of the imported module that raised it."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, SyntaxError):  # its text names file and line
        return text
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without the caller of import_module
    own = [frame for frame in frames if "importlib" not in frame.filename]
    return f"{text} ({Path(own[0].filename).name}, line {own[0].lineno})" if own else text


def _run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from pyg_topomask.run.distributed import is_main
    from pyg_topomask.run.output.progress import Display, standard_output
    from pyg_topomask.run.output.report import summary_table
    from pyg_topomask.run.runner import run_config

    console = standard_output(quiet=not is_main())
    summary = run_config(arguments.config, arguments.out, arguments.repeat, overrides, display=Display(console))
    console.print(summary_table(summary))
    console.print(f"results: {summary['folder']}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _expressivity(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from pyg_topomask.run.commands.expressivity import expressivity_table, measure
    from pyg_topomask.run.output.progress import standard_output

    names = ("config", "encoding", "size", "limit", "rounds", "mask")
    report = measure(**{name: getattr(arguments, name) for name in names}, overrides=overrides)
    table = expressivity_table(report, arguments.encoding, Path(arguments.config).stem, arguments.mask)
    standard_output().print(table)
    return 0


def _show(arguments: argparse.Namespace, overrides: list[str]) -> int:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.backend_bases import FigureCanvasBase

    from pyg_topomask.run.commands.show import picture
    from pyg_topomask.run.output.files import output_path
    from pyg_topomask.viz import save_figure

    out, formats = output_path(arguments.out, "a file"), FigureCanvasBase.get_supported_filetypes()
    if out.suffix.removeprefix(".") not in formats:
        raise RunError(f"--out must end in one of .{', .'.join(sorted(formats))} (got {arguments.out})")
    names = ("kind", "config", "graph", "layer", "head", "node", "checkpoint")
    figure = picture(**{name: getattr(arguments, name) for name in names}, overrides=overrides)
    try:
        print(f"wrote {save_figure(figure, out)}")
    except OSError as error:
        raise RunError(f"--out: {out} cannot be written: {error.strerror}") from None
    return 0


def _check(arguments: argparse.Namespace, rest: list[str]) -> int:
    from pyg_topomask.run.config.unused import keys_without_effect
    from pyg_topomask.run.model.pretrained import has_run
    from pyg_topomask.run.runner import check_config

    configs, overrides = _split_overrides(arguments.configs)
    files, failures = _files(configs), 0
    for path in files:
        try:
            parsed, unused = check_config(path, overrides)
        except RunError as error:
            failures += 1
            print(f"error  {path}")
            print("\n".join(f"       {line}" for line in str(error).splitlines()))
        else:
            start = parsed.config
            note = f" (without {', '.join(unused)})" if unused else ""
            if start.pretrained.dir and not has_run(start):
                note += f" (model not tried: pretrained.dir {start.pretrained.dir} contains no run)"
            print(f"ok     {path}{note}")
            for reason, keys in keys_without_effect(parsed).items():
                print(f"       no effect: {', '.join(keys)} ({reason})")
    if len(files) > 1:
        print(f"{len(files)} configs: {len(files) - failures} ok, {failures} with errors")
    return 1 if failures else 0


def _split_overrides(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate files and folders from ``key=value`` entries."""
    from pyg_topomask.run.config.schema import all_keys

    overrides = [token for token in tokens if "=" in token and not os.path.exists(token)]
    configs = [token for token in tokens if token not in overrides]
    key = next((token for token in configs if token in all_keys() and not os.path.exists(token)), None)
    if key is not None:
        raise RunError(f"{key} is a key, not a file: 'check' takes settings as {key}=VALUE")
    if not configs:
        raise RunError("'check' needs a config file or folder")
    return configs, overrides


def _list(arguments: argparse.Namespace, rest: list[str]) -> int:
    from pyg_topomask.run.commands.list import registered, table_text
    from pyg_topomask.run.config.reference import reference_text

    if arguments.kind == "keys":
        print(reference_text())
        return 0
    print("\n\n".join(table_text(kind, names) for kind, names in registered(arguments.kind).items()))
    return 0


def _schema(arguments: argparse.Namespace, rest: list[str]) -> int:
    from pyg_topomask.run.config.reference import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _files(configs: Sequence[str]) -> list[Path]:
    files: list[Path] = []
    for name in configs:
        if not name:
            raise RunError("the name of a config is empty: 'check' takes files, or folders such as '.'")
        path, is_folder = Path(name), os.path.isdir(name)
        found = sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml")) if is_folder else [path]
        if not found:
            raise RunError(f"{path}: no YAML files in this folder")
        files += found
    return files


_COMMANDS = {
    "run": _run,
    "check": _check,
    "list": _list,
    "schema": _schema,
    "expressivity": _expressivity,
    "show": _show,
}
_WITHOUT_OVERRIDES = ("check", "list", "schema")
