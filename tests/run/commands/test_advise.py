import io
import json

import pytest
from rich.console import Console

from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.run.advise.candidates import candidates
from pyg_topomask.run.advise.trial import run_trial
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands import advise as command
from pyg_topomask.run.config.load import load
from pyg_topomask.run.model.attentions import attentions_of, mask_of
from pyg_topomask.run.output.progress import Job


@pytest.fixture
def here(monkeypatch):
    """Trials in this process, which spares the start of another."""
    monkeypatch.setattr(command, "in_process", lambda function, *arguments, **limits: run_trial(*arguments))


def test_the_command_tries_attentions_in_processes_of_their_own(tiny_file, capsys):
    arguments = ["--attention", "GRF", "--attention", "none", "--seconds", "1", "--format", "json"]
    assert main(["advise", str(tiny_file), *arguments]) == 0
    rows = {row["attention"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"GRF", "none"}
    for row in rows.values():
        assert row["is_full"]
        assert row["problem"] == ""
        assert row["prediction"]["epoch_s"] > 0
        assert row["prediction"]["step_mib"] is None or row["total_mib"] > row["prediction"]["step_mib"] >= 0
    assert rows["GRF"]["parameters"] > rows["none"]["parameters"]


def test_a_line_has_costs_or_a_problem(tiny_file, here):
    found = command.advise(str(tiny_file), ["Masked:toeplitz", "KMIP"], 0.01)
    assert [one.candidate.name for one in found] == ["KMIP", "Masked:toeplitz"]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(command.as_text(found))
    lines = console.export_text().splitlines()
    assert any("│ KMIP " in line and "s │" in line for line in lines)
    assert any("│ Masked:toeplitz │         – │" in line for line in lines)
    assert any(line.startswith("Masked:toeplitz: topomask.mask_toeplitz.grid_shape") for line in lines)


def test_progress_names_the_attention_that_runs(tiny_file, here, monkeypatch):
    shown = []
    monkeypatch.setattr(Job, "update", lambda job, done, note="": shown.append((job.title, done, note)))
    command.advise(str(tiny_file), ["GRF", "KMIP"], 0.01)
    assert shown[-2:] == [("attentions tried", 0, "now GRF"), ("attentions tried", 1, "now KMIP")]


@pytest.mark.parametrize("given", ["none", "heat"])
def test_every_attention_and_mask_is_a_candidate(tiny, given):
    changes = [f"topomask.mask={given}"]
    found = {one.name: load(tiny, [*changes, *one.settings]).config for one in candidates(load(tiny, changes).config)}
    assert {*found} == {"none", *ATTENTION, *(f"Masked:{mask}" for mask in MASK)} - {
        "Masked",
        "Masked:grf",
        "Masked:rwgnk",
    }
    for name, config in found.items():
        attention, _, mask = name.partition(":")
        assert config.gt.layer_type == f"GIN+{'None' if name == 'none' else attention}"
        assert attentions_of(config) == ([] if name == "none" else [attention])
        assert mask_of(config) == (mask or None)


def test_the_name_of_a_data_set_gives_its_config(monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(command, "check_config", lambda source, overrides: seen.append(source) or 1 / 0)
    for source in ("ENZYMES", "configs/full/zinc.yaml"):
        with pytest.raises(ZeroDivisionError):
            command.advise(source)
    assert str(seen[0]).endswith("configs/grf/enzymes.yaml")
    assert seen[1] == "configs/full/zinc.yaml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ENZYME"], "ENZYME"),
        (["nothing.yaml"], "nothing.yaml"),
        (["ENZYMES", "--attention", "KMP"], "Did you mean 'KMIP'"),
        (["ENZYMES", "--seconds", "0"], "must be positive"),
        (["ENZYMES", "gt.layer=3"], "gt.layer"),
    ],
)
def test_wrong_arguments_are_refused_with_a_message(arguments, message, capsys):
    assert main(["advise", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0042, "4.2 ms"), (0.5, "500 ms"), (3.25, "3.2 s"), (600, "10 min"), (36_000, "10 h")]
)
def test_durations_have_two_digits(seconds, text):
    assert command._duration(seconds) == text
