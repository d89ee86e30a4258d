"""Trains four models on handwritten digits, each image a grid of 8 × 8 pixels, and compares them.

The models are linear attention without a mask, the same attention under two masks, and message passing (GIN). They use
configs/linear/digits.yaml with other layers. Only the edges of the grid tell a model where pixels are. At the end, the
script prints a table and draws the learned masks, the training curves and the results.
"""

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.ticker import PercentFormatter
from rich.console import Group
from rich.table import Table
from torch_geometric.data import Data

import pyg_topomask
from pyg_topomask import datasets, nn, viz
from pyg_topomask.run import Display, RunError, run_config
from pyg_topomask.run.output.progress import standard_output
from pyg_topomask.run.output.report import DEVIATION, between_lines
from pyg_topomask.viz.drawing import PALETTE

CONFIG = Path(__file__).parents[1] / "configs" / "linear" / "digits.yaml"
GRID = "topomask.mask_toeplitz.grid_shape=[8,8]"
WALKS, TOEPLITZ = "attention, GRF mask", "attention, Toeplitz mask"
MODELS = {  # name in the table: tag of the folder, and settings
    "attention without a mask": ("none", "gt.layer_type=None+Linear"),
    WALKS: ("grf", "gt.layer_type=None+GRF topomask.mask_lr=null"),
    TOEPLITZ: ("toeplitz", f"gt.layer_type=None+Masked topomask.mask=toeplitz {GRID} topomask.mask_lr=null"),
    "message passing (GIN)": ("gin", "gt.layer_type=GIN+None"),
}
CAPTION = (
    "Without a mask, attention sees a set of pixels and can only guess from their brightness. A mask says which pixels "
    "are close; a Toeplitz mask also in which direction. Part of the gain of GRF is that its walks, drawn once, mark "
    "each pixel. GIN knows the edges but no direction. Six epochs are few: GIN and GRF gain from more, the spread over "
    "seeds is large; with more epochs and equal time GIN is ahead of GRF (docs/results/grf_images.md)."
)
PIXEL = 27  # its row of the masks is drawn: row 3, column 3


def main() -> int:
    """Train, compare and draw. Return the exit code, 0 on success."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2, help="runs of each model (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/demo"), help="folder of the results")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that override the config's")
    arguments = parser.parse_args()
    console, start = standard_output(), time.perf_counter()
    try:
        summaries = train(arguments, Display(console))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command continues from the last checkpoint", file=sys.stderr)
        return 130
    console.print(results_table(summaries, arguments.seeds))
    picture = draw(summaries, arguments.out)
    console.print(f"Picture of the learned masks and of the results: [bold]{picture}[/bold]", soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(f"Took {seconds:.0f} s. Runs are kept; delete {arguments.out} to train again.", soft_wrap=True)
    return 0


def train(arguments: argparse.Namespace, display: Display) -> dict[str, dict[str, Any]]:
    """The summaries of the models, by their names in the table."""
    summaries = {}
    with display:
        for name, (tag, settings) in MODELS.items():
            overrides = [*settings.split(), f"name_tag={tag}", *arguments.overrides]
            summaries[name] = run_config(CONFIG, arguments.out, arguments.seeds, overrides, display=display)
    return summaries


def results_table(summaries: dict[str, dict[str, Any]], seeds: int) -> Group:
    """One row for each model."""
    table = Table()
    table.add_column("model")
    for column in ("test accuracy (%)", "parameters", "training (s)"):
        table.add_column(column, justify="right")
    for name, summary in summaries.items():
        accuracy = summary["metrics"]["test_accuracy"]
        table.add_row(
            name,
            f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}",
            f"{summary['num_parameters']:,}",
            f"{summary['wall_time_s']['total']:.0f}",
        )
    return between_lines(f"Which digit is it? Mean ± {DEVIATION} over {seeds} seeds", table, CAPTION)


def draw(summaries: dict[str, dict[str, Any]], out: Path) -> Path:
    """Draw a digit and what one of its pixels sees under the learned masks, above curves and results."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11.5, 7.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    digit = datasets.DigitsDataset(str(out / "digits"), num_graphs=3)[2]
    panels = {"an image: its pixels are the nodes": digit.x, "without a mask": torch.ones(64) / 64}
    for name in (WALKS, TOEPLITZ):
        panels[name.removeprefix("attention, ")] = learned_row(Path(summaries[name]["folder"]), digit)
    top.suptitle("How strongly the mask lets the pixel with the star attend to each pixel (first layer, mean of heads)")
    for number, (axis, (title, values)) in enumerate(zip(top.subplots(1, 4), panels.items())):
        axis.imshow(values.view(8, 8), cmap="YlGnBu" if number else "gray_r", vmin=0)
        if number:
            axis.plot(PIXEL % 8, PIXEL // 8, "*", color="white", ms=13, mec="black")
        axis.set(title=title, xticks=[], yticks=[])
    curves, results = bottom.subplots(1, 2)
    runs = {
        name: [columns(Path(summary["folder"]) / str(seed) / "metrics.csv") for seed in summary["seeds"]]
        for name, summary in summaries.items()
    }
    viz.plot_curves(runs, ("val_accuracy",), ("validation accuracy (%)",), ax=[curves])
    curves.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    curves.get_legend().set_loc("upper left")
    for row, summary in enumerate(summaries.values()):
        values = [100 * value for value in summary["metrics"]["test_accuracy"]["values"]]
        results.barh(row, statistics.fmean(values), color=PALETTE[row], alpha=0.6)
        results.plot(values, [row] * len(values), "o", color="black", ms=4)
    results.axvline(10, color="grey", ls=":", label="guessing")
    results.set_yticks(np.arange(len(summaries)), list(summaries))
    results.invert_yaxis()
    results.set(xlabel="test accuracy (%); dots: seeds", xlim=(0, 100))
    results.legend(frameon=False)
    return viz.save_figure(figure, out / "demo.png")


def learned_row(folder: Path, digit: Data) -> torch.Tensor:
    """What the first layer's mask, learned with the first seed, gives the other nodes for one node, shape ``[64]``."""
    seed = min(path.name for path in folder.iterdir() if path.name.isdecimal())
    model, transform = pyg_topomask.load(folder / seed)
    mask = next(part for part in model.modules() if isinstance(part, nn.Mask))
    with torch.no_grad():
        dense = mask(transform(digit)).to_dense()  # [H, 64, 64]
    return dense[..., PIXEL, :].abs().reshape(-1, 64).mean(0)


def columns(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file by name."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


if __name__ == "__main__":
    matplotlib.use("Agg")
    sys.exit(main())
