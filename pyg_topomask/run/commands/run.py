"""``topomask run``: train and test a config."""

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from pyg_topomask.run.distributed import is_main
from pyg_topomask.run.graphgps.reading import run_config
from pyg_topomask.run.output.progress import Display, standard_output
from pyg_topomask.run.output.report import summary_table


def main(arguments: Namespace, overrides: Sequence[str]) -> None:
    """Run the command."""
    if arguments.data is not None:
        path = Path(arguments.data)
        settings = {"format": "Files", "name": path.stem, "dir": str(path)}
        overrides = [*(f"dataset.{key}={json.dumps(value)}" for key, value in settings.items()), *overrides]
    with Display(standard_output(quiet=not is_main())) as display:
        summary = run_config(arguments.config, arguments.out, arguments.repeat, overrides, display=display)
    display.console.print(summary_table(summary))
    display.say(f"results: {summary['folder']}")
