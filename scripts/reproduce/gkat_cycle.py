"""GKAT's depth against density (Choromanski et al., ICML 2022, arXiv:2107.07999, Section 5.1.2, Table 5, Figure 7).

    python scripts/reproduce/gkat_cycle.py --quick      # a trial of a few minutes
    python scripts/reproduce/gkat_cycle.py              # 4,096 graphs, 100 epochs of GKAT, 3 seeds, 2 to 6 layers

GKAT has two layers, GAT, GCN and SGC two to six, all with the paper's sizes and about 242 parameters. Budgets and runs
are those of gkat_motif.py, whose two-layer runs are not made again. A run that was stopped goes on where it was.
"""

from __future__ import annotations

from typing import Any

import torch
from _gkat import finish, write_report
from _gkat_synthetic import CYCLE, GAT_HEADS, compare, described, quickened, synthetic_parser


def main() -> None:
    """Train every method, the baselines at each depth."""
    made = synthetic_parser(__doc__.splitlines()[0])
    made.add_argument("--layers", nargs="+", type=int, choices=list(GAT_HEADS), default=list(GAT_HEADS))
    options = quickened(made.parse_args())
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for row in compare(CYCLE, options, options.layers):
        rows.append(row)
        write_report("gkat_cycle", rows, described(rows, options), options)
    finish("gkat_cycle", rows, options)


if __name__ == "__main__":
    main()
