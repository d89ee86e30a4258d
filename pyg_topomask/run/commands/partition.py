"""``topomask partition``: a folder of a large graph with the part of each node."""

import tempfile
from argparse import Namespace
from pathlib import Path

import torch

from pyg_topomask.data import DiskGraph, GraphSource, partition, read_edges, save_edges, with_arrays
from pyg_topomask.run.errors import RunError


def main(arguments: Namespace, rest: list[str]) -> None:
    """Run the command."""
    source, out = Path(arguments.source).expanduser(), Path(arguments.out).expanduser()
    if not source.exists():
        raise RunError(f"{source} does not exist; give the folder of a graph on disk, or a file of edges")
    try:
        if source.is_dir():
            cut = write(DiskGraph(source), arguments.parts, out, arguments.method)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=out.parent) as folder:
                num_nodes = 1 + max((int(block.max()) for block in read_edges(source)), default=-1)
                if num_nodes < 1:
                    raise RunError(f"{source} has no edges")
                graph = save_edges(Path(folder) / "graph", read_edges(source), num_nodes, undirected=True)
                cut = write(graph, arguments.parts, out, arguments.method)
    except (ValueError, OSError, ImportError) as error:
        raise RunError(str(error)) from None
    print(f"{out}: {arguments.parts} parts, {cut:.1%} of the edges are between parts")


def write(graph: DiskGraph, num_parts: int, out: Path, method: str) -> float:
    """Write the graph with the array ``part``; return the share of edges between parts."""
    source = GraphSource(graph)
    part = partition(source, num_parts, method)
    with_arrays(out, graph, {"part": part.to(torch.int32)})
    between = 0
    for first in range(0, source.num_nodes, 2**20):
        nodes = torch.arange(first, min(first + 2**20, source.num_nodes))
        row, place = source.edges_from(nodes)
        between += int((part[nodes][row] != part[source.index[place].long()]).sum())
    return between / max(1, source.index.numel())
