"""The scripts that repeat the tables of GKAT run on small data, keep what is finished, and share time fairly."""

import importlib
import itertools
import json
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from pyg_topomask.run import RunError
from pyg_topomask.run.data.source import LoadedDataset

pytest.importorskip("matplotlib")
SIZES_OF_CYCLES = {  # the paper's Table 5, two to six layers
    "GAT": [242, 242, 266, 258, 270],
    "GCN": [268, 262, 250, 260, 268],
    "SGC": [236, 234, 247, 245, 249],
}
PUBLISHED = ["73.0 ± 0.7", "73.3 ± 0.6", "72.5 ± 0.7"]


@pytest.fixture
def calls_of(monkeypatch):
    """``calls_of(module, name) -> calls``: the positional arguments of each call of a function from now on."""

    def watch(module, name):
        function, calls = getattr(module, name), []

        def watched(*arguments, **settings):
            calls.append(arguments)
            return function(*arguments, **settings)

        monkeypatch.setattr(module, name, watched)
        return calls

    return watch


def test_models_have_the_sizes_of_the_paper(scripts):
    from _fitting import num_parameters
    from _gkat import GAT_HEADS, TASKS, cycle_baseline, cycle_gkat, motif_baseline, motif_gkat

    assert num_parameters(cycle_gkat()) == 242
    for method, sizes in SIZES_OF_CYCLES.items():
        assert [num_parameters(cycle_baseline(method, depth)) for depth in GAT_HEADS] == sizes
        assert num_parameters(motif_baseline(method)) == pytest.approx(num_parameters(motif_gkat()), rel=0.05)
    assert [task.max_length for task in TASKS.values()] == [3, 3, 3, 3, 3, 6, 1, 2, 3, 4, 6, 8, 10]


def test_motifs_and_cycles(scripts, calls_of, monkeypatch, tmp_path):
    """The others get the time of GKAT with the same seed, and no graph is in two parts."""
    import _gkat

    monkeypatch.setattr(_gkat, "GRAPHS", 16)
    monkeypatch.setattr(_gkat, "ROOT", str(tmp_path / "data"))
    trained, script, out = calls_of(_gkat, "train_graphs"), scripts("gkat_motif"), tmp_path / "out"
    arguments = ["--datasets", "grid", "induced cycle", "--runs", "2", "--epochs", "2", "--out", str(out)]
    with pytest.raises(RunError, match="add it to --methods"):
        script.COMPARISON.main([*arguments[:-1], str(tmp_path / "part"), "--methods", "GAT"])
    arguments += ["--methods", "GKAT", "SGC", "GKAT-0"]
    script.COMPARISON.main(arguments)
    rows = json.loads((out / "gkat_motif.json").read_text())["rows"]
    found = [f"grid: {method}" for method in ("GKAT", "SGC", "GKAT-0")]
    assert list(rows) == [*found, "induced cycle: GKAT", "induced cycle: SGC"]  # which has no GKAT-0
    assert len(trained) == 10
    for _, *parts in trained:
        assert [len(part) for part in parts] == [12, 2, 2]
        assert len({id(graph) for part in parts for graph in part}) == 16
    for row in rows.values():
        budgets = rows[f"{row['dataset']}: GKAT"]["seconds"]
        assert row["trained"] == [2, 2] or row["method"] == "SGC"
        for seconds, epochs, budget in zip(row["seconds"], row["trained"], budgets):
            assert row["method"] == "GKAT-0" or seconds <= budget or epochs == 1
    assert "| in GKAT's epochs | published |" in (out / "gkat_motif.md").read_text()
    assert (out / "gkat_motif.png").stat().st_size > 0
    script.COMPARISON.main(arguments)
    assert len(trained) == 10  # kept, not trained again
    methods = ["--methods", "GKAT", "GAT, 3 layers"]
    scripts("gkat_cycle").COMPARISON.main(["--runs", "1", "--epochs", "2", "--out", str(out), *methods])
    assert sum(isinstance(layer, GATConv) for layer in trained[-1][0].layers) == 3


def test_what_cannot_be_done_is_said_ahead(scripts, tmp_path, capsys):
    (tmp_path / "file").touch()
    for options, message in (
        (["--out", str(tmp_path / "file" / "out")], "cannot be written"),
        (["--epochs", "0"], "'0' is not a positive integer"),
    ):
        with pytest.raises(SystemExit):
            scripts("gkat_motif").COMPARISON.main(options)
        assert message in capsys.readouterr().err
    tables = importlib.import_module("_tables")
    with pytest.raises(SystemExit, match="error: no data"):
        tables.start(Mock(side_effect=RunError("no data")))
    with pytest.raises(SystemExit, match="130"):
        tables.start(Mock(side_effect=KeyboardInterrupt))
    assert "keeps finished runs" in capsys.readouterr().err


def test_only_epochs_that_end_in_time_count(scripts, monkeypatch):
    import _gkat
    from _gkat import GraphClassifier, train_graphs

    clock = itertools.count()
    monkeypatch.setattr(_gkat.time, "process_time", lambda: float(next(clock)))  # an epoch takes 1 s
    graphs = [
        Data(x=torch.randn(3, 2), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor([i % 2]))
        for i in range(8)
    ]

    def train(**settings):
        return train_graphs(GraphClassifier([torch.nn.Linear(2, 3)], 3), graphs[:6], graphs[6:], graphs[6:], **settings)

    run = train(epochs=None, max_seconds=2.5)
    assert (run["trained"], run["seconds"], len(run["curve"])) == (2, 2.0, 2)
    assert train(epochs=None, max_seconds=3.0)["trained"] == 3
    assert train(epochs=None, max_seconds=0.5)["trained"] == 1  # the first always counts
    assert train(epochs=5)["seconds"] == 5.0
    assert train(epochs=50, patience=3, lr=0.0)["trained"] == 1 + 3  # nothing improves after the first


def test_the_test_part_is_read_at_the_best_validation_epoch(scripts, monkeypatch):
    import _gkat

    found = iter([(0.9, 0.5), (0.7, 0.31), (0.8, 0.5), (0.32, 0.32), (0.9, 0.4), (0.6, 0.5), (0.2, 0.33)])
    asked = []

    def evaluate_graphs(model, batches):
        asked.append(["train", "val", "test"][int(batches[0].y)])
        return next(found)

    monkeypatch.setattr(_gkat, "evaluate_graphs", evaluate_graphs)
    edge_index = torch.empty(2, 0, dtype=torch.long)
    parts = [[Data(x=torch.randn(3, 2), edge_index=edge_index, y=torch.tensor([y]))] for y in range(3)]
    model = _gkat.GraphClassifier([torch.nn.Linear(2, 3)], 3)
    run = _gkat.train_graphs(model, *parts, epochs=4)
    assert asked == ["val", "test", "val", "test", "val", "val", "test"]
    # epochs 1, 2 and 4 are the best until then, by accuracy and then by loss; the test is read after these only
    assert [point[1:] for point in run["curve"]] == [(0.5, 0.31), (0.5, 0.32), (0.4, 0.32), (0.5, 0.33)]
    assert (run["test"], run["val"]) == (0.33, 0.5)


def test_citation_graphs(scripts, calls_of, monkeypatch, tmp_path):
    script, ring = scripts("gkat_citation"), torch.arange(12)
    edge_index = torch.stack([torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])])
    data = Data(x=torch.rand(12, 7), edge_index=edge_index, y=ring % 3)
    for number, part in enumerate(("train", "val", "test")):
        data[f"{part}_mask"] = ring // 4 == number
    monkeypatch.setattr(script, "load_dataset", lambda config: LoadedDataset([data], None))
    trained, redrawn = calls_of(script, "train_nodes"), calls_of(script.nn, "redraw_walks")
    arguments = ["--quick", "--datasets", "CiteSeer", "--out", str(tmp_path)]
    script.COMPARISON.main([*arguments, "--methods", "GKAT", "dynamic GKAT", "GAT"])
    assert [call[2] for call in redrawn] == [1]  # the second epoch of dynamic GKAT
    assert len(trained) == 3
    for _, graph, *_ in trained:
        torch.testing.assert_close(graph.x.sum(1), torch.ones(12))  # features are normalised, as GAT's
    table = (tmp_path / "quick/gkat_citation.md").read_text()
    assert [line.split(" | ")[-1] for line in table.splitlines()[4:]] == [f"{p} |" for p in PUBLISHED]


def test_tu_data(scripts, monkeypatch, tmp_path, capsys):
    """Each run is an outer fold. Social graphs have the folds for degrees, and are left out without them."""
    script, made = scripts("gkat_tu"), []

    def run_once(path, out, overrides):
        made.append((path.stem, *overrides[:2]))
        return {"val": 0.5, "test": 0.5, "seconds": 1.0, "parameters": 9}

    monkeypatch.setattr(script, "run_once", run_once)
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path))
    options = ["--runs", "2", "--out", str(tmp_path / "out"), "--datasets"]
    script.COMPARISON.main([*options, "proteins", "collab"])
    assert made == [("proteins", "dataset.split_mode=errica", f"dataset.split_index={fold}") for fold in (0, 1)]
    assert "| 75.8 ± 3.8 |" in (tmp_path / "out/gkat_tu.md").read_text()
    assert "collab is left out: the folds of social graphs with degrees" in capsys.readouterr().out
    (tmp_path / "splits/errica2020/COLLABORATIVE_DEGREE").mkdir(parents=True)
    script.COMPARISON.main([*options, "collab"])
    assert len(made) == 4


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")
def test_cost(scripts, calls_of, monkeypatch, tmp_path):
    import gkat_cost

    def start(*options):
        monkeypatch.setattr(sys, "argv", ["gkat_cost", "--quick", *options, "--out", str(tmp_path)])
        gkat_cost.main()
        return json.loads((tmp_path / "quick/gkat_cost.json").read_text())["rows"]

    def here(function, case, name, *arguments):  # the garbage collection before each measurement takes half a second
        return function(case, name, *arguments) if name == "GKAT" else 1.0

    monkeypatch.setattr(gkat_cost, "in_fresh_process", here)
    monkeypatch.setitem(gkat_cost.SIZES, "citeseer", (60, 90))
    whole_batches = gkat_cost.graph_of
    monkeypatch.setattr(gkat_cost, "graph_of", lambda case, num_graphs: whole_batches(case, 2))
    measured = calls_of(gkat_cost, "measure")
    report = start("--cases", "citeseer", "motif")
    row = report["citeseer"]
    names = {"GAT", "GKAT", "GKAT-0", "GAT-shaped", "GAT, all pairs", "GKAT-0, all pairs"}
    assert set(row["ms"]) == set(row["mib"]) == names
    assert all(time > 0 for times in row["ms"].values() for time in times)
    again = start("--cases", "citeseer", "motif", "cycle")
    assert [arguments[0] for arguments in measured] == ["citeseer", "motif", "cycle"]  # the first two were kept
    assert again["citeseer"] == row
    text = (tmp_path / "quick/gkat_cost.md").read_text()
    assert "A trial with few repeats" in text
    for table in text.split("\n\n")[1:]:
        assert [line.split("|")[1].strip() for line in table.splitlines()[2:]] == ["citeseer", "motif", "cycle"]
        assert len({line.count("|") for line in table.splitlines()}) == 1
    monkeypatch.setattr(gkat_cost, "LARGEST_DENSE", 10)  # another setting
    sparse = start("--cases", "citeseer")
    assert set(sparse) == {"citeseer"}
    assert set(sparse["citeseer"]["ms"]) == names - {"GAT, all pairs", "GKAT-0, all pairs"}
