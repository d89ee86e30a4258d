"""Common parts of the scripts that repeat Primphormer's tables: configs with several attentions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from _folds import Comparison, planned, run_once
from _tables import CONFIGS

from pyg_topomask.run import check_config

FOLDERS = {"Primphormer": "primphormer", "Transformer": "full", "Exphormer": "exphormer", "GRF": "grf", "KMIP": "kmip"}
"""Method -> its folder of configs."""


class Published(NamedTuple):
    """Metric of a data set's test set, and method -> published mean and deviation."""

    metric: str
    values: Mapping[str, str]


def path_of(dataset: str, method: str = "Primphormer") -> Path:
    """The config of a row."""
    return CONFIGS / FOLDERS[method] / f"{dataset}.yaml"


def comparison(doc: str | None, name: str, table: Mapping[str, Published]) -> Comparison:
    """Rows of every method for the epochs of Primphormer's config, and for equal time."""

    def run(row: Mapping[str, Any], number: int, epochs: int, out: Path) -> dict[str, Any]:
        dataset, method = row["dataset"], row["method"]
        path, settings = path_of(dataset, method), ["train.ckpt_period=1"]
        settings += ["dataset.split_mode=random", "dataset.split=[400,100,100]"] if out.name == "quick" else []
        overrides = planned(path, method, number, epochs, settings)
        return run_once(path, out, overrides, table[dataset].metric, curves=True)

    return Comparison(
        doc,
        name,
        {dataset: check_config(path_of(dataset))[0].config.optim.max_epoch for dataset in table},
        FOLDERS,
        run,
        "Results after the epoch of the best validation result, with the settings of the configs.",
        figures={"published": lambda row, rows: table[row["dataset"]].values.get(row["method"], "–")},
        metrics={dataset: published.metric for dataset, published in table.items()},
        runs=4,
        first="Primphormer",
        absent=lambda dataset, method: not path_of(dataset, method).is_file(),
        optional=list(FOLDERS)[1:],
    )
