import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from pyg_topomask.run.cli import main
from pyg_topomask.run.commands.doctor import advice

WELL = {
    "compiler": "/usr/bin/c++",
    "compiled": "0 of 11",
    "allocator": "/usr/lib/libmimalloc.so.2.4",
    "GPU": "none (CPU)",
}


def test_it_shows_the_machine_on_one_screen(monkeypatch, capsys):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "memory     runs free it at once: MALLOC_ARENA_MAX is set\n" in text
    assert len(text.splitlines()) <= 24
    assert f"torch {version('torch')}" in text  # without the build, which the line of the GPU names
    assert "OMP_WAIT_POLICY=None" in text  # that of the caller, which other commands set
    assert "none: there is no C++ compiler: neither no-such-compiler is on the path" in text
    assert "\nWhat to set\n- " in text


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, []),
        ({"threads": 8}, ["OMP_NUM_THREADS=2: 8 threads"]),
        ({"environment": {}}, ["OMP_WAIT_POLICY=passive before Python starts: other programs may share"]),
        (
            {"environment": {}, "load": 5.0},
            ["OMP_WAIT_POLICY=passive before Python starts: the load is 5.0 on 2 cores"],
        ),
        ({"environment": {}, "threads": 1}, []),
        ({"environment": {"OMP_WAIT_POLICY": "PASSIVE", "TOPOMASK_NATIVE": "0"}}, ["TOPOMASK_NATIVE=1"]),
        ({"compiler": "none: no compiler"}, ["Install g++"]),
        ({"compiler": "none: no compiler", "compiled": "11 of 11 in the package"}, []),
        ({"allocator": "glibc"}, ["LD_PRELOAD"]),
        ({"allocator": "/usr/lib/libmimalloc.so.2.0"}, ["Take mimalloc 2.4"]),
        ({"GPU": "none (torch for CUDA 13.0)"}, ["If there is a GPU"]),
    ],
)
def test_it_advises_what_helps_and_nothing_else(found, words):
    known = WELL | {name: text for name, text in found.items() if name in WELL}
    environment = found.get("environment", {"OMP_WAIT_POLICY": "passive"})
    lines = advice(environment, 2, found.get("load", 0.5), found.get("threads", 2), known)
    assert len(lines) == len(words)
    assert all(line.startswith(word) for line, word in zip(lines, words))


@pytest.mark.slow
def test_no_import_changes_the_environment():
    code = "import os; old = dict(os.environ); import pyg_topomask.nn, pyg_topomask.run.cli, pyg_topomask.transforms\n"
    code += "from pyg_topomask.run import run_config; assert dict(os.environ) == old, set(os.environ) - set(old)"
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    subprocess.run([sys.executable, "-c", code], check=True, env=plain)
