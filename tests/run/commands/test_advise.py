import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from pyg_topomask.nn import ATTENTION, MASK
from pyg_topomask.run.advise import candidates as names
from pyg_topomask.run.advise.candidates import candidates, config_of
from pyg_topomask.run.advise.trial import run_trial
from pyg_topomask.run.cli import main
from pyg_topomask.run.commands import advise as command
from pyg_topomask.run.config.load import load
from pyg_topomask.run.model.attentions import mask_of
from pyg_topomask.run.output.advice import as_text, duration
from pyg_topomask.run.output.progress import Job
from pyg_topomask.run.runner import check_config


@pytest.fixture
def here(monkeypatch):
    """Trials in this process, which spares the start of another."""
    monkeypatch.setattr(command, "in_process", lambda function, *arguments, timeout: run_trial(*arguments))


def test_the_command_tries_attentions_in_processes_of_their_own(tiny_file, capsys):
    arguments = ["--attention", "GRF", "--seconds", "1", "--format", "json"]
    assert main(["advise", str(tiny_file), *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["attention"] for row in report["attentions"]} == {"GRF"}
    assert all(row["status"] == "fits" and row["prediction"]["epoch"]["wall"] > 0 for row in report["attentions"])
    assert report["graphs"]["num_graphs"] == 48
    assert {row["name"] for row in report["encodings"]} == {"features", "RWSE", "LapPE", "grf"}


def test_text_has_a_reason_and_a_setting_in_each_line(tiny_file, here):
    report = command.advise(str(tiny_file), ["KMIP", "GRF", "Masked:toeplitz"], 0.01)
    console = Console(width=500, record=True, file=io.StringIO())
    console.print(as_text(report, console))
    text = console.export_text()
    shown = [row.candidate.name for row in report.advice]
    lines = {name: next(line for line in text.splitlines() if f"│ {name} " in line) for name in shown}
    assert "keeps the k best" in lines["KMIP"]
    assert "gt.layer_type=GIN+KMIP" in lines["KMIP"]
    assert "as the config is" in lines["GRF"]
    assert "not usable" in lines["Masked:toeplitz"]
    assert "grid" in lines["Masked:toeplitz"]
    assert "of width 8 with batches of" in text
    narrow = Console(width=80, record=True, file=io.StringIO())
    narrow.print(as_text(report, narrow), crop=False)
    assert max(len(line) for line in narrow.export_text().splitlines() if "=" not in line) <= 80
    single = replace(report, graphs=replace(report.graphs, num_graphs=1, node_features=1433))
    console.print(as_text(single, console))
    text = console.export_text()
    assert "1,433 per node" in text
    assert "of width 8 on this machine" in text  # one graph has no batches


@pytest.mark.parametrize("width", [60, 80, 110, 140])
def test_settings_are_one_line_at_any_width(tiny_file, here, width):
    report = command.advise(str(tiny_file), ["GRF", "Masked:power_series"], 0.01)
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(as_text(report, console), crop=False)
    text = console.export_text()
    rows = [row.candidate.settings for row in report.advice] + [row.settings for row in report.encodings]
    wanted = [" ".join(settings) for settings in rows if settings]
    assert max(map(len, wanted)) > 80
    assert all(settings in text for settings in wanted)
    others = [line for line in text.splitlines() if not any(settings in line for settings in wanted)]
    assert max(map(len, others)) <= width


def test_progress_names_the_attention_that_runs(tiny_file, here, monkeypatch):
    shown = []
    monkeypatch.setattr(Job, "update", lambda job, done, note="": shown.append((job.title, done, note)))
    command.advise(str(tiny_file), ["GRF", "KMIP"], 0.01)
    assert shown[-2:] == [("attentions tried", 0, "now GRF"), ("attentions tried", 1, "now KMIP")]


def test_every_attention_and_mask_is_a_candidate(tiny):
    config = load(tiny).config
    found = candidates(config)
    assert {one.attention for one in found} == {"", *ATTENTION}
    assert {one.mask for one in found} - {None} == set(MASK) - {"grf", "rwgnk"}
    for one in found:
        assert load(tiny, one.settings).config.gt.layer_type.startswith("GIN+")


@pytest.mark.parametrize("mask", ["none", "heat"])
def test_a_candidate_has_its_own_mask_and_not_the_configs(tiny, mask):
    given = [f"topomask.mask={mask}"]
    for one in candidates(load(tiny, given).config):
        assert mask_of(load(tiny, [*given, *one.settings]).config) == one.mask, one.name


def test_names_of_data_sets_give_configs(monkeypatch, tmp_path):
    source, text = config_of("ENZYMES")
    assert str(source).endswith("grf/enzymes.yaml")
    assert text.startswith("config ")
    monkeypatch.setattr(names, "CONFIGS", (tmp_path,))
    for name in ("Cora", "peptides-struct", "ogbg-molhiv", "roman-empire", "Actor", "AQSOL", "ZINC"):
        values, text = config_of(name)
        assert "minimal" in text
        check_config(values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ENZYME"], "Did you mean 'enzymes'"),
        (["nothing.yaml"], "nothing.yaml"),
        (["ENZYMES", "--attention", "KMP"], "Did you mean 'KMIP'"),
        (["ENZYMES", "--seconds", "0"], "must be positive"),
        (["ENZYMES", "gt.layer=3"], "gt.layer"),
    ],
)
def test_wrong_arguments_are_refused_with_a_message(arguments, message, capsys):
    assert main(["advise", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["NOPE", "none", "all", "subset"])
def test_only_data_sets_with_a_close_name_are_suggested(name, capsys):
    assert main(["advise", name]) == 1
    message = capsys.readouterr().err
    assert "is neither a config file nor a data set with a known name" in message
    assert "Did you mean" not in message


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0042, "4.2 ms"), (0.5, "500 ms"), (3.25, "3.2 s"), (600, "10 min"), (36_000, "10 h")]
)
def test_durations_have_two_digits(seconds, text):
    assert duration(seconds) == text
