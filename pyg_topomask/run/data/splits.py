"""Training, validation and test sets: of the data set itself, random, folds, or published."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask, mask_to_index

from pyg_topomask.run.data.source import Source, Split
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import PARTS, Parts


def split_items(data: Source, size: int, labels: Tensor | None, own: Parts | None, seed: int) -> Parts:
    """Indices of the training, validation and test items, graphs or nodes.

    Folds are drawn with ``split_seed`` (0 if it is not given), so that all seeds share them. Fold ``split.index`` is
    the test set, and the next fold is the validation set. A random split is drawn with ``split_seed``, or with
    ``seed`` if it is not given.

    Args:
        data: Gives the kind of split.
        size: Number of items.
        labels: Class of each item, for stratified folds.
        own: The split of the data set itself, for ``standard``.
        seed: Seed of the run.
    """
    mode, split = data.split.mode, data.split
    if mode == "standard":
        if own is None:
            raise RunError(f"dataset.split_mode: {data.name} has no standard split; use random or cv-kfold-10")
        return own
    if mode == "errica":
        return errica_split(data, size)
    if mode == "fixed":  # the first items are for training, the next for validation, the last for test
        return _cut(torch.arange(size), _sizes(split, size))
    if split.num_folds is None:
        generator = torch.Generator().manual_seed(seed if split.seed is None else split.seed)
        return _cut(torch.randperm(size, generator=generator), _sizes(split, size))
    if size < split.num_folds:
        raise RunError(f"dataset.split_mode: {split.num_folds} folds need as many graphs (got {size})")
    classes = torch.zeros(size, dtype=torch.long)
    if "stratified" in mode:
        if labels is None or labels.numel() != size or labels.is_floating_point():
            raise RunError("dataset.split_mode: stratified folds need one class for each item; use cv-kfold")
        classes = labels.view(-1)
    fold = folds(classes, split.num_folds, split.seed or 0)
    test = fold == split.index
    val = fold == (split.index + 1) % split.num_folds
    return mask_to_index(~(test | val)), mask_to_index(val), mask_to_index(test)


def folds(classes: Tensor, num_folds: int, seed: int) -> Tensor:
    """Fold ``[n]`` of each item; folds differ by at most one in size and in the number of items of each class."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(classes.numel(), generator=generator)
    order = shuffled[torch.argsort(classes[shuffled], stable=True)]  # class by class, shuffled within
    fold = torch.empty_like(order)
    fold[order] = torch.arange(classes.numel()) % num_folds
    return fold


def _sizes(split: Split, size: int) -> tuple[int, int, int]:
    """Sizes of the three sets; ``shares`` are shares, or numbers of items if its first number is at least 1."""
    if split.shares[0] >= 1:
        counts = tuple(int(count) for count in split.shares)
    else:
        num_train, num_val = int(split.shares[0] * size), int(split.shares[1] * size)
        rest = size - num_train - num_val  # the test set if the shares add up to 1
        whole = math.isclose(sum(split.shares), 1)
        counts = (num_train, num_val, rest if whole else min(rest, round(split.shares[2] * size)))
    if min(counts) < 1 or sum(counts) > size:
        raise RunError(f"dataset.split: {size} items are too few for the shares {list(split.shares)}")
    return counts  # type: ignore[return-value]


def _cut(order: Tensor, counts: tuple[int, int, int]) -> Parts:
    train, val, test = (part.sort().values for part in order[: sum(counts)].split(counts))
    return train, val, test


def errica_split(data: Source, size: int) -> Parts:
    """Fold ``split_index`` of the published splits of the TU data sets.

    Reference: Errica et al., *A Fair Comparison of Graph Neural Networks for Graph Classification*, ICLR 2020. The
    files ``<group>/<name>_splits.json`` of its repository are searched in ``dataset.split_dir`` and in
    ``splits/errica2020`` of the data folders. For social data sets, the splits for constant features are used.
    """
    folders = [Path(data.split.folder).expanduser()] if data.split.folder else []
    bases = [data.identity.get("dataset.dir"), os.environ.get("TOPOMASK_DATA")]
    folders += [Path(base).expanduser() / "splits" / "errica2020" for base in bases if base]
    names = [f"{group}{data.name}{end}_splits.json" for group in ("", "*/") for end in ("", "_full")]
    path = next((path for folder in folders for name in names for path in sorted(folder.glob(name))), None)
    if path is None:
        searched = ", ".join(map(str, folders)) or "dataset.split_dir, dataset.dir and $TOPOMASK_DATA are not set"
        raise RunError(
            f"dataset.split_mode: no {names[0]} was found ({searched}). The files are in 'data_splits' of "
            "github.com/diningphil/gnn-comparison; dataset.split_mode=random needs no files"
        )
    try:
        fold = json.loads(path.read_text(encoding="utf-8"))[data.split.index]
        inner = fold["model_selection"][0]
        train, val, test = (torch.tensor(part) for part in (inner["train"], inner["validation"], fold["test"]))
    except (ValueError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"{path} is not a file of splits with fold {data.split.index} ({reason})") from None
    if int(torch.cat([train, val, test]).max()) >= size:
        raise RunError(f"{path} is for another data set: it lists graphs beyond the {size} of {data.name}")
    return train, val, test


def node_masks(data: Source, graph: Data, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Boolean masks ``[N]`` of the training, validation and test nodes; ``split.index`` selects a column of several."""
    names, number, index = [f"{part}_mask" for part in PARTS], int(graph.num_nodes), data.split.index
    if data.split.mode == "standard" and all(name in graph for name in names):
        masks = [graph[name].view(number, -1) for name in names]
        count = masks[0].size(1)
        if index >= count:
            raise RunError(f"dataset.split_index: {data.name} has {count} splits (got {index})")
        train, val, test = (mask[:, index if mask.size(1) > 1 else 0] for mask in masks)
        return train, val, test
    parts = split_items(data, number, graph.y if graph.y.dim() == 1 else None, None, seed)
    train, val, test = (index_to_mask(index, number) for index in parts)
    return train, val, test
