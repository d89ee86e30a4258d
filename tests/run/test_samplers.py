import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.run import run_config
from pyg_topomask.run.datasets import LoadedDataset
from pyg_topomask.run.lightning_module import GraphModule
from pyg_topomask.run.reading import load
from pyg_topomask.run.samplers import EpochSampler, GraphParts, PartSampler, sampler_problems
from pyg_topomask.run.task import classification
from pyg_topomask.transforms import AddRandomWalks

NODES = classification("node", 2)


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


def node_source(sampler, **train):
    return {
        "dataset": {"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "random"},
        "train": {"sampler": sampler, "num_parts": 3, "neighbor_sizes": [3, 2], "batch_size": 8, **train},
        "gt": {"layer_type": "GCN+GRF", "layers": 1, "dim_hidden": 8},
        "optim": {"max_epoch": 2, "base_lr": 0.01},
        "topomask": {"num_walks": 4, "max_length": 2},
        "accelerator": "cpu",
    }


def compiled(sampler):
    """A mark that skips a sampler whose compiled package is missing."""
    problems = sampler_problems(load(node_source(sampler)).config)
    return pytest.mark.skipif(bool(problems), reason=problems[0][1] if problems else "")


SAMPLERS = [
    "full_batch",
    "random_partition",
    pytest.param("cluster", marks=compiled("cluster")),
    pytest.param("neighbor", marks=compiled("neighbor")),
    "given clusters",
]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_large_graph_trains_in_parts_with_walks_of_their_own(tmp_path, monkeypatch, sampler):
    graph, seen, original = grid(), [], GraphModule.training_step
    graph.y = (graph.y >= 18).long()
    monkeypatch.setattr("pyg_topomask.run.runner.load_dataset", lambda data: LoadedDataset([graph], NODES))
    if sampler == "given clusters":  # all but METIS itself, where it is missing
        sampler = "cluster"
        monkeypatch.setattr("pyg_topomask.run.runner.sampler_problems", lambda config: [])
        monkeypatch.setattr("pyg_topomask.run.data.clusters", lambda graph, parts: torch.arange(36).tensor_split(parts))

    def step(self, data, index):
        nodes, size = data.x.view(-1).long(), int(data.num_nodes)
        assert int(data.walk_size) == size
        assert int(data.walk_index.max()) < size
        assert torch.equal(data.walk_index[0].unique(), torch.arange(size))  # each node has walks, the last one, too
        adjacent = torch.zeros(size, size, dtype=torch.bool)
        adjacent[data.edge_index[0], data.edge_index[1]] = True
        start, end = data.walk_index[:, data.walk_length == 1].long()
        assert adjacent[start, end].all()  # walks step along edges of the part
        assert bool(data.mask.any())
        seen.append((self.current_epoch, sorted(nodes.tolist()), data.walk_index.tolist()))
        return original(self, data, index)

    monkeypatch.setattr(GraphModule, "training_step", step)
    summary = run_config(node_source(sampler), tmp_path / "a")
    assert 0 <= summary["metrics"]["test_accuracy"]["mean"] <= 1
    first, second = ([part for epoch, *part in seen if epoch == number] for number in (0, 1))
    assert len(first) == len(second) == {"full_batch": 1, "neighbor": -(-28 // 8)}.get(sampler, 3)
    if sampler != "neighbor":
        assert sorted(node for nodes, _ in first for node in nodes) == [*range(36)]
    same = sorted(nodes for nodes, _ in first) == sorted(nodes for nodes, _ in second)
    assert same == (sampler in ("full_batch", "cluster"))
    assert (sorted(first) == sorted(second)) == (sampler == "full_batch")  # parts' walks are drawn in each epoch
    seen.clear()
    again = run_config(node_source(sampler), tmp_path / "b")["metrics"]
    assert str(again) == str(summary["metrics"])  # as text, for some are no numbers


@pytest.mark.data
def test_a_partitioned_graph_trains(real_data, tmp_path):
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
