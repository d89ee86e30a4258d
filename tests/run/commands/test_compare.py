import csv
import io
import json
import math

import matplotlib
import pytest
import yaml
from rich.console import Console
from scipy import stats

from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.compare import TIME, compare, find_runs, picture
from pyg_topomask.run.config import Config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.output.comparison import as_csv, as_text, columns
from pyg_topomask.run.runner import check_config, run_config

matplotlib.use("Agg")


def write_seed(folder, config, accuracy, seed=0, split_index=0, sizes=None, **more):
    """Files of a finished seed of four epochs; one epoch takes two seconds."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(Config.model_validate(config).model_dump(mode="json")))
    result = {"seed": seed, "split_index": split_index, "metrics": {"val_accuracy": 0.5, "test_accuracy": accuracy}}
    result |= {"best_epoch": 0, "epochs": 4, "num_parameters": 12345, "wall_time_s": 8.0}
    result |= {"peak_memory_mib": 100.0 + seed, "peak_cuda_mib": None, "graphs_or_nodes": sizes or {"train": 3}} | more
    (folder / "result.json").write_text(json.dumps(result))
    lines = [f"{epoch},{0.1 * epoch + 0.01 * seed}" for epoch in range(4)]
    (folder / "metrics.csv").write_text("\n".join(["epoch,val_accuracy", *lines]) + "\n")


@pytest.fixture
def make(tiny, tmp_path):
    """A function that writes a run with these accuracies, by seed from 0, and returns its folder."""

    def write(name, values, first=0, change=None, **more):
        config = {**tiny, **(change or {})}
        config["dataset"] = {**tiny["dataset"], **(change or {}).get("dataset", {})}
        for seed, value in enumerate(values, start=first):
            write_seed(tmp_path / name / str(seed), config, value, seed, **more)
        return tmp_path / name

    return write


def compared(*folders, baseline=None):
    return compare(*find_runs(folders, baseline))


def test_differences_are_paired_over_shared_seeds(make):
    left, right = [0.50, 0.70, 0.60, 0.90], [0.55, 0.77, 0.64]
    baseline, other = compared(make("a", left), make("b", right)).rows
    assert (baseline.name, baseline.seeds, baseline.shared, baseline.difference) == ("a", 4, 0, None)
    assert other.shared == 3
    assert other.difference == pytest.approx((0.05 + 0.07 + 0.04) / 3)
    expected = stats.ttest_rel(right, left[:3]).confidence_interval(0.95)
    assert (other.low, other.high) == pytest.approx(tuple(expected))
    assert other.low > 0  # the unpaired interval contains 0
    assert other.std == pytest.approx(math.sqrt(sum((x - sum(right) / 3) ** 2 for x in right) / 3))
    assert (other.parameters, other.seconds_per_epoch, other.memory_mib, other.cuda_mib) == (12345, 2.0, 102.0, None)


def test_baseline_is_chosen_by_name_or_folder_and_added_if_it_is_missing(make):
    a, b, c = make("a", [0.5, 0.6]), make("b", [0.6, 0.8]), make("c", [0.7, 0.7])
    assert compared(a, b, baseline="b").rows[0].difference == pytest.approx(-0.15)
    assert compared(a, b, a, baseline=b).baseline == "b"
    added = compared(a, b, baseline=c)
    assert [row.name for row in added.rows] == ["c", "a", "b"]
    assert added.baseline == "c"


def test_one_shared_seed_has_a_difference_without_interval(make):
    found = compared(make("a", [0.5, 0.6]) / "1", make("b", [0.8, 0.7]))
    assert [row.name for row in found.rows] == ["a/1", "b"]
    assert found.rows[1].difference == pytest.approx(0.1)
    assert found.rows[1].low is None
    assert "at least two seeds" in found.notes[0]


def test_a_seed_in_two_folders_is_refused(make, tmp_path):
    folder = make("a", [0.5, 0.6])
    (folder / "1-split0").mkdir()
    for name in ("config.yaml", "result.json"):
        (folder / "1-split0" / name).write_bytes((folder / "1" / name).read_bytes())
    with pytest.raises(RunError, match="contains a seed twice"):
        compared(folder)


def test_sizes_of_another_kind_are_damage(make):
    folder = make("a", [0.5], graphs_or_nodes=5)
    with pytest.raises(RunError, match=r"is damaged \(graphs_or_nodes"):
        compared(folder)


def test_equal_runs_and_missing_scores_have_no_warning(make):
    found = compared(make("a", [0.5, 0.6]), make("b", [0.5, 0.6]), make("c", [math.nan, 0.6]))
    assert (found.rows[1].difference, found.rows[1].low, found.rows[1].high) == (0, None, None)
    assert "Without an interval" in found.notes[0]
    assert math.isnan(found.rows[2].difference)
    assert found.rows[2].low is None


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        ({"dataset": {"name": "grid"}}, {}, "data set (dataset.name is grid and circle)"),
        ({"dataset": {"num_nodes": 14}}, {}, "data set (dataset.num_nodes is 14 and 12)"),
        ({"dataset": {"split": [0.6, 0.2, 0.2]}}, {}, "split (dataset.split is (0.6, 0.2, 0.2) and (0.8, 0.1, 0.1))"),
        ({"dataset": {"split_mode": "cv-kfold-4"}}, {}, "split (dataset.split_mode is cv-kfold-4 and random)"),
        ({"dataset": {"split_seed": 3}}, {}, "split (dataset.split_seed is 3 and None)"),
        (
            {"train": {"sampler": "neighbor"}, "val": {"sampler": "neighbor"}},
            {},
            "evaluation (val.sampler is neighbor and full_batch)",
        ),
        ({"metric_best": "f1"}, {}, "metric (metric_best is f1 and accuracy)"),
        ({}, {"split_index": 1}, "split (dataset.split_index is 1 and 0)"),
        ({}, {"sizes": {"train": 4}}, "split (the sets have 4 and 3 items)"),
        ({}, {"first": 2}, "split (it is drawn from the seed, and they share no seed)"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(make, capsys, change, more, reason):
    folders = make("a", [0.5, 0.6]), make("b", [0.5, 0.6], change=change, **more)
    assert main(["compare", *map(str, folders)]) == 1
    error = capsys.readouterr().err
    assert error == f"error: {folders[1]} and {folders[0]} cannot be compared: they differ in the {reason}\n"


def test_folds_from_other_folders_are_not_compared(make):
    folds = [{"format": "PyG-TUDataset", "name": "ENZYMES", "split_mode": "errica", "split_dir": name} for name in "ab"]
    first, second = (make(fold["split_dir"], [0.5, 0.6], change={"dataset": fold}) for fold in folds)
    with pytest.raises(RunError, match=r"split \(dataset\.split_dir is b and a\)"):
        compared(first, second)


def test_evaluations_on_other_numbers_of_parts_are_not_compared(make):
    parts = [{"sampler": "random_partition", "num_parts": count} for count in (3, 4, 4)]
    changes = [{"train": train, "val": {"sampler": "random_partition"}} for train in parts]
    three, four, again = (make(name, [0.5, 0.6], change=change) for name, change in zip("abc", changes))
    with pytest.raises(RunError, match=r"evaluation \(train\.num_parts is 4 and 3\)"):
        compared(three, four)
    assert len(compared(four, again).rows) == 2


def test_methods_and_other_seeds_of_a_fixed_split_may_differ(make, tiny):
    fixed = {"dataset": {"split_seed": 0}}
    other = {**fixed, "gt": {**tiny["gt"], "layers": 3}, "optim": {**tiny["optim"], "base_lr": 0.1}}
    found = compared(make("a", [0.5, 0.6], change=fixed), make("b", [0.7, 0.8], first=5, change=other))
    assert found.rows[1].shared == 0
    assert found.rows[1].difference is None


def test_keys_that_the_split_does_not_read_may_differ(make):
    folds = [{"split_mode": "cv-kfold-4", "split_seed": seed} for seed in (None, 0, 1)]
    first, same, other = (make(name, [0.5, 0.6], change={"dataset": data}) for name, data in zip("abc", folds))
    assert compared(first, same).rows[1].shared == 2
    with pytest.raises(RunError, match=r"split \(dataset\.split_seed is 1 and 0\)"):
        compared(first, other)


def test_the_direction_is_that_of_the_metric_in_the_table(make):
    """The epoch may be chosen by the loss, while the table shows the accuracy."""
    found = compared(*(make(name, [0.5, 0.6], change={"metric_best": "loss"}) for name in "ab"))
    assert (found.metric, found.best_is_max) == ("accuracy", True)


def test_notes_tell_of_folds_and_unfinished_seeds(make):
    folds = {"dataset": {"split_mode": "cv-kfold-4"}}
    a, b = make("a", [0.5, 0.6], change=folds), make("b", [0.5, 0.8, 0.9], change=folds)
    (b / "2" / "result.json").unlink()
    found = compared(a, b)  # all seeds on fold 0
    assert found.rows[1].seeds == 2
    assert found.notes == ["b: 1 unfinished seed is left out."]
    for path in (a / "1" / "result.json", b / "1" / "result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"split_index": 1}))
    found = compared(a, b)
    assert list(columns(found))[1] == found.kind == "splits"
    assert found.notes == [
        "Folds share training graphs, so intervals over folds are too narrow.",
        "b: 1 unfinished split is left out.",
    ]


def test_formats_and_picture(make, tmp_path, capsys):
    arguments = ["compare", str(make("a$_$[v2]", [0.5, 0.7])), str(make("b|c", [0.65, 0.75]))]
    out = tmp_path / "new" / "time.png"
    assert main([*arguments, "--format", "markdown", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert r"| b\|c | 2 | 70.00 ± 5.00 | +10.00 | −53.53 to +73.53 | 12,345 | 2.0 | 101 |" in shown.out.splitlines()
    assert shown.err == f"wrote {out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")
    assert main(arguments) == 0
    assert "│ a$_$[v2] │" in capsys.readouterr().out
    assert main([*arguments, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["name"], row["mean"], row["difference"], row["low"]) for row in rows] == [
        ("a$_$[v2]", "0.6", "", ""),
        ("b|c", "0.7", "0.1", "-0.53531024"),
    ]


def test_a_narrow_terminal_gets_two_tables(make):
    found = compared(make("a", [0.5, 0.7]), make("b", [0.65, 0.75]))
    for width, count in ((80, 2), (140, 1)):
        console = Console(width=width, file=io.StringIO())
        console.print(as_text(found, console))
        lines = console.file.getvalue().splitlines()
        assert sum("run" in line.split() for line in [line.replace("┃", " ") for line in lines]) == count
        assert max(map(len, lines)) <= width
        assert any("−53.53 to +73.53" in line for line in lines)


def test_picture_has_a_line_for_each_run_by_seconds(make):
    runs, position = find_runs([make("a", [0.5, 0.7]), make("b", [0.6])])
    (axes,) = picture(runs, compare(runs, position)).axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert axes.lines[0].get_xdata().tolist() == [2, 4, 6, 8]
    assert axes.lines[0].get_ydata() == pytest.approx([0.5, 10.5, 20.5, 30.5])
    assert (axes.get_xlabel(), axes.get_ylabel()) == (TIME, "validation accuracy (%)")
    matplotlib.pyplot.close("all")


def test_a_config_means_its_results(tiny, tiny_file, tmp_path):
    tiny |= {"out_dir": str(tmp_path / "out"), "optim": {"max_epoch": 1}}
    tiny_file.write_text(yaml.safe_dump(tiny))
    with pytest.raises(RunError, match=r"tiny\.yaml has no results"):
        find_runs([tiny_file])
    summary = run_config(tiny_file, repeat=2)
    ((run,), _) = find_runs([tiny_file])
    (row,) = compare([run]).rows
    assert (row.name, row.seeds) == ("tiny", 2)
    assert row.mean == pytest.approx(summary["metrics"]["test_accuracy"]["mean"])
    assert row.std == pytest.approx(summary["metrics"]["test_accuracy"]["std"])
    assert "difference" not in as_csv(compare([run])).splitlines()[1]
    tiny["gt"]["layers"] = 2
    tiny_file.write_text(yaml.safe_dump(tiny))
    check_config(tiny_file)
    with pytest.raises(RunError, match=r"a run of another tiny\.yaml \(gt\.layers is 1 there and 2 here\)"):
        find_runs([tiny_file])


def test_what_is_no_run_is_refused(make, tmp_path):
    a = make("a", [0.5])
    with pytest.raises(RunError, match="nothing does not exist; give a results folder"):
        find_runs([a, tmp_path / "nothing"])
    with pytest.raises(RunError, match="contains no finished run"):
        find_runs([tmp_path])
    (a / "0" / "metrics.csv").write_text("epoch,val_accuracy\n0,high\n")
    runs, _ = find_runs([a])
    with pytest.raises(RunError, match=r"metrics\.csv is damaged \(ValueError"):
        picture(runs, compare(runs))
    (a / "0" / "metrics.csv").write_text("val_accuracy\n0.5\n")
    with pytest.raises(RunError, match="there is no column 'epoch'"):
        picture(runs, compare(runs))
