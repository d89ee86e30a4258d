"""The pictures of influence: every attention has one, and the matrix is the derivative."""

from pathlib import Path

import pytest
import torch

from pyg_topomask.nn import ATTENTION

ROOT = Path(__file__).parents[2]
pytest.importorskip("matplotlib").use("Agg")


def test_every_attention_has_a_picture(script):
    pictures = {path.name for path in (ROOT / "docs" / "figures").glob("*.png")}
    assert pictures == {"start.png", *(f"{name.lower()}.png" for name in ATTENTION)}


def test_influence_is_limited_to_the_kept_keys(script, monkeypatch):
    monkeypatch.setattr(script, "NUM_NODES", 8)
    data = script.example()
    matrix = script.influence("KMIP", data)
    assert matrix.shape == (8, 8)
    assert matrix.max() == 1
    assert ((matrix.fill_diagonal_(0) > 0).sum(dim=1) <= 4).all()  # k = 4 keys
    assert (script.influence("Transformer", data) > 0).all()


def test_points_are_numbered_from_left_to_right(script):
    data = script.example()
    assert (data.pos[:, 0].diff() >= 0).all()
    assert data.is_undirected()
    assert torch.bincount(data.edge_index[0], minlength=data.num_nodes).min() > 0
