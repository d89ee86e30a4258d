"""``topomask precompute``: shards of walks equal the walks of the whole graph, however they were made."""

import json
import os
import signal
import time

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.data import save_graph, walk_shards
from pyg_topomask.data.walk_shards import prepare_shards, write_shard, write_shards
from pyg_topomask.loader import load_walks
from pyg_topomask.run.cli import main
from pyg_topomask.transforms import AddRandomWalks
from tests.transforms.encoding_cases import assert_same

WALKS = {
    "two tables": {"num_walks": 5, "max_length": 3},
    "several tables": {"num_tables": 2, "max_length": 2, "halt_prob": 0.1},
    "corrected": {"diagonal": "corrected", "scheme": "antithetic"},
    "repelling": {"scheme": "repelling", "num_walks": 4, "importance": False},
    "lengths": {"lengths": "uniform", "max_length": 3, "independent": False},
}


def graph(weighted=True):
    """A graph with loops and a node without edges; if weighted, with equal edges and one of weight 0."""
    draw = torch.Generator().manual_seed(0)
    edges, weight = torch.randint(39, (2, 150), generator=draw), torch.rand(150, generator=draw)
    if not weighted:
        edges = edges.unique(dim=1)
        return Data(edge_index=edges, num_nodes=40)
    weight[3] = 0
    return Data(edge_index=edges, edge_weight=weight, num_nodes=40)


@pytest.mark.parametrize("kind", ["weighted", "plain", "disk"])
@pytest.mark.parametrize("settings", WALKS.values(), ids=WALKS)
def test_shards_are_the_walks_of_the_whole_graph(settings, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(walk_shards, "_ROWS_TOGETHER", 7)
    monkeypatch.setattr(walk_shards, "_STARTS_TOGETHER", 6)
    walks, data = AddRandomWalks(**settings, seed=3), graph(kind == "weighted")
    if kind == "disk":
        data.edge_weight = torch.rand(data.num_edges)
    given = save_graph(tmp_path / "graph", data) if kind == "disk" else data
    prepare_shards(tmp_path / "out", given, walks, {"shards": 3})
    for number in (2, 0, 1):
        write_shard(tmp_path / "out", number, 3)
    assert_same(load_walks(tmp_path / "out"), walks.additions([data])[0])


def test_without_a_seed_shards_are_drawn_anew(tmp_path):
    for seed in (5, 6):
        out = tmp_path / str(seed)
        torch.manual_seed(seed)
        prepare_shards(out, graph(), AddRandomWalks(), {"shards": 1})
        write_shards(out, 1)
        torch.manual_seed(seed)
        assert_same(load_walks(out), AddRandomWalks().additions([graph()])[0])


def test_a_graph_on_disk_needs_distinct_edges(tmp_path):
    edges = torch.tensor([[0, 0, 1], [1, 1, 0]])
    disk = save_graph(tmp_path / "graph", Data(edge_index=edges, num_nodes=2))
    with pytest.raises(ValueError, match="has equal edges"):
        prepare_shards(tmp_path / "out", disk, AddRandomWalks(seed=0), {"shards": 1})
    assert not (tmp_path / "out").exists()


def test_a_folder_is_of_its_walks_and_shards(tmp_path):
    out, walks = str(tmp_path / "out"), AddRandomWalks(seed=0)
    for _ in range(2):
        prepare_shards(out, graph(), walks, {"shards": 3})
    assert write_shards(out, 3) == 3
    with pytest.raises(ValueError, match="other settings or walks"):
        prepare_shards(out, graph(), AddRandomWalks(num_walks=9, seed=0), {"shards": 3})
    with pytest.raises(ValueError, match=r"is divided into 3 shards \(got 5\)"):
        write_shards(out, 5)
    with pytest.raises(ValueError, match="'engine' must be one of"):
        write_shards(out, 3, "spark")
    with pytest.raises(ValueError, match=r"settings\['shards'\]"):
        prepare_shards(tmp_path / "other", graph(), walks, {})
    for settings in ({"edge_type": 1}, {"transition": "p"}):
        with pytest.raises(ValueError, match="no 'edge_type' and no 'transition'"):
            prepare_shards(tmp_path / "other", graph(), AddRandomWalks(**settings), {"shards": 3})


@pytest.fixture
def config(tmp_path):
    data = graph(weighted=False)
    data.x, data.y = torch.rand(40, 2), torch.arange(40) % 3
    torch.save(data, tmp_path / "graph.pt")
    text = {
        "dataset": {
            "format": "Files", "name": "graph", "dir": str(tmp_path / "graph.pt"), "task": "node",
            "split_mode": "random",
        },
        "gt": {"layer_type": "GCN+GRF", "dim_hidden": 8, "n_heads": 2},
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(text))
    return path


def call(config, out, *more):
    return main(["precompute", str(config), "--out", str(out), "--workers", "1", *more])


def test_the_command_keeps_what_is_complete(config, tmp_path, capsys):
    out = tmp_path / "out"
    assert call(config, out, "--shards", "3") == 0
    files = {path.name: path.read_bytes() for path in out.glob("*.pt")}
    assert len(files) == 3
    (out / "walks-00001-of-00003.pt").unlink()
    assert call(config, out, "--shards", "3") == 0
    assert "3 shards of walks, of which 1 were made now" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in out.glob("*.pt")} == files
    assert call(config, tmp_path / "one", "--shards", "1") == 0
    assert_same(load_walks(out), dict(load_walks(tmp_path / "one")))
    with pytest.raises(FileNotFoundError, match="give a folder that 'topomask precompute' wrote"):
        load_walks(tmp_path)
    for more, message in (
        (["--shards", "2"], "was made with other settings"),
        (["--shards", "3", "topomask.num_walks=3"], "was made with other settings"),
        (["--shards", "41"], "must be between 1 and the number of nodes, 40"),
        (["--shards", "3", "gt.layer_type=GCN+Linear"], "draws no random walks"),
    ):
        assert call(config, out, *more) == 1
        assert message in capsys.readouterr().err


def folder_of(path):
    prepare_shards(path, graph(), AddRandomWalks(seed=0), {"shards": 4})
    return path


def _die_once(folder, number, shards):
    """Like `write_shard`, but the process is killed at shard 2 if nothing has marked the folder."""
    if number == 2 and not (folder / "killed").exists():
        time.sleep(1)
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    write_shard(folder, number, shards)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["processes", "ray"])
def test_processes_and_ray_make_the_same_bits_also_after_a_kill(way, tmp_path, monkeypatch):
    if way == "ray":
        pytest.importorskip("ray")
    one, two = folder_of(tmp_path / "one"), folder_of(tmp_path / "two")
    write_shards(one, 4, "processes", 1)
    monkeypatch.setattr(walk_shards, "write_shard", _die_once)
    if way == "processes":  # which do not start again
        with pytest.raises(RuntimeError, match="a process was killed"):
            write_shards(two, 4, way, 2)
    made = write_shards(two, 4, way, 2)
    assert made == 4 if way == "ray" else made < 4
    assert (two / "killed").exists()
    for path in one.glob("*.pt"):
        assert path.read_bytes() == (two / path.name).read_bytes()
