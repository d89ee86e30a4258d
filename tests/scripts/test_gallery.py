"""The gallery: the page in the documentation is what the script writes, and every mask is drawn."""

import importlib.util
import sys
from pathlib import Path

import matplotlib
import pytest

from pyg_topomask.nn import MASK

ROOT = Path(__file__).parents[2]
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "scripts" / "gallery.py")
    module = sys.modules["gallery"] = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gallery"]


def test_the_page_is_the_one_of_the_script_and_names_every_mask(gallery):
    assert (ROOT / "docs" / "masks.md").read_text(encoding="utf-8") == gallery.page()
    assert sorted(entry.name for entry in gallery.ENTRIES) == sorted(MASK)
    assert (ROOT / "docs" / "masks.png").read_bytes().startswith(b"\x89PNG")


def test_masks_are_drawn_on_the_graphs_that_they_are_for(gallery, monkeypatch):
    chosen = [entry for entry in gallery.ENTRIES if entry.name in ("toeplitz", "tree")]
    monkeypatch.setattr(gallery, "ENTRIES", chosen)
    figure = gallery.draw()
    drawn = [[len(panel.images) for panel in figure.axes[start : start + 10 : 2]] for start in (0, 10)]
    assert [entry.name for entry in chosen] == ["toeplitz", "tree"]
    assert drawn == [[1, 0, 1, 0, 0], [1, 1, 1, 1, 1]]
    matplotlib.pyplot.close(figure)
