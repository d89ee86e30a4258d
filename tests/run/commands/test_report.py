import re

import matplotlib
import pytest

from pyg_topomask.run import run_config
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands import report, show
from pyg_topomask.run.output.results import environment, read_result

PICTURES = {"GIN+GRF": 2, "GIN+KMIP": 1, "GIN+Primphormer": 0}  # of a layer


@pytest.fixture(params=PICTURES)
def layers(request, tiny):
    tiny["gt"]["layer_type"] = request.param
    tiny["topomask"] = {"num_walks": 4, "max_length": 2} if "GRF" in request.param else {}
    return request.param


@pytest.mark.slow
def test_report_is_one_file_without_network(tiny, layers, tmp_path, capsys, monkeypatch):
    run_config(tiny, tmp_path, overrides=["optim.max_epoch=2"], name="a<b")
    folder, out = tmp_path / "a<b" / "0", tmp_path / "new" / "report.html"
    load, loaded = show.load_view, []
    monkeypatch.setattr(report, "load_view", lambda *given, **more: loaded.append(given) or load(*given, **more))
    assert main(["report", str(folder), "--out", str(out)]) == 0
    assert len(loaded) == 1  # the data, which may be large
    assert f"wrote {out}" in capsys.readouterr().out
    text = out.read_text()
    assert re.findall(r"(?:src|href)=\"(?!data:image/png;base64,)|url\(|@import|<script", text) == []
    assert text.count("<img") == 1 + PICTURES[layers]  # curves, and a mask or weights
    assert f"a&lt;b/0: {layers} on circle" in text
    assert f"layer_type: {layers}" in text
    result = read_result(folder)
    assert f"commit: {result['environment']['commit']}" in text
    assert f"{result['metrics']['test_accuracy']:.4g}" in text
    assert not matplotlib.pyplot.get_fignums()


def test_environment_has_the_commit_only_in_a_repository(tmp_path, monkeypatch):
    environment.cache_clear()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment()["commit"] is None
    environment.cache_clear()
    monkeypatch.setenv("PATH", "")  # without git
    assert environment()["commit"] is None
    environment.cache_clear()
