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

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from _fitting import begin
from _folds import Comparison, run_folder, run_once, schedule
from _images import CLASSES, HEADS, WIDTH, Grids, ImageModel, load_digits, train_images
from _tables import CONFIGS
from torch import Tensor, finfo, int64
from torch.nn import functional
from torch_geometric.utils import scatter

from pyg_topomask import nn, transforms
from pyg_topomask.nn.attention import masked

DIGITS = CONFIGS / "masked" / "digits-toeplitz.yaml"
GRF_ON_DIGITS = ["topomask.mask=grf", "dataset.name=plain"]
PRE_NORM = ["topomask.pre_norm=true"]
NO_MASK = ["topomask.mask=none", "dataset.name=plain"]
SOFTMAX = ["gt.layer_type=None+Transformer", "dataset.name=plain"]
BY_BATCH = ", batch statistics"
SAME_WALKS = "digits, same walks"


class Row(NamedTuple):
    """Settings of runs."""

    config: Path
    epochs: int
    settings: list[str]
    denominators: Sequence[str] = ("bound", "signed")


ROWS = {
    "digits": Row(DIGITS, 10, GRF_ON_DIGITS),
    f"digits{BY_BATCH}": Row(DIGITS, 10, GRF_ON_DIGITS, ("bound",)),
    "digits, no mask": Row(DIGITS, 10, NO_MASK, ("bound",)),
    f"digits, no mask{BY_BATCH}": Row(DIGITS, 10, NO_MASK, ("bound",)),
    "digits, softmax": Row(DIGITS, 10, SOFTMAX, ("bound",)),
    f"digits, softmax{BY_BATCH}": Row(DIGITS, 10, SOFTMAX, ("bound",)),
    "digits, pre-norm": Row(DIGITS, 10, [*GRF_ON_DIGITS, *PRE_NORM]),
    "enzymes": Row(CONFIGS / "grf" / "enzymes.yaml", 25, ["gt.layer_type=None+GRF"]),
    SAME_WALKS: Row(DIGITS, 10, []),
}


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

    with patch.object(masked, "masked_linear_attention", recording):
        yield found


@contextmanager
def batch_statistics() -> Iterator[None]:
    """Batch norm uses each batch's own mean and variance in evaluation, too. Running ones stay as they are."""
    norm = functional.batch_norm

    def by_batch(x: Tensor, mean: Any, var: Any, weight: Any, bias: Any, training: bool, *rest: Any) -> Tensor:
        running = (mean, var) if training else (None, None)
        return norm(x, *running, weight, bias, True, *rest)

    with patch.object(functional, "batch_norm", by_batch):
        yield


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    dataset, normalizer, quick = row["dataset"], row["method"], out.name == "quick"
    if dataset == SAME_WALKS:
        return train_on_grids(normalizer, run, epochs, quick)
    path, _, settings, _ = ROWS[dataset]
    settings = [*settings, f"topomask.normalizer={normalizer}", f"seed={run}"]
    settings += schedule(epochs, min(2, epochs - 1), f"smooth-{dataset}-{normalizer}-{epochs}-{run}")
    settings += [] if not quick else ["gt.layers=1"] if dataset == "enzymes" else ["dataset.split=[64,32,32]"]
    shutil.rmtree(run_folder(path, out, settings), ignore_errors=True)  # the ratios of an interrupted run are lost
    with recorded_ratios() as ratios, batch_statistics() if dataset.endswith(BY_BATCH) else nullcontext():
        found = run_once(path, out, settings, curves=True)
    fall = worst_fall([value for _, value in found.pop("curves")])
    return found | {"fall": fall, "ratio": max(ratios, default=None)}  # softmax attention has no ratio


def train_on_grids(normalizer: str, seed: int, epochs: int, quick: bool) -> dict[str, Any]:
    """Results of one model whose images all have the same walks."""
    begin(seed)
    pictures = load_digits(8, quick)
    grids = Grids(pictures.side, transforms.AddRandomWalks(16, 4, 0.5, seed=seed))
    attn = partial(nn.GRFAttention, WIDTH, HEADS, 4, normalizer=normalizer)
    width = pictures.parts["train"][0].size(-1)
    model = ImageModel(nn.GPSModel(width, WIDTH, CLASSES, 2, attn=lambda _: attn(), pool="mean"))
    with recorded_ratios() as ratios:
        found = train_images(model, pictures, grids, grids, epochs)
    fall = worst_fall(found.pop("curve"))
    return found | {"fall": fall, "ratio": max(ratios)}


COMPARISON = Comparison(
    __doc__,
    "grf_smooth",
    {name: row.epochs for name, row in ROWS.items()},
    ("bound", "signed"),
    make_run,
    "Test accuracy (%) after the epoch of the best validation accuracy. Without a mask, the denominators are the same.",
    {"dataset": "data set", "method": "denominator"},
    {
        "lowest": lambda row, rows: f"{100 * min(row['test']):.2f}",
        "runs that fall by half": lambda row, rows: f"{sum(fall < 0.5 for fall in row['fall'])} of {len(row['fall'])}",
        "worst ratio": lambda row, rows: f"{min(row['fall']):.2f}",
        "output / value": lambda row, rows: "–" if None in row["ratio"] else f"{max(row['ratio']):.7g}",
    },
    runs=5,
    absent=lambda dataset, normalizer: normalizer not in ROWS[dataset].denominators,
)


if __name__ == "__main__":
    COMPARISON.start()
