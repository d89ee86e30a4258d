"""Raw files of TU data sets that do not fit each other are refused in one line that says what is wrong."""

import pytest

from pyg_topomask.run.config.dataset import DatasetConfig
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.errors import RunError

NODES, GRAPHS = 36, 12  # in the raw files of `tu_folder`


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_CACHE", str(tmp_path / "cache"))


def lines(*values):
    return "".join(f"{value}\n" for value in values)


def loaded(folder):
    return load_dataset(DatasetConfig(dir=str(folder), format="PyG-TUDataset", name="TINY"))


@pytest.mark.parametrize(
    ("part", "text", "message"),
    [
        ("graph_labels", lines(0, 1, 0), r"has 3 lines for 12 graphs; it needs one line for each"),
        ("graph_labels", lines(*[0, 1] * 6)[:-1], r"has 11 lines for 12 graphs; .* a line break after the last$"),
        ("graph_attributes", lines(*range(13)), "has 13 lines for 12 graphs"),
        ("node_labels", lines(*range(35)), "has 35 lines for 36 nodes"),
        ("node_attributes", lines(*["0.5, 2"] * 37), "has 37 lines for 36 nodes"),
        ("edge_labels", lines(1), "has 1 lines for 48 edges"),
        ("edge_attributes", "", "has 0 lines for 48 edges"),
        ("A", lines("1, 2", "1, 9999"), r"line 2: the edge \[1, 9999\] has a node that does not exist.* 1 to 36"),
        ("A", lines("9999, 1"), r"line 1: the edge \[9999, 1\] has a node that does not exist"),
        ("A", lines("1, 2", "2, 1", "0, 1"), r"line 3: the edge \[0, 1\] has a node that does not exist"),
        ("A", lines("1, 36"), r"line 1: the edge \[1, 36\] joins the graphs \[1, 12\]"),
        ("A", "", "lists no edge; PyG reads only data sets with edges"),
        ("graph_indicator", "", "lists no node; the file needs the number of its graph for each node"),
        ("graph_indicator", lines(*[1] * NODES), "all nodes are in one graph"),
        ("graph_indicator", lines(*range(NODES, 0, -1)), "must be sorted by graph"),
        ("graph_indicator", lines(*range(NODES)), "graphs are counted from 1"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tu_folder, part, text, message):
    path = tu_folder / "TUDataset" / "TINY" / "raw" / f"TINY_{part}.txt"
    path.write_text(text)
    with pytest.raises(RunError, match=message) as caught:
        loaded(tu_folder)
    assert str(caught.value).partition(":")[0].endswith(path.name) or f"{path.name}, line" in str(caught.value)
    assert "Delete" not in str(caught.value)


def test_other_files_are_not_read(tu_folder):
    (tu_folder / "TUDataset" / "TINY" / "raw" / "TINY_readme.txt").write_text("notes")
    assert len(loaded(tu_folder)) == GRAPHS
