import pytest
import yaml

from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.expressivity import measure
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.reading import read_data


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
        measure(read_data(path), "none")


def test_equal_graphs_are_not_distinguished(tiny, tu_folder, tmp_path):
    path = tmp_path / "paths.yaml"
    data = {"format": "PyG-TUDataset", "name": "TINY", "dir": str(tu_folder)}
    path.write_text(yaml.safe_dump({**tiny, "dataset": data}))
    report = measure(read_data(path), "lappe")
    assert (report.num_graphs, report.num_pairs) == (12, 66)
    assert report.apart_with == report.apart_without == 0
    assert report.classes_with == [list(range(12))]
