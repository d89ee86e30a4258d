"""TU data sets under one protocol: attentions beside GIN, GAT and a baseline without edges on ten folds.

    python scripts/reproduce/tu_folds.py --quick                         # a trial
    python scripts/reproduce/tu_folds.py --datasets imdb-binary enzymes  # ten folds; half an hour on one core
    python scripts/reproduce/tu_folds.py                                 # seven data sets
    python scripts/reproduce/tu_folds.py --datasets enzymes-long         # 200 epochs instead of 30; 1.6 hours

Run i has Errica et al.'s outer fold i with its inner split (ICLR 2020), and seed i. The epoch is chosen on the
validation set of the inner split. No setting is chosen, and no choice looks at the test set. All rows of a data set
have equal features, width, depth, epochs and optimiser. Two layers of width 64 with 4 heads, a feed-forward part and
batch norm are summed over the nodes and followed by an MLP; the optimiser is that of configs/grf. The baseline has no
branches: its layers are feed-forward networks on each node, which read no edges. GKAT is alone in its layers, with the
walks and random features of configs/gkat. GRF, k-MIP and Primphormer stand beside GIN, as in configs/grf, configs/kmip
and configs/primphormer, with the settings there. Nodes of social graphs have a learned vector for each degree.
The same command continues an interrupted one and keeps finished runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _folds import Comparison, errica_fold, gap_to, run_once, schedule
from _tables import CONFIGS

METHODS = {
    "baseline": "gt.layer_type=None+None",
    "GIN": "gt.layer_type=GIN+None",
    "GAT": "gt.layer_type=GAT+None",
    "GKAT": "gt.layer_type=None+GKAT",
    "GIN + GRF": "gt.layer_type=GIN+GRF topomask.mask_lr=null topomask.kernel=relu topomask.num_walks=16 "
    "topomask.max_length=4 topomask.halt_prob=0.5 topomask.independent=true",
    "GIN + k-MIP": "gt.layer_type=GIN+KMIP gt.sparse.k=15 gt.sparse.kq_dim=10 gt.sparse.val_dim=16 "
    "gt.sparse.head_agg=Linear",
    "GIN + Primphormer": "gt.layer_type=GIN+Primphormer topomask.num_virtual=30 topomask.rank=30 topomask.eta=0.1",
}
"""Row -> its settings. All others are in `COMMON` and, for the data and GKAT's walks, in configs/gkat."""

COMMON = """
gt.layers=2 gt.dim_hidden=64 gnn.dim_inner=64 gt.n_heads=4 gt.dropout=0.1 gnn.dropout=0.1 gt.batch_norm=true
topomask.feed_forward=true topomask.encoder_dropout=0.1 gnn.layers_post_mp=2 gnn.head=mlp_graph
train.early_stop_patience=0 optim.optimizer=adamW optim.base_lr=1e-3 optim.weight_decay=1e-4
optim.scheduler=cosine_with_warmup optim.clip_grad_norm=true
"""

EPOCHS = {
    "imdb-binary": 8,
    "imdb-multi": 8,
    "enzymes": 30,
    "proteins": 10,
    "nci1": 20,
    "reddit-binary": 10,
    "collab": 5,
    "enzymes-long": 200,
}
"""Data set -> epochs; a name that ends in `LONG` is a second schedule of the same data set."""

LONG = "-long"

PUBLISHED = {
    "imdb-binary": {"baseline": "70.8 ± 5.0", "GIN": "71.2 ± 3.9", "GKAT": "71.4 ± 2.6"},
    "imdb-multi": {"baseline": "49.1 ± 3.5", "GIN": "48.5 ± 3.3", "GKAT": "47.5 ± 4.5"},
    "enzymes": {"baseline": "65.2 ± 6.4", "GIN": "59.6 ± 4.5", "GKAT": "69.7 ± 6.0"},
    "proteins": {"baseline": "75.8 ± 3.7", "GIN": "73.3 ± 4.0", "GKAT": "75.8 ± 3.8"},
    "nci1": {"baseline": "69.8 ± 2.2", "GIN": "80.0 ± 1.4", "GKAT": "75.2 ± 2.4"},
    "reddit-binary": {"baseline": "82.2 ± 3.0", "GIN": "89.9 ± 1.9", "GKAT": "89.3 ± 2.3"},
    "collab": {"baseline": "70.2 ± 1.5", "GIN": "75.6 ± 2.3", "GKAT": "73.1 ± 2.0"},
}
"""Baseline and GIN of Errica et al., Tables 3 and 4 (with degrees); GKAT of Choromanski et al., Tables 1 and 2."""


def settings_of(dataset: str, method: str, run: int, epochs: int) -> list[str]:
    """Overrides of configs/gkat for one run; the first twentieth of the epochs warms up, as in configs/grf."""
    made = [*COMMON.split(), *METHODS[method].split(), *errica_fold(dataset, run), f"seed={run}"]
    return [*made, *schedule(epochs, round(epochs / 20), f"{method}-{epochs}-{run}")]


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    dataset = row["dataset"].removesuffix(LONG)
    return run_once(CONFIGS / "gkat" / f"{dataset}.yaml", out, settings_of(dataset, row["method"], run, epochs))


COMPARISON = Comparison(
    __doc__,
    "tu_folds",
    EPOCHS,
    METHODS,
    make_run,
    figures={
        "to the baseline": gap_to(lambda row: f"{row['dataset']}: baseline", paired=True),
        "to GIN": gap_to(lambda row: f"{row['dataset']}: GIN", paired=True),
        "published": lambda row, rows: PUBLISHED[row["dataset"].removesuffix(LONG)].get(row["method"], "–"),
    },
    runs=10,
    longer="GIN",
    optional=[dataset for dataset in EPOCHS if dataset.endswith(LONG)],
)


if __name__ == "__main__":
    COMPARISON.start()
