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

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _bench import described, machine, pyplot, save_json, save_plot
from _fitting import fill_row, gin, mean_and_spread
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
from _tables import EQUAL, positive, read_options, start, table_parser, write_table
from torch.nn import Module

from pyg_topomask.nn import GPSModel, GRFAttention, MaskedAttention, PowerSeriesMask, ToeplitzMask
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.viz.drawing import PALETTE

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


def _linear(_: int, pictures: Pictures) -> Module:
    return MaskedAttention(WIDTH, HEADS)


def _softmax(_: int, pictures: Pictures) -> Module:
    return MaskedAttention(WIDTH, HEADS, "softmax")


def _grf(layer: int, pictures: Pictures) -> Module:
    return GRFAttention(WIDTH, HEADS, HOPS, table=layer)


def _series(_: int, pictures: Pictures) -> Module:
    return MaskedAttention(WIDTH, HEADS, mask=PowerSeriesMask(HEADS, HOPS))


def _toeplitz(_: int, pictures: Pictures) -> Module:
    return MaskedAttention(WIDTH, HEADS, mask=ToeplitzMask([pictures.side] * 2, HEADS))


def _dense(_: int, pictures: Pictures) -> Module:
    return MaskedAttention(WIDTH, HEADS, mask=DenseFeaturesMask(pictures.side**2, HEADS))


def _gin(_: int, pictures: Pictures) -> Module:
    return gin(WIDTH)


@dataclass(frozen=True)
class Method:
    """What a layer's branch is, and settings of the walks; message passing if ``messages``."""

    branch: Callable[[int, Pictures], Module]
    walks: Mapping[str, Any] = field(default_factory=dict)
    messages: bool = False

    def draw(self, layers: int, seed: int) -> AddRandomWalks | None:
        """The transform that draws walks for each layer; None if the branch has none."""
        settings = {"num_walks": WALKS, "max_length": HOPS, "halt_prob": HALT, "num_tables": layers} | self.walks
        return AddRandomWalks(**settings, seed=seed) if self.branch is _grf else None


METHODS = {
    FIRST: Method(_grf),
    "linear": Method(_linear),
    REDRAWN: Method(_grf),
    "power series": Method(_series),
    "Toeplitz": Method(_toeplitz),
    "softmax": Method(_softmax),
    "Eq. 21": Method(_grf, {"importance": False}),
    "dense features": Method(_dense),
    "GIN": Method(_gin, messages=True),
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
            **{"conv" if method.messages else "attn": lambda layer: method.branch(layer, pictures)},
            pool="mean" if readout == "mean" or method.messages else "graph_token",
            pre_norm=True,
            act="gelu",
            num_positions=pictures.side**2 if positions == "learned" else None,
        )
    )


def train(name: str, pictures: Pictures, positions: str, readout: str, epochs: int, seed: int) -> dict[str, Any]:
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


def run_rows(options: argparse.Namespace, images: str, report: dict[str, Any]) -> None:
    """Both results of every method on one kind of images. Write the report after each run."""
    pictures = load_digits(SIDES[images], options.quick)

    def save() -> None:
        save_json(options.out / "grf_images.json", report)
        write_table(options, "grf_images", "\n".join(lines(report)) + "\n")

    rows = report["rows"]
    names = [FIRST, *(name for name in options.methods if name != FIRST)]
    for readout, positions, part, name in product(options.readouts, options.positions, options.equal, names):
        kind = f"{images}, {readout}, positions {positions}"
        row = rows.setdefault(f"{kind}: {name}", {})
        row |= {"images": images, "positions": positions, "readout": readout, "method": name}
        run = partial(train, name, pictures, positions, readout)
        fill_row(row, rows[f"{kind}: {FIRST}"], part, run, options.epochs, options.seeds, save)
        print(f"{kind}, equal {part}: {name} {percent(row[part]['test'])}", flush=True)


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
    columns = "images | positions | read from | attention | parameters | epochs | seconds | test, equal epochs | "
    yield f"| {columns}other walks | epochs | test, time of GRF | published |"
    yield "|---|---|---|---|" + "--:|" * 8
    for row in report["rows"].values():
        if not row.get("epochs", {}).get("seconds"):
            continue
        first, second = (row.get(part, {}) for part in EQUAL)
        others = first["other walks"]
        cells = [IMAGES[row["images"]], *(row[key] for key in ("positions", "readout", "method"))]
        cells += [f"{first['parameters'][0]:,}", str(first["num_epochs"]), f"{statistics.fmean(first['seconds']):.0f}"]
        cells += [_figure(first, report["seeds"]), "–" if others[0] is None else percent(others)]
        cells += [str(second.get("num_epochs", "–")), _figure(second, report["seeds"])]
        yield "| " + " | ".join([*cells, PUBLISHED.get(row["method"], "–")]) + " |"


def _figure(part: Mapping[str, Any], seeds: int) -> str:
    found = part.get("test", [])
    if not found:
        return "–"
    return percent(found) + (f" ({len(found)} seed(s))" if len(found) != seeds else "")


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Accuracy of every row, and of GRF by the number of walks, for each kind of images and positions."""
    rows = [row for row in report["rows"].values() if row.get("epochs", {}).get("seconds")]
    kinds = list(dict.fromkeys(map(_kind, rows)))
    names = [name for name in METHODS if name == FIRST or name not in WALKERS.values()]
    figure, axes = pyplot().subplots(1, 2, figsize=(11, 4), layout="constrained")
    for number, (kind, color) in enumerate(zip(kinds, PALETTE)):
        found = {row["method"]: row["epochs"]["test"] for row in rows if _kind(row) == kind}
        label = f"{IMAGES[kind[0]]}, positions: {kind[1]}, read from {kind[2]}"
        shown = [name for name in names if name in found]
        places = [names.index(name) + (number - len(kinds) / 2) * 0.2 for name in shown]
        means, spread = _points([found[name] for name in shown])
        axes[0].errorbar(places, means, spread, fmt="o", ms=4, color=color, label=label)
        walks = [count for count, name in WALKERS.items() if name in found]
        means, spread = _points([found[WALKERS[count]] for count in walks])
        axes[1].errorbar(walks, means, spread, fmt="o-", ms=4, color=color, label=label)
        if "linear" in found:
            axes[1].axhline(100 * statistics.fmean(found["linear"]), ls=":", color=color)
    axes[0].set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes[0].set(ylabel="test accuracy (%)")
    axes[1].set(xscale="log", xlabel="walks of each pixel", ylabel="test accuracy (%); dotted: linear")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    save_plot(figure, path)


def _kind(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["images"], row["positions"], row["readout"]


def _points(results: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Means and standard deviations in percent."""
    spread = [100 * statistics.stdev(values) if len(values) > 1 else 0.0 for values in results]
    return [100 * statistics.fmean(values) for values in results], spread


def main(arguments: Sequence[str] | None = None) -> None:
    """Train every method on all images. Write JSON and Markdown after each run, and a plot at the end."""
    made = table_parser(__doc__ or "", "grf_images", "64 training images, 2 epochs, 1 seed")
    made.add_argument("--images", nargs="+", choices=list(IMAGES), default=list(IMAGES))
    made.add_argument("--positions", nargs="+", choices=["none", "learned"], default=["none", "learned"])
    made.add_argument("--readouts", nargs="+", choices=list(LAYERS), default=list(LAYERS), help="what is read")
    made.add_argument(
        "--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help=f"rows; {FIRST} always"
    )
    made.add_argument("--equal", nargs="+", choices=EQUAL, default=list(EQUAL), help="comparisons, epochs first")
    made.add_argument("--seeds", type=positive, default=5, help="runs of each row")
    made.add_argument("--epochs", type=positive, default=EPOCHS, help="epochs of the first comparison")
    options = read_options(made, arguments)
    if options.quick:
        options.seeds, options.epochs = 1, 2
    path = options.out / "grf_images.json"
    settings = {"num_epochs": options.epochs, "quick": options.quick}
    report: dict[str, Any] = {"machine": machine(), "seeds": options.seeds, **settings, "rows": {}}
    if path.is_file():
        old = json.loads(path.read_text())
        if all(old[name] == value for name, value in settings.items()):
            report = old | {"seeds": options.seeds}
    for images in options.images:
        run_rows(options, images, report)
    plot(report, options.out / "grf_images.png")
    print("\n".join(lines(report)))


if __name__ == "__main__":
    start(main)
