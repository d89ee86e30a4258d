import re

import matplotlib
import pytest
import torch

from pyg_topomask.run import run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands import report as command
from pyg_topomask.run.output.environment import environment
from pyg_topomask.run.output.saved import read_result
from pyg_topomask.run.task import Task, classification

matplotlib.use("Agg")


PICTURES = {"GIN+GRF": 2, "GIN+KMIP": 1, "GIN+Primphormer": 0}  # of a layer


@pytest.fixture(params=PICTURES)
def layers(request, tiny):
    tiny["gt"]["layer_type"] = request.param
    tiny["topomask"] = {"num_walks": 4, "max_length": 2} if "GRF" in request.param else {}
    return request.param


@pytest.mark.slow
def test_report_is_one_file_without_network(tiny, layers, tmp_path, capsys):
    run_config(tiny, tmp_path, overrides=["optim.max_epoch=2"], name="a<b")
    folder, out = tmp_path / "a<b" / "0", tmp_path / "new" / "report.html"
    assert main(["report", str(folder), "--graph", "3", "--node", "2", "--out", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    text = out.read_text()
    assert re.findall(r"(?:src|href)=\"(?!data:image/png;base64,)|url\(|@import|<script", text) == []
    assert text.count("<img") == 2 + PICTURES[layers]  # curves, errors, and a mask or weights
    assert ("neither a mask nor weights of pairs" in text) == (layers == "GIN+Primphormer")
    assert "<h1>a&lt;b/0</h1>" in text
    assert f"layer_type: {layers}" in text
    assert str(read_result(folder)["environment"]["commit"] or "–") in text
    assert f"<td>{torch.__version__}</td>" in text
    assert not matplotlib.pyplot.get_fignums()


def test_wrong_positions_and_runs_are_refused(run, tmp_path, capsys):
    out = tmp_path / "report.html"
    for folder, message in ((tmp_path, "contains no trained model"), (run, "--layer must be from 0 to 0 (got 7)")):
        assert main(["report", str(folder), "--layer", "7", "--out", str(out)]) == 1
        assert message in capsys.readouterr().err
    assert not out.exists()


def test_errors_of_classes_are_true_by_predicted(monkeypatch):
    figures = []
    monkeypatch.setattr(command, "_image", lambda figure, text: figures.append(figure))
    command._errors(classification("graph", 3), "graph,target,predicted\n0,0,0\n1,0,2\n2,1,1\n3,0,2\n")
    (axes,) = figures[0].axes
    assert axes.images[0].get_array().tolist() == [[1, 0, 2], [0, 1, 0], [0, 0, 0]]
    assert [text.get_text() for text in axes.texts] == ["1", "0", "2", "0", "1", "0", "0", "0", "0"]


def test_errors_of_other_tasks():
    table = "graph,target_0,target_1,predicted_0,predicted_1\n0,1,,2,3\n1,0.5,4,1,2\n"
    assert "<img" in command._errors(Task("graph", "regression", 2), table)
    assert "multilabel" in command._errors(Task("graph", "multilabel", 2), "graph,probability_0\n0,0.5\n")


def test_environment_has_the_commit_only_in_a_repository(tmp_path, monkeypatch):
    environment.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["commit"] is None
    environment.cache_clear()
    monkeypatch.setenv("PATH", "")  # without git
    assert environment()["commit"] is None
    environment.cache_clear()
