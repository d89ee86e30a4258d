"""The notebooks run from the first cell to the last, and store what they print and draw."""

import json

import pytest

pytest.importorskip("matplotlib").use("Agg")


def read(script, name):
    return json.loads((script.NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def kinds(notebook):
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[output["output_type"] for output in cell["outputs"]] for cell in cells]


def played(script, name, old="", new=""):
    """What a notebook defines; one line of it is another."""
    notebook = read(script, name)
    stored, places = kinds(notebook), [cell["source"] for cell in notebook["cells"] if old in cell["source"]]
    assert len(places) == (old != "")
    for lines in places:
        lines[lines.index(old)] = new
    names = script.run(notebook)
    assert kinds(notebook) == stored
    return names


def test_first_model(script, in_folder):
    settings = "num_graphs, num_train, num_epochs ="
    names = played(script, "first_model", f"{settings} 160, 128, 15\n", f"{settings} 6, 4, 2\n")
    assert [len(history) for history in names["histories"].values()] == [2, 2, 2]


def test_masks(script, in_folder):
    names = played(script, "masks")
    assert names["errors"][-1] < names["errors"][0]  # 256 walks and 4


def test_swap_one_word(script, in_folder):
    settings = "num_graphs, num_nodes, num_epochs ="
    names = played(script, "swap_one_word", f"{settings} 96, 64, 8\n", f"{settings} 8, 16, 1\n")
    assert len(names["rows"]) == 11
    hops, _, errors = zip(*names["rows"].values())
    assert all(0 < reach < 16 for reach in hops)
    assert all(error > 0 for error in errors)


def test_every_notebook_begins_with_what_it_needs(script):
    for path in script.NOTEBOOKS.glob("*.ipynb"):
        first = next(cell for cell in read(script, path.stem)["cells"] if cell["cell_type"] == "code")
        assert first["source"][0].startswith('%pip install -q "pyg_topomask[run]"')
