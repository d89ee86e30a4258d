"""The gallery: the pages in the documentation are what the script writes, and masks are drawn."""

from pathlib import Path

import matplotlib

ROOT = Path(__file__).parents[2]


def test_the_pages_are_those_of_the_script(script):
    assert all(path.read_text(encoding="utf-8") == text for path, text in script.written().items())
    assert (ROOT / "docs" / "masks.png").read_bytes().startswith(b"\x89PNG")


def test_masks_are_drawn_on_the_graphs_that_they_are_for(script):
    figure = script.draw(["toeplitz", "tree"])
    drawn = [[len(panel.images) for panel in figure.axes[start : start + 10 : 2]] for start in (0, 10)]
    assert drawn == [[1, 0, 1, 0, 0], [1, 1, 1, 1, 1]]
    matplotlib.pyplot.close(figure)
