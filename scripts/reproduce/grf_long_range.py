"""What a mask of graph random features adds if a node's target depends on nodes several hops away.

    python scripts/reproduce/grf_long_range.py --quick                        # a trial
    python scripts/reproduce/grf_long_range.py                                # all rows, 3 seeds; 1 h on one core

Tasks are those of `LongRangeDataset`, with the settings of configs/grf/long-range-<task>.yaml: the share of a node's
own label within 4 hops, the distance to a marked node of a tree, and the number at the opposite node of a ring. Layers
are attention alone, or message passing alone, which sees one hop per layer: at equal depth, and with twice the layers.
Each method is trained twice: for an equal number of epochs, and for as many epochs as take the time of the GRF row,
with the schedule planned for them. Epochs are chosen on the validation set, and so were the nodes and the halting
probability of "share"; no choice looks at the test set.
The same command continues an interrupted one, and keeps finished runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _fitting import mean_and_spread
from _folds import Comparison, planned, run_once
from _tables import CONFIGS

METHODS = {
    "GRF": [],
    "linear": ["gt.layer_type=None+Linear"],
    "softmax": ["gt.layer_type=None+Transformer"],
    "GIN": ["gt.layer_type=GIN+None"],
    "GCN": ["gt.layer_type=GCN+None"],
    "GIN with 4 layers": ["gt.layer_type=GIN+None", "gt.layers=4"],
}
METRICS = {"share": "r2", "tree": "accuracy", "ring": "r2"}
LONGER = "share, 40 epochs"


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    task, method = row["dataset"].partition(",")[0], row["method"]
    path = CONFIGS / "grf" / f"long-range-{task}.yaml"
    return run_once(path, out, planned(path, method, run, epochs, METHODS[method]), METRICS[task])


COMPARISON = Comparison(
    __doc__,
    "grf_long_range",
    dict.fromkeys(METRICS, 20) | {LONGER: 40},
    METHODS,
    make_run,
    "R², or the share of right classes (tree), and what is left to explain: the difference to 1.",
    figures={"left": lambda row, rows: mean_and_spread([1 - value for value in row["test"]])},
    form=(1, 3),
    label="R², or share of right classes, test",
    first="GRF",
    optional=[LONGER],
)


if __name__ == "__main__":
    COMPARISON.start()
