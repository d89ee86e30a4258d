"""What masks are for: handwritten digits as pixels, with and without encodings of their positions.

    python scripts/reproduce/masks_digits.py --quick                       # a trial
    python scripts/reproduce/masks_digits.py --images shifted --positions yes --methods linear toeplitz grid_heat
    python scripts/reproduce/masks_digits.py                               # all rows, 3 seeds; 3 h on one core

A pixel is a node of a grid, and a layer is attention alone, so that only the mask or the encoding tells where a pixel
is. Images fill 8 × 8 pixels, or have a random place on 16 × 16. The encoding is one vector for each row and one for
each column, added to the pixel. Every method has the settings of configs/masked/digits-toeplitz.yaml except for its
mask. GRF has walks that are drawn once per seed and shared by all images, so that they mark pixels. The same command
continues an interrupted one, and keeps finished runs.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from _bench import described, markdown
from _tables import CONFIGS, SPREAD, mean_and_std, plot_runs, positive, read_options, start, table_parser, tabulate

from pyg_topomask.run import run_config

CONFIG = CONFIGS / "masked" / "digits-toeplitz.yaml"
UNMASKED = ["topomask.mask=none"]
METHODS = {
    "linear": UNMASKED,
    "softmax": [*UNMASKED, "topomask.kernel=softmax"],
    "toeplitz": [],
    "grid_heat": ["topomask.mask=grid_heat"],
    "power_series": ["topomask.mask=power_series"],
    "grf": ["topomask.mask=grf"],
}
"""Settings of each row."""

IMAGES = {"plain": "8 × 8", "shifted": "shifted on 16 × 16"}


def run_row(images: str, positions: bool, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Results of one method on one kind of images."""
    name = images + ("-positions" if positions else "")
    settings = [f"dataset.name={name}", f"optim.max_epoch={options.epochs}", *METHODS[method]]
    if options.quick:
        settings += ["dataset.split=[64,32,32]", "optim.num_warmup_epochs=0"]
    tag = f"{name}-{method}-{options.epochs}" + ("-quick" if options.quick else "")
    summary = run_config(CONFIG, options.out / "runs", options.seeds, [*settings, f"name_tag={tag}"])
    return {
        "images": IMAGES[images],
        "positions": positions,
        "method": method,
        "parameters": summary["num_parameters"],
        "test": summary["metrics"]["test_accuracy"],
        "seconds": summary["wall_time_s"]["values"],
    }


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    rows: Sequence[Mapping[str, Any]] = report["rows"]
    yield (
        f"{described(report['machine'])}. Test accuracy (%) after the epoch of the best validation accuracy; "
        f"{report['seeds']} seed(s), {report['epochs']} epochs. {SPREAD} Minutes are wall time of a run."
    )
    yield ""
    cells = []
    for row in rows:
        minutes = sum(row["seconds"]) / len(row["seconds"]) / 60
        known = row["images"], "encoded" if row["positions"] else "none", row["method"], f"{row['parameters']:,}"
        cells.append((*known, mean_and_std("accuracy", row["test"]["values"]), f"{minutes:.1f}"))
    yield from markdown("images | positions | attention | parameters: | test accuracy: | minutes:", cells)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Test accuracy of all runs."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in report["rows"]:
        title = f"{row['images']}, {'encoded positions' if row['positions'] else 'no positions'}"
        panels.setdefault(title, {})[row["method"]] = [100 * value for value in row["test"]["values"]]
    plot_runs(panels, "test accuracy (%)", path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every method on every kind of images. Write JSON and Markdown after each row."""
    made = table_parser(__doc__ or "", "masks_digits", "64 training images, 1 epoch, 1 seed")
    made.add_argument("--images", nargs="+", choices=list(IMAGES), default=list(IMAGES), help="kinds of images")
    made.add_argument("--positions", nargs="+", choices=["no", "yes"], default=["no", "yes"], help="encoded or not")
    made.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="rows")
    made.add_argument("--seeds", type=positive, default=3, help="runs of each row")
    made.add_argument("--epochs", type=positive, default=30, help="epochs of each run")
    options = read_options(made, arguments)
    if options.quick:
        options.seeds, options.epochs = 1, 1
    names = product(options.images, options.positions, options.methods)
    rows = (run_row(images, positions == "yes", method, options) for images, positions, method in names)
    settings = {"seeds": options.seeds, "epochs": options.epochs}
    tabulate(settings, rows, lines, plot, options)


if __name__ == "__main__":
    start(main)
