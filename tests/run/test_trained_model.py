"""A trained model in one line, its predictions as a table, and checkpoints of other formats."""

import pickle
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from torch_geometric.data import Batch, Data

import pyg_topomask
from pyg_topomask.run import run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands import predict as command
from pyg_topomask.run.commands.predict import predict
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.formats import load_dataset
from pyg_topomask.run.graphgps.saved import read_config
from pyg_topomask.run.task import Task
from pyg_topomask.run.training.checkpoint import FORMAT
from tests.run.conftest import table


def metrics_of(folder):
    return yaml.safe_load((folder / "result.json").read_text())["metrics"]


def graphs_of(folder):
    return load_dataset(read_config(folder / "config.yaml").dataset).graphs


def probabilities(rows):
    return torch.tensor([float(row["probability_1"]) for row in rows])


VARIANTS = {
    "walks": "optim.max_epoch=2",
    "fitted and encoded": "dataset.normalize=true posenc_RWSE.enable=true posenc_RWSE.dim_pe=4 "
    "posenc_RWSE.kernel.times=[1,2,3] posenc_RWSE.model=Linear dataset.node_encoder_name=LinearNode+RWSE",
    "walks along attention": "gt.layer_type=GCN+GKAT topomask.transition=attention topomask.redraw=1",
    "double": "precision=64-true",
}


@pytest.mark.slow
@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
def test_predictions_give_the_metrics_of_the_run(tiny, tmp_path, overrides):
    run_config(tiny, tmp_path, overrides=["optim.max_epoch=2", "optim.scheduler=none", *overrides.split()])
    folder = tmp_path / "config" / "0"
    rows = table(predict(folder, "test"))
    loss = [-torch.tensor(float(row[f"probability_{row['target']}"])).log() for row in rows]
    assert float(torch.stack(loss).mean()) == pytest.approx(metrics_of(folder)["test_loss"], rel=1e-4)
    model, transform = pyg_topomask.load(folder)
    graphs = [graphs_of(folder)[int(row["graph"])] for row in rows]
    shares = torch.cat([model(transform(graph)).sigmoid().view(1).detach() for graph in graphs])
    torch.testing.assert_close(shares.float(), probabilities(rows), rtol=1e-4, atol=1e-6)
    assert [row["predicted"] for row in rows] == [str(int(share > 0.5)) for share in shares]
    assert [row["target"] for row in rows] == [str(int(graph.y)) for graph in graphs]


def test_load_leaves_graph_and_random_state_alone_and_takes_batches(run):
    state = torch.get_rng_state()
    model, transform = pyg_topomask.load(run.parent)  # a results folder with one seed
    graph = graphs_of(run)[0]
    keys = graph.keys()
    prepared = transform(graph)
    assert torch.equal(torch.get_rng_state(), state)
    assert graph.keys() == keys
    assert not model.training
    bare = transform(Data(x=graph.x, edge_index=graph.edge_index))  # no target is needed
    torch.testing.assert_close(model(Batch.from_data_list([bare, bare])), model(prepared).expand(2, 1))
    with pytest.raises(ValueError, match=r"'x' must have 5 columns, as in training \(got 3\)"):
        transform(Data(x=graph.x[:, :3], edge_index=graph.edge_index))
    empty = transform(Data(x=torch.zeros(0, 5), edge_index=torch.zeros(2, 0, dtype=torch.long)))
    assert empty.x.shape == (0, bare.x.size(1))


@pytest.mark.parametrize(
    ("task", "values", "names", "expected"),
    [
        (Task("graph", "regression", 1), [[0.1]], ["predicted"], [[0.1]]),
        (Task("graph", "regression", 2), [[0.5, 2.0]], ["predicted_0", "predicted_1"], [[0.5, 2]]),
        (Task("graph", "multilabel", 2), [[0.0, 1e9]], ["probability_0", "probability_1"], [[0.5, 1]]),
        (Task("graph", "subtoken", 3, ("a", "b", "")), [[[0, 1, 0], [0, 0, 1]]], ["words"], [["b"]]),
    ],
)
def test_columns_of_each_kind_of_task(task, values, names, expected):
    assert command._columns(task) == names
    found = command._cells(task, torch.tensor(values, dtype=torch.double))
    assert [row if task.kind == "subtoken" else pytest.approx(row) for row in expected] == found


def test_unknown_targets_are_empty_and_edges_have_two_ends():
    task = Task("edge", "binary", 1)
    graph = Data(edge_label_index=torch.tensor([[3, 4], [5, 6]]), edge_label=torch.tensor([1, 0]), num_nodes=9)
    assert command._ids(task, 7, graph) == [[7, 3, 5], [7, 4, 6]]
    assert command._targets(task, graph) == [[1], [0]]
    regression = Task("graph", "regression", 2)
    assert command._targets(regression, Data(y=torch.tensor([[torch.nan, 0.25]]))) == [["", 0.25]]


def test_command_takes_a_file_of_graphs(run, tmp_path, capsys):
    bare = [Data(x=graph.x, edge_index=graph.edge_index) for graph in list(graphs_of(run))[:3]]
    torch.save(bare, tmp_path / "new.pt")
    assert main(["predict", str(run), "--data", str(tmp_path / "new.pt")]) == 0
    rows = table(capsys.readouterr().out)
    assert list(rows[0]) == ["graph", "predicted", "probability_0", "probability_1"]
    out = tmp_path / "deep" / "all.csv"
    assert main(["predict", str(run), "--data", "all", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    known = table(out.read_text())
    assert [row["graph"] for row in known] == [str(i) for i in range(48)]
    torch.testing.assert_close(probabilities(rows), probabilities(known[:3]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("ys", "targets"), [([None], None), ([1], None), ([torch.ones(2)], None), ([1.0], ["1", "1"])])
def test_targets_are_written_if_every_graph_of_a_file_has_one(run, ys, targets):
    whole = graphs_of(run)[0]
    bare = {"x": whole.x, "edge_index": whole.edge_index}
    ys = [torch.tensor(y) if isinstance(y, float) else y for y in ys]
    torch.save([Data(**bare, y=torch.ones(1)), *(Data(**bare, y=y, name="one") for y in ys)], run / "new.pt")
    rows = table(predict(run, str(run / "new.pt")))
    assert [row["graph"] for row in rows] == ["0", "1"]
    assert [row.get("target") for row in rows] == (targets or [None, None])


def test_each_graph_keeps_attributes_that_others_lack():
    class Unchanged:
        task = Task("graph", "regression", 1)
        __call__ = staticmethod(lambda graph: graph)

    def model(batch):
        weight = batch.get("edge_weight", torch.zeros(batch.num_edges))
        return torch.zeros(batch.num_graphs).index_add(0, batch.batch[batch.edge_index[0]], weight)

    graphs = [Data(num_nodes=2, edge_index=EDGE) for _ in range(3)]
    graphs[1].edge_weight = torch.tensor([5.0])
    assert command._together(model, Unchanged(), graphs).tolist() == [[0], [5], [0]]


ONES, EDGE = torch.ones(2, 5), torch.tensor([[0], [1]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "must be train, val, test, all, or a file that torch.save has written"),
        ([1, 2], "must hold a Data or a list of them (got list)"),
        ([], "must hold a Data or a list of them (got list)"),
        ([Data(x=ONES[:, :3], edge_index=EDGE)], "'x' must have 5 columns, as in training"),
        ([Data(x=ONES, edge_index=EDGE.float())], "'edge_index' must hold integers"),
        ([Data(x=ONES, edge_index=EDGE, pos=torch.ones(1, n)) for n in (2, 3)], ": Sizes of tensors must match"),
        (print, "new.pt cannot be read: it refers to "),
    ],
)
def test_data_that_do_not_fit_are_refused(run, tmp_path, capsys, content, message):
    if content is not None:
        torch.save(content, tmp_path / "new.pt")
    assert main(["predict", str(run), "--data", str(tmp_path / "new.pt")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (None, r"is damaged \(it is no checkpoint of pyg_topomask\); "),
        ({"format": 0, "version": "0.0.1"}, r"train that run again in another folder .*, or install version 0.0.1"),
        ({"format": FORMAT + 1, "version": "9.0"}, "update pyg_topomask, or install version 9.0, which wrote it"),
    ],
)
def test_checkpoints_of_other_formats_are_refused_with_what_to_do(run, ours, message):
    found = torch.load(run / "best.ckpt", weights_only=True)
    assert found.pop("topomask")["format"] == FORMAT
    torch.save(found | ({} if ours is None else {"topomask": ours}), run / "best.ckpt")
    with pytest.raises(RunError, match=message):
        pyg_topomask.load(run)


@pytest.mark.slow
def test_model_and_transform_can_be_pickled(run):
    """Workers that are spawned get the transform so."""
    model, transform = pyg_topomask.load(run)
    code = "import pickle, sys; model, transform = pickle.load(sys.stdin.buffer); print(type(transform).__name__)"
    found = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((model, transform)), capture_output=True)
    assert found.returncode == 0, found.stderr.decode()
    assert found.stdout.decode().strip() == type(transform).__name__
    assert transform.experiment.config == pickle.loads(pickle.dumps(transform)).experiment.config


def test_what_is_no_trained_model_is_refused(run, tmp_path):
    with pytest.raises(RunError, match="none does not exist"):
        pyg_topomask.load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="contains no trained model"):
        pyg_topomask.load(tmp_path / "empty")
    shutil.copytree(run, run.parent / "1")
    with pytest.raises(RunError, match=r"several seeds \(0, 1\); choose one, such as .*0$"):
        pyg_topomask.load(run.parent)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("dim_hidden: 8", "dim_hidden: 16"))
    with pytest.raises(RunError, match=r"best\.ckpt is of another model .* must be the file that the run has written"):
        pyg_topomask.load(run)


def test_load_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "pyg_topomask.run.trained_model", raising=False)
    monkeypatch.setitem(sys.modules, "pyg_topomask.run.experiment", None)
    with pytest.raises(ImportError, match=r"load needs: pip install 'pyg_topomask\[run\]'"):
        pyg_topomask.load("anything")
