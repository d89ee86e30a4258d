"""GKAT's depth versus density (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.1.2, Table 5, Figure 7).

    python scripts/reproduce/gkat_cycle.py --quick      # a trial of a few minutes
    python scripts/reproduce/gkat_cycle.py              # 4,096 graphs, 100 epochs of GKAT, 3 seeds, 2 to 6 layers

GKAT has two layers; GAT, GCN and SGC have two to six, all with the paper's sizes and about 242 parameters. Budgets are
those of gkat_motif.py, whose two-layer runs are used. Finished runs are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from _gkat import finish, write_report
from _gkat import lines as lines
from _gkat_synthetic import CYCLE, GAT_HEADS, compare, described, quickened, synthetic_parser
from _tables import pyplot, save_plot, start

from pyg_topomask.viz.drawing import PALETTE


def main() -> None:
    """Train every method, the baselines at each depth."""
    made = synthetic_parser(__doc__)
    depths = list(GAT_HEADS)
    made.add_argument("--layers", nargs="+", type=int, choices=depths, default=depths, help="layers of all but GKAT")
    options = quickened(made)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for row in compare(CYCLE, options, options.layers):
        rows.append(row)
        write_report("gkat_cycle", rows, described(rows, options), options)
    finish("gkat_cycle", options, plot)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Test accuracy over the number of layers, as in Figure 7, with a horizontal line for GKAT's two layers."""
    figure, axis = pyplot().subplots(figsize=(5.2, 3.6), layout="constrained")
    gkat, *others = report["rows"]
    axis.axhline(gkat["mean"], color=PALETTE[0], label="GKAT, 2 layers")
    names = list(dict.fromkeys(row["method"].partition(",")[0] for row in others))
    for name, color, marker in zip(names, PALETTE[1:], "osD^"):
        found = [row for row in others if row["method"].partition(",")[0] == name]
        spread = [row["std"] or 0 for row in found]
        depths, means = [row["depth"] for row in found], [row["mean"] for row in found]
        axis.errorbar(depths, means, spread, color=color, marker=marker, ms=4, lw=1.2, capsize=2, label=name)
    axis.set(xlabel="layers", ylabel="test accuracy (%)", xticks=sorted({row["depth"] for row in report["rows"]}))
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    save_plot(figure, path)


if __name__ == "__main__":
    start(main)
