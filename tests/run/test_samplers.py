import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run.reading import load
from pyg_topomask.run.samplers import EpochSampler, GraphParts, PartSampler, sampler_problems
from pyg_topomask.transforms import AddRandomWalks


def grid(side=6):
    number = torch.arange(side * side).view(side, side)
    right, down = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:])
    edges = torch.cat([torch.stack([a.reshape(-1), b.reshape(-1)]) for a, b in (right, down)], dim=1)
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    size = side * side
    return Data(x=torch.arange(float(size))[:, None], edge_index=edge_index, y=torch.arange(size), num_nodes=size)


def test_random_parts_deal_out_every_node_once_and_afresh_in_each_epoch():
    graph = grid()
    parts = GraphParts(graph, 5, seed=3)
    dealt = [parts.nodes(2, part) for part in range(5)]
    assert torch.cat(dealt).sort().values.tolist() == list(range(36))
    assert {len(part) for part in dealt} <= {7, 8}
    assert not torch.equal(dealt[0], parts.nodes(3, 0))
    assert torch.equal(dealt[0], GraphParts(graph, 5, seed=3).nodes(2, 0))
    assert not torch.equal(dealt[0], GraphParts(graph, 5, seed=4).nodes(2, 0))


def test_a_part_is_the_subgraph_of_its_nodes_with_walks_of_its_own():
    graph = grid()
    graph.mask = torch.rand(36) < 0.5
    parts = GraphParts(graph, 3, seed=0, transform=AddRandomWalks(4, 2, seed=0))
    nodes, part = parts.nodes(1, 0), parts[1, 0]
    assert part.x.view(-1).tolist() == nodes.tolist()
    assert torch.equal(part.mask, graph.mask[nodes])
    kept = {(i, j) for i, j in graph.edge_index.T.tolist() if i in nodes.tolist() and j in nodes.tolist()}
    assert {(int(nodes[i]), int(nodes[j])) for i, j in part.edge_index.T.tolist()} == kept
    assert int(part.walk_size) == part.num_nodes == len(nodes)
    assert int(part.walk_index.max()) < len(nodes)


def test_clusters_stay_as_they_are():
    fixed = [torch.arange(10), torch.arange(10, 36)]
    parts = GraphParts(grid(), 2, seed=0, clusters=fixed)
    assert torch.equal(parts.nodes(0, 1), parts.nodes(5, 1))
    assert parts[4, 0].num_nodes == 10


def test_processes_take_turns_in_one_order():
    alone = EpochSampler(10, seed=1)
    alone.set_epoch(4)
    three = [EpochSampler(10, 1, rank, 3) for rank in range(3)]
    for sampler in three:
        sampler.set_epoch(4)
    shares = [list(sampler) for sampler in three]
    assert [len(share) for share in shares] == [4] * 3 == [len(sampler) for sampler in three]
    together = [item for turn in zip(*shares) for item in turn]
    assert together[:10] == list(alone)
    assert together[10:] == list(alone)[:2]  # repeated, so that no process waits for another


def test_parts_carry_their_epoch():
    sampler = PartSampler(4, seed=0)
    sampler.set_epoch(7)
    assert sorted(sampler) == [(7, part) for part in range(4)]


def test_samplers_that_cannot_run_say_what_they_need(monkeypatch):
    import torch_geometric.typing

    for name in ("WITH_METIS", "WITH_PYG_LIB", "WITH_TORCH_SPARSE"):
        monkeypatch.setattr(torch_geometric.typing, name, False)
    source = {"dataset": {"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "standard"}}
    for name in ("cluster", "neighbor"):
        ((key, text),) = sampler_problems(load(source, [f"train.sampler={name}"]).config)
        assert key == "train.sampler"
        assert f"{name} needs the compiled package" in text
    assert sampler_problems(load(source, ["train.sampler=random_partition"]).config) == []
    graphs = {"dataset": {"format": "PyG-ZINC", "name": "subset"}}
    ((_, text),) = sampler_problems(load(graphs, ["train.sampler=random_partition"]).config)
    assert "parts of one large graph" in text


@pytest.mark.data
def test_a_partitioned_graph_trains(real_data, tmp_path):
    from pyg_topomask.run import run_config

    source = {
        "dataset": {"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "standard"},
        "train": {"sampler": "random_partition", "num_parts": 4},
        "gt": {"layer_type": "GCN+GRF", "layers": 1, "dim_hidden": 8},
        "optim": {"max_epoch": 2},
        "topomask": {"num_walks": 4, "max_length": 2},
    }
    one = run_config(source, tmp_path / "a")
    two = run_config(source, tmp_path / "b")
    assert one["metrics"] == two["metrics"]
