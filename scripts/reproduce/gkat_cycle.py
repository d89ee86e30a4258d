"""GKAT's depth versus density (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.1.2, Table 5, Figure 7).

    python scripts/reproduce/gkat_cycle.py --quick      # a trial of a few minutes
    python scripts/reproduce/gkat_cycle.py              # 4,096 graphs, 100 epochs of GKAT, 3 seeds, 2 to 6 layers

GKAT has two layers; GAT, GCN and SGC have two to six, all with the paper's sizes and about 242 parameters. Budgets are
those of gkat_motif.py, whose two-layer runs are used. Finished runs are kept.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _bench import draw_lines
from _gkat import lines as lines
from _gkat import write_report
from _gkat_synthetic import CYCLE, GAT_HEADS, compare, described, quickened, synthetic_parser
from _tables import finish, start


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Test accuracy over the number of layers, as in Figure 7, with a horizontal line for GKAT's two layers."""
    gkat, *others = report["rows"]
    depths = sorted({row["depth"] for row in others})
    points: dict[str, list[tuple[int, float, float]]] = {"GKAT, 2 layers": [(n, gkat["mean"], 0) for n in depths]}
    for row in others:
        line = points.setdefault(row["method"].partition(",")[0], [])
        line.append((row["depth"], row["mean"], row["std"] or 0))
    draw_lines({"": points}, path, "layers", "test accuracy (%)")


def main() -> None:
    """Train every method, the baselines at each depth."""
    made = synthetic_parser(__doc__, "gkat_cycle")
    depths = list(GAT_HEADS)
    made.add_argument("--layers", nargs="+", type=int, choices=depths, default=depths, help="layers of all but GKAT")
    options = quickened(made)
    rows: list[dict[str, Any]] = []
    for row in compare(CYCLE, options, options.layers):
        rows.append(row)
        report = write_report(rows, described(rows, options), options)
    finish(report, lines, plot, options)


if __name__ == "__main__":
    start(main)
