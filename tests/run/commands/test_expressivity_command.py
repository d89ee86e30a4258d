import pytest
import yaml

from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.expressivity import measure
from pyg_topomask.run.errors import RunError


@pytest.mark.parametrize("encoding", ["none", "rwse", "lappe"])
def test_a_table_is_printed(tiny_file, capsys, encoding):
    assert main(["expressivity", str(tiny_file), "--encoding", encoding, "--limit", "12"]) == 0
    text = capsys.readouterr().out
    assert "tiny: 12 graphs" in text
    assert "distinguished by features" in text
    assert (f"distinguished by features and {encoding}" in text) == (encoding != "none")
    assert "upper bound" in " ".join(text.split())


def test_graphs_without_targets_of_their_own_are_refused_ahead_of_loading(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump({"dataset": {"format": "OGB", "name": "ogbn-arxiv"}}))
    with pytest.raises(RunError, match="the task is not about whole graphs"):
        measure(path)


DECALIN = [(i, (i + 1) % 10) for i in range(10)] + [(0, 5)]
BICYCLOPENTYL = [(s + i, s + (i + 1) % 5) for s in (0, 5) for i in range(5)] + [(0, 5)]


@pytest.fixture
def two_graphs(tiny, tmp_path):
    """Decalin and bicyclopentyl, which need a mask or an encoding to be distinguished."""
    raw = tmp_path / "data" / "TUDataset" / "TWO" / "raw"
    raw.mkdir(parents=True)
    edges = [(i + 10 * g, j + 10 * g) for g, edges in enumerate((DECALIN, BICYCLOPENTYL)) for i, j in edges]
    (raw / "TWO_A.txt").write_text("".join(f"{i + 1}, {j + 1}\n{j + 1}, {i + 1}\n" for i, j in edges))
    (raw / "TWO_graph_indicator.txt").write_text("1\n" * 10 + "2\n" * 10)
    (raw / "TWO_graph_labels.txt").write_text("0\n1\n")
    data = {"format": "PyG-TUDataset", "name": "TWO", "dir": str(tmp_path / "data")}
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump({**tiny, "dataset": data}))
    return path


@pytest.mark.parametrize(
    ("mask", "distinguished"),
    [
        ("none", 0),
        ("rwgnk", 1),
        ("grf", 1),
        ("heat", 1),
        ("rwgnk topomask.max_length=0", 0),
        ("heat --encoding rwse", 1),
    ],
)
def test_a_mask_can_distinguish_what_features_cannot(two_graphs, capsys, mask, distinguished):
    name, *more = mask.split()
    assert main(["expressivity", str(two_graphs), "--encoding", "none", "--mask", name, *more]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "distinguished by features 0 " in text
    encoding = ", rwse" if "rwse" in more else ""
    assert (f"distinguished by features{encoding} and mask {name} {distinguished} " in text) == (name != "none")
    assert (f"read the graph through mask {name}" in text) == (name != "none")


def test_equal_graphs_are_isomorphic_and_not_distinguished(tiny, tu_folder, tmp_path):
    path = tmp_path / "paths.yaml"
    data = {"format": "PyG-TUDataset", "name": "TINY", "dir": str(tu_folder)}
    path.write_text(yaml.safe_dump({**tiny, "dataset": data}))
    report = measure(path, "lappe")
    assert (report.num_graphs, report.num_pairs, report.isomorphic) == (12, 66, 66)
    assert report.apart_with == report.apart_without == 0
    assert report.classes_with == [list(range(12))]
