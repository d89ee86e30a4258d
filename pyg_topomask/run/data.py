"""Data sets of a config: found or generated, processed once into the cache folder, split, and served in batches."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch_geometric.data import Batch, Data, InMemoryDataset
from torch_geometric.datasets import Planetoid, TUDataset
from torch_geometric.loader import DataLoader as GraphLoader
from torch_geometric.transforms import BaseTransform, Compose, Constant, NormalizeFeatures

from pyg_topomask import __version__
from pyg_topomask.datasets import MOTIFS, MotifDataset
from pyg_topomask.ops.cache import cache_dir
from pyg_topomask.run.config import Config, DatasetConfig
from pyg_topomask.run.errors import RunError, did_you_mean
from pyg_topomask.run.files import build_folder
from pyg_topomask.run.splits import node_masks, split_graphs

PLANETOID = ("Cora", "CiteSeer", "PubMed")
FORMATS = ("PyG-MotifDataset", "PyG-TUDataset", "PyG-Planetoid")


def dataset_problems(data: DatasetConfig) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) that can be told without loading: unknown names, a missing folder."""
    found = []
    if data.format not in FORMATS:
        message = f"must be one of {', '.join(FORMATS)} (got {data.format!r})." + did_you_mean(data.format, FORMATS)
        found.append(("dataset.format", message))
    if data.task_type != "classification":
        found.append(("dataset.task_type", f"must be classification (got {data.task_type!r})"))
    choices: Sequence[str] = {"PyG-MotifDataset": tuple(MOTIFS), "PyG-Planetoid": PLANETOID}.get(data.format, ())
    if choices and data.name not in choices:
        message = f"{data.format} has no {data.name!r}; there are {', '.join(choices)}."
        found.append(("dataset.name", message + did_you_mean(data.name, choices)))
    if Path(data.name).name != data.name or data.name in ("", ".", ".."):
        found.append(("dataset.name", f"must be a plain name (got {data.name!r})"))
    if data.dir is not None and not Path(data.dir).expanduser().is_dir():
        found.append(("dataset.dir", f"the data folder {data.dir} does not exist"))
    return found


def load_dataset(data: DatasetConfig) -> InMemoryDataset:
    """The data set, through PyG's own class; processed files are kept in the cache folder.

    Raises:
        RunError: If raw files are neither found nor can be downloaded, or are unreadable.
    """
    if data.format == "PyG-MotifDataset":
        name = f"{data.name}-{data.num_graphs}-{data.num_nodes}-v{__version__}"
        return _cached(
            Path("MotifDataset") / name,
            lambda root: MotifDataset(str(root), data.name, data.num_graphs, data.num_nodes, seed=0),
        )
    if data.format == "PyG-TUDataset":
        files = [f"{data.name}_{part}.txt" for part in ("A", "graph_indicator", "graph_labels")]
        return _from_raw(
            "TUDataset",
            data,
            files,
            lambda root: TUDataset(str(root), data.name, use_node_attr=data.use_node_attr),
        )
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = [f"ind.{data.name.lower()}.{part}" for part in parts]
    return _from_raw("Planetoid", data, files, lambda root: Planetoid(str(root), data.name))


def _from_raw(
    family: str, data: DatasetConfig, files: Sequence[str], build: Callable[[Path], InMemoryDataset]
) -> InMemoryDataset:
    raw, tried = _find_raw(family, data, files)
    if raw is None:
        return _cached(Path(family) / f"{data.name}-downloaded", lambda root: _download(build, root, data.name, tried))
    stamp = [torch_geometric.__version__, str(raw.resolve())]
    stamp += sorted(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in raw.iterdir())
    digest = hashlib.sha256("\n".join(stamp).encode()).hexdigest()[:12]

    def build_beside(root: Path) -> InMemoryDataset:
        link = root / data.name / "raw"
        if not link.exists():
            link.parent.mkdir(parents=True)
            try:
                link.symlink_to(raw.resolve(), target_is_directory=True)
            except OSError:  # Windows without the right to make links
                shutil.copytree(raw, link)
        return build(root)

    return _cached(Path(family) / f"{data.name}-{digest}", build_beside)


def _find_raw(family: str, data: DatasetConfig, files: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The first folder that holds all raw files, and a line on each folder tried."""
    tried = []
    for origin, base in (("dataset.dir", data.dir), ("$TOPOMASK_DATA", os.environ.get("TOPOMASK_DATA"))):
        if not base:
            tried.append(f"{origin} is not set")
            continue
        root = Path(base).expanduser()
        for folder in (root / family / data.name / "raw", root / data.name / "raw"):
            missing = [name for name in files if not (folder / name).is_file()]
            if not missing:
                return folder, tried
            if folder.is_dir():
                tried.append(f"{origin}: {folder} lacks {', '.join(missing)}")
        if not any(line.startswith(f"{origin}:") for line in tried):
            tried.append(f"{origin}: {root / family / data.name / 'raw'} is not there")
    return None, tried


def _download(build: Callable[[Path], InMemoryDataset], root: Path, name: str, tried: list[str]) -> InMemoryDataset:
    try:
        return build(root)
    except Exception as error:  # urllib, http, zipfile, socket: all mean that the files could not be had
        lines = "\n  ".join([*tried, f"download: {type(error).__name__}: {error}"])
        raise RunError(f"the raw files of {name} were neither found nor downloaded:\n  {lines}") from error


def _cached(place: Path, build: Callable[[Path], InMemoryDataset]) -> InMemoryDataset:
    """Process in a temporary folder unless that was done before, then load from the cache."""
    final = cache_dir() / place
    with contextlib.redirect_stderr(io.StringIO()):  # PyG prints "Processing..." and "Done!"
        try:
            build_folder(final, build)
            return build(final)
        except RunError:
            raise
        except Exception as error:
            raise RunError(
                f"{place.name} could not be read: {type(error).__name__}: {error}. "
                f"Are the raw files whole? If so, delete {final}, which is made again"
            ) from error


@dataclass
class Splits:
    """What one seed trains on; for a node task each part is the one graph, with its mask in ``data.mask``."""

    train: Sequence[Data]
    val: Sequence[Data]
    test: Sequence[Data]
    in_channels: int
    num_classes: int
    edge_channels: int | None
    redraw: BaseTransform | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Number of labelled graphs or nodes in each part."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return {name: int(part[0].mask.sum()) if "mask" in part[0] else len(part) for name, part in parts.items()}


def prepare(
    config: Config, dataset: InMemoryDataset, seed: int, walks: BaseTransform | None, tick: Callable[[], Any]
) -> Splits:
    """Split the data set for one seed and draw its walks, calling ``tick`` after each graph."""
    data = config.dataset
    features = input_features(config)
    graphs = [_checked(features(graph), config) for graph in dataset]
    fixed = []
    for graph in graphs:
        fixed.append(graph if walks is None else walks(graph))
        tick()
    redraw = walks if walks is not None and config.topomask.redraw == "epoch" else None
    edge_attr = graphs[0].edge_attr
    sizes = (graphs[0].x.size(1), int(dataset.num_classes), None if edge_attr is None else edge_attr.size(1))
    if data.task == "node":
        masks = node_masks(data, graphs[0], seed)
        first = graphs[0] if redraw is not None else fixed[0]
        parts = [_with_mask(graph, mask) for graph, mask in zip([first, fixed[0], fixed[0]], masks)]
        return Splits([parts[0]], [parts[1]], [parts[2]], *sizes, redraw)
    labels = torch.cat([graph.y for graph in graphs])
    train, val, test = (index.tolist() for index in split_graphs(data, labels, seed))
    source = graphs if redraw is not None else fixed
    return Splits([source[i] for i in train], [fixed[i] for i in val], [fixed[i] for i in test], *sizes, redraw)


def input_features(config: Config) -> BaseTransform:
    """Node and edge features as the model is given them."""
    data = config.dataset
    steps: list[BaseTransform] = [_Features(constant=data.node_encoder_name == "Constant")]
    if config.topomask.normalize_features:
        steps.append(NormalizeFeatures())
    steps.append(_EdgeFeatures(data.edge_encoder_name if data.edge_encoder else None))
    return Compose(steps)


class _Features(BaseTransform):
    """Float features, and a 1 for each node where there are none."""

    def __init__(self, constant: bool) -> None:
        self.constant = constant

    def forward(self, data: Data) -> Data:
        if self.constant or data.x is None:
            return Constant(cat=False)(data)
        data.x = data.x.float()
        return data


class _EdgeFeatures(BaseTransform):
    """Edge features as the encoder wants them; none where there is no encoder."""

    def __init__(self, encoder: str | None) -> None:
        self.encoder = encoder

    def forward(self, data: Data) -> Data:
        if self.encoder == "DummyEdge":
            data.edge_attr = torch.ones(data.edge_index.size(1), 1)
        elif self.encoder == "LinearEdge":
            if data.edge_attr is None:
                raise RunError("dataset.edge_encoder_name: the data have no edge features; use DummyEdge")
            data.edge_attr = data.edge_attr.float().view(data.edge_index.size(1), -1)
        else:
            data.edge_attr = None
        return data


def _checked(data: Data, config: Config) -> Data:
    labels = data.y.view(-1)
    expected = 1 if config.dataset.task == "graph" else data.num_nodes
    if labels.numel() != expected or labels.is_floating_point() or (labels.numel() and int(labels.min()) < 0):
        raise RunError(
            f"dataset: {config.dataset.task} classification needs one class number for each {config.dataset.task} "
            f"(got y of shape {list(data.y.shape)} and type {data.y.dtype})"
        )
    if not torch.isfinite(data.x).all():
        raise RunError("dataset: the node features hold NaN or infinite values")
    data.y = labels
    return data


def _with_mask(data: Data, mask: Tensor) -> Data:
    data = data.clone()
    for name in ("train_mask", "val_mask", "test_mask"):
        if name in data:
            del data[name]
    data.mask = mask
    return data


class EpochSampler(Sampler[int]):
    """A permutation that is a function of (seed, epoch) alone, so that a resumed run continues as if undisturbed."""

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this ahead of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return iter(torch.randperm(self.length, generator=generator).tolist())


class _Transformed(Dataset[Data]):
    def __init__(self, graphs: Sequence[Data], transform: BaseTransform) -> None:
        self.graphs, self.transform = graphs, transform

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        return self.transform(self.graphs[index])


def _single(items: list[Data]) -> Data:
    return items[0]


def _ready(graphs: Sequence[Data], batch_size: int) -> DataLoader:
    """Batches joined once: what masks build for a batch is then kept from one evaluation to the next."""
    starts = range(0, len(graphs), batch_size)
    batches = [Batch.from_data_list(list(graphs[start : start + batch_size])) for start in starts]
    return DataLoader(batches, batch_size=1, collate_fn=_single)  # type: ignore[arg-type]


def loaders(config: Config, splits: Splits, seed: int) -> tuple[DataLoader, DataLoader, DataLoader]:
    """Training, validation and test loaders; only the first shuffles, by (seed, epoch)."""
    train = splits.train if splits.redraw is None else _Transformed(splits.train, splits.redraw)
    common: dict[str, Any] = {"num_workers": config.num_workers, "generator": torch.Generator().manual_seed(seed)}
    if config.dataset.task == "node":
        parts = (train, splits.val, splits.test)
        return tuple(DataLoader(part, batch_size=1, collate_fn=_single, **common) for part in parts)  # type: ignore
    common["batch_size"] = config.train.batch_size
    return (
        GraphLoader(train, sampler=EpochSampler(len(splits.train), seed), **common),
        _ready(splits.val, config.train.batch_size),
        _ready(splits.test, config.train.batch_size),
    )
