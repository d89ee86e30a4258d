"""Handwritten digits as grid graphs of their pixels."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from pyg_topomask.checks import check_integer
from pyg_topomask.datasets.synthetic import SyntheticDataset
from pyg_topomask.transforms.grid_shape import grid_links

NUM_DIGITS, SIDE = 1797, 8


class DigitsDataset(SyntheticDataset):
    r"""The 1,797 handwritten digits of scikit-learn, 8 × 8 pixels, each as a grid graph with one node per pixel.

    Nodes are in row-major order, and linked to the next pixels in their row and column. On a canvas that is larger than
    8 × 8, the image has a random place and the other pixels are 0. The images come with scikit-learn, and nothing is
    downloaded. They are the test set of the Optical Recognition of Handwritten Digits Data Set of the UCI repository.

    Args:
        root: Folder of the processed file.
        side: Side of the canvas, at least 8. With the default, the images fill it.
        num_graphs: Number of images, at most 1,797; the first ones are taken.
        seed: The place of image ``i`` depends only on ``(side, seed, i)``.
        **transforms: ``transform``, applied at each access, and ``pre_transform``, applied once before saving.

    Shapes:
        - a graph has ``N = side²`` nodes: ``x [N, 1]``, ``edge_index [2, 4 side (side - 1)]`` (each edge both ways,
          sorted), ``pos [N, 2]`` (row and column of the pixel), ``y [1]``

    Units: ``x`` is the intensity in [0, 1].

    Raises:
        ValueError: If a number is out of range.
        TypeError: If a number is not an integer.
        ImportError: If scikit-learn is missing.
    """

    def __init__(
        self, root: str, side: int = SIDE, num_graphs: int = NUM_DIGITS, seed: int = 0, **transforms: Callable | None
    ) -> None:
        self.side = check_integer("side", side, SIDE, "the images have 8 × 8 pixels")
        if check_integer("num_graphs", num_graphs) > NUM_DIGITS:
            raise ValueError(f"'num_graphs' must be at most {NUM_DIGITS}, the number of images (got {num_graphs})")
        super().__init__(root, {"side": self.side}, num_graphs, seed, **transforms)

    @cached_property
    def _images(self) -> tuple[np.ndarray, np.ndarray]:
        """Images ``[1797, 8, 8]`` in [0, 1], and their digits ``[1797]``."""
        try:
            from sklearn.datasets import load_digits  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("DigitsDataset needs scikit-learn: pip install scikit-learn", name="sklearn") from error
        digits = load_digits()
        return digits.images / 16, digits.target

    def graph(self, number: int, rng: np.random.Generator) -> Data:
        images, digits = self._images
        row, column = rng.integers(self.side - SIDE + 1, size=2)
        canvas = np.zeros((self.side, self.side), dtype=np.float32)
        canvas[row : row + SIDE, column : column + SIDE] = images[number]
        node = torch.arange(self.side**2)
        return Data(
            x=torch.from_numpy(canvas).view(-1, 1),
            edge_index=grid_edges(self.side),
            pos=torch.stack([node // self.side, node % self.side], dim=1).float(),
            y=torch.tensor([int(digits[number])]),
        )


def grid_edges(side: int) -> torch.Tensor:
    """Edges of the square grid, both ways, sorted."""
    return to_undirected(grid_links((side, side)))
