"""Experiments on GRF masks: a trial writes both comparisons and keeps its runs."""

import json

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import GRFAttention
from pyg_topomask.run import check_config
from pyg_topomask.transforms import AddRandomWalks

TINY = ["gt.dim_hidden=8", "topomask.num_walks=2"]


@pytest.fixture
def small(scripts, tmp_path, monkeypatch):
    """``small(name, **options)``: a script, whose models are small."""
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))

    def load(name, *more):
        script = scripts(name)
        for row, settings in list(script.METHODS.items()):
            monkeypatch.setitem(script.METHODS, row, [*settings, *TINY, *more])
        return script

    return load


@pytest.fixture
def proteins(tmp_path, monkeypatch):
    """40 paths of three nodes in place of PROTEINS."""
    raw = tmp_path / "data" / "TUDataset" / "PROTEINS" / "raw"
    raw.mkdir(parents=True)
    edges = [(i + 3 * g, j + 3 * g) for g in range(40) for i, j in ((1, 2), (2, 1), (2, 3), (3, 2))]
    (raw / "PROTEINS_A.txt").write_text("".join(f"{i}, {j}\n" for i, j in edges))
    (raw / "PROTEINS_graph_indicator.txt").write_text("".join(f"{g + 1}\n" * 3 for g in range(40)))
    (raw / "PROTEINS_graph_labels.txt").write_text("".join(f"{g % 2}\n" for g in range(40)))
    (raw / "PROTEINS_node_labels.txt").write_text("0\n1\n1\n" * 40)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "data"))


def test_real_graphs(small, tmp_path, proteins):
    script = small("grf_real")
    arguments = ["--quick", "--datasets", "proteins", "--methods", "GRF", "message passing"]
    arguments += ["--out", str(tmp_path / "out")]
    script.COMPARISON.main(arguments)
    report = json.loads((tmp_path / "out/quick/grf_real.json").read_text())
    rows = ("GRF, equal epochs", "message passing, equal epochs", "message passing, equal time")
    assert list(report["rows"]) == [f"proteins: {row}" for row in rows]
    assert all(row["trained"] == row["ran"] == [2] for row in report["rows"].values() if row["equal"] == "epochs")
    assert len((tmp_path / "out/quick/grf_real.md").read_text().splitlines()) == 7
    script.COMPARISON.main(arguments)  # finished rows are kept, with their times
    assert json.loads((tmp_path / "out/quick/grf_real.json").read_text()) == report


@pytest.mark.parametrize("task", ["share", "tree", "ring"])
def test_long_range(small, tmp_path, task):
    script, out = small("grf_long_range", "dataset.num_graphs=16", "dataset.num_nodes=10"), tmp_path / "out"
    script.COMPARISON.main(["--quick", "--datasets", task, "--methods", "GRF", "GIN with 4 layers", "--out", str(out)])
    rows = json.loads((out / "quick/grf_long_range.json").read_text())["rows"]
    found = [rows[f"{task}: {row}"] for row in ("GRF, equal epochs", "GIN with 4 layers, equal time")]
    first, _, last = (out / "quick/grf_long_range.md").read_text().splitlines()[4:]
    for line, row, part in zip((first, last), found, ("epochs", "time")):
        assert line.startswith(f"| {task} | {row['method']} | {part} |")
        assert line.endswith(f"| {row['test'][0]:.3f} | {1 - row['test'][0]:.3f} |")


def test_epochs_of_equal_time(scripts):
    folds = scripts("_folds")
    rows = {"a: GRF, equal epochs": {"seconds": [12.0, 99.0]}, "a: GIN, equal epochs": {"seconds": [2.0], "ran": [4]}}
    row = {"dataset": "a", "method": "GIN", "equal": "time"}
    assert folds.equal_epochs(row, 8, rows, "GRF") == 24  # an epoch took half a second; the run stopped early
    assert folds.equal_epochs(row, 2, rows, "GRF") == 20  # at most ten times as many
    assert folds.equal_epochs(row | {"equal": "epochs"}, 8, rows, "GRF") == 8


def test_smooth_training(scripts, tmp_path, monkeypatch):
    script = scripts("grf_smooth")
    assert script.worst_fall([0.2, 0.8, 0.4, 0.6, 0.9]) == 0.5
    assert script.worst_fall([0.0, 0.1, 0.2]) == 1
    for row in script.ROWS.values():
        check_config(row.config, [*row.settings, "topomask.normalizer=signed"])

    def run_once(path, out, overrides, curves):
        attention, x = GRFAttention(8, heads=2, normalizer="bound"), torch.randn(6, 8)
        attention(x, None, AddRandomWalks(seed=0)(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=6)))
        last = 0.32 if "topomask.normalizer=signed" in overrides else 0.72
        assert not interrupted.exists()  # its ratios are lost
        return {"test": last, "curves": [(1.0, 0.8), (2.0, last)]}

    monkeypatch.setattr(script, "run_once", run_once)
    interrupted = tmp_path / "quick/runs" / "digits-toeplitz-smooth-digits-bound-2-0" / "0" / "last.ckpt"
    interrupted.parent.mkdir(parents=True)
    interrupted.touch()
    script.COMPARISON.main(["--quick", "--datasets", "digits", "--out", str(tmp_path)])
    table = (tmp_path / "quick/grf_smooth.md").read_text()
    assert "| digits | bound | 1 | 2 | 72.00 | 72.00 | 0 of 1 | 0.90 |" in table
    assert "| digits | signed | 1 | 2 | 32.00 | 32.00 | 1 of 1 | 0.40 |" in table
    rows = json.loads((tmp_path / "quick/grf_smooth.json").read_text())["rows"]
    assert all(0 < row["ratio"][0] <= 1 + 1e-4 for row in rows.values())


def test_smooth_training_with_the_same_walks(scripts, tmp_path):
    script = scripts("grf_smooth")
    script.COMPARISON.main(["--quick", "--datasets", script.SAME_WALKS, "--out", str(tmp_path)])
    rows = list(json.loads((tmp_path / "quick/grf_smooth.json").read_text())["rows"].values())
    assert [row["method"] for row in rows] == ["bound", "signed"]
    assert all(0 < row["fall"][0] <= 1 for row in rows)
    assert 0 < rows[0]["ratio"][0] <= 1 + 1e-4
    assert script.train_on_grids("bound", 0, 2, quick=True)["test"] == rows[0]["test"][0]  # a seed decides all


def test_batch_statistics_in_evaluation(scripts, monkeypatch):
    script = scripts("grf_smooth")
    norm, x = torch.nn.BatchNorm1d(3).eval(), 5 + 2 * torch.randn(50, 3)
    with script.batch_statistics():
        found = norm(x)
    torch.testing.assert_close(found, (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt())
    assert norm.running_mean.eq(0).all()
    assert not norm(x).allclose(found)


def test_particles(scripts, tmp_path, monkeypatch):
    script = scripts("grf_particles")
    arguments = ["--quick", "--datasets", "springs", "--methods", "GRF interlacer", "GIN interlacer"]
    script.COMPARISON.main([*arguments, "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "quick/grf_particles.json").read_text())["rows"]
    assert [(row["method"], row["equal"]) for row in rows.values()] == [
        ("GRF interlacer", "epochs"),
        ("GIN interlacer", "epochs"),
        ("GIN interlacer", "time"),
    ]
    monkeypatch.setattr(script, "train", lambda *_: pytest.fail("finished runs are kept"))
    script.COMPARISON.main([*arguments, "--out", str(tmp_path)])


def test_a_perfect_model_of_particles_has_no_error(scripts, monkeypatch):
    script = scripts("grf_particles")
    parts, scale = script.load_systems("springs", 32, (1, 1, 2))
    states = [[torch.cat([data.pos, data.vel], dim=1), *data.future.unbind(1)] for data in parts["test"]]
    changes = iter([[states[i][f + 1] - states[i][f] for i in range(2)] for f in range(script.FRAMES)])
    monkeypatch.setattr(script, "changes_of", lambda model, graphs, scale: next(changes))
    assert max(script.rollout(None, parts["test"], scale)) < 1e-8
    monkeypatch.setattr(script, "changes_of", lambda model, graphs, scale: [torch.zeros(32, 6) for _ in graphs])
    assert next(iter(script.rollout(None, parts["test"], scale))) == pytest.approx(1)


def test_counted_cost_is_linear_under_masks(scripts, monkeypatch):
    script = scripts("grf_cost")
    small, large = (script.measure(size, 1, 1) for size in (1024, 4096))
    grows = {name: large[name]["madds"] / small[name]["madds"] for name in small}
    assert grows.pop("softmax") == 16
    assert grows.pop("Toeplitz") == pytest.approx(4 * 12 / 10, rel=0.1)  # N log N
    assert all(ratio == pytest.approx(4, rel=0.1) for ratio in grows.values())
