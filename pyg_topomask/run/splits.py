"""Training, validation and test parts, drawn from a seed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.run.config import DatasetConfig
from pyg_topomask.run.errors import RunError


def split_graphs(data: DatasetConfig, labels: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted indices of the training, validation and test graphs.

    Folds are drawn with ``split_seed`` (0 where none is given), so that all seeds of a run share them; test is fold
    ``split_index`` and validation the fold after it. A random split is drawn with ``split_seed``, else with ``seed``.
    """
    num_folds = data.num_folds
    if num_folds is None:
        return _random_split(data, labels.numel(), seed)
    if labels.numel() < num_folds:
        raise RunError(f"dataset.split_mode: {num_folds} folds need as many graphs (got {labels.numel()})")
    classes = labels if "stratified" in data.split_mode else torch.zeros_like(labels)
    fold = folds(classes, num_folds, data.split_seed or 0)
    test = fold == data.split_index
    val = fold == (data.split_index + 1) % num_folds
    train = ~(test | val)
    return train.nonzero().view(-1), val.nonzero().view(-1), test.nonzero().view(-1)


def folds(classes: Tensor, num_folds: int, seed: int) -> Tensor:
    """Fold ``[n]`` of each item; every fold has the same share of each class, and the same size, to within one."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(classes.numel(), generator=generator)
    order = shuffled[torch.argsort(classes[shuffled], stable=True)]  # class by class, shuffled within
    fold = torch.empty_like(order)
    fold[order] = torch.arange(classes.numel()) % num_folds
    return fold


def _random_split(data: DatasetConfig, size: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    chosen = seed if data.split_seed is None else data.split_seed
    order = torch.randperm(size, generator=torch.Generator().manual_seed(chosen))
    num_train, num_val = int(data.split[0] * size), int(data.split[1] * size)
    num_test = min(size - num_train - num_val, round(data.split[2] * size))
    if min(num_train, num_val, num_test) < 1:
        raise RunError(f"dataset.split: {size} items are too few for the shares {list(data.split)}")
    ends = (num_train, num_train + num_val, num_train + num_val + num_test)
    train, val, test = order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] : ends[2]]
    return train.sort().values, val.sort().values, test.sort().values


def node_masks(data: DatasetConfig, graph: Data, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Boolean masks ``[N]`` of the training, validation and test nodes."""
    if data.split_mode == "standard":
        return graph.train_mask, graph.val_mask, graph.test_mask
    masks = []
    for index in _random_split(data, graph.num_nodes, seed):
        masks.append(torch.zeros(graph.num_nodes, dtype=torch.bool).index_fill(0, index, True))
    return masks[0], masks[1], masks[2]
