"""Data sets by ``dataset.format`` and ``dataset.name``, in GraphGPS's spelling, each through its library's class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_geometric.datasets import ShapeNet

from pyg_topomask.datasets import MOTIFS
from pyg_topomask.run.config import DatasetConfig
from pyg_topomask.run.datasets import graphs, nodes, ogb
from pyg_topomask.run.datasets.base import LoadedDataset
from pyg_topomask.run.errors import did_you_mean

__all__ = ["FORMATS", "Format", "LoadedDataset", "dataset_problems", "level_of", "load_dataset"]


@dataclass(frozen=True)
class Format:
    """A family of data sets.

    Args:
        load: Loads one of them.
        names: Their names; any if empty.
        level: What has a target: graphs, nodes or edges; empty where it differs by name.
        has_split: Whether the data come with a split (``split_mode: standard``).
        source: Where they come from, for the list of names.
        any_case: Whether names may be spelled in any case.
        generated: Whether there are no raw files.
    """

    load: Callable[[DatasetConfig], LoadedDataset]
    names: tuple[str, ...] = ()
    level: str = "graph"
    has_split: bool = True
    source: str = "PyG"
    any_case: bool = False
    generated: bool = False


FORMATS: dict[str, Format] = {
    "OGB": Format(ogb.load, ogb.NAMES, level="", source="ogb; LRGB: PyG"),
    "PyG-LRGBDataset": Format(graphs.lrgb_by_name, tuple(graphs.LRGB), level="", any_case=True),
    "PyG-VOCSuperpixels": Format(graphs.superpixels("pascalvoc-sp"), ("edge_wt_region_boundary",), level="node"),
    "PyG-COCOSuperpixels": Format(graphs.superpixels("coco-sp"), ("edge_wt_region_boundary",), level="node"),
    "PyG-GNNBenchmarkDataset": Format(graphs.benchmark, tuple(graphs.BENCHMARK), level=""),
    "PyG-ZINC": Format(graphs.zinc, ("subset", "full")),
    "PyG-AQSOL": Format(graphs.aqsol, ("none",)),
    "PyG-MalNetTiny": Format(graphs.malnet, ("LocalDegreeProfile", "Constant", "none")),
    "PyG-TUDataset": Format(graphs.tu, has_split=False),
    "PyG-MotifDataset": Format(graphs.motif, tuple(MOTIFS), has_split=False, source="ours", generated=True),
    "PyG-InducedCycleDataset": Format(graphs.induced_cycle, ("none",), has_split=False, source="ours", generated=True),
    "PyG-Planetoid": Format(nodes.planetoid, ("Cora", "CiteSeer", "PubMed"), level="node"),
    "PyG-WebKB": Format(nodes.webkb, ("cornell", "texas", "wisconsin"), level="node", any_case=True),
    "PyG-WikipediaNetwork": Format(nodes.wikipedia, ("chameleon", "squirrel"), level="node"),
    "PyG-Actor": Format(nodes.actor, ("none",), level="node"),
    "PyG-HeterophilousGraphDataset": Format(
        nodes.heterophilous,
        ("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"),
        level="node",
        any_case=True,
    ),
    "PyG-Amazon": Format(nodes.amazon, ("computers", "photo"), level="node", has_split=False, any_case=True),
    "PyG-Coauthor": Format(nodes.coauthor, ("cs", "physics"), level="node", has_split=False, any_case=True),
    "PyG-CityNetwork": Format(nodes.city, ("paris", "shanghai", "la", "london"), level="node", any_case=True),
    "PyG-ShapeNet": Format(nodes.shapenet, ("all", *ShapeNet.category_ids), level="node"),
    "PyG-S3DIS": Format(nodes.s3dis, tuple(f"Area_{i}" for i in range(1, 7)), level="node"),
}
"""``dataset.format`` -> family."""


def dataset_problems(data: DatasetConfig) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) that can be told without loading: unknown names, a missing folder."""
    if data.format not in FORMATS:
        choices = ", ".join(FORMATS)
        message = f"no family of data sets is called {data.format!r}; there are {choices}."
        return [("dataset.format", message + did_you_mean(data.format, FORMATS))]
    entry, found = FORMATS[data.format], []
    names = [name.lower() for name in entry.names] if entry.any_case else list(entry.names)
    name = data.name.lower() if entry.any_case else data.name
    if data.format == "OGB" and name.startswith("ogb"):
        name = name.replace("_", "-")
    if names and name not in names:
        message = f"{data.format} has no {data.name!r}; there are {', '.join(entry.names)}."
        found.append(("dataset.name", message + did_you_mean(data.name, entry.names)))
    if Path(data.name).name != data.name or data.name in ("", ".", ".."):
        found.append(("dataset.name", f"must be a plain name (got {data.name!r})"))
    if data.dir is not None and not Path(data.dir).expanduser().is_dir():
        found.append(("dataset.dir", f"the data folder {data.dir} does not exist"))
    if "Superpixels" in data.format and data.slic_compactness != 30:
        found.append(
            (
                "dataset.slic_compactness",
                f"PyG has the superpixels of compactness 30 only (got {data.slic_compactness})",
            )
        )
    if data.split_mode == "standard" and not entry.has_split and entry.level == "graph":
        found.append(("dataset.split_mode", f"{data.format} has no standard split; use random or cv-kfold-10"))
    if data.split_mode == "errica" and data.format != "PyG-TUDataset":
        found.append(("dataset.split_mode", f"errica's splits are of PyG-TUDataset (got {data.format})"))
    return found


def level_of(data: DatasetConfig) -> str:
    """What has a target, graphs, nodes or edges: known from the names, ahead of loading."""
    name = data.name.lower()
    known = (
        graphs.LRGB.get(name) or graphs.LRGB.get(ogb.LRGB_NAMES.get(data.name, "")) or graphs.BENCHMARK.get(data.name)
    )
    by_prefix = {"ogbn": "node", "ogbl": "edge"}.get(name[:4], "graph")
    return FORMATS[data.format].level or (known.level if known else by_prefix)


def load_dataset(data: DatasetConfig) -> LoadedDataset:
    """The data set, through its library's own class; processed files are kept in the cache folder.

    Raises:
        RunError: If raw files are neither found nor can be downloaded, or are unreadable, or a package is missing.
    """
    return FORMATS[data.format].load(data)
