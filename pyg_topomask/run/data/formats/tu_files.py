"""The raw files of TU data sets, checked before PyG processes them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.datasets import TUDataset
from torch_geometric.io import read_txt_array

from pyg_topomask.run.errors import RunError


class CheckedTUDataset(TUDataset):
    """PyG's class, which reads files that do not fit each other without an error."""

    def process(self) -> None:
        _check_files(Path(self.raw_dir), self.name)
        super().process()


def _check_files(folder: Path, name: str) -> None:
    """Check that the files describe at least two graphs, with edges inside of them, and have as many lines as needed.

    Raises:
        RunError: If they do not.
    """
    paths = {path.stem.removeprefix(f"{name}_"): path for path in sorted(folder.glob(f"{name}_*.txt"))}
    graph_of, edges = _numbers(paths["graph_indicator"]), _numbers(paths["A"]).view(-1, 2)
    _check_graphs(paths["graph_indicator"], graph_of)
    _check_edges(paths["A"], edges, graph_of)
    counts = {"graph": int(graph_of[-1]), "node": graph_of.numel(), "edge": edges.size(0)}
    for part, path in paths.items():
        kind = part.partition("_")[0]
        if part not in (f"{kind}_labels", f"{kind}_attributes") or kind not in counts:
            continue
        lines = path.read_text(encoding="utf-8").count("\n")  # as PyG counts
        if lines != counts[kind]:
            raise RunError(
                f"{path}: has {lines} lines for {counts[kind]} {kind}s; it needs one line for each, and a line break "
                "after the last"
            )


def _numbers(path: Path) -> Tensor:
    return read_txt_array(str(path), sep=",", dtype=torch.long).view(-1)


def _check_graphs(path: Path, graph_of: Tensor) -> None:
    if graph_of.numel() == 0:
        raise RunError(f"{path}: lists no node; the file needs the number of its graph for each node")
    if int(graph_of.min()) < 1 or bool((graph_of.diff() < 0).any()):
        raise RunError(f"{path}: the nodes must be sorted by graph, and graphs are counted from 1")
    if int(graph_of[-1]) == 1:
        raise RunError(f"{path}: all nodes are in one graph; a data set of graphs needs at least two")


def _check_edges(path: Path, edges: Tensor, graph_of: Tensor) -> None:
    if edges.numel() == 0:
        raise RunError(f"{path}: lists no edge; PyG reads only data sets with edges")
    line = _first(((edges < 1) | (edges > graph_of.numel())).any(1))
    if line is not None:
        raise RunError(
            f"{path}, line {line + 1}: the edge {edges[line].tolist()} has a node that does not exist; the nodes are "
            f"1 to {graph_of.numel()}"
        )
    line = _first(graph_of[edges[:, 0] - 1] != graph_of[edges[:, 1] - 1])
    if line is not None:
        ends = graph_of[edges[line] - 1].tolist()
        raise RunError(f"{path}, line {line + 1}: the edge {edges[line].tolist()} joins the graphs {ends}")


def _first(wrong: Tensor) -> int | None:
    """Index of the first true entry."""
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None
