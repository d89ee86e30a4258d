"""Images: a small vision transformer with linear attention under masks of the grid of pixels (Reid et al. 2024).

    python scripts/reproduce/grf_images.py --quick                           # a trial
    python scripts/reproduce/grf_images.py --datasets plain   # 8 × 8, only the mask knows the grid
    python scripts/reproduce/grf_images.py                                   # digits, all rows, 5 seeds

Layers have pre-norm and attention alone. Without positions, the prediction is read from the mean of pixels; with them,
from a class token, whose row and column of a mask are ones. A token does not see what the last layer does to pixels, so
it has one layer more.
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

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import _images as images
from _fitting import begin, gin, mean_and_spread
from _folds import Comparison
from torch.nn import Module

from pyg_topomask import nn, transforms
from pyg_topomask.nn.mask.base import Mask

HOPS, HALT, WALKS, EPOCHS = 4, 0.5, 16, 10
KINDS = {"plain": (8, False), "plain, positions": (8, True), "shifted": (16, False), "shifted, positions": (16, True)}
"""Side of the images, and whether positions are learned and the prediction is read from a token."""

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
    return nn.MaskedAttention(images.WIDTH, images.HEADS, kernel, mask)


def _grf(layer: int, side: int) -> Module:
    return nn.GRFAttention(images.WIDTH, images.HEADS, HOPS, table=layer)


class Method(NamedTuple):
    """What a layer's branch is on images of that side, and settings of the walks; message passing if ``messages``."""

    branch: Callable[[int, int], Module]
    walks: Mapping[str, Any] = {}
    messages: bool = False

    def draw(self, layers: int, seed: int) -> transforms.AddRandomWalks | None:
        """The transform that draws walks for each layer; None if the branch has none."""
        settings = {"num_walks": WALKS, "max_length": HOPS, "halt_prob": HALT, "num_tables": layers} | self.walks
        return transforms.AddRandomWalks(**settings, seed=seed) if self.branch is _grf else None


METHODS: dict[str, Method] = {
    FIRST: Method(_grf),
    "linear": Method(lambda layer, side: masked(None)),
    REDRAWN: Method(_grf),
    "power series": Method(lambda layer, side: masked(nn.PowerSeriesMask(images.HEADS, HOPS))),
    "Toeplitz": Method(lambda layer, side: masked(nn.ToeplitzMask([side] * 2, images.HEADS))),
    "softmax": Method(lambda layer, side: masked(None, "softmax")),
    "Eq. 21": Method(_grf, {"importance": False}),
    "dense features": Method(lambda layer, side: masked(images.DenseFeaturesMask(side**2, images.HEADS))),
    "GIN": Method(lambda layer, side: gin(images.WIDTH), messages=True),
    **{name: Method(_grf, {"num_walks": count}) for count, name in WALKERS.items() if name != FIRST},
}


def layers_of(positions: bool) -> int:
    """Number of layers: one more with a token."""
    return 3 if positions else 2


def model_of(method: Method, pictures: images.Pictures, positions: bool) -> images.ImageModel:
    """A vision transformer, or message passing on pixels."""
    branch = {"conv" if method.messages else "attn": lambda layer: method.branch(layer, pictures.side)}
    pool = "graph_token" if positions and not method.messages else "mean"
    return images.classifier(pictures, layers_of(positions), positions, pool, **branch)


digits = cache(images.load_digits)


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    (side, positions), method, redrawn = KINDS[row["dataset"]], METHODS[row["method"]], row["method"] == REDRAWN
    pictures = digits(side, out.name == "quick")
    begin(run)
    draws = [method.draw(layers_of(positions), run + more) for more in (0, OTHER_DRAW)]
    grids, others = (images.Grids(side, drawn, redrawn) for drawn in draws)
    model = model_of(method, pictures, positions)
    unseen = others if redrawn else grids  # redrawn: new in every part
    found = images.train_images(model, pictures, grids, unseen, epochs)
    del found["curve"]
    frozen = grids.transform is not None and not redrawn
    return found | {"other walks": 1 - images.error_rate(model, pictures.parts["test"], others) if frozen else None}


def other_walks(row: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    """Test accuracy under walks of another draw."""
    return "–" if None in row["other walks"] else mean_and_spread(row["other walks"], 1, 100)


COMPARISON = Comparison(
    __doc__,
    "grf_images",
    dict.fromkeys(KINDS, EPOCHS),
    METHODS,
    make_run,
    "Test accuracy (%) after the epoch of the best validation accuracy. Published: ImageNet / iNaturalist2021 / "
    "Places365, or ImageNet alone.",
    figures={"other walks": other_walks, "published": lambda row, rows: PUBLISHED.get(row["method"], "–")},
    form=(100, 1),
    runs=5,
    first=FIRST,
)


if __name__ == "__main__":
    COMPARISON.start()
