"""Trains three models on the same generated graphs and compares them.

The models are linear attention with a topological mask (graph random features), the same attention without a mask, and
message passing (GCN) without attention. They use configs/grf/demo.yaml with different ``gt.layer_type``. No model has
two branches, so the first two differ only in the mask. At the end, the script prints a table and draws a learned mask
and the training curves.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib
import torch
from rich.console import Group
from rich.table import Table
from torch_geometric.data import Data

from pyg_topomask import viz
from pyg_topomask.nn.mask import GRFMask
from pyg_topomask.run import Display, RunError, run_config
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.data.loaders import prepare
from pyg_topomask.run.model.build import build_model
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.output.progress import standard_output
from pyg_topomask.run.output.report import DEVIATION, between_lines
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.tensor_files import load_tensors

CONFIG = Path(__file__).parents[1] / "configs" / "grf" / "demo.yaml"
MODELS = {  # name in the table: (gt.layer_type, name_tag of the folder)
    "GRF-masked attention": ("None+GRF", "grf"),
    "unmasked attention": ("None+Linear", "linear"),
    "GCN": ("GCN+None", "gcn"),
}
CAPTION = (
    "The first two differ only in the mask: attention without one does not see the edges. The nodes of a motif are a "
    "few hops apart, so message passing alone (GCN) finds it as well as the mask."
)


def main() -> int:
    """Train, compare and draw. Return the exit code, 0 on success."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="runs of each model (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the results (default: the config's out_dir)")
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
    picture = draw(summaries, arguments.overrides)
    console.print(f"Picture of a learned mask and the training curves: [bold]{picture}[/bold]", soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(
        f"Took {seconds:.0f} s. Finished runs are kept; delete {picture.parent}/demo* to train again.", soft_wrap=True
    )
    return 0


def train(arguments: argparse.Namespace, display: Display) -> dict[str, dict[str, Any]]:
    """The summaries of the models, by their names in the table."""
    summaries = {}
    with display:
        for name, (layer_type, tag) in MODELS.items():
            overrides = [*arguments.overrides, f"gt.layer_type={layer_type}", f"name_tag={tag}"]
            summaries[name] = run_config(CONFIG, arguments.out, arguments.seeds, overrides, display=display)
    return summaries


def results_table(summaries: dict[str, dict[str, Any]], seeds: int) -> Group:
    """One row for each model."""
    table = Table()
    table.add_column("model")
    for column in ("test accuracy (%)", "parameters", "training (s)"):
        table.add_column(column, justify="right")
    best = max(summary["metrics"]["test_accuracy"]["mean"] for summary in summaries.values())
    for name, summary in summaries.items():
        accuracy = summary["metrics"]["test_accuracy"]
        table.add_row(
            name,
            f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}",
            f"{summary['num_parameters']:,}",
            f"{summary['wall_time_s']['total']:.0f}",
            style="bold" if accuracy["mean"] == best else None,
        )
    return between_lines(f"Is a motif planted in the graph? Mean ± {DEVIATION} over {seeds} seeds", table, CAPTION)


def draw(summaries: dict[str, dict[str, Any]], overrides: list[str]) -> Path:
    """Draw the mask learned with the masked model's first seed, above the curves of all models; return the path."""
    import matplotlib.pyplot as plt

    name, (layer_type, _) = next(iter(MODELS.items()))
    folder = Path(summaries[name]["folder"])
    seed = summaries[name]["seeds"][0]
    mask, graph = learned_mask(folder / str(seed) / "best.ckpt", [*overrides, f"gt.layer_type={layer_type}"], seed)
    figure, axes = plt.subplots(2, 2, figsize=(11.5, 8.6), layout="constrained", height_ratios=(1.3, 1))
    # The last node belongs to the planted motif.
    viz.plot_mask(
        mask, graph.edge_index, "learned mask $M$ (first layer, first head)", graph.num_nodes - 1, ax=list(axes[0])
    )
    curves = {
        name: [columns(Path(summary["folder"]) / str(seed) / "metrics.csv") for seed in summary["seeds"]]
        for name, summary in summaries.items()
    }
    labels = ("training loss (nats)", "validation accuracy (share of graphs)")
    viz.plot_curves(curves, ("train_loss", "val_accuracy"), labels, ax=list(axes[1]))
    return viz.save_figure(figure, folder.parent / "demo.png")


def learned_mask(checkpoint: Path, overrides: list[str], seed: int) -> tuple[torch.Tensor, Data]:
    """The first layer's mask ``[N, N]`` or ``[H, N, N]`` on the first positive test graph, and that graph."""
    config = load(CONFIG, overrides).config
    splits = prepare(config, load_dataset(config.dataset), seed, build_sampling_transforms(config, seed))
    model = build_model(config, splits.in_channels, splits.task.num_outputs, splits.edge_channels)
    module = GraphModule(model, config, splits.task)
    module.load_state_dict(load_tensors(checkpoint)["state_dict"])
    mask = next(part for part in module.modules() if isinstance(part, GRFMask))
    graph = next(graph for graph in splits.test if int(graph.y) == 1)
    with torch.no_grad():
        return mask(graph).to_dense(), graph


def columns(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file by name."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


if __name__ == "__main__":
    matplotlib.use("Agg")
    sys.exit(main())
