"""The programs of `examples/` do what they say, and README, CONTRIBUTING and docs show each of them as it is."""

import re
import sys
import types
from functools import partial
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import FakeDataset

from pyg_topomask import datasets, nn, testing

ROOT = Path(__file__).parents[1]
EXAMPLES = {path.stem: path for path in (ROOT / "examples").glob("*.py")}


def test_pages_show_the_examples():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    shown = [code for page in pages for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)]
    programs = [path.read_text(encoding="utf-8").split('"""\n\n', 1)[1] for path in EXAMPLES.values()]
    assert set(programs) <= set(shown)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run(name, old, new, …) -> names``: what a program has defined at its end, in an empty folder.

    Text of the program is replaced first: sizes by smaller ones.
    """
    monkeypatch.chdir(tmp_path)

    def call(name, *replaced):
        program = EXAMPLES[name].read_text(encoding="utf-8")
        for old, new in zip(replaced[::2], replaced[1::2]):
            assert old in program
            program = program.replace(old, new)
        names = {"__name__": "example"}
        exec(compile(program, name, "exec"), names)
        return names

    return call


class _FakeMolecules(FakeDataset):
    """Random graphs instead of a data set that is downloaded."""

    def __init__(self, root, name, pre_transform):
        super().__init__(num_graphs=24, avg_num_nodes=8, num_channels=5, num_classes=2, task="graph")
        self.data, self.slices = self.collate([pre_transform(data) for data in self])


def _fake_cora(root, name, transform):
    data = FakeDataset(1, 30, num_channels=8, num_classes=7, task="node")[0]
    for number, part in enumerate(("train", "val", "test")):
        data[f"{part}_mask"] = torch.arange(data.num_nodes) % 3 == number
    return [transform(data)]


def features(channels):
    return lambda names: names["x"].shape == (names["batch"].num_nodes, channels) and names["x"].isfinite().all()


def smooth_values_are_means(names):
    low, high = names["batch"].x.aminmax()
    return features(16)(names) and ((names["smooth"] >= low - 1e-5) & (names["smooth"] <= high + 1e-5)).all()


def weights_of_edges_sum_to_one(names):
    graph = names["graphs"][0]
    reached = torch.zeros(graph.num_nodes).index_add(0, graph.edge_index[0], graph.attention)
    return names["loss"].isfinite() and torch.allclose(reached, (reached > 0).float(), rtol=0, atol=1e-5)


def parts_have_walks_and_cover_the_graph(names):
    data, part, out = names["data"], names["part"], names["out"]
    assert int(part.walk_size) == part.num_nodes < data.num_nodes
    assert out.shape == (data.num_nodes, 4)
    assert out.isfinite().all()
    return sum(part.num_nodes for part in names["parts"]) == data.num_nodes and 0 <= names["accuracy"] <= 1


def fields_are_sums_over_the_box(names):
    data = names["box"]()
    distance = torch.cdist(data.x[:, :3], data.x[:, :3])
    field = [(torch.exp(-d / 0.2) / d * data.x[:, 3])[d > 0].sum() for d in distance]
    return names["explained"] < 1 and torch.allclose(data.y[:, 0], torch.stack(field) / 10, rtol=1e-4, atol=1e-5)


def bad_trials_are_pruned(names):
    study = names["study"]
    study.pruner = names["optuna"].pruners.ThresholdPruner(lower=2.0)
    study.optimize(names["validation_accuracy"], n_trials=1)
    return [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE", "PRUNED"]


FEW_PARTICLES = ("PARTICLES, NUM_NEIGHBORS = 100", "PARTICLES, NUM_NEIGHBORS = 12", "160", "40", "128", "32")
CHECKS = {  # what holds of the names of a program, and what is replaced in it
    "attention_layer": (features(32),),
    "training_loop": (lambda names: names["accuracy"] > 0.5,),
    "gkat_conv": (smooth_values_are_means,),
    "masks": (features(64),),
    "dynamic_walks": (weights_of_edges_sum_to_one,),
    "large_graph": (parts_have_walks_and_cover_the_graph,),
    "molecules": (lambda names: names["predict"](names["batch"]).shape == (names["batch"].num_graphs, 2),),
    "node_classification": (
        lambda names: names["results"].shape == (2,),
        "range(5)",
        "range(2)",
        "range(200)",
        "range(2)",
    ),
    "images": (lambda names: names["right"].shape == (2,) and 0 <= names["accuracy"] <= 1,),
    "experiment": (lambda names: names["summary"]["seeds"] == [0, 1], "200", "30", "epochs=5", "epochs=1"),
    "sweep": (bad_trials_are_pruned, "400", "30", 'max_epoch": 20', 'max_epoch": 2', "n_trials=20", "n_trials=2"),
    "particles": (fields_are_sums_over_the_box, *FEW_PARTICLES),
}


def test_every_example_has_a_test():
    assert CHECKS.keys() | {"expressivity", "own_module", "graphgym"} == EXAMPLES.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_a_program_does_what_it_says(run, monkeypatch, name):
    pytest.importorskip({"images": "sklearn", "sweep": "optuna"}.get(name, "torch"))
    monkeypatch.setattr("torch_geometric.datasets.TUDataset", _FakeMolecules)
    monkeypatch.setattr("torch_geometric.datasets.Planetoid", _fake_cora)
    monkeypatch.setattr("pyg_topomask.datasets.DigitsDataset", partial(datasets.DigitsDataset, num_graphs=24))
    check, *replaced = CHECKS[name]
    assert check(run(name, *replaced))


def test_expressivity(run, capsys):
    run("expressivity")
    assert capsys.readouterr().out.split() == ["False", "True"]


@pytest.fixture
def own_module(run, registries):
    """The names of a user's module, which are forgotten afterwards."""
    return run("own_module")


class TestMeanAttention(testing.AttentionCase):
    @pytest.fixture(autouse=True)
    def _own(self, own_module):
        self.own = own_module

    def build(self):
        return self.own["MeanAttention"](self.channels, heads=2)

    def test_copies_pickles_and_state_dicts_are_the_same(self, monkeypatch, own_module):
        module = types.ModuleType("example")
        vars(module).update(own_module)
        monkeypatch.setitem(sys.modules, "example", module)
        super().test_copies_pickles_and_state_dicts_are_the_same()


class TestDecayMask(testing.OperatorCase):
    @pytest.fixture(autouse=True)
    def _own(self, own_module):
        self.own = own_module

    def build(self, data):
        return self.own["DecayMask"](0.25)(data)

    def reference(self, data):
        batch = torch.zeros(data.num_nodes) if data.batch is None else data.batch
        return torch.where(torch.eye(data.num_nodes).bool(), 1, 0.25 * (batch[:, None] == batch)).double()


def test_own_module(own_module):
    assert nn.ATTENTION["OwnMean"] is own_module["MeanAttention"]
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)  # without features
    assert nn.MASK["own_decay"](0.25)(graph).to_dense().tolist() == [[1, 0.25], [0.25, 1]]
    x = torch.randn(5, 4)
    attn = nn.ATTENTION["OwnMean"](4)
    torch.testing.assert_close(attn(x), attn.out(x.mean(0)).expand(5, -1))


# Warnings of GraphGym's own loader and of Lightning about how GraphGym calls it.
@pytest.mark.filterwarnings(r"ignore:It is not recommended to directly access:UserWarning:torch_geometric\.graphgym\.")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.filterwarnings(r"ignore:::lightning\.pytorch\.")
def test_graphgym(run, tmp_path):
    pytest.importorskip("yacs")
    pytest.importorskip("lightning")
    from torch_geometric.graphgym import register
    from torch_geometric.graphgym.config import cfg, set_cfg

    import pyg_topomask.run.graphgym  # noqa: F401

    cfg.clear()
    set_cfg(cfg)
    try:
        names = run("graphgym")
    finally:
        register.loader_dict.pop("fake", None)
    assert names["model"].trainer.current_epoch == 2
    batch = next(iter(names["datamodule"].test_dataloader()))
    assert names["model"].eval()(batch)[0].shape == (8, cfg.share.dim_out)
    assert list(tmp_path.rglob("*.ckpt"))
