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

from collections.abc import Iterator, Sequence
from functools import partial

import _bench  # noqa: F401  # says how OpenMP's threads wait, before torch is imported
from _fitting import mean_and_spread
from _grf import Experiment, comparison, table_lines
from _tables import CONFIGS, Report, start

METHODS = {
    "GRF": [],
    "linear": ["gt.layer_type=None+Linear"],
    "softmax": ["gt.layer_type=None+Transformer"],
    "GIN": ["gt.layer_type=GIN+None"],
    "GCN": ["gt.layer_type=GCN+None"],
    "GIN with 4 layers": ["gt.layer_type=GIN+None", "gt.layers=4"],
}

EXPERIMENTS = {
    task: Experiment(CONFIGS / "grf" / f"long-range-{task}.yaml", 20, metric, METHODS)
    for task, metric in (("share", "r2"), ("tree", "accuracy"), ("ring", "r2"))
}


def figure(metric: str, values: Sequence[float]) -> str:
    """What is left to explain: the mean squared error over the variance (1 - R²), or the share of wrong classes."""
    return mean_and_spread([1 - value for value in values])


def lines(report: Report) -> Iterator[str]:
    """The table, and where it was made."""
    return table_lines(report, EXPERIMENTS, figure)


LABEL = "R², or share of right classes, test"
COMPARISON = comparison(__doc__, "grf_long_range", EXPERIMENTS, scale=1, label=LABEL)
plot, main = COMPARISON.plot, partial(COMPARISON.main, lines=lines)


if __name__ == "__main__":
    start(main)
