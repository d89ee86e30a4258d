import json
import re
import shlex
import subprocess
import sys

import pytest

from pyg_topomask.run.cli import main
from pyg_topomask.run.output import progress
from pyg_topomask.run.training.lightning_module import GraphModule


def test_run_prints_a_table_and_succeeds(tiny_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", -1)  # a line without waiting, also within an epoch
    out = tmp_path / "out"
    assert main(["run", str(tiny_file), "optim.max_epoch", "2", "gt.layers=2", "--repeat", "2", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "test accuracy" in text
    assert "±" in text
    assert f"results: {out / 'tiny'}" in text
    assert "Traceback" not in text
    for line in (r"seed 0: 0/2  batch 1/3", r"seed 1: 0/2  validation batch 1/1", r"seed 1: 1/2  batch 3/3  loss \d.*"):
        assert re.search(rf"^tiny \(GIN\+GRF\) {line}$", text, re.MULTILINE)
    assert json.loads((out / "tiny" / "summary.json").read_text())["seeds"] == [0, 1]


REFUSED = [
    ("run CONFIG gt.layrs=2", r"command line: gt\.layrs: unknown key\. Did you mean 'gt\.layers'\?"),
    ("run CONFIG --repeat 0", r"from 1 to 10,000 runs are possible \(got 0\)"),
    ("run CONFIG --repeat 99999999999", r"from 1 to 10,000 runs are possible \(got 99999999999\)"),
    ("run CONFIG out_dir='\"a\\0b\"'", "the output folder a\0b/tiny cannot be written to: .*embedded null"),
    ("run ''", "the name of the config file is empty"),
    ("run a\0b.yaml", "null"),
    ("check ''", "cannot be read: Is a directory"),
    ("check CONFIG gt.layers=0", r"command line: gt\.layers"),
    ("check gt.layers=2", "needs a config file"),
    ("list convolution", r"Did you mean 'convolutions'\?"),
    ("advise ENZYME", r"'ENZYME' is neither a config file nor .*\. Did you mean 'enzymes'\?"),
    ("predict run --out .", r"--out must name a file \(got '\.'\)"),
    ("predict run --out FOLDER/new/", r"--out must name a file \(got '.*new/'\)"),
    ("show reach CONFIG --node 3", r"show reach does not read --node \(got 3\); leave it out"),
    ("show path CONFIG --head 0", r"show path does not read --head \(got 0\)"),
    ("show walks CONFIG --node 0", r"show walks does not read --node"),
    ("show path CONFIG --out FOLDER/path.png", "show path prints a table and draws nothing"),
    ("report FOLDER --out FOLDER/report.html", "contains no trained model"),
    ("partition FOLDER/none --parts 2 --out FOLDER/o", "does not exist"),
    ("partition FOLDER --parts 2 --out FOLDER/o", r"graph\.json does not exist"),
    ("advise ENZYME", "ENZYME"),
    ("advise nothing.yaml", r"nothing\.yaml"),
    ("advise ENZYMES --attention KMP", "Did you mean 'KMIP'"),  # of configs/grf/enzymes.yaml
    ("advise ENZYMES --seconds 0", "must be positive"),
    ("advise ENZYMES gt.layer=3", r"gt\.layer"),
    ("expressivity CONFIG --limit 1", r"--limit must be at least 2 \(got 1\)"),
    ("expressivity CONFIG --size 0", r"--size must be at least 1 \(got 0\)"),
    ("expressivity CONFIG --rounds -1", r"--rounds must be at least 0 \(got -1\)"),
    ("expressivity CONFIG dataset.nam=x", r"command line: dataset\.nam: unknown key"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_errors_are_one_message_without_traceback(tiny_file, tmp_path, capsys, line, message):
    words = shlex.split(line.replace("CONFIG", str(tiny_file)).replace("FOLDER", str(tmp_path)))
    assert main(words) == 1
    text = "".join(capsys.readouterr())
    assert text.startswith("error")
    assert re.search(message, text)
    assert "Traceback" not in text
    assert {*tmp_path.iterdir()} == {tiny_file.parent}


@pytest.mark.parametrize(
    ("step", "epoch", "words"),
    [
        ("training_step", 0, "starts this seed again"),
        ("training_step", 1, "resumes after epoch 1"),
        ("test_step", 4, "resumes after epoch 4"),
    ],
)
def test_an_interrupted_run_says_whether_it_resumes(tiny_file, tmp_path, capsys, monkeypatch, step, epoch, words):
    taken = getattr(GraphModule, step)

    def stop(self, *arguments):
        if self.current_epoch == epoch:
            raise KeyboardInterrupt
        return taken(self, *arguments)

    monkeypatch.setattr(GraphModule, step, stop)
    assert main(["run", str(tiny_file), "--out", str(tmp_path)]) == 130
    assert f"interrupted; the same command {words}" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run"], ["run", "a.yaml", "--fast"], ["check"]])
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_help_of_a_command_says_what_it_does(capsys):
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    assert "\nValidate configs and build their models, without data.\n" in capsys.readouterr().out


def test_check_tells_good_from_bad(tiny_file, capsys):
    assert main(["check", str(tiny_file.parent), "gt.layers=2"]) == 0
    bad = tiny_file.parent / "deeper" / "bad.yaml"
    bad.parent.mkdir()
    bad.write_text(tiny_file.read_text().replace("layer_type: GIN+GRF", "layer_type: GIN+GFR"))
    assert main(["check", str(tiny_file.parent)]) == 1
    text = capsys.readouterr().out
    assert f"ok     {tiny_file}" in text
    assert f"error  {bad}" in text
    assert "Did you mean 'GRF'" in text


@pytest.mark.slow
def test_all_configs_pass_the_check(pytestconfig, capsys):
    configs = sorted((pytestconfig.rootpath / "configs").rglob("*.yaml"))
    assert configs
    assert main(["check", *map(str, configs)]) == 0


def program(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_missing_extra_is_named():
    code = "from pyg_topomask.run.cli import main; sys.exit(main(['run', 'x']))"
    done = program("-c", f"import sys; sys.modules['lightning'] = None; {code}")
    assert done.returncode == 1
    assert "pip install 'pyg_topomask[run]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_module_is_the_program():
    done = program("-X", "importtime", "-m", "pyg_topomask", "--version")
    assert done.returncode == 0
    assert "torch" not in done.stderr  # the help and the version take no seconds
    assert done.stdout.startswith("pyg_topomask ")
