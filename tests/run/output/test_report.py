import math

import pytest

from pyg_topomask.run.output.progress import standard_output
from pyg_topomask.run.output.report import summarize, summary_table, write_curves, write_metrics


def result(seed, **metrics):
    more = {"best_epoch": 0, "epochs": 1, "num_parameters": 3, "wall_time_s": 1.0}
    return {"seed": seed, "metrics": metrics, "peak_memory_mib": 1.0, "peak_cuda_mib": None, **more}


def test_numbers_have_eight_digits_and_what_was_asked_for_comes_first():
    results = [result(i, test_f1=0.1, test_loss=2.0, val_ap=1 / (3 + i), test_ap=1e-9 / 3) for i in range(2)]
    summary = summarize("name", results, "ap", "GCN+GRF")
    assert list(summary["metrics"]) == ["test_loss", "val_ap", "test_ap", "test_f1"]
    assert summary["metrics"]["val_ap"] == {"mean": 0.29166667, "std": 0.058925565, "values": [0.33333333, 0.25]}
    assert summary["metrics"]["test_ap"]["values"] == [3.3333333e-10] * 2
    assert (summary["layer_type"], summary["mask"]) == ("GCN+GRF", None)


def test_a_summary_names_the_mask_and_fits_the_columns_of_a_pipe(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    results = [result(0, test_loss=2.0, test_accuracy=0.5)]
    standard_output().print(summary_table(summarize("long-name" * 9, results, "accuracy", "GCN+Masked", "heat")))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{'long-name' * 9} (GCN+Masked with topomask.mask heat): 1 seed, at the best validation epoch"
    standard_output().print(summary_table(summarize("name", [*results, result(1, test_loss=1.0)])))
    assert capsys.readouterr().out.startswith("name (): 2 seeds, mean ± standard deviation (n − 1), at the best")
    assert lines[-1] == "3 parameters, 1.0 s of training, 1 MiB peak memory"


def test_a_summary_shows_the_chosen_metric_of_each_target_in_order(capsys):
    each = {f"val_accuracy/{i}": i / 100 for i in range(12)}
    row = result(0, val_loss=2.0, val_accuracy=0.05, val_f1=0.5, **dict(sorted(each.items())))
    standard_output().print(summary_table(summarize("name", [row])))
    shown = [line.split()[1:6] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert shown[:2] == [["loss", "│", "–", "│", "2.0000"], ["accuracy", "(%)", "│", "–", "│"]]
    assert [(row[0], row[1]) for row in shown[2:]] == [(f"accuracy/{i}", "(%)") for i in range(12)]


def test_seeds_of_another_version_count_by_what_all_have():
    results = [result(0, test_loss=1.0, test_miou=0.5), result(1, test_loss=math.nan)]
    metrics = summarize("name", results)["metrics"]
    assert list(metrics) == ["test_loss"]
    assert math.isnan(metrics["test_loss"]["mean"])


def test_columns_are_those_of_all_epochs(tmp_path):
    rows = [{"epoch": 0, "val_loss": 1.0, "val_miou": 2.0}, {"epoch": 1, "val_loss": 3.0}]
    write_metrics(tmp_path / "metrics.csv", rows)
    assert (tmp_path / "metrics.csv").read_text() == "epoch,val_loss\n0,1\n1,3\n"


def test_curves_have_whole_epochs_and_a_name_with_dollar_signs_is_no_formula(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure
    made, savefig = [], figure.savefig
    monkeypatch.setattr(figure, "savefig", lambda self, *x, **more: made.append(self) or savefig(self, *x, **more))
    rows = [{"epoch": i, "train_loss": 1.0, "val_loss": 1.0, "val_ap": 0.5} for i in range(3)]
    write_curves(tmp_path / "curves.png", rows, 1, "a $b_$ c", "ap")
    assert all(tick == round(tick) for axes in made[0].axes for tick in axes.get_xticks())
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
