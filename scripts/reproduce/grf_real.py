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

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _folds import Comparison, planned, run_once
from _tables import CONFIGS

METHODS = {
    "GRF": ["gt.layer_type=None+GRF"],
    "linear": ["gt.layer_type=None+Linear"],
    "GKAT": [
        "gt.layer_type=None+GKAT",
        "topomask.kernel=softmax",
        "topomask.halt_prob=0.0",
        "topomask.independent=false",
    ],
    "softmax": ["gt.layer_type=None+Transformer"],
    "message passing": ["gt.layer_type={conv}+None"],
}
EPOCHS = {"cora": 80, "enzymes": 40, "citeseer": 80, "proteins": 25, "peptides-func": 3}
CONVS = {"cora": "GCN", "citeseer": "GCN", "enzymes": "GIN", "proteins": "GIN", "peptides-func": "CustomGatedGCN"}
METRICS = {"peptides-func": "ap"}


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    dataset, method = row["dataset"], row["method"]
    path, settings = CONFIGS / "grf" / f"{dataset}.yaml", (text.format(conv=CONVS[dataset]) for text in METHODS[method])
    return run_once(path, out, planned(path, method, run, epochs, settings), METRICS.get(dataset, "accuracy"))


COMPARISON = Comparison(
    __doc__,
    "grf_real",
    EPOCHS,
    METHODS,
    make_run,
    "Accuracy (%), and average precision on Peptides-func.",
    metrics=METRICS,
    label="test result × 100",
    first="GRF",
)


if __name__ == "__main__":
    COMPARISON.start()
