"""Masks on images of MNIST: patches of a vision transformer with linear attention, and single pixels.

    python scripts/reproduce/mnist.py --quick                          # a trial
    python scripts/reproduce/mnist.py --datasets patches --methods GRF none Toeplitz hop
    python scripts/reproduce/mnist.py --datasets "patches, positions" --runs 5 --methods GRF none "GRF, 1 walk" \
        "GRF, 4 walks" "GRF, 64 walks" "GRF, 256 walks" "GRF, Eq. 21" "dense features"     # 2 hours
    python scripts/reproduce/mnist.py                                  # all rows, 3 seeds; 10 hours on one core

Images are 7 × 7 patches of 4 × 4 pixels, with no positions or with learned ones, or 28 × 28 pixels without positions.
Layers are attention alone, or message passing alone (GIN), and the prediction is read from the mean of the nodes.
Rows are named by their mask. The kernel is ReLU unless the row has another: elu + 1 and x² are those of Figure 8 of
Choromanski et al., ICML 2022. Walks are drawn once per seed and layer and are shared by all images, so that they also
tell nodes apart; those of "GRF redrawn" are new in each batch, also in the test. Each method is trained twice: for an
equal number of epochs, and for as many as take the time of the row "GRF". Rows of other numbers of walks, "Eq. 21",
which weights all walks alike, and "dense features", free numbers for each pair, are Figure 6 and Table 3 of Reid et al.
(arXiv:2410.03462) on patches. Compared, at equal epochs: 1 walk with 256, and each other row of Table 3 with GRF.
Parameters of masks have 25 times the
learning rate. The 10,000 images are 8,000 / 1,000 / 1,000 for training, validation and test, which is not the official
split. The epoch is chosen on the validation part; no choice looks at the test part. Images are read from
$TOPOMASK_DATA. The same command continues an interrupted one.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import _images as images
from _fitting import begin, gin
from _folds import Comparison
from torch.nn import Module

from pyg_topomask import nn, transforms

LAYERS, RATE, HOPS, STITCH = 3, 2e-3, 8, 2
WALKS = {"num_walks": 16, "max_length": 4, "halt_prob": 0.5, "num_tables": LAYERS * STITCH}
FIRST = "GRF"
KINDS = {"patches": (4, False, 15), "patches, positions": (4, True, 15), "pixels": (1, False, 5)}
"""Side of a patch, whether positions are learned, and number of epochs."""

MASKS: dict[str, Callable[[int, int], Any]] = {
    "none": lambda layer, side: None,
    "Toeplitz": lambda layer, side: nn.ToeplitzMask([side] * 2, images.HEADS),
    "grid heat": lambda layer, side: nn.GridHeatMask(images.HEADS),
    "GRF": lambda layer, side: nn.GRFMask(images.HEADS, table=layer),
    "GRF redrawn": lambda layer, side: nn.GRFMask(images.HEADS, table=layer),
    "GRF stitched": lambda layer, side: nn.GRFMask(images.HEADS, table=layer, stitch=STITCH),
    "hop": lambda layer, side: nn.HopMask(images.HEADS, HOPS),
    "dense features": lambda layer, side: images.DenseFeaturesMask(side**2, images.HEADS),
}
"""The mask of a layer on grids of that side."""

PIXELS = (FIRST, "none", "Toeplitz", "hop", "GIN")
WALKERS: dict[str, dict[str, Any]] = {f"GRF, {n} walk{'s' * (n > 1)}": {"num_walks": n} for n in (1, 4, 64, 256)}
WALKERS["GRF, Eq. 21"] = {"importance": False}
"""Settings of the walks of a row, if they differ."""
KERNELS = ["none, softmax", *(f"{mask}, {kernel}" for kernel in ("elu1", "square") for mask in ("none", "Toeplitz"))]
METHODS = [FIRST, *(name for name in MASKS if name != FIRST), "GIN", *KERNELS, *WALKERS]


def attention(method: str, side: int, layer: int) -> Module:
    """The attention of a layer, with the kernel after the comma, or with other walks."""
    mask, _, kernel = method.partition(", ")
    kernel = "" if method in WALKERS else kernel
    return nn.MaskedAttention(images.WIDTH, images.HEADS, kernel or "relu", MASKS[mask](layer, side))


def model_of(method: str, pictures: images.Pictures, positions: bool) -> images.ImageModel:
    """The model of a row."""
    conv, attn = (lambda _: gin(images.WIDTH)), partial(attention, method, pictures.side)
    branch: dict[str, Any] = {"conv": conv} if method == "GIN" else {"attn": attn}
    return images.classifier(pictures, LAYERS, positions, **branch)


pictures_of = cache(images.load_mnist_10k)


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    begin(run)
    patch, positions, _ = KINDS[row["dataset"]]
    pictures = pictures_of(patch, out.name == "quick")
    model = model_of(row["method"], pictures, positions)
    walks = WALKS | WALKERS.get(row["method"], {})
    prepare = transforms.that_add(model.model.requires, seed=run, max_hops=HOPS, **walks)
    grids = images.Grids(pictures.side, prepare, row["method"] == "GRF redrawn")
    found = images.train_images(model, pictures, grids, grids, epochs, RATE)
    del found["curve"]
    return found


COMPARISON = Comparison(
    __doc__,
    "mnist",
    {name: epochs for name, (*_, epochs) in KINDS.items()},
    METHODS,
    make_run,
    "Accuracy (%) after the epoch of the best validation accuracy. Rows of equal time have as many epochs as take the "
    f"time of the row {FIRST!r}.",
    form=(100, 1),
    first=FIRST,
    absent=lambda dataset, method: dataset == "pixels" and method not in PIXELS,
)


if __name__ == "__main__":
    COMPARISON.start()
