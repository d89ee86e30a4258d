"""Images: a small vision transformer with linear attention under masks of the grid of pixels (Reid et al. 2024).

    python scripts/reproduce/grf_images.py --quick                           # a trial
    python scripts/reproduce/grf_images.py --images plain --positions none   # 8 × 8, only the mask knows the grid
    python scripts/reproduce/grf_images.py                                   # digits, all rows, 5 seeds

Layers have pre-norm and attention alone. The prediction is read from the mean of pixels, or from a class token, whose
row and column of a mask are ones. A token does not see what the last layer does to pixels, so it has one layer more.
Norms are batch norms: 10 epochs of GRF reached 87 % on the validation set, and 23 % with norms of single nodes.
Positions are none, or learned and absolute as in the paper's experiments on photographs (arXiv:2410.03462, Section 4
and Appendix C.2). Walks of the row "GRF" are drawn once for each layer and seed and are shared by all images, as in
the paper; so they also tell pixels apart. The row "GRF, redrawn" has new walks in each batch, also in the test. The
column "other walks" is the same trained model under walks of another draw. "Eq. 21" weights all walks alike, and
"dense features" are free numbers for each pair of pixels. GIN is message passing, which does not reach a token: it
always has the mean. Each method is trained twice: for an equal number of epochs, and for as many as take the time of
the row "GRF". Epochs are chosen on the validation set, and no setting on the test set.
The same command continues an interrupted one.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _bench import described, markdown
from _fitting import earlier, fill_rows, gin, mean_and_spread, model_parser
from _images import (
    CLASSES,
    HEADS,
    IMAGES,
    SIDES,
    WIDTH,
    DenseFeaturesMask,
    Grids,
    ImageModel,
    Pictures,
    error_rate,
    fit_images,
    load_digits,
)
from _tables import EQUAL, finish, plot_runs, read_options, start
from torch.nn import Module

from pyg_topomask.nn import GPSModel, GRFAttention, MaskedAttention, PowerSeriesMask, ToeplitzMask
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.transforms import AddRandomWalks

HOPS, HALT, WALKS = 4, 0.5, 16
LAYERS = {"mean": 2, "token": 3}
"""Number of layers by what the prediction is read from."""

EPOCHS = 10
FIRST, REDRAWN = "GRF", "GRF, redrawn"
WALKERS = {1: "GRF, 1 walk", 4: "GRF, 4 walks", 16: FIRST, 64: "GRF, 64 walks", 256: "GRF, 256 walks"}
OTHER_DRAW = 10**6
"""Added to the seed of walks for another draw."""

PUBLISHED = {
    "softmax": "74.1 / 69.9 / 56.7",
    "Toeplitz": "73.3 / 67.4 / 55.0",
    "power series": "74.1 / 69.2 / 55.1",
    "linear": "69.3 / 66.7 / 54.3",
    FIRST: "73.0 / 68.9 / 54.8",
    "Eq. 21": "68.9",
    "dense features": "69.6",
}
"""Tables 1 and 3: accuracy on ImageNet, iNaturalist2021 and Places365, or on ImageNet alone."""


def masked(mask: Mask | None, kernel: str = "relu") -> Module:
    """Attention under a mask."""
    return MaskedAttention(WIDTH, HEADS, kernel, mask)


def _grf(layer: int, side: int) -> Module:
    return GRFAttention(WIDTH, HEADS, HOPS, table=layer)


class Method(NamedTuple):
    """What a layer's branch is on images of that side, and settings of the walks; message passing if ``messages``."""

    branch: Callable[[int, int], Module]
    walks: Mapping[str, Any] = {}
    messages: bool = False

    def draw(self, layers: int, seed: int) -> AddRandomWalks | None:
        """The transform that draws walks for each layer; None if the branch has none."""
        settings = {"num_walks": WALKS, "max_length": HOPS, "halt_prob": HALT, "num_tables": layers} | self.walks
        return AddRandomWalks(**settings, seed=seed) if self.branch is _grf else None


METHODS = {
    FIRST: Method(_grf),
    "linear": Method(lambda layer, side: masked(None)),
    REDRAWN: Method(_grf),
    "power series": Method(lambda layer, side: masked(PowerSeriesMask(HEADS, HOPS))),
    "Toeplitz": Method(lambda layer, side: masked(ToeplitzMask([side] * 2, HEADS))),
    "softmax": Method(lambda layer, side: masked(None, "softmax")),
    "Eq. 21": Method(_grf, {"importance": False}),
    "dense features": Method(lambda layer, side: masked(DenseFeaturesMask(side**2, HEADS))),
    "GIN": Method(lambda layer, side: gin(WIDTH), messages=True),
    **{name: Method(_grf, {"num_walks": count}) for count, name in WALKERS.items() if name != FIRST},
}


def classifier(method: Method, pictures: Pictures, positions: str, readout: str) -> ImageModel:
    """A vision transformer, or message passing on pixels."""
    return ImageModel(
        GPSModel(
            pictures.parts["train"][0].size(-1),
            WIDTH,
            CLASSES,
            LAYERS[readout],
            **{"conv" if method.messages else "attn": lambda layer: method.branch(layer, pictures.side)},
            pool="mean" if readout == "mean" or method.messages else "graph_token",
            pre_norm=True,
            act="gelu",
            num_positions=pictures.side**2 if positions == "learned" else None,
        )
    )


def train(pictures: Pictures, positions: str, readout: str, name: str, epochs: int, seed: int) -> dict[str, Any]:
    """Train one model; accuracies are those of the epoch with the best validation accuracy."""
    torch.manual_seed(seed)
    method, redrawn = METHODS[name], name == REDRAWN
    walks = [method.draw(LAYERS[readout], seed + more) for more in (0, OTHER_DRAW)]
    grids, others = (Grids(pictures.side, drawn, redrawn) for drawn in walks)
    model = classifier(method, pictures, positions, readout)
    drawn = others if redrawn else grids  # the walks of "redrawn" are new in every part
    validate = partial(error_rate, model, pictures.parts["val"], drawn)
    error, seconds = fit_images(model, pictures, grids, validate, epochs)
    found = {"val": 1 - error, "test": 1 - error_rate(model, pictures.parts["test"], drawn), "seconds": seconds}
    frozen = grids.transform is not None and not redrawn
    found["other walks"] = 1 - error_rate(model, pictures.parts["test"], others) if frozen else None
    return found | {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def percent(values: Sequence[float]) -> str:
    """Mean and standard deviation in percent."""
    return mean_and_spread([100 * value for value in values], 1)


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield (
        f"{described(report['machine'])}. Test accuracy (%) after the epoch of the best validation accuracy; "
        f"{report['seeds']} seed(s) unless others are named. Seconds are processor time of the training. Published: "
        "ImageNet / iNaturalist2021 / Places365, or ImageNet alone."
    )
    yield ""
    cells = []
    for row in (row for row in report["rows"].values() if row.get("epochs", {}).get("seconds")):
        first, second = (row.get(part, {}) for part in EQUAL)
        others = first["other walks"]
        cells.append([IMAGES[row["images"]], *(row[key] for key in ("positions", "readout", "method"))])
        cells[-1] += [f"{first['parameters'][0]:,}", first["num_epochs"], f"{statistics.fmean(first['seconds']):.0f}"]
        cells[-1] += [_figure(first, report["seeds"]), "–" if others[0] is None else percent(others)]
        cells[-1] += [second.get("num_epochs", "–"), _figure(second, report["seeds"])]
        cells[-1].append(PUBLISHED.get(row["method"], "–"))
    head = "images | positions | read from | attention | parameters: | epochs: | seconds: | test, equal epochs:"
    yield from markdown(f"{head} | other walks: | epochs: | test, time of GRF: | published:", cells)


def _figure(part: Mapping[str, Any], seeds: int) -> str:
    found = part.get("test", [])
    if not found:
        return "–"
    return percent(found) + (f" ({len(found)} seed(s))" if len(found) != seeds else "")


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Test accuracies of all runs of equal epochs, with a panel for each kind of images and positions."""
    panels: dict[str, dict[str, list[float]]] = {}
    for row in (row for row in report["rows"].values() if row.get("epochs", {}).get("seconds")):
        title = f"{IMAGES[row['images']]}, positions: {row['positions']}, read from {row['readout']}"
        panels.setdefault(title, {})[row["method"]] = [100 * value for value in row["epochs"]["test"]]
    plot_runs(panels, "test accuracy (%)", path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every method on all images. Write JSON and Markdown after each run, and a plot at the end."""
    made = model_parser(__doc__, "grf_images", "64 training images, 2 epochs, 1 seed", METHODS, EPOCHS)
    made.add_argument("--images", nargs="+", choices=list(IMAGES), default=list(IMAGES))
    made.add_argument("--positions", nargs="+", choices=["none", "learned"], default=["none", "learned"])
    made.add_argument("--readouts", nargs="+", choices=list(LAYERS), default=list(LAYERS), help="what is read")
    made.add_argument("--equal", nargs="+", choices=EQUAL, default=list(EQUAL), help="comparisons, epochs first")
    options = read_options(made, arguments)
    report = earlier(options)
    for images in options.images:
        pictures = load_digits(SIDES[images], options.quick)
        for readout, positions, part in product(options.readouts, options.positions, options.equal):
            kind = {"images": images, "positions": positions, "readout": readout}
            run = partial(train, pictures, positions, readout)
            key = f"{images}, {readout}, positions {positions}"
            fill_rows(report, kind, key, part, run, FIRST, lines, options)
    finish(report, lines, plot, options)


if __name__ == "__main__":
    start(main)
