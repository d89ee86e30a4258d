"""Transforms that are fitted to training graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform


class FittedTransform(BaseTransform):
    """A transform whose constants are computed from the training graphs; checkpoints contain them.

    Args:
        constants: Tensors, and plain containers of them.
    """

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self.constants = constants

    @classmethod
    def fit(cls, graphs: Sequence[Data]) -> "FittedTransform":
        """The transform with the constants of these graphs."""
        raise NotImplementedError


class Standardize(FittedTransform):
    """Scales every channel of float node and edge features to mean 0 and standard deviation 1 over training graphs.

    Constant channels are only centred. The constants are (mean, standard deviation) by the name of the attribute.

    Reference: Tönshoff et al., *Where Did the Gap Go?*, arXiv:2309.00367, Section 3, for the superpixels of LRGB.
    """

    @classmethod
    def fit(cls, graphs: Sequence[Data]) -> "Standardize":
        return cls({name: found for name in ("x", "edge_attr") if (found := _moments(graphs, name))})

    def forward(self, data: Data) -> Data:
        for name, (mean, std) in self.constants.items():
            data[name] = (data[name].float() - mean) / std
        return data


def _moments(graphs: Sequence[Data], name: str) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation of each channel of an attribute; None if graphs lack it or it is no float."""
    values = [graph.get(name) for graph in graphs]
    if any(value is None or not value.is_floating_point() for value in values):
        return None
    count = sum(value.size(0) for value in values)
    if count == 0:
        return None
    mean = sum(value.double().sum(0) for value in values) / count
    std = (sum((value.double() - mean).square().sum(0) for value in values) / count).sqrt()
    return mean.float(), torch.where(std > 1e-8, std, 1.0).float()
