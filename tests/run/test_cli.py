import json
import subprocess
import sys

import pytest

from pyg_topomask.run.cli import main


@pytest.fixture
def config(tiny_file):
    return tiny_file


def test_run_prints_a_table_and_succeeds(config, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["run", str(config), "optim.max_epoch", "2", "gt.layers=2", "--repeat", "2", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "test accuracy" in text
    assert "±" in text
    assert f"results: {out / 'tiny'}" in text
    assert "Traceback" not in text
    assert json.loads((out / "tiny" / "summary.json").read_text())["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gt.layrs=2"], "command line: gt.layrs: unknown key. Did you mean 'gt.layers'?"),
        (["--repeat", "0"], "at least one run is needed (got 0)"),
    ],
)
def test_errors_are_one_message_without_traceback(config, tmp_path, capsys, arguments, message):
    assert main(["run", str(config), "--out", str(tmp_path / "out"), *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run"], ["run", "a.yaml", "--fast"], ["check"]])
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_check_tells_good_from_bad(config, tmp_path, capsys):
    assert main(["check", str(config.parent)]) == 0
    bad = config.parent / "deeper" / "bad.yaml"
    bad.parent.mkdir()
    bad.write_text(config.read_text().replace("layer_type: GIN+GRF", "layer_type: GIN+GFR"))
    assert main(["check", str(config.parent)]) == 1
    text = capsys.readouterr().out
    assert f"ok     {config}" in text
    assert f"error  {bad}" in text
    assert "Did you mean 'GRF'" in text
    assert main(["check", str(bad)]) == 1


@pytest.mark.slow
def test_all_configs_pass_the_check(pytestconfig, capsys):
    configs = sorted((pytestconfig.rootpath / "configs").rglob("*.yaml"))
    assert configs
    assert main(["check", *map(str, configs)]) == 0


@pytest.mark.slow
def test_missing_extra_is_named():
    code = (
        "import sys; sys.modules['lightning'] = None\n"
        "from pyg_topomask.run.cli import main; sys.exit(main(['check', 'x']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'pyg_topomask[run]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_module_is_the_program():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pyg_topomask", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "torch" not in done.stderr  # the help and the version take no seconds
    assert done.stdout.startswith("pyg_topomask ")
