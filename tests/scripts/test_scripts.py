"""The shell scripts, in a copy of the repository, with a Python whose pip and pytest only write down their calls."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PYTEST = "pytest -n 2 --dist worksteal"
FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
    "-m pip --version") exec "$REAL" -m pip --version ;;
    "-m pip "*)
        echo "pip ${*: -2}" >>"$CALLS"
        [ -z "${PIP_SAYS:-}" ] || { echo "$PIP_SAYS"; exit 1; }
        case "$*" in *sparse*) echo "${CPPFLAGS:-}" >"$PREFIX/compiled" ;; esac ;;
    "-m pytest"*)
        echo "pytest ${*:3}" >>"$CALLS"
        case "$*" in *"-m sparse") exit "${SPARSE_CODE:-0}" ;; *) exit "${PYTEST_CODE:-0}" ;; esac ;;
    "-m "*) echo "$2 ${*:3}" >>"$CALLS" ;;
    *demo.py*) echo "demo ${*:2}" >>"$CALLS" ;;
    *"import torch_scatter"*) [ -e "$PREFIX/compiled" ] ;;
    *"version('torch')"*) [ -n "${NO_TORCH:-}" ] && exit 1 || exec "$REAL" "$@" ;;
    *sys.prefix*) echo "$PREFIX" ;;
    *) exec "$REAL" "$@" ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """``run(script, *arguments, **environment) -> (exit code, output, calls)`` in a fresh copy with one environment."""
    if shutil.which("bash") is None:
        pytest.skip("bash is missing")
    root, prefix, calls = tmp_path / "a copy", tmp_path / "env", tmp_path / "calls"
    prefix.mkdir()
    shutil.copytree(ROOT / "scripts", root / "scripts")
    shutil.copytree(ROOT / ".ci", root / ".ci")
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "tests" / "ops").mkdir(parents=True)
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    own = ("CI", "VIRTUAL_ENV", "CONDA_PREFIX", "TOPOMASK_PYTHON")
    inherited = {k: v for k, v in os.environ.items() if k not in own}

    def call(script, *arguments, **environment):
        calls.write_text("")
        settings = {"REAL": sys.executable, "PREFIX": prefix, "CALLS": calls, "TOPOMASK_PYTHON": fake, **environment}
        variables = inherited | {k: str(v) for k, v in settings.items() if v is not None}
        done = subprocess.run(
            ["bash", str(root / script), *arguments], env=variables, cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()

    call.root, call.prefix = root, prefix
    return call


def test_second_start_calls_no_pip(run):
    code, output, calls = run("scripts/test.sh", "tests/ops", "-k", "a b")
    assert code == 0, output
    assert calls == ["pip -e .[run,ogb,dev]", f"{PYTEST} tests/ops -k a b"]
    code, output, calls = run("scripts/test.sh")
    assert (code, calls) == (0, [PYTEST])
    assert "installed already" in output
    code, output, calls = run("scripts/test.sh", "tests/nothing.py::test_it")
    assert (code, calls) == (1, [])
    assert "error: there is no tests/nothing.py::test_it" in output
    assert run("scripts/demo.sh", "--quick")[2] == ["pip -e .[run,digits]", "demo --quick"]
    assert run("scripts/demo.sh")[2] == ["demo "]


def test_a_new_requirement_or_checkout_installs_again(run, tmp_path):
    run("scripts/demo.sh")
    assert run("scripts/demo.sh")[2] == ["demo "]
    with (run.root / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert run("scripts/demo.sh")[2] == ["pip -e .[run,digits]", "demo "]
    assert run("scripts/test.sh")[2] == ["pip -e .[run,ogb,dev]", PYTEST]
    run.root.rename(run.root.with_name("moved"))
    run.root.symlink_to(run.root.with_name("moved"))
    assert run("scripts/demo.sh")[2] == ["demo "]
    shutil.copytree(run.root.with_name("moved"), tmp_path / "second")
    assert "pip -e .[run,digits]" in run(tmp_path / "second" / "scripts" / "demo.sh")[2]


def test_a_failed_installation_says_why_and_is_taken_up_again(run):
    code, output, calls = run("scripts/test.sh", PIP_SAYS="No space left on device")
    assert code == 1
    assert "No space left on device" in output
    assert output.splitlines()[-1] == "error: pip could not install -e .[run,ogb,dev] (see above)"
    assert calls == ["pip -e .[run,ogb,dev]"]
    code, output, calls = run("scripts/test.sh")
    assert (code, calls) == (0, ["pip -e .[run,ogb,dev]", PYTEST])


def test_pytorch_comes_first_with_the_users_options(run):
    pins = re.search('^TORCH="(.+?)"', (ROOT / "scripts" / "_environment.sh").read_text(), re.M)
    _, _, calls = run("scripts/demo.sh", NO_TORCH="yes")
    assert calls == [f"pip install {pins[1]}", "pip -e .[run,digits]", "demo "]
    _, _, calls = run("scripts/demo.sh", NO_TORCH="yes", TOPOMASK_TORCH_OPTIONS="--no-index --pre")
    assert calls[0] == "pip --no-index --pre"


def test_sparse_comes_after_the_plain_run_and_only_when_asked(run):
    everything = ["pip -e .[run,ogb,dev]", f"{PYTEST} tests", "pip setuptools wheel", "pip -e .[sparse]"]
    code, output, calls = run("scripts/test.sh", "--all", "tests")
    assert (code, calls) == (0, [*everything, f"{PYTEST} tests -m sparse"]), output
    assert "about 8" in output
    assert run("scripts/test.sh", CI="true")[2] == [PYTEST, f"{PYTEST} -m sparse"]
    assert run("scripts/test.sh", CI="false")[2] == [PYTEST]


def test_exit_codes_of_pytest(run):
    assert run("scripts/test.sh", PYTEST_CODE=1)[0] == 1
    code, output, calls = run("scripts/test.sh", "--all", PYTEST_CODE=1)
    assert (code, calls) == (1, [PYTEST])  # no compiling after a failure
    code, output, _ = run("scripts/test.sh", PYTEST_CODE=5)
    assert code == 5
    assert "no test was found" in output
    code, output, _ = run("scripts/test.sh", "--all", SPARSE_CODE=5)
    assert code == 0
    assert "none of the chosen tests" in output
    assert run("scripts/test.sh", "--all", SPARSE_CODE=1)[0] == 1


def test_a_full_disk_is_seen_before_the_installation(run, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "df").write_text("#!/bin/sh\necho head\necho disk 9 8 6000000 99% /\n")
    (tools / "df").chmod(0o755)
    paths = {"NO_TORCH": "yes", "PATH": f"{tools}:{os.environ['PATH']}"}
    code, output, calls = run("scripts/test.sh", **paths)
    assert (code, calls) == (1, [])
    assert "only 6 GB are free" in output
    assert "need 7 GB" in output
    assert "7 GB of free disk space" in (ROOT / "README.md").read_text()
    assert run("scripts/test.sh", **paths, TOPOMASK_TORCH_OPTIONS="--pre")[0] == 0  # such as for a CPU build


def test_python_that_cannot_serve(run, tmp_path):
    code, output, _ = run("scripts/test.sh", TOPOMASK_PYTHON="no-such-python")
    assert code == 1
    assert "TOPOMASK_PYTHON is 'no-such-python', which is no program" in output
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    code, output, _ = run("scripts/test.sh", TOPOMASK_PYTHON=old)
    assert code == 1
    assert "older than Python 3.10" in output
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool))
    code, output, _ = run("scripts/test.sh", TOPOMASK_PYTHON=None, PATH=tools)
    assert code == 1
    assert output.splitlines()[-1].startswith("error: no Python 3.10 or newer found")


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_active_environment_is_used(run, tmp_path, variable):
    (tmp_path / "active" / "bin").mkdir(parents=True)
    (tmp_path / "python").rename(tmp_path / "active" / "bin" / "python")
    code, output, calls = run("scripts/demo.sh", TOPOMASK_PYTHON=None, **{variable: tmp_path / "active"})
    assert code == 0, output
    assert calls == ["pip -e .[run,digits]", "demo "]
    assert not (run.root / ".venv").exists()


def test_ci_checks_style_types_documentation_and_release_then_runs_all_tests(run):
    (run.root / "scripts" / "release.sh").write_text('echo release >>"$CALLS"\n')  # needs files that are really built
    code, output, calls = run(".ci/run")
    assert code == 0, output
    assert calls[:4] == ["pip -e .[run,ogb,dev]", "ruff check .", "mypy ", "pip -e .[run,ogb,dev,docs]"]
    assert calls[4].startswith("sphinx -b html --fail-on-warning")
    assert calls[5:7] == ["release", f"{PYTEST} --run-slow"]
    assert calls[-1] == f"{PYTEST} --run-slow -m sparse"


def test_commits_are_checked_as_in_ci():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint, subject = repository["hooks"]
    assert lint["entry"] in (ROOT / ".ci" / "run").read_text()
    assert re.search(subject["entry"], "x" * 73)
    assert not re.search(subject["entry"], "x" * 72 + "\n" + "y" * 99)
