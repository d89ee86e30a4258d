"""Data sets of users: registered functions, and files of torch.save and of PyG."""

import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

from pyg_topomask.datasets import register_dataset
from pyg_topomask.run import run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.data.loaders import loaders, prepare
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps import check
from pyg_topomask.run.graphgps.config.dataset import DatasetConfig
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.formats import load_dataset
from pyg_topomask.run.graphgps.parts import source_of
from pyg_topomask.run.task import Task, classification
from tests.hostile import Calls

RUN = ["dataset.split_mode=random", "optim.max_epoch=1"]


def graph(number, y=None, nodes=6):
    index = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
    y = torch.tensor([number % 2]) if y is None else y
    return Data(x=torch.randn(nodes, 3), edge_index=torch.cat([index, index.flip(0)], 1), y=y)


GRAPHS = [graph(number) for number in range(24)]
NODES = graph(0, torch.arange(6) % 3)
NODES.train_mask = NODES.val_mask = NODES.test_mask = torch.ones(6, dtype=torch.bool)
MULTILABEL, EDGES = {"task_type": "classification_multilabel"}, graph(0)
EDGES.edge_label_index, EDGES.edge_label = torch.tensor([[0, 1], [1, 3]]), torch.tensor([1, 0])


CASES = [
    (lambda: GRAPHS, {}, classification("graph", 2), 24),
    (lambda folder: [graph(0, torch.randn(1, 4))], {"task_type": "regression"}, Task("graph", "regression", 4), 1),
    (lambda: (GRAPHS[:2], GRAPHS[2:5], GRAPHS[5]), {}, classification("graph", 2), 6),
    (lambda: NODES, {"task": "node"}, classification("node", 3), 1),
    (lambda: [EDGES, EDGES], {"task": "link_pred"}, Task("edge", "binary", 1), 2),
    (lambda: [graph(0, torch.ones(1, 5))], MULTILABEL, Task("graph", "multilabel", 5), 1),
]


@pytest.mark.parametrize(("load", "settings", "task", "count"), CASES)
def test_registered_functions_give_graphs_tasks_and_splits(registries, load, settings, task, count):
    register_dataset("mine", load)
    loaded = load_dataset(DatasetConfig(format="Registered", name="mine", **settings))
    assert (loaded.task, len(loaded)) == (task, count)
    assert (loaded.parts is None) == (count != 6)
    if count == 6:
        assert [part.tolist() for part in loaded.parts] == [[0, 1], [2, 3, 4], [5]]


def test_nodes_of_many_graphs_come_in_batches_of_the_given_size(registries):
    graphs = [graph(number, torch.arange(6) % 3) for number in range(9)]
    register_dataset("many", lambda: (graphs[:5], graphs[5:7], graphs[7:]))
    data = {"format": "Registered", "name": "many", "task": "node"}
    source = source_of(load({"dataset": data, "train": {"batch_size": 2}}).config)
    train, val, _ = loaders(source.serving, prepare(source, source.load(), 0, []), seed=0)
    assert [batch.num_graphs for batch in train] == [2, 2, 1]
    assert len(val) == 1


def test_registration_is_checked(registries):
    register_dataset("mine", lambda: GRAPHS)
    with pytest.raises(ValueError, match=r"'mine' is .* already"):
        register_dataset("mine", len)
    with pytest.raises(TypeError, match=r"'load' must be a function that returns graphs \(got list\)"):
        register_dataset("other", GRAPHS)
    with pytest.raises(ValueError, match="a name consists of"):
        register_dataset("a/b", len)
    with pytest.raises(RunError, match=r"registered as 'mnie'; there are mine\. Did you mean 'mine'"):
        load_dataset(DatasetConfig(format="Registered", name="mnie"))


def test_data_that_are_missing_are_told_before_the_model_is_tried(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_try_model", lambda *_: 1 / 0)
    with pytest.raises(RunError, match="no data set is registered as 'none'"):
        run_config(tiny | {"dataset": {"format": "Registered", "name": "none"}}, tmp_path)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([Data(x=torch.ones(2, width), y=torch.ones(1)) for width in (1, 2)], "need as many features 'x'"),
        ([], r"a list of them that is not empty \(got list\)"),
        (None, r"must be a Data, .*\(got NoneType\)"),
    ],
)
def test_what_a_function_may_not_return(registries, found, message):
    register_dataset("odd", lambda: found)
    with pytest.raises(RunError, match=message):
        load_dataset(DatasetConfig(format="Registered", name="odd"))


X = torch.ones(6, 3)


@pytest.mark.filterwarnings("ignore:.*quantize|TypedStorage")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y", lambda: None, r"dataset\.task: graphs need 'y', the targets of each graph; graph 5 has none"),
        ("y", lambda: torch.tensor([float("nan")]), "'y' of graph 5 must hold classes 0, 1, … .got none, or NaN"),
        ("y", lambda: [1], r"'y' of graph 5 must be a dense tensor .* \(got \[1\]\)"),
        (
            "edge_index",
            lambda: torch.ones(2, 3),
            r"'edge_index' of graph 5 must be integers \[2, E\] \(got torch.float32",
        ),
        ("x", lambda: X.to("meta"), "'x' of graph 5 must be a dense tensor of real numbers .* on meta"),
        ("x", lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), "'x' of graph 5 must .* torch.quint8"),
        ("x", lambda: X.to(torch.complex64), "'x' of graph 5 must .* torch.complex64"),
        ("name", lambda: Calls(print, "executed"), "it refers to print, which is not data and would be executed"),
    ],
)
def test_one_graph_that_does_not_fit_is_named(name, value, message, tmp_path, capsys):
    graphs = [each.clone() for each in GRAPHS]
    graphs[5][name] = value()
    torch.save(graphs, tmp_path / "graphs.pt")
    with pytest.raises(RunError, match=message):
        load_dataset(DatasetConfig(format="Files", name="a", dir=str(tmp_path / "graphs.pt")))
    assert capsys.readouterr().out == ""


class Stored(InMemoryDataset):
    processed_file_names = "data.pt"

    def __init__(self, root, graphs):
        self.graphs = graphs
        super().__init__(str(root), pre_transform=lambda data: data)

    def process(self):
        self.save(self.graphs, self.processed_paths[0])


def write(kind, folder):
    folder.mkdir()
    if kind == "list":
        torch.save(GRAPHS, folder / "graphs.pt")
        return folder / "graphs.pt"
    if kind == "parts":
        for part, some in zip(("train", "val", "test"), (GRAPHS[:12], GRAPHS[12:18], GRAPHS[18:])):
            torch.save(some, folder / f"{part}.pt")
        return folder
    Stored(folder, GRAPHS if kind == "dataset" else [NODES])
    return folder


@pytest.mark.parametrize("kind", ["list", "dataset", "parts", "one graph"])
def test_files_that_torch_and_pyg_left_are_read(kind, tmp_path):
    path = write(kind, tmp_path / "left")
    task = "node" if kind == "one graph" else "graph"
    loaded = load_dataset(DatasetConfig(format="Files", dir=str(path), task=task))
    wanted = [NODES] if kind == "one graph" else GRAPHS
    assert len(loaded) == len(wanted)
    for found, given in zip(loaded.graphs, wanted):
        assert found.keys() == given.keys()
        assert all(torch.equal(found[key], given[key]) for key in given.keys())  # noqa: SIM118
    assert (loaded.parts is None) == (kind != "parts")


@pytest.mark.parametrize("kind", ["list", "dataset"])
def test_run_takes_data(kind, tiny_file, tmp_path, capsys):
    path = write(kind, tmp_path / "left: it")
    assert main(["run", str(tiny_file), "--data", str(path), "--out", str(tmp_path / "out"), *RUN]) == 0
    assert main(["run", str(tiny_file), "--data", str(tmp_path / "none"), *RUN]) == 1
    assert "there is no file or folder" in capsys.readouterr().err


def test_sets_of_ones_own_are_not_mixed(tmp_path):
    data = {"format": "Files", "dir": str(write("parts", tmp_path / "left")), "split_mode": "cv-kfold-5"}
    with pytest.raises(RunError, match="cv-kfold-5 would mix the training, validation and test sets of left"):
        load_dataset(DatasetConfig(**data))


def test_other_files_are_refused(tmp_path):
    contents = {"must hold a Data or a list": [1, 2], r"1\.pt cannot be read: it was not written by torch\.save": None}
    for number, (message, content) in enumerate(contents.items()):
        path = tmp_path / f"{number}.pt"
        path.write_text("hello") if content is None else torch.save(content, path)
        with pytest.raises(RunError, match=message):
            load_dataset(DatasetConfig(format="Files", name="a", dir=str(path)))
    with pytest.raises(RunError, match=r"must have one file \*.pt.*got 0.pt, 1.pt"):
        load_dataset(DatasetConfig(format="Files", name="a", dir=str(tmp_path)))
