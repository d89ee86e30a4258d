"""Images as grids of pixels or patches: digits of scikit-learn, and torchvision's sets where their files are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from _fitting import fit
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.functional import cross_entropy, unfold
from torch_geometric.data import Batch, Data

from pyg_topomask.datasets import DigitsDataset
from pyg_topomask.datasets.digits import grid_edges
from pyg_topomask.nn import GPSModel
from pyg_topomask.nn.mask import Mask
from pyg_topomask.operators import MaskOperator
from pyg_topomask.operators.equal_graphs import EqualGraphsOperator
from pyg_topomask.ops.numerics import absolute, non_negative
from pyg_topomask.transforms import AddGridShape, AddRandomWalks

WIDTH, HEADS, CLASSES = 32, 4, 10
BATCH, RATE, DECAY = 32, 8e-3, 1e-4
DIGIT_PARTS = (1024, 320, 453)
"""Images for training, validation and test."""


IMAGES = {"plain": "8 × 8", "shifted": "shifted on 16 × 16", "mnist": "MNIST, 14 × 14", "cifar10": "CIFAR10, 8 × 8"}


@dataclass(frozen=True)
class Pictures:
    """Images of equal size: tokens ``[I, n, F]`` and classes ``[I]`` of the three parts, and ``n`` is ``side²``."""

    parts: Mapping[str, tuple[Tensor, Tensor]]
    side: int


class Grids:
    """Batches of equal grids, whose images come from elsewhere; all grids of a batch have the same walks.

    Args:
        side: Side of the grid.
        walks: Draws the walks; the grids have none if :obj:`None`.
        redrawn: Whether each batch has new walks.
    """

    def __init__(self, side: int, walks: AddRandomWalks | None = None, redrawn: bool = False) -> None:
        node = torch.arange(side**2)
        pos = torch.stack([node // side, node % side], dim=1).float()
        self.grid = AddGridShape()(Data(edge_index=grid_edges(side), pos=pos, num_nodes=side**2))
        self.walks, self.redrawn, self.draws = walks, redrawn, 0
        self._batches: dict[int, Batch] = {}

    def batch(self, count: int) -> Batch:
        """A batch of ``count`` grids."""
        if self.redrawn or count not in self._batches:
            graph = self.grid
            if self.walks is not None:
                self.walks.set_epoch(self.draws)
                graph = self.walks(graph)
            self.draws += self.redrawn
            self._batches[count] = Batch.from_data_list([graph] * count)
        return self._batches[count]


class ImageModel(Module):
    """A model of graphs, applied to images ``[I, n, F]`` on equal grids; returns scores of the classes, ``[I, 10]``."""

    def __init__(self, model: GPSModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, grids: Grids) -> Tensor:
        batch = grids.batch(images.size(0))
        return self.model(images.flatten(0, 1), batch.edge_index, batch.batch, graph=batch)


def error_rate(model: ImageModel, part: tuple[Tensor, Tensor], grids: Grids) -> float:
    """Share of wrong predictions, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(images, grids).argmax(1) for images in part[0].split(BATCH)])
    return float((found != part[1]).float().mean())


def fit_images(
    model: ImageModel, pictures: Pictures, grids: Grids, validate: Callable[[], float], epochs: int
) -> tuple[float, float]:
    """Train on batches of images in random order, as `fit` does; see there."""
    images, classes = pictures.parts["train"]
    steps = len(images) // BATCH

    def batches() -> Iterator[Tensor]:
        yield from torch.randperm(len(images))[: steps * BATCH].view(steps, BATCH)

    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(model(images[rows], grids), classes[rows])

    return fit(model, batches, loss, validate, epochs, steps, RATE, DECAY)


class RepeatedOperator(EqualGraphsOperator):
    """The same dense masks ``[H, n, n]`` for every graph of a batch."""

    def __init__(self, matrix: Tensor, num_graphs: int) -> None:
        super().__init__(matrix.size(-1), num_graphs, matrix.size(0))
        self.matrix, self.dtype = matrix, matrix.dtype

    @property
    def T(self) -> MaskOperator:
        return RepeatedOperator(self.matrix.mT, self.num_graphs)

    @property
    def bound(self) -> MaskOperator:
        return self if non_negative(self.matrix) else RepeatedOperator(absolute(self.matrix), self.num_graphs)

    @property
    def num_multiply_adds(self) -> int:
        return self.num_nodes * self.graph_size

    def _kernel(self) -> Tensor:
        return self.matrix

    def _product(self, x: Tensor) -> Tensor:
        return self.matrix[:, None].to(x.dtype) @ x


class DenseFeaturesMask(Mask):
    """The product of free features ``[H, n, n]`` with themselves, without any knowledge of the grid (Appendix C.2).

    The features start as random positive numbers, so that the mask starts near one everywhere.
    """

    def __init__(self, num_pixels: int, heads: int) -> None:
        super().__init__()
        self.features = Parameter(2 * torch.rand(heads, num_pixels, num_pixels) * num_pixels**-0.5)

    def forward(self, graph: Data) -> MaskOperator:
        """The mask of a batch of equal images."""
        return RepeatedOperator(self.features @ self.features.mT, int(graph.num_nodes) // self.features.size(-1))


def load_digits(side: int, quick: bool) -> Pictures:
    """Digits on a canvas, split by a fixed permutation."""
    sizes = (64, 32, 32) if quick else DIGIT_PARTS
    with tempfile.TemporaryDirectory() as folder:
        graphs = list(DigitsDataset(folder, side, sum(sizes)))
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(0))
    images, classes = torch.stack([data.x for data in graphs])[order], torch.cat([data.y for data in graphs])[order]
    return Pictures(dict(zip(("train", "val", "test"), zip(images.split(sizes), classes.split(sizes)))), side)


def load_photographs(cls: str, patch: int, quick: bool) -> Pictures | None:
    """Patches of torchvision's images, without downloading; None if they are not there."""
    root = Path(os.environ.get("TOPOMASK_DATA", "data")) / "torchvision"
    try:
        from torchvision import datasets  # type: ignore[import-not-found]

        both = [getattr(datasets, cls)(str(root), train=part) for part in (True, False)]
    except (ImportError, RuntimeError):
        return None
    parts = []
    for data in both:
        pixels = torch.as_tensor(data.data).float() / 255
        pixels = pixels[:, None] if pixels.dim() == 3 else pixels.movedim(-1, 1)
        tokens = torch.cat([unfold(some, patch, stride=patch).mT for some in pixels.split(1000)])
        parts.append((tokens, torch.as_tensor(data.targets)))
    (images, classes), test = parts
    held = 32 if quick else len(images) // 10
    train_part, val_part = (images[held:], classes[held:]), (images[:held], classes[:held])
    if quick:
        train_part, test = ((x[:64], y[:64]) for x, y in (train_part, test))
    return Pictures({"train": train_part, "val": val_part, "test": test}, pixels.size(-1) // patch)


LOADERS: dict[str, Callable[[bool], Pictures | None]] = {
    "plain": partial(load_digits, 8),
    "shifted": partial(load_digits, 16),
    "mnist": partial(load_photographs, "MNIST", 2),
    "cifar10": partial(load_photographs, "CIFAR10", 4),
}
