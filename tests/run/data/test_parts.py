"""One graph in parts: how it is cut, trained and evaluated, with the metrics of a reference on the same parts."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_adj, to_undirected

import pyg_topomask
from pyg_topomask.data import partition
from pyg_topomask.run import run_config
from pyg_topomask.run.commands.predict import predict
from pyg_topomask.run.data import parts
from pyg_topomask.run.data.loaders import evaluation_loaders, loaders, prepare
from pyg_topomask.run.data.parts import Neighborhoods, clusters
from pyg_topomask.run.data.source import LoadedDataset
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.reading import experiment_of
from pyg_topomask.run.task import classification
from pyg_topomask.run.training.lightning_module import GraphModule
from pyg_topomask.transforms import AddRandomWalks
from tests.run.conftest import table

SAMPLERS = ["random_partition", "cluster", "neighbor", "walks"]
NODES = classification("node", 2)
CORA = {"format": "PyG-Planetoid", "name": "Cora", "task": "node", "split_mode": "random"}


def source(sampler="random_partition", evaluated=None, **train):
    return {
        "dataset": CORA,
        "train": {"sampler": sampler, "num_parts": 3, "neighbor_sizes": [3, 2], "batch_size": 8, **train},
        "val": {"sampler": evaluated or sampler},
        "gt": {"layer_type": "GCN+GRF", "layers": 1, "dim_hidden": 8},
        "optim": {"max_epoch": 2, "base_lr": 0.01},
        "topomask": {"num_walks": 4, "max_length": 2},
        "accelerator": "cpu",
        "precision": "64-true",
    }


def ring_with_chords():
    index = torch.arange(36)
    edges = to_undirected(torch.stack([index.repeat(2), torch.cat([index.roll(1), index.roll(7)])]))
    return Data(x=index[:, None].float(), edge_index=edges, y=(index >= 18).long(), num_nodes=36)


@pytest.fixture
def graph(monkeypatch):
    """A ring with chords and two classes, which is the data set of a run; a node's feature is its number."""
    found = ring_with_chords()
    for name in ("parts", "reading"):
        patched = f"pyg_topomask.run.graphgps.{name}.load_dataset"
        monkeypatch.setattr(patched, lambda data: LoadedDataset([found], NODES))
    return found


@pytest.fixture
def seen(monkeypatch):
    """What each step has counted: part of the split, epoch, counted nodes, all nodes and walks."""
    steps, original = [], GraphModule._step

    def step(self, data, part):
        numbers, walks = data.x.view(-1).long(), data.walk_index.tolist()
        # Each node has walks.
        assert {*walks[0]} == {*range(int(torch.as_tensor(data.walk_size).sum()))} == {*range(data.num_nodes)}
        first = data.walk_index[:, data.walk_length == 1]
        assert {*map(tuple, first.T.tolist())} <= {*map(tuple, data.edge_index.T.tolist())}  # along edges of the part
        steps.append((part, self.current_epoch, numbers[data.counted].tolist(), numbers.tolist(), walks))
        return original(self, data, part)

    monkeypatch.setattr(GraphModule, "_step", step)
    return steps


def split_of(config, graph):
    """The loaders' parts of the split of a config."""
    source = experiment_of(load(config)).data
    return source.serving, prepare(source, LoadedDataset([graph], NODES), 0, source.draws(0))


def test_clusters_share_the_nodes_and_cut_few_edges(graph):
    graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]  # directed
    found = clusters(graph, 4)
    assert torch.cat(found).sort().values.tolist() == [*range(36)]
    part = torch.zeros(36)
    for number, nodes in enumerate(found):
        part[nodes] = number
    assert (part[graph.edge_index[0]] != part[graph.edge_index[1]]).float().mean() < 0.6  # 0.75 at random


def test_a_neighborhood_has_the_nodes_trained_on_first_and_all_edges_between_its_nodes(graph):
    graph.counted = torch.arange(36) % 3 == 0  # 12 nodes
    parts, state = Neighborhoods(graph, 5, [2, 1], seed=0), torch.get_rng_state()
    epoch = [parts[1, position] for position in range(len(parts))]
    assert torch.equal(torch.get_rng_state(), state)
    assert [int(part.counted.sum()) for part in epoch] == [5, 5, 2]
    assert sorted(int(node) for part in epoch for node in part.x[part.counted]) == [*range(0, 36, 3)]
    near = to_dense_adj(graph.edge_index)[0] + torch.eye(36)
    for part in epoch:
        count, nodes = int(part.counted.sum()), part.x.view(-1).long()
        assert part.counted[:count].all()
        assert count < part.num_nodes == len(nodes.unique()) <= count * (1 + 2 + 2)
        assert torch.equal(part.y, graph.y[nodes])
        inside = torch.isin(graph.edge_index, nodes).all(dim=0)
        assert {*map(tuple, nodes[part.edge_index].T.tolist())} == {*map(tuple, graph.edge_index[:, inside].T.tolist())}
        assert (near @ near)[nodes[:count]][:, nodes].sum(dim=0).all()  # at most as many hops as there are sizes
    torch.rand(7)  # other random draws have no effect
    twin, other = (Neighborhoods(graph, 5, [2, 1], seed=seed) for seed in (0, 1))
    same = [torch.equal(served.x, epoch[2].x) for served in (twin[1, 2], twin[2, 2], other[1, 2])]
    assert same == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["full_batch", *SAMPLERS])
def test_training_cuts_every_epoch_and_evaluations_count_every_node_once(tmp_path, graph, seen, sampler):
    first = run_config(source(sampler), tmp_path / "a")["metrics"]
    _, splits = split_of(source(sampler), graph)
    steps = {}
    for part, epoch, *served in seen:
        steps.setdefault((part, epoch), []).append(served)
    assert [key[0] for key in steps].count("val") == 2
    for (part, _), served in steps.items():
        wanted = getattr(splits, part)[0].counted.nonzero().view(-1).tolist()
        assert sorted(node for counted, _, _ in served for node in counted) == wanted
    assert steps["val", 0] == steps["val", 1]
    one, two = (sorted(steps["train", epoch], key=lambda served: served[1]) for epoch in (0, 1))
    assert len(one) == {"full_batch": 1, "neighbor": -(-28 // 8), "walks": -(-28 // 8)}.get(sampler, 3)
    if sampler not in ("neighbor", "walks"):
        assert sorted(node for _, nodes, _ in one for node in nodes) == [*range(36)]
    assert ([nodes for _, nodes, _ in one] == [nodes for _, nodes, _ in two]) == (sampler in ("full_batch", "cluster"))
    assert (one == two) == (sampler == "full_batch")  # walks of parts are redrawn in each epoch
    evaluated = [step for step in seen if step[0] != "train"]
    seen.clear()
    again = run_config(source(sampler), tmp_path / "b", overrides=["num_workers=2"])["metrics"]
    assert [step for step in seen if step[0] != "train"] == evaluated
    assert str(again) == str(first)  # as text, because some are NaN


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS[:3])  # a batch of neighbourhoods has a node several times
def test_metrics_and_predictions_are_those_of_a_reference_on_the_same_parts(tmp_path, graph, seen, sampler):
    metrics = run_config(source(sampler), tmp_path)["metrics"]
    folder = tmp_path / "config" / "0"
    model, _ = pyg_topomask.load(folder)
    dense, logits = to_dense_adj(graph.edge_index)[0], {}
    for part, _, counted, nodes, _ in seen:
        if part == "test":
            alone = Data(x=graph.x[nodes].double(), edge_index=dense[nodes][:, nodes].nonzero().t())
            with torch.no_grad():
                values = model(AddRandomWalks(4, 2, seed=0)(alone)).view(-1)
            logits |= {node: float(values[nodes.index(node)]) for node in counted}
    nodes = torch.tensor(sorted(logits))
    values = torch.tensor([logits[int(node)] for node in nodes], dtype=torch.float64)
    loss = torch.nn.functional.softplus(torch.where(graph.y[nodes] == 1, -values, values)).mean()
    right = ((values > 0).long() == graph.y[nodes]).double().mean()
    assert metrics["test_loss"]["mean"] == pytest.approx(float(loss), rel=1e-6)
    assert metrics["test_accuracy"]["mean"] == pytest.approx(float(right), abs=1e-6)
    rows, everything = (table(predict(folder, part)) for part in ("test", "all"))
    assert [int(row["node"]) for row in rows] == nodes.tolist()
    predicted = torch.tensor([float(row["probability_1"]) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(predicted, values.sigmoid(), rtol=1e-6, atol=1e-7)
    assert [int(row["node"]) for row in everything] == [*range(36)]


@pytest.mark.slow
@pytest.mark.parametrize("evaluated", ["neighbor", "full_batch"])
def test_inference_gives_the_metrics_of_the_run(tmp_path, graph, evaluated):
    config = source("neighbor", evaluated)
    first = run_config(config, tmp_path / "first")["metrics"]
    again = [f"pretrained.dir={tmp_path / 'first' / 'config'}", "train.mode=inference-only"]
    second = run_config(config, tmp_path / "second", overrides=again)["metrics"]
    for name in ("val_loss", "test_accuracy"):
        assert second[name]["mean"] == pytest.approx(first[name]["mean"], rel=1e-6), name
    assert second["train_loss"]["mean"] > 0


def test_training_and_evaluations_share_one_partition(graph, monkeypatch):
    """It takes minutes on a graph of millions of edges."""
    made = []
    monkeypatch.setattr(parts, "partition", lambda *given: made.append(given) or partition(*given))
    config, splits = split_of(source("cluster"), graph)
    found = loaders(config, splits, 0)
    assert len(made) == 1
    for loader, whole in zip(found, (splits.train, splits.val, splits.test)):
        counted = torch.cat([part.x[part.counted] for part in loader]).view(-1)
        assert torch.equal(counted.sort().values.long(), whole[0].counted.nonzero().view(-1))


def test_parts_without_a_counted_node_are_left_out_and_processes_share_the_others(graph, monkeypatch):
    config, splits = split_of(source(num_parts=36), graph)
    sets = [part[0] for part in (splits.train, splits.val, splits.test)]
    assert not any("walk_index" in part for part in sets)  # nothing is drawn on the whole graph
    assert len({part.edge_index.data_ptr() for part in sets}) == 1  # of which there is one copy
    alone = [part.x.tolist() for part in loaders(config, splits, 0)[2]]
    assert len(alone) == int(splits.test[0].counted.sum()) < 36
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    shares = []
    for number in "01":
        monkeypatch.setenv("RANK", number)
        shares.append([part.x.tolist() for part in evaluation_loaders(config, splits, 0)[2]])
    assert [shares[i % 2][i // 2] for i in range(len(alone))] == alone
    monkeypatch.setenv("WORLD_SIZE", "40")
    for sampler, change in (("random_partition", r"raise train\.num_parts"), ("neighbor", r"lower train\.batch_size")):
        config, splits = split_of(source(sampler, batch_size=40), graph)
        with pytest.raises(RunError, match=rf"val\.sampler: 40 processes cannot share \d parts; {change}"):
            loaders(config, splits, 0)
