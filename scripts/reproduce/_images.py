"""Images as grids of pixels or patches: digits of scikit-learn, and of MNIST."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _fitting import fit, order
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.functional import cross_entropy, unfold
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask import datasets, loader, nn, operators, transforms
from pyg_topomask.datasets.digits import grid_edges
from pyg_topomask.nn.mask import Mask
from pyg_topomask.run.errors import MissingDataError

WIDTH, HEADS, CLASSES = 32, 4, 10
BATCH, RATE, DECAY = 32, 8e-3, 1e-4
DIGIT_PARTS, MNIST_PARTS, QUICK_PARTS = (1024, 320, 453), (8000, 1000, 1000), (64, 32, 32)
"""Images for training, validation and test."""


@dataclass(frozen=True)
class Pictures:
    """Images of equal size: tokens ``[I, n, F]`` and classes ``[I]`` of the three parts, and ``n`` is ``side²``."""

    parts: Mapping[str, tuple[Tensor, Tensor]]
    side: int


class Grids:
    """Batches of equal grids, whose images come from elsewhere; all grids of a batch have the same walks.

    Args:
        side: Side of the grid.
        transform: Adds what masks need, such as walks; nothing if :obj:`None`.
        redrawn: Whether each batch has new walks.
    """

    def __init__(self, side: int, transform: BaseTransform | None = None, redrawn: bool = False) -> None:
        node = torch.arange(side**2)
        pos = torch.stack([node // side, node % side], dim=1).float()
        self.grid = transforms.AddGridShape()(Data(edge_index=grid_edges(side), pos=pos, num_nodes=side**2))
        self.transform, self.redrawn, self.draws = transform, redrawn, 0
        self._batches: dict[int, Batch] = {}

    def batch(self, count: int) -> Batch:
        """A batch of ``count`` grids."""
        if self.redrawn or count not in self._batches:
            loader.set_epoch(self.transform, self.draws)
            graph = self.grid if self.transform is None else self.transform(self.grid)
            self.draws += self.redrawn
            self._batches[count] = Batch.from_data_list([graph] * count)
        return self._batches[count]


class ImageModel(Module):
    """A model of graphs, applied to images ``[I, n, F]`` on equal grids; returns scores of the classes, ``[I, 10]``."""

    def __init__(self, model: nn.GPSModel) -> None:
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


def train_images(
    model: ImageModel, pictures: Pictures, grids: Grids, drawn: Grids, epochs: int, rate: float = RATE
) -> dict[str, Any]:
    """Train on batches of images in random order, as `fit` does; see there.

    Args:
        model: The model.
        pictures: The images of all parts.
        grids, drawn: Grids of the training part, and of the others.
        epochs, rate: Number of epochs, and largest learning rate.

    Returns:
        Accuracies and costs after the epoch of the best accuracy on the validation part, and that accuracy after each
        epoch (``"curve"``).
    """
    (images, classes), curve = pictures.parts["train"], list[float]()
    steps, generator = len(images) // BATCH, order()

    def batches() -> Iterator[Tensor]:
        yield from torch.randperm(len(images), generator=generator)[: steps * BATCH].view(steps, BATCH)

    def loss(rows: Tensor) -> Tensor:
        return cross_entropy(model(images[rows], grids), classes[rows])

    def validate() -> float:
        error = error_rate(model, pictures.parts["val"], drawn)
        curve.append(1 - error)
        return error

    found = fit(model, batches, loss, validate, epochs, steps, rate, DECAY)
    accuracies = {"val": 1 - found["val"], "test": 1 - error_rate(model, pictures.parts["test"], drawn)}
    return found | accuracies | {"curve": curve}


def classifier(pictures: Pictures, layers: int, positions: bool, pool: str = "mean", **branch: Any) -> ImageModel:
    """A vision transformer, or message passing on patches; ``branch`` is the ``attn`` or ``conv`` of `GPSModel`."""
    channels = pictures.parts["train"][0].size(-1)
    model = nn.GPSModel(channels, WIDTH, CLASSES, layers, **branch, pool=pool, pre_norm=True, act="gelu")
    if positions:
        model.node_encoder = Placed(model.node_encoder, pictures.side**2)
    return ImageModel(model)


class Placed(Module):
    """An encoder, and a learned vector for each node of an image."""

    def __init__(self, encoder: Module, num_nodes: int) -> None:
        super().__init__()
        self.encoder, self.vectors = encoder, Parameter(0.02 * torch.randn(num_nodes, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x) + self.vectors.repeat(x.size(0) // self.vectors.size(0), 1)


class DenseFeaturesMask(Mask):
    """The product of free features ``[H, n, n]`` with themselves, without any knowledge of the grid (Appendix C.2).

    The features start as random positive numbers, so that the mask starts near one everywhere.
    """

    def __init__(self, num_pixels: int, heads: int) -> None:
        super().__init__()
        self.features = Parameter(2 * torch.rand(heads, num_pixels, num_pixels) * num_pixels**-0.5)

    def forward(self, graph: Data) -> operators.MaskOperator:
        """The mask of a batch of equal images."""
        features = self.features.repeat(1, int(graph.num_nodes) // self.features.size(-1), 1)
        return operators.LowRankOperator(features, features, graph.batch)


def in_parts(images: Tensor, classes: Tensor, sizes: Sequence[int], side: int) -> Pictures:
    """The first images in three parts, in their order."""
    parts = zip(images[: sum(sizes)].split(list(sizes)), classes[: sum(sizes)].split(list(sizes)))
    return Pictures(dict(zip(("train", "val", "test"), parts)), side)


def load_digits(side: int, quick: bool) -> Pictures:
    """Digits on a canvas, split by a fixed permutation."""
    sizes = QUICK_PARTS if quick else DIGIT_PARTS
    with tempfile.TemporaryDirectory() as folder:
        graphs = list(datasets.DigitsDataset(folder, side, sum(sizes)))
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(0))
    images, classes = torch.stack([data.x for data in graphs])[order], torch.cat([data.y for data in graphs])[order]
    return in_parts(images, classes, sizes, side)


def load_mnist_10k(patch: int, quick: bool) -> Pictures:
    """Patches of 10,000 images of MNIST, in parts that are not its official split.

    Raises:
        MissingDataError: If the images are missing.
    """
    path = Path(os.environ.get("TOPOMASK_DATA", "data")) / "MNIST-10k/mnist10k.npz"
    if not path.is_file():
        raise MissingDataError(f"MNIST-10k is missing ({path}); set the environment variable TOPOMASK_DATA")
    with np.load(path, allow_pickle=False) as file:
        pixels, classes = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"]).long()
    tokens = unfold(pixels[:, None].float() / 255, patch, stride=patch).mT
    return in_parts(tokens, classes, QUICK_PARTS if quick else MNIST_PARTS, pixels.size(-1) // patch)
