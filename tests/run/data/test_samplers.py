import pytest
import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData
from torch_geometric.transforms import ToUndirected

from pyg_topomask.run import run_config
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.formats import LoadedDataset
from pyg_topomask.run.data.samplers import Neighborhoods, clusters, has_metis, sampler_problems
from pyg_topomask.run.task import classification
from pyg_topomask.run.training.callbacks import Recorder
from pyg_topomask.run.training.lightning_module import GraphModule

NODES = classification("node", 2)


def grid(side=6):
    number = torch.arange(side * side).view(side, side)
    right, down = (number[:, :-1], number[:, 1:]), (number[:-1], number[1:])
    edges = torch.cat([torch.stack([a.reshape(-1), b.reshape(-1)]) for a, b in (right, down)], dim=1)
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    size = side * side
    return Data(x=torch.arange(float(size))[:, None], edge_index=edge_index, y=torch.arange(size), num_nodes=size)


def by_rows(monkeypatch):
    """Replace METIS by parts that consist of rows of six nodes."""

    def rows(self, edge_index, num_nodes):
        assert torch.equal(edge_index, ToUndirected()(Data(edge_index=edge_index)).edge_index)  # as METIS needs
        return torch.arange(num_nodes) // 6 % self.num_parts

    monkeypatch.setattr(ClusterData, "_metis", rows)
    monkeypatch.setattr("pyg_topomask.run.data.samplers.has_metis", lambda: True)


def test_clusters_are_those_of_the_partition(monkeypatch):
    by_rows(monkeypatch)
    graph = grid()
    graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]  # directed
    found = clusters(graph, 4)
    assert [nodes.tolist() for nodes in found] == [
        [*range(6), *range(24, 30)], [*range(6, 12), *range(30, 36)], [*range(12, 18)], [*range(18, 24)]
    ]  # fmt: skip
    assert len(clusters(graph, 9)) == 6  # three of nine parts are empty


def test_samplers_that_cannot_run_say_what_they_need(monkeypatch):
    for name in ("WITH_METIS", "WITH_PYG_LIB", "WITH_TORCH_SPARSE"):
        monkeypatch.setattr(torch_geometric.typing, name, False)
    monkeypatch.setattr("pyg_topomask.run.data.samplers.has_metis", lambda: False)
    source = {"dataset": {"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "standard"}}
    for name, package in (("cluster", "METIS: pyg_lib, or"), ("neighbor", "a compiled package: pyg_lib or")):
        ((key, text),) = sampler_problems(load(source, [f"train.sampler={name}"]).config)
        assert key == "train.sampler"
        assert text.startswith(f"{name} needs {package} torch_sparse")
        assert "random_partition needs no compiled package" in text
    assert sampler_problems(load(source, ["train.sampler=random_partition"]).config) == []
    graphs = {"dataset": {"format": "PyG-ZINC", "name": "subset"}}
    ((_, text),) = sampler_problems(load(graphs, ["train.sampler=random_partition"]).config)
    assert "parts of one large graph" in text


@pytest.mark.sparse
def test_metis_is_there_if_a_partition_can_be_had():
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    try:
        ClusterData(graph, 2, log=False)
    except ImportError:
        assert not has_metis()
    else:
        assert has_metis()


def node_source(sampler, **train):
    return {
        "dataset": {"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "random"},
        "train": {"sampler": sampler, "num_parts": 3, "neighbor_sizes": [3, 2], "batch_size": 8, **train},
        "gt": {"layer_type": "GCN+GRF", "layers": 1, "dim_hidden": 8},
        "optim": {"max_epoch": 2, "base_lr": 0.01},
        "topomask": {"num_walks": 4, "max_length": 2},
        "accelerator": "cpu",
    }


problems = sampler_problems(load(node_source("neighbor")).config)
neighbor = pytest.mark.skipif(bool(problems), reason=problems[0][1] if problems else "")


@pytest.fixture
def two_classes(monkeypatch):
    """Makes the grid the data set of a run."""
    graph = grid()
    graph.y = (graph.y >= 18).long()
    monkeypatch.setattr("pyg_topomask.run.runner.load_dataset", lambda data: LoadedDataset([graph], NODES))
    return graph


SAMPLERS = [
    "full_batch",
    "random_partition",
    "cluster",
    pytest.param("neighbor", marks=[neighbor, pytest.mark.sparse]),
]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_large_graph_trains_in_parts_with_walks_of_their_own(tmp_path, monkeypatch, two_classes, sampler):
    seen, original = [], GraphModule.training_step
    by_rows(monkeypatch)

    def step(self, data, index):
        nodes, size = data.x.view(-1).long(), int(data.num_nodes)
        assert int(data.walk_size) == size
        assert int(data.walk_index.max()) < size
        assert torch.equal(data.walk_index[0].unique(), torch.arange(size))  # each node has walks, also the last one
        adjacent = torch.zeros(size, size, dtype=torch.bool)
        adjacent[data.edge_index[0], data.edge_index[1]] = True
        start, end = data.walk_index[:, data.walk_length == 1].long()
        assert adjacent[start, end].all()  # walks step along edges of the part
        assert bool(data.counted.any())
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
    assert (sorted(first) == sorted(second)) == (sampler == "full_batch")  # walks of parts are redrawn in each epoch
    seen.clear()
    again = run_config(node_source(sampler), tmp_path / "b", overrides=["num_workers=2"])["metrics"]
    assert str(again) == str(summary["metrics"])  # as text, because some are NaN


@neighbor
@pytest.mark.sparse
def test_a_neighborhood_has_the_nodes_trained_on_first_and_all_edges_between_its_nodes():
    graph = grid()
    graph.counted = torch.arange(36) % 3 == 0  # 12 nodes
    parts = Neighborhoods(graph, 5, [2, 1], seed=0)
    state, epoch = torch.get_rng_state(), [parts[1, position] for position in range(len(parts))]
    assert torch.equal(torch.get_rng_state(), state)
    assert [int(part.counted.sum()) for part in epoch] == [5, 5, 2]
    assert sorted(int(node) for part in epoch for node in part.x[part.counted]) == [*range(0, 36, 3)]
    for part in epoch:
        count, nodes = int(part.counted.sum()), part.x.view(-1).long()
        assert part.counted[:count].all()
        assert count < part.num_nodes <= count * (1 + 2 + 2)
        assert len(nodes.unique()) == len(nodes)
        assert torch.equal(part.y, graph.y[nodes])
        inside = torch.isin(graph.edge_index, nodes).all(dim=0)
        assert {*map(tuple, nodes[part.edge_index].T.tolist())} == {*map(tuple, graph.edge_index[:, inside].T.tolist())}
        near = torch.zeros(36, 36).index_put((graph.edge_index[0], graph.edge_index[1]), torch.ones(())) + torch.eye(36)
        assert (near @ near)[nodes[:count]][:, nodes].sum(dim=0).all()  # at most as many hops as there are sizes
    twin = Neighborhoods(graph, 5, [2, 1], seed=0)
    torch.rand(7)  # other random draws have no effect
    assert torch.equal(twin[1, 2].x, epoch[2].x)
    assert not torch.equal(twin[2, 2].x, epoch[2].x)
    assert not torch.equal(Neighborhoods(graph, 5, [2, 1], seed=1)[1, 0].x, epoch[0].x)
    assert Neighborhoods(graph, 5, [2, 1], seed=2**31 - 1)[1, 0].counted.sum() == 5


@neighbor
@pytest.mark.sparse
@pytest.mark.parametrize("attention", ["GRF", "Exphormer"])
def test_neighborhoods_count_each_node_once_and_the_whole_graph_is_evaluated(
    tmp_path, monkeypatch, two_classes, attention
):
    seen = []
    original = GraphModule._step

    def step(self, data, part):
        seen.append((part, self.current_epoch, sorted(data.x[data.counted].view(-1).tolist()), int(data.num_nodes)))
        return original(self, data, part)

    monkeypatch.setattr(GraphModule, "_step", step)
    source = node_source("neighbor")
    source["gt"]["layer_type"] = f"GCN+{attention}"
    if attention != "GRF":
        del source["topomask"]
    first = run_config(source, tmp_path / "a")["metrics"]
    counted = [sorted(n for p, e, nodes, _ in seen if (p, e) == ("train", epoch) for n in nodes) for epoch in (0, 1)]
    assert counted[0] == counted[1]
    assert len(counted[0]) == len(set(counted[0])) == 28
    assert {size for part, *_, size in seen if part != "train"} == {36}
    (tested,) = [nodes for part, _, nodes, _ in seen if part == "test"]
    (validated,) = {tuple(nodes) for part, _, nodes, _ in seen if part == "val"}
    assert sorted([*counted[0], *tested, *validated]) == [*range(36)]

    end = Recorder.on_train_epoch_end

    def die(self, trainer, module):
        end(self, trainer, module)
        raise KeyboardInterrupt

    overrides = ["train.ckpt_period=1", "num_workers=1"]
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_train_epoch_end", die)
        with pytest.raises(KeyboardInterrupt):
            run_config(source, tmp_path / "b", overrides=overrides)
    assert str(run_config(source, tmp_path / "b", overrides=overrides)["metrics"]) == str(first)


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
