"""Every attention has a config in the repository, and a run of it learns."""

from pathlib import Path

import pytest
import yaml

from pyg_topomask.nn import ATTENTION
from pyg_topomask.run.config.load import load
from pyg_topomask.run.model.attentions import attentions_of
from pyg_topomask.run.runner import run_config

FILES = sorted((Path(__file__).parents[2] / "configs").rglob("enzymes.yaml"))
GENERATED = {"format": "PyG-MotifDataset", "name": "circle", "num_graphs": 24, "num_nodes": 12}
SMALL = ["gt.layers=1", "optim.max_epoch=1", "optim.num_warmup_epochs=0", "train.batch_size=8"]


def test_every_attention_has_a_config():
    named = {name for path in FILES for name in attentions_of(load(path).config)}
    assert named == set(ATTENTION)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_a_run_of_it_on_small_graphs(path, tmp_path):
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["dataset"] = GENERATED
    summary = run_config(values, tmp_path, overrides=SMALL)
    assert 0 <= summary["metrics"]["test_accuracy"]["mean"] <= 1
