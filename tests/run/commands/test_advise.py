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


@pytest.mark.slow
def test_the_command_tries_attentions_in_processes_of_their_own(tiny_file, capsys):
    arguments = ["--attention", "GRF", "--attention", "none", "--seconds", "1", "--format", "json"]
    assert main(["advise", str(tiny_file), *arguments]) == 0
    rows = {row["attention"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"GRF", "none"}
    for row in rows.values():
        assert row["problem"] == ""
        assert row["prediction"]["epoch_s"] > 0
        assert row["prediction"]["step_mib"] is None or row["total_mib"] > row["prediction"]["step_mib"] >= 0
    assert rows["GRF"]["parameters"] > rows["none"]["parameters"]


def test_a_line_has_costs_or_a_problem(tiny_file, monkeypatch):
    """Trials run in this process, which spares the start of another."""
    monkeypatch.setattr(command, "in_process", lambda function, *arguments, **limits: run_trial(*arguments))
    shown = []
    monkeypatch.setattr(Job, "update", lambda job, done, note="": shown.append((job.title, done, note)))
    found = command.advise(str(tiny_file), ["Masked:toeplitz", "KMIP"], 0.01)
    assert shown[-2:] == [("attentions tried", 0, "now Masked:toeplitz"), ("attentions tried", 1, "now KMIP")]
    assert [one.candidate.name for one in found] == ["KMIP", "Masked:toeplitz"]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(command.as_text(found))
    lines = console.export_text().splitlines()
    assert any("│ KMIP " in line and line.count("–") == 1 for line in lines)  # it has no mask
    assert any("│ Masked:toeplitz │       – │" in line for line in lines)
    assert any(line.startswith("Masked:toeplitz: topomask.mask_toeplitz.grid_shape") for line in lines)


@pytest.mark.parametrize("given", ["none", "heat"])
def test_every_attention_and_mask_is_a_candidate(tiny, given):
    changes = [f"topomask.mask={given}"]
    found = {one.name: load(tiny, [*changes, *one.settings]).config for one in candidates(load(tiny, changes).config)}
    names = {"none", *ATTENTION, *(f"Masked:{mask}" for mask in MASK)}
    assert {*found} == names - {"Masked", "Masked:grf", "Masked:rwgnk"}
    for name, config in found.items():
        attention, _, mask = name.partition(":")
        assert config.gt.layer_type == f"GIN+{'None' if name == 'none' else attention}"
        assert attentions_of(config) == ([] if name == "none" else [attention])
        assert mask_of(config) == (mask or None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ENZYME"], "ENZYME"),
        (["nothing.yaml"], "nothing.yaml"),
        (["ENZYMES", "--attention", "KMP"], "Did you mean 'KMIP'"),  # of configs/grf/enzymes.yaml
        (["ENZYMES", "--seconds", "0"], "must be positive"),
        (["ENZYMES", "gt.layer=3"], "gt.layer"),
    ],
)
def test_wrong_arguments_are_refused_with_a_message(arguments, message, capsys):
    assert main(["advise", *arguments]) == 1
    assert message in capsys.readouterr().err
