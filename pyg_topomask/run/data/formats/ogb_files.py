"""Opening files of the Open Graph Benchmark through the optional package ``ogb``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import Raw, from_raw, need, reading


def open_dataset(package: str, cls: str, name: str, raw: Raw, data: DatasetConfig, **arguments: Any) -> Any:
    """A data set of ogb's class ``cls``, built with its name and ``arguments``.

    Raises:
        RunError: If the package or raw files are missing, or the files are unreadable.
    """
    dataset_class = getattr(need(package, f"the data set {name}"), cls)

    def build(root: Path) -> Any:
        if "meta_dict" in arguments:
            meta = arguments["meta_dict"] | {"dir_path": str(root / raw.subfolder)}
            return dataset_class(name, meta_dict=meta)
        return dataset_class(root=str(root), **({"name": name} | arguments))

    return from_raw(raw, data, build)


def split_of(dataset: Any) -> dict[str, Tensor]:
    """Indices of the items in each part of ogb's split: ``train``, ``valid``, ``test``.

    Raises:
        RunError: If the files of the split are unreadable.
    """
    with reading_split(dataset):
        return {part: torch.as_tensor(index) for part, index in dataset.get_idx_split().items()}


def reading_split(dataset: Any) -> Any:
    """Context manager for reading the files of a split by ogb."""
    return reading(f"the split of {type(dataset).__name__}", f"Download its folder 'split' again: {dataset.root}")


def three_parts(dataset: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the training, validation and test items."""
    split = split_of(dataset)
    return split["train"], split["valid"], split["test"]
