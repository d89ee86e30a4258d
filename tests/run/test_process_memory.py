"""The peak memory of a run, and the memory that is left."""

import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from pyg_topomask.run import process_memory, run_config, seed_run
from pyg_topomask.run.process_memory import reset_peak


@pytest.mark.slow
def test_the_peak_memory_of_a_seed_is_its_own(monkeypatch, tiny, tmp_path):
    """The second seed would have the peak of the first one, whose training takes 400 MiB for a moment."""
    fit, taken = seed_run.SeedRun._train, []

    def train(self, *inputs):
        if not taken:
            taken.append(torch.ones(100 * 2**20).sum())
        return fit(self, *inputs)

    monkeypatch.setattr(seed_run.SeedRun, "_train", train)
    run_config(tiny, tmp_path, 2)
    paths = sorted(tmp_path.glob("*/*/result.json"))
    first, second = (json.loads(path.read_text())["peak_memory_mib"] for path in paths)
    if not reset_peak():
        pytest.skip("this system cannot reset the peak of a process")
    assert second < first - 200


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")
def test_kept_memory_is_not_cleared_again():
    """Arrays of 96 MiB have 24,576 pages."""
    code = """if True:
        import resource, numpy
        from pyg_topomask.run.process_memory import keep_freed
        faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        make = lambda: [numpy.ones(2**21) for _ in range(6)]
        keep_freed()
        make()
        before = faults()
        make()
        make()
        print(faults() - before)"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", code]
    faults = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert int(faults) < 1000


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_settings_of_the_user_stay_in_force(name, monkeypatch):
    settings = dict[int, int]()
    monkeypatch.setattr(process_memory.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=settings.__setitem__))
    monkeypatch.setattr(process_memory.os, "environ", {name: "1"})
    process_memory.keep_freed()
    assert settings == {}
    monkeypatch.setattr(process_memory.os, "environ", {})
    process_memory.keep_freed()
    assert len(settings) == 2


def test_copies_of_files_count_as_available_in_a_container(monkeypatch, tmp_path):
    files = {"max": 2**30, "current": 900 * 2**20, "stat": f"anon 1\nfile 2\ninactive_file {600 * 2**20}\n"}
    monkeypatch.setattr(process_memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**33))
    monkeypatch.setattr(process_memory, "_CONTAINER", tmp_path)
    assert process_memory.available_mib() == 8192
    for name, value in files.items():
        (tmp_path / f"memory.{name}").write_text(f"{value}\n")
    assert process_memory.available_mib() == 1024 - 900 + 600
    (tmp_path / "memory.max").write_text("max\n")
    assert process_memory.available_mib() == 8192
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.stat").write_text("anon 1\n")
    assert process_memory.available_mib() == 8192


@pytest.mark.skipif(platform.system() != "Linux", reason="other systems tell the peak in another way")
def test_a_system_without_a_peak_in_its_status_has_none(monkeypatch, tmp_path):
    """The status of a process in gVisor has the current memory only."""
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t 1024 kB\n")
    monkeypatch.setattr(process_memory, "Path", lambda path: tmp_path / "status")
    assert process_memory.peak_resident_mib() is None
