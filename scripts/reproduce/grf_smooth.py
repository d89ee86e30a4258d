"""Whether training under learned signs is smooth: the two denominators of attention under a GRF mask.

    python scripts/reproduce/grf_smooth.py --quick                    # a trial
    python scripts/reproduce/grf_smooth.py                            # all rows, 5 seeds; 40 minutes on one core

Layers are attention alone, with relu features and a modulation function that may become negative: on digits as grids
of 8 × 8 pixels without encodings, with batch norm after or before each part of a layer, and on ENZYMES. "bound" divides
by the sums of the bounding mask, "signed" by those of the mask itself, as in the paper. A run falls if its validation
accuracy drops below half of its best so far; the worst ratio of these two is in the table. Beside it is the largest
output of attention, before its last projection, over the largest value of the same graph and head, in all forward
passes of training, validation and test.
In these rows, each image has its own walks. In the row "digits, same walks", all images and layers share one draw, as
in grf_images.py; training follows its one-cycle schedule, and 1,024 images are for training, 320 for validation.
On digits, the table also has linear attention without a mask and softmax attention. Rows with "batch statistics" are
the same runs, but in validation and test, batch norm normalises each batch by its own mean and variance, not by
running ones.
The same command continues an interrupted one, and keeps finished runs.
"""

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from _bench import described, markdown, save_json
from _folds import run_folder
from _images import CLASSES, HEADS, WIDTH, Grids, ImageModel, error_rate, fit_images, load_digits
from _tables import (
    CONFIGS,
    SPREAD,
    mean_and_std,
    plot_runs,
    positive,
    read_curve,
    read_options,
    start,
    table_parser,
    tabulate,
)
from torch import Tensor, finfo, int64, manual_seed
from torch.nn import functional
from torch_geometric.utils import scatter

from pyg_topomask.nn import GPSModel, GRFAttention
from pyg_topomask.nn.attention import masked
from pyg_topomask.run import run_config
from pyg_topomask.run.output.report import format_metric
from pyg_topomask.transforms import AddRandomWalks

DIGITS = CONFIGS / "masked" / "digits-toeplitz.yaml"
GRF_ON_DIGITS = ["topomask.mask=grf", "dataset.name=plain"]
PRE_NORM = ["topomask.pre_norm=true"]
NO_MASK = ["topomask.mask=none", "dataset.name=plain"]
SOFTMAX = ["gt.layer_type=None+Transformer", "dataset.name=plain"]
BY_BATCH = ", batch statistics"
UNMASKED = ("digits, no mask", "digits, softmax")


class Row(NamedTuple):
    """Settings of runs."""

    config: Path
    epochs: int
    settings: list[str]
    denominators: tuple[str, ...] = ("bound", "signed")


ROWS = {
    "digits": Row(DIGITS, 10, GRF_ON_DIGITS),
    f"digits{BY_BATCH}": Row(DIGITS, 10, GRF_ON_DIGITS, ("bound",)),
    "digits, no mask": Row(DIGITS, 10, NO_MASK, ("bound",)),
    f"digits, no mask{BY_BATCH}": Row(DIGITS, 10, NO_MASK, ("bound",)),
    "digits, softmax": Row(DIGITS, 10, SOFTMAX, ("bound",)),
    f"digits, softmax{BY_BATCH}": Row(DIGITS, 10, SOFTMAX, ("bound",)),
    "digits, pre-norm": Row(DIGITS, 10, [*GRF_ON_DIGITS, *PRE_NORM]),
    "enzymes": Row(CONFIGS / "grf" / "enzymes.yaml", 25, ["gt.layer_type=None+GRF"]),
}

SAME_WALKS, SAME_WALKS_EPOCHS = "digits, same walks", 10
DENOMINATORS = {name: row.denominators for name, row in ROWS.items()} | {SAME_WALKS: ("bound", "signed")}

FEW_DIGITS = ["dataset.split=[64,32,32]"]
QUICK = {name: ["gt.layers=1"] if name == "enzymes" else FEW_DIGITS for name in ROWS}


def worst_fall(curve: Sequence[float]) -> float:
    """Smallest ratio of a value to the largest one until then; 1 if the curve never falls."""
    return min((value / best for value, best in zip(curve, accumulate(curve, max)) if best > 0), default=1.0)


def largest_ratio(out: Tensor, v: Tensor, batch: Tensor | None) -> float:
    """Largest ``|out|`` over the largest ``|v|`` of the same graph and head, ``[N, H, D]``."""
    graph = v.new_zeros(v.size(0), dtype=int64) if batch is None else batch
    top = scatter(v.detach().abs().amax(2), graph, reduce="max")[graph]
    return float((out.detach().abs().amax(2) / top.clamp(min=finfo(top.dtype).tiny)).max())


@contextmanager
def recorded_ratios() -> Iterator[list[float]]:
    """Collects `largest_ratio` of every call of linear attention."""
    found, attend = list[float](), masked.masked_linear_attention

    def recording(q: Tensor, k: Tensor, v: Tensor, mask: Any, batch: Tensor | None, *rest: Any, **named: Any) -> Tensor:
        out = attend(q, k, v, mask, batch, *rest, **named)
        found.append(largest_ratio(out, v, batch))
        return out

    masked.masked_linear_attention = recording  # type: ignore[assignment]
    try:
        yield found
    finally:
        masked.masked_linear_attention = attend


@contextmanager
def batch_statistics() -> Iterator[None]:
    """Batch norm uses each batch's own mean and variance in evaluation, too. Running ones stay as they are."""
    norm = functional.batch_norm

    def by_batch(x: Tensor, mean: Any, var: Any, weight: Any, bias: Any, training: bool, *rest: Any) -> Tensor:
        running = (mean, var) if training else (None, None)
        return norm(x, *running, weight, bias, True, *rest)

    functional.batch_norm = by_batch  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.batch_norm = norm


def run_row(dataset: str, normalizer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Results under one denominator. Ratios are stored when a run ends, because finished runs are kept."""
    path, epochs, settings, _ = ROWS[dataset]
    epochs = 2 if options.quick else epochs
    settings = [*settings, f"topomask.normalizer={normalizer}", f"optim.max_epoch={epochs}"]
    settings += [f"optim.num_warmup_epochs={min(2, epochs - 1)}", *(QUICK[dataset] if options.quick else [])]
    tag = f"smooth-{dataset.replace(', ', '-').replace(' ', '-')}-{normalizer}-{epochs}" + "-quick" * options.quick
    settings.append(f"name_tag={tag}")
    folder, ratios = run_folder(path, options.out, settings).parent, []
    for seeds in range(1, options.seeds + 1):
        stored = options.out / f"ratio-{tag}-{seeds - 1}.json"
        if not stored.is_file():  # the ratios of an interrupted run are lost
            shutil.rmtree(folder / str(seeds - 1), ignore_errors=True)
        with recorded_ratios() as found, batch_statistics() if dataset.endswith(BY_BATCH) else nullcontext():
            summary = run_config(path, options.out / "runs", seeds, settings)
        if not stored.is_file():
            save_json(stored, {"largest": max(found, default=None)})
        ratios.append(json.loads(stored.read_text())["largest"])
    curves = (read_curve(Path(summary["folder"]) / str(seed), "accuracy", 1.0) for seed in summary["seeds"])
    falls = [worst_fall([value for _, value in curve]) for curve in curves]
    results = {"test": summary["metrics"]["test_accuracy"], "falls": falls}
    results |= {} if None in ratios else {"ratios": ratios}  # softmax attention has none
    return {"dataset": dataset, "normalizer": normalizer, "epochs": epochs, **results}


def train_on_grids(normalizer: str, seed: int, quick: bool) -> dict[str, Any]:
    """Results of one model whose images all have the same walks."""
    manual_seed(seed)
    pictures = load_digits(8, quick)
    grids = Grids(pictures.side, AddRandomWalks(16, 4, 0.5, seed=seed))
    attn = partial(GRFAttention, WIDTH, HEADS, 4, normalizer=normalizer)
    width = pictures.parts["train"][0].size(-1)
    model = ImageModel(GPSModel(width, WIDTH, CLASSES, 2, attn=lambda _: attn(), pool="mean"))
    curve: list[float] = []

    def validate() -> float:
        curve.append(1 - error_rate(model, pictures.parts["val"], grids))
        return 1 - curve[-1]

    with recorded_ratios() as found:
        fit_images(model, pictures, grids, validate, 2 if quick else SAME_WALKS_EPOCHS)
        test = 1 - error_rate(model, pictures.parts["test"], grids)
    return {"test": test, "curve": curve, "largest": max(found)}


def same_walks_row(normalizer: str, options: argparse.Namespace) -> dict[str, Any]:
    """Results under one denominator where all images have the same walks."""
    runs = []
    for seed in range(options.seeds):
        stored = options.out / f"same-walks-{normalizer}{'-quick' * options.quick}-{seed}.json"
        if not stored.is_file():
            save_json(stored, train_on_grids(normalizer, seed, options.quick))
        runs.append(json.loads(stored.read_text()))
    tests = [run["test"] for run in runs]
    results = {"falls": [worst_fall(run["curve"]) for run in runs], "ratios": [run["largest"] for run in runs]}
    test = {"mean": statistics.fmean(tests), "values": tests}
    epochs = len(runs[0]["curve"])
    return {"dataset": SAME_WALKS, "normalizer": normalizer, "epochs": epochs, "test": test} | results


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield (
        f"{described(report['machine'])}. Test accuracy (%) after the epoch of the best validation accuracy; "
        f"{report['seeds']} seed(s). {SPREAD}"
    )
    yield ""
    cells = []
    for row in report["rows"]:
        values, falls = row["test"]["values"], row["falls"]
        largest = f"{max(row['ratios']):.7g}" if "ratios" in row else "–"
        figures = mean_and_std("accuracy", values), format_metric("accuracy", min(values))
        fallen = f"{sum(ratio < 0.5 for ratio in falls)} of {len(falls)}", f"{min(falls):.2f}"
        cells.append((row["dataset"], denominator(row), row["epochs"], *figures, *fallen, largest))
    head = "data set | denominator | epochs: | test accuracy: | lowest: | runs that fall by half: | worst ratio:"
    yield from markdown(f"{head} | output / value:", cells)


def denominator(row: Mapping[str, Any]) -> str:
    """The denominator of a row; without a mask, both are the same."""
    return "–" if row["dataset"].startswith(UNMASKED) else str(row["normalizer"])


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Test accuracy of all runs."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in report["rows"]:
        panels.setdefault(row["dataset"], {})[denominator(row)] = [100 * value for value in row["test"]["values"]]
    plot_runs(panels, "test accuracy (%)", path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train under both denominators. Write JSON and Markdown after each row."""
    made = table_parser(__doc__ or "", "grf_smooth", "2 epochs, 1 seed")
    made.add_argument("--datasets", nargs="+", choices=list(DENOMINATORS), default=list(DENOMINATORS))
    made.add_argument("--seeds", type=positive, default=5, help="runs of each row")
    options = read_options(made, arguments)
    options.seeds = 1 if options.quick else options.seeds
    rows = (
        same_walks_row(normalizer, options) if dataset == SAME_WALKS else run_row(dataset, normalizer, options)
        for dataset in options.datasets
        for normalizer in DENOMINATORS[dataset]
    )
    tabulate({"seeds": options.seeds}, rows, lines, plot, options)


if __name__ == "__main__":
    start(main)
