"""Trained models saved to a folder or the hub give the same outputs after loading."""

import shutil
import sys

import pytest
import torch

import pyg_topomask
from pyg_topomask.datasets import MotifDataset
from pyg_topomask.run import run_config
from pyg_topomask.run.errors import RunError

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

from pyg_topomask.run import hub


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = {
        "dataset": {"format": "PyG-MotifDataset", "name": "circle", "num_graphs": 48, "num_nodes": 12},
        "gt": {"layer_type": "None+GRF", "layers": 1, "dim_hidden": 8},
        "optim": {"max_epoch": 1},
        "topomask": {"num_walks": 4, "max_length": 2},
    }
    folder = tmp_path_factory.mktemp("hub")
    run_config(config, folder)
    return folder / "config" / "0", MotifDataset(folder, "circle", num_graphs=2, num_nodes=12)[1]


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_a_loaded_model_gives_the_same_output(trained, tmp_path, monkeypatch, where):
    run, data = trained
    model, transform = pyg_topomask.load(run)
    hub.PretrainedModel.from_run(run).save_pretrained(tmp_path / "saved")
    source, asked = str(tmp_path / "saved"), []
    if where == "hub":
        monkeypatch.chdir(tmp_path)
        source = "someone/enzymes"

        def download(repo_id, filename, **options):
            asked.append((repo_id, filename))
            return shutil.copy(tmp_path / "saved" / filename, tmp_path / filename)

        monkeypatch.setattr(hub, "hf_hub_download", download)
        monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    loaded = hub.PretrainedModel.from_pretrained(source, local_files_only=True)
    assert not loaded.training
    assert torch.equal(loaded(loaded.transform(data)), model(transform(data)))
    if where == "hub":
        assert asked == [("someone/enzymes", name) for name in ("config.json", "config.yaml", "best.ckpt")]


def test_the_card_says_what_was_saved(trained, tmp_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(hub.ModelCard, "push_to_hub", lambda card, repo: pushed.append((str(card), repo)))
    monkeypatch.setattr("huggingface_hub.ModelHubMixin.push_to_hub", lambda model, **options: None)
    model = hub.PretrainedModel.from_run(trained[0])
    model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="me/motif")
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert "# None+GRF on PyG-MotifDataset circle" in card
    assert f"`pyg_topomask` {pyg_topomask.__version__}" in card
    assert "has been pushed" not in card
    assert "More Information Needed" not in card
    assert pushed == [(card, "me/motif")]


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(RunError, match="contains no trained model"):
        hub.PretrainedModel.from_pretrained(str(tmp_path))
    with pytest.raises(RunError, match="there is no folder savd; a model on the hub is named user/model"):
        hub.PretrainedModel.from_pretrained("savd")


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "pyg_topomask.run.hub")
    with pytest.raises(ImportError, match=r"pyg_topomask\[hub\]"):
        __import__("pyg_topomask.run.hub")
