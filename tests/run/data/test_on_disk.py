"""Runs on a graph on disk: those of the same graph in memory, without reading it whole."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import yaml
from torch_geometric.data import Data

from pyg_topomask.data import DiskGraph, partition, save_graph
from pyg_topomask.data.disk import with_arrays
from pyg_topomask.data.source import GraphSource
from pyg_topomask.run import run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.predict import predict
from pyg_topomask.run.errors import RunError
from tests.run.conftest import two_processes

NODES = 90


def graph():
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randint(NODES, (2, 300), generator=draw)
    edges = torch.cat([torch.stack([one, other]), torch.stack([other, one])], 1).unique(dim=1)
    data = Data(x=torch.randn(NODES, 4, generator=draw), y=torch.arange(NODES) % 3, edge_index=edges)
    for number, part in enumerate(("train", "val", "test")):
        data[f"{part}_mask"] = torch.arange(NODES) // 30 == number
    return data


def config(path, sampler="walks", epochs=2):
    return {
        "dataset": {"format": "Files", "name": "graph", "dir": str(path), "task": "node"},
        "train": {"sampler": sampler, "num_parts": 3, "batch_size": 12, "max_nodes": 8, "ckpt_period": 1},
        "val": {"sampler": sampler},
        "gt": {"layer_type": "GCN+GRF", "layers": 1, "n_heads": 2, "dim_hidden": 8, "batch_norm": False},
        "optim": {"max_epoch": epochs},
        "accelerator": "cpu",
    }


EDGE_FEATURES = ["gt.layer_type=GINE+GRF", "dataset.edge_encoder=true"]
LINEAR = [*EDGE_FEATURES, "dataset.edge_encoder_name=LinearEdge"]


@pytest.mark.parametrize(
    "options", [pytest.param([], marks=pytest.mark.slow), pytest.param(EDGE_FEATURES, marks=pytest.mark.slow), LINEAR]
)
@pytest.mark.filterwarnings("ignore:GINEConv takes no .edge_weight.")
@pytest.mark.parametrize("sampler", ["walks", "random_partition"])
def test_a_run_from_disk_equals_that_from_memory(sampler, options, tmp_path):
    data, draw = graph(), torch.Generator().manual_seed(1)
    if len(options) == 3:
        data.edge_attr, data.edge_weight = torch.rand(data.num_edges, 2, generator=draw), torch.ones(data.num_edges) / 2
    torch.save(data, tmp_path / "graph.pt")
    save_graph(tmp_path / "disk", data)
    one, two = (
        run_config(config(tmp_path / name, sampler), tmp_path / name[:2], overrides=options)
        for name in ("graph.pt", "disk")
    )
    assert one["metrics"] == two["metrics"]
    assert predict(Path(one["folder"]) / "0") == predict(Path(two["folder"]) / "0")


def test_clusters_are_those_of_the_folder(tmp_path, monkeypatch):
    disk = save_graph(tmp_path / "disk", graph())
    with pytest.raises(RunError, match="has no parts; topomask partition"):
        run_config(config(disk.folder, "cluster"), tmp_path / "none")
    part = partition(GraphSource(disk), 9, "stream")
    with_arrays(tmp_path / "parts", disk, {"part": part.int()})
    served, cut = [], GraphSource.subgraph
    monkeypatch.setattr(GraphSource, "subgraph", lambda self, nodes: served.append(nodes) or cut(self, nodes))
    run_config(config(tmp_path / "parts", "cluster", 1), tmp_path / "out")
    assert {len(part[nodes].unique()) for nodes in served} == {3}
    assert torch.equal(torch.cat(served[:3]).sort().values, torch.arange(NODES))


def test_a_run_finds_damage_before_it_trains(tmp_path):
    disk = save_graph(tmp_path / "disk", graph())
    for name, message in (("x", "x.bin is damaged"), ("index", "index.bin is damaged")):
        path = disk.folder / f"{name}.bin"
        whole = path.read_bytes()
        path.write_bytes(whole[:80] + bytes([whole[80] ^ 0x40]) + whole[81:])
        with pytest.raises(RunError, match=message):
            run_config(config(disk.folder), tmp_path / "out")
        path.write_bytes(whole)


REFUSED = {
    "train.sampler": ["train.sampler=full_batch", "val.sampler=full_batch"],
    "val.sampler": ["val.sampler=full_batch"],
    "dataset.to_undirected": ["dataset.to_undirected=true"],
    "dataset.split_mode": ["dataset.split_mode=random"],
    "dataset.node_encoder_name": [
        "dataset.node_encoder_name=LinearNode+RWSE", "posenc_RWSE.enable=true",
        "posenc_RWSE.kernel.times_func=range(1,5)", "gt.dim_hidden=32", "posenc_RWSE.model=Linear",
    ],
}  # fmt: skip


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_read_the_whole_graph_is_refused(key, tmp_path):
    save_graph(tmp_path / "disk", graph())
    with pytest.raises(RunError, match=rf"{key}\b.*graph on disk"):
        run_config(config(tmp_path / "disk"), tmp_path / "out", overrides=REFUSED[key])


def test_arrays_that_configs_need(tmp_path):
    data = graph()
    data.edge_attr = torch.ones(data.num_edges, 1).double()
    save_graph(tmp_path / "disk", data)
    with pytest.raises(RunError, match=r"edge_attr if there is one, in float32 .*'edge_attr': 'float64'"):
        run_config(config(tmp_path / "disk"), tmp_path / "out")


def test_walks_of_a_graph_on_disk_are_precomputed(tmp_path, capsys):
    from pyg_topomask.loader import load_walks

    save_graph(tmp_path / "disk", graph())
    torch.save(graph(), tmp_path / "graph.pt")
    found = []
    for name in ("disk", "graph.pt"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config(tmp_path / name)))
        assert main(["precompute", str(path), "--shards", "2", "--out", str(path) + ".out", "--workers", "1"]) == 0
        found.append(load_walks(str(path) + ".out"))
    assert torch.equal(found[0]["walk_index"], found[1]["walk_index"])
    assert torch.equal(found[0]["walk_load"], found[1]["walk_load"])
    assert DiskGraph(str(tmp_path / "disk.yaml.out") + "/graph").num_edges == graph().num_edges


def start(path, out):
    with (out.parent / "log.txt").open("ab") as log:
        return two_processes("-m", "pyg_topomask", "run", path, "--out", out, stdout=log)


def results(out):
    (folder,) = out.glob("*/0")
    result = json.loads((folder / "result.json").read_text())
    return result["metrics"], torch.load(folder / "best.ckpt", weights_only=False)["state_dict"]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch without gloo")
def test_two_processes_share_the_graph_and_resume_after_a_kill(tmp_path):
    settings, path = config(save_graph(tmp_path / "disk", graph()).folder, epochs=12), tmp_path / "c.yaml"
    settings["gt"] |= {"dropout": 0.0, "attn_dropout": 0.0, "layer_norm": True}
    settings["train"] |= {"batch_size": 10}  # of which each process takes five
    path.write_text(yaml.safe_dump(settings))
    one = run_config(path, tmp_path / "one")["metrics"]
    whole = start(path, tmp_path / "whole")
    assert whole.wait(240) == 0, (tmp_path / "log.txt").read_text()[-3000:]
    metrics, weights = results(tmp_path / "whole")
    for name, value in metrics.items():
        assert name == "epoch" or value == pytest.approx(one[name]["mean"], abs=1e-4), name
    killed, last = start(path, tmp_path / "killed"), tmp_path / "killed" / "c" / "0" / "last.ckpt"
    while killed.poll() is None and not last.exists():
        time.sleep(0.01)
    assert killed.poll() is None
    children = subprocess.run(["pgrep", "-P", str(killed.pid)], capture_output=True, text=True, check=True)
    os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)  # one of the two processes
    assert killed.wait(120) != 0
    resumed = start(path, tmp_path / "killed")
    assert resumed.wait(240) == 0, (tmp_path / "log.txt").read_text()[-3000:]
    again, same = results(tmp_path / "killed")
    assert again == metrics
    assert all(torch.equal(same[name], value) for name, value in weights.items())
