"""``topomask partition``: a folder or a file of edges becomes a folder with the part of each node."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.data import DiskGraph, save_graph
from pyg_topomask.data.partition import METHODS
from pyg_topomask.run.cli import main
from pyg_topomask.run.options import COMMANDS


def edges():
    """Two cliques of eight nodes, joined by one edge."""
    inside = torch.combinations(torch.arange(8)).T
    found = torch.cat([inside, inside + 8, torch.tensor([[7], [8]])], 1)
    return torch.cat([found, found.flip(0)], 1)


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("method", ["auto", "stream"])
def test_parts_of_a_folder_or_a_file(kind, method, tmp_path, capsys):
    source = tmp_path / "source"
    if kind == "folder":
        save_graph(source, Data(x=torch.rand(16, 2), edge_index=edges(), num_nodes=16))
    else:
        source.write_text("\n".join(f"{i} {j}" for i, j in edges().T.tolist()))
    out = tmp_path / "out"
    assert main(["partition", str(source), "--parts", "2", "--out", str(out), "--method", method]) == 0
    graph = DiskGraph(out)
    part = graph.arrays["part"]
    assert part[:8].unique().numel() == part[8:].unique().numel() == 1
    assert part[0] != part[8]
    assert graph.num_edges == edges().size(1)
    assert ("x" in graph.arrays) == (kind == "folder")
    assert "2 parts, 1.8% of the edges are between parts" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"source", "out"}


def test_a_file_without_edges_is_refused(tmp_path, capsys):
    path = tmp_path / "edges.txt"
    path.write_text("# source target\n")
    assert main(["partition", str(path), "--parts", "2", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"error: {path} has no edges\n"


def test_all_methods_are_options():
    assert COMMANDS["partition"][1][-1][2]["choices"] == METHODS
