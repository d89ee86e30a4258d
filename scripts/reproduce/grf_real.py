"""What a mask of graph random features adds on real graphs: attention without message passing (Reid et al. 2024).

    python scripts/reproduce/grf_real.py --quick                              # a trial
    python scripts/reproduce/grf_real.py --datasets cora enzymes
    python scripts/reproduce/grf_real.py                                      # all rows, 3 seeds; 3 hours on one core

Layers are attention alone, or message passing alone, with the settings of configs/grf/<data set>.yaml. The paper has no
figures for these data sets. Each method is trained twice: for an equal number of epochs, and for as many epochs as take
the time of the GRF row, with the schedule planned for them. Epochs are chosen on the validation set, and no setting on
the test set. Without a mask or message passing, a layer knows of the graph only what the features tell.
The same command continues an interrupted one, and keeps finished runs.
"""

from collections.abc import Iterator
from functools import partial

from _grf import Experiment, comparison, table_lines
from _tables import CONFIGS, Report, mean_and_std, start

FIXED_LENGTH = ["topomask.halt_prob=0.0", "topomask.independent=false"]


def experiment(name: str, epochs: int, conv: str, metric: str = "accuracy") -> Experiment:
    """The rows of one data set, next to message passing by ``conv``."""
    methods = {
        "GRF": ["gt.layer_type=None+GRF"],
        "linear": ["gt.layer_type=None+Linear"],
        "GKAT": ["gt.layer_type=None+GKAT", "topomask.kernel=softmax", *FIXED_LENGTH],
        "softmax": ["gt.layer_type=None+Transformer"],
        "message passing": [f"gt.layer_type={conv}+None"],
    }
    return Experiment(CONFIGS / "grf" / f"{name}.yaml", epochs, metric, methods)


EXPERIMENTS = {
    "cora": experiment("cora", 80, "GCN"),
    "enzymes": experiment("enzymes", 40, "GIN"),
    "citeseer": experiment("citeseer", 80, "GCN"),
    "proteins": experiment("proteins", 25, "GIN"),
    "peptides-func": experiment("peptides-func", 3, "CustomGatedGCN", "ap"),
}


def lines(report: Report) -> Iterator[str]:
    """The table, and where it was made."""
    return table_lines(report, EXPERIMENTS, mean_and_std)


COMPARISON = comparison(__doc__, "grf_real", EXPERIMENTS, label="test result × 100")
plot, main = COMPARISON.plot, partial(COMPARISON.main, lines=lines)


if __name__ == "__main__":
    start(main)
