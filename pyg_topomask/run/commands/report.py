"""``topomask report``: one HTML file about a run, which opens without a network."""

from __future__ import annotations

import base64
import html
import io
import math
from argparse import Namespace
from pathlib import Path

from matplotlib import pyplot
from rich.console import Console

from pyg_topomask.run.commands.show import picture
from pyg_topomask.run.errors import NoPictureError
from pyg_topomask.run.files import output_path, write_output
from pyg_topomask.run.finished_run import find_run
from pyg_topomask.run.output.progress import Display, error_output
from pyg_topomask.run.output.report import layers_text, titled_table
from pyg_topomask.run.task import PARTS
from pyg_topomask.run.trained_model import seed_folder


def main(arguments: Namespace, rest: list[str]) -> int:
    """Run the command."""
    out = output_path(arguments.out)
    with Display(error_output()) as display, display.working("writing the report"):
        text = report(arguments.run)
    print(write_output(out, text))
    return 0


def report(folder: str | Path) -> str:
    """The report of one seed as HTML: metrics, environment, curves, the mask and weights of a layer, and config.

    Args:
        folder: Folder of the seed, or a results folder with a single seed.

    Raises:
        RunError: If the run is not finished, or its files or its data cannot be read.
    """
    seed = seed_folder(Path(folder).expanduser())
    run = find_run(seed)
    result, experiment = run.results[seed], run.experiment
    metrics, environment = result.pop("metrics"), result.pop("environment") or {}
    names = list(dict.fromkeys(["loss", *(key.partition("_")[2] for key in sorted(metrics))]))
    values = {part: [f"{metrics.get(f'{part}_{name}', math.nan):.4g}" for name in names] for part in PARTS}
    title = f"{run.name}: {layers_text(**experiment.labels)} on {experiment.data.name}"
    caption = "\n".join(f"{key}: {value}" for key, value in (environment | result).items())
    page = Console(record=True, file=io.StringIO(), width=100)
    page.print(titled_table(title, {"at the best validation epoch": names, **values}, caption))
    settings = f"<pre>{html.escape((seed / 'config.yaml').read_text(encoding='utf-8'))}</pre>"
    more = "".join([*(_image(*each) for each in _pictures(seed)), settings])
    return page.export_html(inline_styles=True).replace("</body>", f"{more}</body>")


def _pictures(seed: Path) -> list[tuple[bytes, str]]:
    """The curves, unless nothing was trained, and the mask and the weights of the first layer, with their titles."""
    found = [(path.read_bytes(), "curves") for path in (seed / "curves.png",) if path.exists()]
    for kind in ("mask", "attention"):
        try:
            figure = picture(kind, seed / "config.yaml", checkpoint=seed)
        except NoPictureError:
            continue
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110)
        pyplot.close(figure)
        found.append((stream.getvalue(), figure.axes[0].get_title()))
    return found


def _image(png: bytes, title: str) -> str:
    content = base64.b64encode(png).decode()
    return f'<p><img alt="{html.escape(title)}" style="max-width: 100%" src="data:image/png;base64,{content}"></p>\n'
