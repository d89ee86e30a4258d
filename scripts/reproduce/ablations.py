"""Ablations that no paper has: auxiliary loss and rank of Primphormer, walks and features of GKAT, k of k-MIP.

    python scripts/reproduce/ablations.py --quick                            # a trial
    python scripts/reproduce/ablations.py --datasets enzymes                 # 3 folds; half an hour on one core
    python scripts/reproduce/ablations.py                                    # ENZYMES and PROTEINS
    python scripts/reproduce/ablations.py --datasets peptides-func --methods k-MIP    # on a tenth of the graphs

Within a method, one setting changes at a time; the rest is as in the first row. The last row has no attention, or no
mask. Primphormer and k-MIP have message
passing in each layer, too, with the settings of configs/primphormer and configs/kmip. GKAT is alone in its layers, with
the settings of configs/grf and 50 walks of each node. GKAT-0 is the exact softmax kernel under the same mask. All rows
of a data set have equal epochs and folds. On ENZYMES and PROTEINS, run i has Errica et al.'s outer fold i with its
inner split, and seed i; on Peptides-func, run i has seed i and its own random tenth of the graphs. The epoch is chosen
on the validation set. No setting is chosen, and no choice looks at the test set.
The same command continues an interrupted one and keeps finished runs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _folds import Comparison, errica_fold, gap_to, planned, run_once
from _tables import CONFIGS


class Method(NamedTuple):
    """Folder of a method's configs, and row -> settings; the others are compared with the first.

    ``{conv}`` is the data set's message passing.
    """

    folder: str
    rows: Mapping[str, Sequence[str]]


class DataSet(NamedTuple):
    """Number of epochs, metric of the test set, message passing of the configs, and nodes of the largest graph."""

    epochs: int
    metric: str
    conv: str
    most_nodes: int


def _gkat(hops: int, features: int | None = None) -> list[str]:
    kernel = ["kernel=softmax"] if features is None else ["kernel=softmax_rf", f"num_features={features}"]
    walks = [f"max_length={hops}", "num_walks=50", "halt_prob=0.0", "independent=false"]
    return ["gt.layer_type=None+GKAT", *(f"topomask.{setting}" for setting in (*kernel, *walks))]


ETAS, RANKS, HOPS, FEATURES, KEYS = (0, 0.01, 1), (10, 50), (1, 2, 6), (4, 16, 64), (1, 5, 15)

METHODS = {
    "Primphormer": Method(
        "primphormer",
        {
            "eta 0.1, rank 30": [],
            **{f"eta {eta}": [f"topomask.eta={eta}"] for eta in ETAS},
            **{f"rank {rank}": [f"topomask.rank={rank}"] for rank in RANKS},
            "no attention": ["gt.layer_type={conv}+None"],
        },
    ),
    "GKAT": Method(
        "grf",
        {
            "3 hops, GKAT-0": _gkat(3),
            **{f"{hops} hop{'s' * (hops > 1)}": _gkat(hops) for hops in HOPS},
            **{f"{features} features": _gkat(3, features) for features in FEATURES},
            "no mask": ["gt.layer_type=None+Transformer"],
        },
    ),
    "k-MIP": Method(
        "kmip",
        {
            "all keys": ["gt.sparse.k={most_nodes}"],
            **{f"k = {k}": [f"gt.sparse.k={k}"] for k in KEYS},
            "no attention": ["gt.layer_type={conv}+None"],
        },
    ),
}

DATASETS = {
    "enzymes": DataSet(40, "accuracy", "GIN", 126),
    "proteins": DataSet(25, "accuracy", "GIN", 620),
    "peptides-func": DataSet(15, "ap", "CustomGatedGCN", 444),
}

TENTH = "[1087,233,233]"
"""Graphs of each part of a tenth of Peptides-func."""


def settings_of(dataset: str, method: str, row: str, run: int, epochs: int) -> list[str]:
    """Overrides of a config for one run."""
    data, (folder, rows) = DATASETS[dataset], METHODS[method]
    settings = [text.format(conv=data.conv, most_nodes=data.most_nodes) for text in rows[row]]
    tenth = ["dataset.split_mode=random", f"dataset.split={TENTH}"]
    settings += tenth if dataset == "peptides-func" else errica_fold(dataset, run)
    return planned(CONFIGS / folder / f"{dataset}.yaml", f"{method}-{row}", run, epochs, settings)


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    dataset, method = row["dataset"], row["method"]
    path = CONFIGS / METHODS[method].folder / f"{dataset}.yaml"
    return run_once(path, out, settings_of(dataset, method, row["row"], run, epochs), DATASETS[dataset].metric)


def rows_of(dataset: str, method: str) -> dict[str, dict[str, str]]:
    """Key in the report -> the row without results."""
    names = METHODS[method].rows
    return {f"{dataset}, {method}: {row}": {"dataset": dataset, "method": method, "row": row} for row in names}


COMPARISON = Comparison(
    __doc__,
    "ablations",
    {name: data.epochs for name, data in DATASETS.items()},
    METHODS,
    make_run,
    "Accuracy (%), and average precision on Peptides-func.",
    {"dataset": "data set", "method": "method", "row": "row"},
    figures={
        title: gap_to(lambda row, place=place: list(rows_of(row["dataset"], row["method"]))[place], paired=True)
        for title, place in (("to the first row", 0), ("to the last row", -1))
    },
    metrics={"peptides-func": "ap"},
    label="test result × 100",
    rows=rows_of,
    optional=["peptides-func"],
)


if __name__ == "__main__":
    COMPARISON.start()
