import json
import math

import pytest
import yaml
from rich.console import Console
from scipy import stats

from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.compare import compare, find_runs, tables
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.output.report import titled_table

FOLDS = {"split_mode": "cv-kfold-4"}
NEIGHBORS = {"train": {"sampler": "neighbor"}, "val": {"sampler": "neighbor"}}


@pytest.fixture
def make(tiny, tmp_path):
    """A function that writes a run with these accuracies, by seed from 0, and returns its folder."""

    def write(name, values, first=0, data=None, change=None, split_index=0, sizes=None, **more):
        """A seed has four epochs of two seconds each, and half of the accuracy in validation."""
        config = tiny | {"dataset": tiny["dataset"] | (data or {})} | (change or {})
        text = yaml.safe_dump(Config.model_validate(config).model_dump(mode="json"))
        for seed, value in enumerate(values, start=first):
            folder = tmp_path / name / str(seed)
            folder.mkdir(parents=True)
            (folder / "config.yaml").write_text(text)
            result = {"seed": seed, "split_index": split_index, "best_epoch": 0, "epochs": 4, "num_parameters": 12345}
            result |= {"metrics": {"val_accuracy": value / 2, "test_accuracy": value}, "wall_time_s": 8.0}
            result |= {"peak_memory_mib": 100.0 + seed, "peak_cuda_mib": None}
            result |= {"graphs_or_nodes": sizes or {"train": 3}} | more
            (folder / "result.json").write_text(json.dumps(result))
        return tmp_path / name

    return write


def compared(*folders, baseline=None):
    return compare(find_runs(folders, baseline))


def test_differences_are_paired_over_shared_seeds(make):
    left, right = [0.50, 0.70, 0.60, 0.90], [0.55, 0.77, 0.64]
    baseline, other = compared(make("a", left), make("b", right)).rows
    assert (baseline["name"], baseline["seeds"]) == ("a", 4)
    assert [baseline["val"][key] for key in ("shared", "difference", "low")] == [0, None, None]
    expected = stats.ttest_rel(right, left[:3]).confidence_interval(0.95)
    assert expected.low > 0  # the unpaired interval contains 0
    for part, scale in (("val", 0.5), ("test", 1)):
        found = other[part]
        assert found["shared"] == 3
        assert found["difference"] == pytest.approx(scale * (0.05 + 0.07 + 0.04) / 3)
        assert (found["low"], found["high"]) == pytest.approx((scale * expected.low, scale * expected.high))
        spread = math.sqrt(sum((x - sum(right) / 3) ** 2 for x in right) / 2)
        assert found["std"] == pytest.approx(scale * spread)
    costs = [other[key] for key in ("parameters", "seconds_per_epoch", "memory_mib", "cuda_mib")]
    assert costs == [12345, 2.0, 102.0, None]


def test_baseline_is_chosen_by_folder_and_comes_first(make):
    a, b, c = make("a", [0.5, 0.6]), make("b", [0.6, 0.8]), make("c", [0.7, 0.7])
    found = compared(a, b, a, baseline=b)
    assert [row["name"] for row in found.rows] == ["b", "a"]
    assert found.rows[1]["test"]["difference"] == pytest.approx(-0.15)
    added = compared(a, b, baseline=c)
    assert [row["name"] for row in added.rows] == ["c", "a", "b"]
    assert added.baseline == "c"


def test_what_has_no_interval(make):
    found = compared(make("a", [0.5, 0.6]) / "1", make("b", [0.8, 0.7]))
    assert [row["name"] for row in found.rows] == ["a/1", "b"]
    assert found.rows[1]["test"]["difference"] == pytest.approx(0.1)
    assert found.rows[1]["test"]["low"] is None
    assert found.notes == [
        "An interval needs at least 3 seeds that both runs have, whose differences are finite and not all equal.",
        "b: the difference is over the seeds that both runs have (1); means are over all seeds of a run.",
    ]
    equal, two, undefined = [0.5, 0.6, 0.7], [0.7, 0.6], [math.nan, 0.6, 0.7]
    _, *rows = compared(make("c", equal), make("d", equal), make("e", two), make("f", undefined)).rows
    assert [row["test"]["difference"] for row in rows] == [0, pytest.approx(0.1), pytest.approx(math.nan, nan_ok=True)]
    assert [row[part]["low"] for row in rows for part in ("val", "test")] == [None] * 6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"data": {"name": "grid"}}, "dataset.name is grid and circle"),
        ({"data": {"num_nodes": 14}}, "dataset.num_nodes is 14 and 12"),
        ({"data": {"split": [0.6, 0.2, 0.2]}}, "dataset.split is (0.6, 0.2, 0.2) and (0.8, 0.1, 0.1)"),
        ({"data": FOLDS}, "dataset.split_mode is cv-kfold-4 and random"),
        ({"data": {"split_seed": 3}}, "dataset.split_seed is 3 and None"),
        ({"change": NEIGHBORS}, "val.sampler is neighbor and full_batch"),
        ({"change": {"metric_best": "f1"}}, "metric_best is f1 and accuracy"),
        ({"split_index": 1}, "dataset.split_index is 1 and 0"),
        ({"sizes": {"train": 4}}, "the sets have 4 and 3 items"),
        ({"first": 2}, "the split is drawn from the seed, and they share no seed"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(make, capsys, change, reason):
    folders = make("a", [0.5, 0.6]), make("b", [0.5, 0.6], **change)
    assert main(["compare", *map(str, folders)]) == 1
    assert capsys.readouterr().err == f"error: {folders[1]} and {folders[0]} cannot be compared: {reason}\n"


PARTS = {"val": {"sampler": "random_partition"}}
ERRICA = {"format": "PyG-TUDataset", "name": "ENZYMES", "split_mode": "errica"}


def in_parts(count):
    return {"change": PARTS | {"train": {"sampler": "random_partition", "num_parts": count}}}


def by_walks(most):
    return {"change": {"val": {"sampler": "walks"}, "train": {"sampler": "walks", "max_nodes": most}}}


def of(data, **settings):
    return {"data": data | settings}


@pytest.mark.parametrize(
    ("first", "same", "other", "reason"),
    [
        (in_parts(3), in_parts(3), in_parts(4), r"train\.num_parts is 4 and 3"),
        (by_walks(8), by_walks(8), by_walks(9), r"train\.max_nodes is 9 and 8"),
        # Folds do not read a seed of 0, which is the default.
        (of(FOLDS, split_seed=None), of(FOLDS, split_seed=0), of(FOLDS, split_seed=1), r"split_seed is 1 and 0"),
        (of(ERRICA, split_dir="a"), of(ERRICA, split_dir="a"), of(ERRICA, split_dir="b"), r"split_dir is b and a"),
    ],
)
def test_keys_that_are_not_read_may_differ(make, first, same, other, reason):
    folders = [make(name, [0.5, 0.6], **more) for name, more in zip("abc", (first, same, other))]
    assert compared(*folders[:2]).rows[1]["test"]["shared"] == 2
    with pytest.raises(RunError, match=reason):
        compared(folders[0], folders[2])


def test_methods_and_other_seeds_of_a_fixed_split_may_differ(make, tiny):
    """The epoch may be chosen by the loss, while the table shows the accuracy."""
    fixed, loss = {"split_seed": 0}, {"metric_best": "loss"}
    other = {"gt": {**tiny["gt"], "layers": 3}, "optim": {**tiny["optim"], "base_lr": 0.1}}
    a, b = make("a", [0.5, 0.6], 0, fixed, loss), make("b", [0.7, 0.8], 5, fixed, other | loss)
    found = compared(a, b)
    assert (found.rows[1]["test"]["shared"], found.rows[1]["test"]["difference"]) == (0, None)
    assert found.metric == "accuracy"
    assert found.caption.startswith("Higher is better.")


def test_notes_tell_of_folds_and_unfinished_seeds(make):
    a, b = make("a", [0.5, 0.6, 0.7], data=FOLDS), make("b", [0.5, 0.8, 0.9, 0.9], data=FOLDS)
    (b / "3" / "result.json").unlink()
    found = compared(a, b)  # all seeds on fold 0
    assert found.rows[1]["seeds"] == 3
    assert found.notes == ["b: 1 unfinished seeds left out."]
    for path in (a / "1" / "result.json", b / "1" / "result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"split_index": 1}))
    found = compared(a, b)
    assert list(tables(found)[0])[1] == found.kind == "splits"
    assert found.notes == [
        "Folds share training graphs, so intervals over folds are too narrow.",
        "b: 1 unfinished splits left out.",
    ]


def test_tables_fit_into_80_columns_without_broken_headings(make, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["compare", str(make("a$_$[v2]", [0.5, 0.7, 0.6])), str(make("b|c", [0.65, 0.75, 0.76]))]
    assert main(arguments) == 0
    table = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in table if line.startswith("│ b|c")]
    assert rows[:2] == [
        "│ b|c │ 3 │ 36.00 ± 3.04 │ +6.00 │ −1.56 to +13.56 │",
        "│ b|c │ 72.00 ± 6.08 │ +12.00 │ −3.11 to +27.11 │",
    ]
    assert rows[2] == "│ b|c │ 12,345 │ 2.0 │ 102 │"
    assert all(any(word in line for line in table) for word in ("accuracy", "difference", "interval", "parameters"))
    assert any(line.startswith("│ a$_$[v2] │") for line in table)


def test_equal_names_have_their_folders_and_long_ones_break_between_words(make, tiny, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    longer = {"optim": tiny["optim"] | {"max_epoch": 6}}
    folders = make("grf/a-name_of_many-words-that-is-long", [0.5, 0.7, 0.6]), make("a/b", [0.5]), make("c/b", [0.6])
    assert compared(*folders[1:]).notes[1:] == []
    assert [row["name"] for row in compared(*folders[1:]).rows] == ["a/b", "c/b"]
    assert main(["compare", *map(str, (folders[0], make("gkat/b", [0.65, 0.75, 0.76], change=longer)))]) == 0
    text = capsys.readouterr().out
    assert [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│ ")][:3] == [
        "a-name_of_many-words-",
        "that-is-long",
        "b",
    ]
    assert "different numbers of epochs (optim.max_epoch): a-name_of_many-words-that-is-long 4, b 6." in " ".join(
        text.split()
    )


def test_a_word_that_is_wider_than_its_column_leaves_no_empty_line():
    with (console := Console(width=40)).capture() as captured:
        console.print(titled_table("runs", {"run": ["x" * 50]}, "caption"))
    assert captured.get().splitlines()[4:6] == [f"│ {'x' * 36} │", f"│ {'x' * 14:36} │"]
    assert captured.get().splitlines()[6].startswith("└")


def test_what_is_no_run_is_refused(make, tmp_path):
    a = make("a", [0.5])
    with pytest.raises(RunError, match="nothing is no folder; give a results folder"):
        find_runs([a, tmp_path / "nothing"])
    with pytest.raises(RunError, match="contains no finished run"):
        find_runs([tmp_path])
