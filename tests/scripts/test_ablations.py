"""The ablations: every setting exists, a trial writes the table, and finished runs are kept."""

import importlib

import pytest

from pyg_topomask.run import check_config

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("dataset", ["enzymes", "proteins", "peptides-func"])
def test_every_row_is_a_config(script, dataset):
    """Epochs and data are those of all rows, and only one row of a method has its config as it is."""
    for name, method in script.METHODS.items():
        found = {}
        for row in method.rows:
            settings = script.settings_of(dataset, name, row, 1, 10)
            config = check_config(script.CONFIGS / method.folder / f"{dataset}.yaml", settings)[0].config
            assert (config.optim.max_epoch, config.seed) == (10, 1)
            assert config.dataset.split_mode == ("random" if dataset == "peptides-func" else "errica")
            found[row] = config
        folders = {config.name_tag for config in found.values()}
        assert len(folders) == len(method.rows)
        if name == "Primphormer":
            assert [found[row].topomask.eta for row in ("eta 0.1, rank 30", "eta 0", "eta 1")] == [0.1, 0, 1]
            assert found["rank 50"].topomask.rank == 50
        if name == "k-MIP":
            assert [found[f"k = {k}"].gt.sparse.k for k in (1, 5, 15)] == [1, 5, 15]
            assert found["all keys"].gt.sparse.k == script.DATASETS[dataset].most_nodes
        if name == "GKAT":
            assert [found[f"{k} features"].topomask.num_features for k in (4, 16, 64)] == [4, 16, 64]
            assert [found[row].topomask.max_length for row in ("1 hop", "2 hops", "6 hops")] == [1, 2, 6]


def test_data_that_are_missing_are_left_out(script, tmp_path, monkeypatch, capsys):
    folds = importlib.import_module("_folds")

    def run_once(path, out, overrides, metric):
        if path.stem in missing:
            raise folds.MissingDataError("the raw files are nowhere")
        return {"val": 0.5, "test": 0.5, "seconds": 1.0, "parameters": 99}

    monkeypatch.setattr(script, "run_once", run_once)
    both = ["--quick", "--datasets", "enzymes", "proteins", "--methods", "k-MIP", "--out", str(tmp_path)]
    missing = ["enzymes"]
    script.COMPARISON.main(both)
    assert "enzymes is left out: the raw files are nowhere" in capsys.readouterr().out
    assert "| proteins | k-MIP | all keys |" in (tmp_path / "quick/ablations.md").read_text()
    missing.append("proteins")
    with pytest.raises(folds.RunError, match="nothing was run, because no data set was found"):
        script.COMPARISON.main([*both[:-1], str(tmp_path / "other")])
