"""``topomask run``: train and test a config."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from pyg_topomask.run.distributed import is_main
from pyg_topomask.run.output.progress import Display, standard_output
from pyg_topomask.run.output.report import summary_table
from pyg_topomask.run.runner import run_config


def main(arguments: Namespace, overrides: Sequence[str]) -> int:
    """Run the command."""
    with Display(standard_output(quiet=not is_main())) as display:
        summary = run_config(arguments.config, arguments.out, arguments.repeat, overrides, display=display)
    display.console.print(summary_table(summary))
    display.print(f"results: {summary['folder']}")
    return 0
