"""The programs of `examples/` do what they say, and README, CONTRIBUTING and docs show each of them as it is."""

import re
import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import FakeDataset

from pyg_topomask.datasets import DigitsDataset
from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.testing import AttentionCase, OperatorCase

ROOT = Path(__file__).parents[1]
EXAMPLES = {path.stem: path for path in (ROOT / "examples").glob("*.py")}


def test_pages_show_the_examples():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    shown = [code for page in pages for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S)]
    programs = [path.read_text(encoding="utf-8").split('"""\n\n', 1)[1] for path in EXAMPLES.values()]
    assert set(programs) <= set(shown)


def test_every_example_has_a_test():
    assert {f"test_{name}" for name in EXAMPLES} <= set(globals())


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run(name) -> names``: what a program of `examples/` has defined at its end, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(EXAMPLES[name]))


def test_attention_layer(run):
    names = run("attention_layer")
    assert names["x"].shape == (names["batch"].num_nodes, 5)
    assert names["x"].isfinite().all()


def test_training_loop(run):
    assert run("training_loop")["accuracy"] > 0.5


def test_gkat_conv(run):
    names = run("gkat_conv")
    assert names["x"].shape == (names["batch"].num_nodes, 16)
    low, high = names["batch"].x.aminmax()
    assert ((names["smooth"] >= low - 1e-5) & (names["smooth"] <= high + 1e-5)).all()


def test_masks(run):
    names = run("masks")
    assert names["x"].shape == (names["batch"].num_nodes, 64)
    assert names["x"].isfinite().all()


def test_expressivity(run, capsys):
    run("expressivity")
    assert capsys.readouterr().out.split() == ["False", "True"]


def test_dynamic_walks(run):
    names = run("dynamic_walks")
    graph = names["graphs"][0]
    assert names["loss"].isfinite()
    reached = torch.zeros(graph.num_nodes).index_add(0, graph.edge_index[0], graph.attention)
    wanted = (reached > 0).float()  # the weights of a node's edges sum to 1
    torch.testing.assert_close(reached, wanted, rtol=0, atol=1e-5)


def test_large_graph(run):
    names = run("large_graph")
    assert int(names["part"].walk_size) == names["part"].num_nodes < names["data"].num_nodes
    assert names["out"].shape == (names["data"].num_nodes, 4)
    assert names["out"].isfinite().all()
    assert sum(part.num_nodes for part in names["parts"]) == names["data"].num_nodes
    assert 0 <= names["accuracy"] <= 1


class _FakeMolecules(FakeDataset):
    """Random graphs instead of a data set that is downloaded."""

    def __init__(self, root, name, pre_transform):
        super().__init__(num_graphs=24, avg_num_nodes=8, num_channels=5, num_classes=2, task="graph")
        self.data, self.slices = self.collate([pre_transform(data) for data in self])


def test_molecules(run, monkeypatch):
    monkeypatch.setattr("torch_geometric.datasets.TUDataset", _FakeMolecules)
    names = run("molecules")
    assert 0 <= names["accuracy"] <= 1
    assert names["predict"](names["batch"]).shape == (names["batch"].num_graphs, 2)


def test_images(run, monkeypatch):
    pytest.importorskip("sklearn")
    small = partial(DigitsDataset, num_graphs=24)
    monkeypatch.setattr("pyg_topomask.datasets.DigitsDataset", small)
    names = run("images")
    assert 0 <= names["accuracy"] <= 1
    assert names["right"].shape == (2,)


def test_particles():
    """With fewer and smaller boxes."""
    program = EXAMPLES["particles"].read_text(encoding="utf-8")
    for old, new in (("PARTICLES, NUM_NEIGHBORS = 100", "PARTICLES, NUM_NEIGHBORS = 12"), ("160", "40"), ("128", "32")):
        assert old in program
        program = program.replace(old, new)
    names = {}
    exec(compile(program, "particles", "exec"), names)
    assert names["explained"] < 1
    data = names["box"]()
    distance = torch.cdist(data.x[:, :3], data.x[:, :3])
    field = [(torch.exp(-d / 0.2) / d * data.x[:, 3])[d > 0].sum() for d in distance]
    torch.testing.assert_close(data.y[:, 0], torch.stack(field) / 10)


@pytest.fixture
def own_module(run):
    """The names of a user's module, which are forgotten afterwards."""
    known = dict(ATTENTION), dict(MASK)
    ATTENTION.pop("Mean", None)  # the package itself may have one
    MASK.pop("decay", None)
    yield run("own_module")
    for table, before in zip((ATTENTION, MASK), known):
        table.clear()
        table.update(before)


class TestMeanAttention(AttentionCase):
    @pytest.fixture(autouse=True)
    def _own(self, own_module):
        self.own = own_module

    def build(self):
        return self.own["MeanAttention"](self.channels, heads=2)


class TestDecayMask(OperatorCase):
    @pytest.fixture(autouse=True)
    def _own(self, own_module):
        self.own = own_module

    def build(self, data):
        return self.own["DecayMask"](0.25)(data)

    def reference(self, data):
        batch = torch.zeros(data.num_nodes) if data.batch is None else data.batch
        return torch.where(torch.eye(data.num_nodes).bool(), 1, 0.25 * (batch[:, None] == batch)).double()


def test_own_module(own_module):
    assert ATTENTION["Mean"] is own_module["MeanAttention"]
    assert MASK["decay"] is own_module["DecayMask"]


def test_own_mask_of_a_graph_without_features(own_module):
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    assert own_module["DecayMask"](0.25)(graph).to_dense().tolist() == [[1, 0.25], [0.25, 1]]
    x = torch.randn(5, 4)
    attn = ATTENTION["Mean"](4)
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
