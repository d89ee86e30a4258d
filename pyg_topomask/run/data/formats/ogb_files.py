"""Opening files of the Open Graph Benchmark through the optional package ``ogb``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats.base import Raw, from_raw, need


@contextmanager
def ogb_files() -> Iterator[None]:
    """ogb calls ``torch.load`` with its old default; its own processed files hold PyG's and numpy's classes."""
    from torch_geometric.data import data as pyg_data
    from torch_geometric.data import storage

    allowed: list[Any] = [Data, pyg_data.DataEdgeAttr, pyg_data.DataTensorAttr, storage.GlobalStorage]
    allowed += [np.ndarray, np.dtype, np._core.multiarray._reconstruct] if hasattr(np, "_core") else []
    allowed += [type(np.dtype(kind)) for kind in (np.int64, np.float32, np.float64)]
    with torch.serialization.safe_globals(allowed):
        yield


def open_dataset(package: str, cls: str, name: str, raw: Raw, data: DatasetConfig, **arguments: Any) -> Any:
    dataset_class = getattr(need(package, f"the data set {name}"), cls)

    def build(root: Path) -> Any:
        with ogb_files():
            if "meta_dict" in arguments:
                meta = arguments["meta_dict"] | {"dir_path": str(root / raw.place)}
                return dataset_class(name, meta_dict=meta)
            return dataset_class(root=str(root), **({"name": name} | arguments))

    return from_raw(raw, data, build)


def split_of(dataset: Any) -> tuple[Tensor, Tensor, Tensor]:
    with ogb_files():
        split = dataset.get_idx_split()
    return tuple(torch.as_tensor(split[part]) for part in ("train", "valid", "test"))  # type: ignore[return-value]
