"""``topomask report``: one HTML file about a run, which opens without a network."""

import base64
import html
import io
import math
from argparse import Namespace
from pathlib import Path

from matplotlib import pyplot

from pyg_topomask.run.commands.show import draw, load_view
from pyg_topomask.run.errors import NoPictureError
from pyg_topomask.run.files import output_path, write_output
from pyg_topomask.run.output.progress import Display, error_output
from pyg_topomask.run.output.report import layers_text
from pyg_topomask.run.task import PARTS
from pyg_topomask.run.trained_model import find_run, seed_folder

_STYLE = """\
<meta name="viewport" content="width=device-width">
<style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.1em }
td { padding: .2em 1.2em .2em 0; border-bottom: 1px solid #ddd; text-align: right } td:first-child { text-align: left }
img { max-width: 100% } pre { font-size: 13px; background: #f6f6f6; padding: 1em; overflow-x: auto }
</style>
"""


def main(arguments: Namespace, rest: list[str]) -> None:
    """Run the command."""
    out = output_path(arguments.out)
    with Display(error_output()) as display, display.working("writing the report"):
        text = report(arguments.run)
    print(write_output(out, text))


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
    title = html.escape(f"{run.name}: {layers_text(**experiment.labels)} on {experiment.data.name}")
    rows = [("at the best validation epoch", *PARTS), *zip(names, *values.values())]
    table = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    pictures = "".join(_image(*each) for each in _pictures(seed))
    more = {
        "Run and environment": "\n".join(f"{key}: {value}" for key, value in (environment | result).items()),
        "Config": (seed / "config.yaml").read_text(encoding="utf-8"),
    }
    texts = "".join(f"<h2>{name}</h2>\n<pre>{html.escape(text)}</pre>\n" for name, text in more.items())
    head = (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n{_STYLE}<h1>{title}</h1>\n'
    )
    return f"{head}<table>\n{table}</table>\n{pictures}{texts}</html>\n"


def _pictures(seed: Path) -> list[tuple[bytes, str]]:
    """The curves, unless nothing was trained, and the mask and the weights of the first layer, with their titles."""
    found = [(path.read_bytes(), "curves") for path in (seed / "curves.png",) if path.exists()]
    view = load_view(seed / "config.yaml", checkpoint=seed)
    for kind in ("mask", "attention"):
        try:
            figure = draw(kind, view)
        except NoPictureError:
            continue
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110)
        pyplot.close(figure)
        found.append((stream.getvalue(), figure.axes[0].get_title()))
    return found


def _image(png: bytes, title: str) -> str:
    content = base64.b64encode(png).decode()
    return f'<p><img alt="{html.escape(title)}" src="data:image/png;base64,{content}"></p>\n'
