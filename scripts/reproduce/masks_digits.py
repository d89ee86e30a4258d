"""What masks are for: handwritten digits as pixels, with and without encodings of their positions.

    python scripts/reproduce/masks_digits.py --quick                       # a trial
    python scripts/reproduce/masks_digits.py --datasets shifted-positions --methods linear grid_heat
    python scripts/reproduce/masks_digits.py                               # all rows, 3 seeds; 3 h on one core

A pixel is a node of a grid, and a layer is attention alone, so that only the mask or the encoding tells where a pixel
is. Images fill 8 × 8 pixels, or have a random place on 16 × 16. The encoding is one vector for each row and one for
each column, added to the pixel. Every method has the settings of configs/masked/digits-toeplitz.yaml except for its
mask. GRF has walks that are drawn once per seed and shared by all images, so that they mark pixels. The same command
continues an interrupted one, and keeps finished runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _folds import Comparison, planned, run_once
from _tables import CONFIGS

CONFIG = CONFIGS / "masked" / "digits-toeplitz.yaml"
UNMASKED = ["topomask.mask=none"]
METHODS = {
    "linear": UNMASKED,
    "softmax": [*UNMASKED, "topomask.kernel=softmax"],
    "toeplitz": [],
    "grid_heat": ["topomask.mask=grid_heat"],
    "power_series": ["topomask.mask=power_series"],
    "grf": ["topomask.mask=grf"],
}
"""Settings of each row."""

IMAGES = {"plain": 30, "plain-positions": 30, "shifted": 30, "shifted-positions": 30}
"""Images, with encoded positions or without, and number of epochs."""


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    images, method = row["dataset"], row["method"]
    settings = [f"dataset.name={images}", *METHODS[method]]
    settings += ["dataset.split=[64,32,32]"] if out.name == "quick" else []
    return run_once(CONFIG, out, planned(CONFIG, f"{images}-{method}", run, epochs, settings))


COMPARISON = Comparison(
    __doc__,
    "masks_digits",
    IMAGES,
    METHODS,
    make_run,
    "Test accuracy (%) after the epoch of the best validation accuracy.",
    {"dataset": "images", "method": "attention"},
)


if __name__ == "__main__":
    COMPARISON.start()
