"""The command line: ``topomask run``, ``check``, ``list``, ``schema``, ``expressivity``, ``show`` and more."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyg_topomask import __version__
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.options import OVERRIDES, add_advise, add_compare, add_predict, add_report, add_show
from pyg_topomask.run.user_modules import import_modules


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, which is 0 only on success."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    unknown = next((token for token in rest if token.startswith("--")), None)
    if unknown is not None:
        parser.error(f"unknown option {unknown}")
    try:
        if arguments.command in _WITHOUTOVERRIDES and rest:
            parser.error(f"'{arguments.command}' does not take {' '.join(rest)}")
        import_modules(arguments.modules)
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
        epilog=OVERRIDES,
        allow_abbrev=False,
    )
    run.add_argument("config", metavar="CONFIG", help="YAML file")
    run.add_argument("--repeat", type=int, default=1, metavar="N", help="number of seeds, counting up from 'seed'")
    run.add_argument("--out", metavar="DIR", help="folder of the results (default: the config's out_dir)")
    _add_check(commands)
    express = commands.add_parser(
        "expressivity",
        help="count the pairs of graphs that features, encodings and a mask distinguish",
        epilog=OVERRIDES,
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
    add_show(commands)
    add_advise(commands)
    add_compare(commands)
    add_predict(commands)
    add_report(commands)
    return parser


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="validate configs and build their models, without data",
        epilog=f"{OVERRIDES.partition(':')[0]}: key=value, for all configs",
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
    from pyg_topomask.run.output.progress import Display, error_output, standard_output

    names = ("config", "encoding", "size", "limit", "rounds", "mask")
    with Display(error_output()) as display, display.working("comparing graphs"):
        report = measure(**{name: getattr(arguments, name) for name in names}, overrides=overrides)
    table = expressivity_table(report, arguments.encoding, Path(arguments.config).stem, arguments.mask)
    standard_output().print(table)
    return 0


def _show(arguments: argparse.Namespace, overrides: list[str]) -> int:
    import matplotlib

    matplotlib.use("Agg")
    from pyg_topomask.run.commands.show import picture
    from pyg_topomask.run.output.files import output_path
    from pyg_topomask.run.output.progress import Display, error_output, standard_output

    if arguments.kind == "path":
        from pyg_topomask.run.commands.show_path import path_table

        position = arguments.graph, arguments.layer, arguments.checkpoint
        standard_output().print(path_table(arguments.config, *position, overrides))
        return 0
    if arguments.out is None:
        raise RunError(f"show {arguments.kind} needs --out FILE, the picture to write")
    out = output_path(arguments.out, "a file")
    names = ("kind", "config", "graph", "layer", "head", "node", "checkpoint")
    with Display(error_output()) as display, display.working("drawing"):
        figure = picture(**{name: getattr(arguments, name) for name in names}, overrides=overrides)
    print(f"wrote {_save_picture(figure, out)}")
    return 0


def _save_picture(figure: Any, out: Path) -> Path:
    from pyg_topomask.viz import save_figure

    try:
        return save_figure(figure, out)
    except (OSError, ValueError) as error:  # such as a format that matplotlib does not have
        raise RunError(f"--out: {out} cannot be written: {error}") from None


def _advise(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from pyg_topomask.run.commands.advise import advise, as_json, as_text
    from pyg_topomask.run.output.progress import Display, error_output, standard_output

    with Display(error_output()) as display:
        found = advise(arguments.source, arguments.attention, arguments.seconds, overrides, arguments.modules, display)
    if arguments.format == "json":
        print(as_json(found))
    else:
        standard_output().print(as_text(found))
    return 0


def _compare(arguments: argparse.Namespace, rest: list[str]) -> int:
    import matplotlib

    from pyg_topomask.run.commands.compare import compare, find_runs, picture
    from pyg_topomask.run.output.comparison import as_csv, as_markdown, as_text
    from pyg_topomask.run.output.files import output_path
    from pyg_topomask.run.output.progress import standard_output

    matplotlib.use("Agg")
    out = None if arguments.out is None else output_path(arguments.out, "a file")
    runs, position = find_runs(arguments.runs, arguments.baseline)
    comparison = compare(runs, position)
    if arguments.format == "text":
        console = standard_output()
        console.print(as_text(comparison, console))
    else:
        print({"markdown": as_markdown, "csv": as_csv}[arguments.format](comparison))
    if out is not None:
        print(f"wrote {_save_picture(picture(runs, comparison), out)}", file=sys.stderr)
    return 0


def _predict(arguments: argparse.Namespace, rest: list[str]) -> int:
    from pyg_topomask.run.commands.predict import predict
    from pyg_topomask.run.output.files import output_path
    from pyg_topomask.run.output.progress import Display, error_output

    out = None if arguments.out is None else output_path(arguments.out, "a file")
    with Display(error_output()) as display:
        text = predict(arguments.run, arguments.data, display)
    if out is None:
        print(text, end="")
    else:
        _write_file(out, text)
    return 0


def _write_file(out: Path, text: str) -> None:
    from pyg_topomask.run.output.files import write_text

    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)
    print(f"wrote {out}")


def _report(arguments: argparse.Namespace, rest: list[str]) -> int:
    import matplotlib

    matplotlib.use("Agg")
    from pyg_topomask.run.commands.report import report
    from pyg_topomask.run.output.files import output_path
    from pyg_topomask.run.output.progress import Display, error_output

    out = output_path(arguments.out, "a file")
    with Display(error_output()) as display, display.working("writing the report"):
        text = report(arguments.run, arguments.graph, arguments.layer, arguments.head, arguments.node)
    _write_file(out, text)
    return 0


def _check(arguments: argparse.Namespace, rest: list[str]) -> int:
    from pyg_topomask.run.commands.check import check_files

    return check_files(arguments.configs)


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


_COMMANDS = {
    "run": _run,
    "check": _check,
    "list": _list,
    "schema": _schema,
    "expressivity": _expressivity,
    "show": _show,
    "advise": _advise,
    "compare": _compare,
    "predict": _predict,
    "report": _report,
}
_WITHOUTOVERRIDES = ("check", "list", "schema", "compare", "predict", "report")
