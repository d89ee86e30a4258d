"""Freed memory is returned when the process has twice the memory of its first steps."""

import json
from types import SimpleNamespace

import pytest
import torch

from pyg_topomask.run import process_memory, run_config, seed_run
from pyg_topomask.run.process_memory import reset_peak
from pyg_topomask.run.training import freed_memory

CONFIG = {
    "dataset": {"format": "PyG-MotifDataset", "name": "circle", "num_graphs": 40, "num_nodes": 12},
    "train": {"batch_size": 8},
    "gt": {"layer_type": "GIN+Linear", "layers": 1, "n_heads": 2, "dim_hidden": 8},
    "optim": {"max_epoch": 2},
}


@pytest.fixture(autouse=True)
def large_machine(monkeypatch):
    monkeypatch.setattr(freed_memory, "available_mib", lambda: 1e9)


def test_memory_is_returned_at_twice_the_usual(monkeypatch):
    resident, returned = [0.0], []

    def return_freed_memory():
        returned.append(resident[0])
        resident[0] = 1200.0

    monkeypatch.setattr(freed_memory, "resident_mib", lambda: resident[0])
    monkeypatch.setattr(freed_memory, "return_freed_memory", return_freed_memory)
    callback = freed_memory.ReturnFreedMemory()
    for step in range(1, 61):
        resident[0] = 100.0 * step if step < 40 else 2300.0
        callback.on_train_batch_end(None, None, None, None, step % 3)
    assert returned == [3000.0]  # 1000 at first, 2000 is not more than twice of it, nor 2300 of the 1200 that were left
    assert callback.usual_mib == 1200.0


def test_memory_is_returned_when_the_machine_has_less_left_than_the_process_has_grown(monkeypatch):
    resident, returned = [1000.0], []
    monkeypatch.setattr(freed_memory, "resident_mib", lambda: resident[0])
    monkeypatch.setattr(freed_memory, "available_mib", lambda: 1800.0 - resident[0])
    monkeypatch.setattr(
        freed_memory, "return_freed_memory", lambda: returned.append(resident.pop()) or resident.append(1000.0)
    )
    callback = freed_memory.ReturnFreedMemory()
    for step in range(60):
        resident[0] += 10.0 * (step >= 10)
        callback.on_train_batch_end(None, None, None, None, step)
    assert returned == [1500.0]  # 500 more than at first, and 300 left; at 1400, 400 were left


@pytest.mark.slow
def test_the_peak_memory_of_a_seed_is_its_own(monkeypatch, tmp_path):
    """The second seed would have the peak of the first one, whose training takes 400 MiB for a moment."""
    fit = seed_run.SeedRun._train
    taken = []

    def train(self, *inputs):
        if not taken:
            taken.append(torch.ones(100 * 2**20).sum())
        return fit(self, *inputs)

    monkeypatch.setattr(seed_run.SeedRun, "_train", train)
    run_config(CONFIG, tmp_path, 2)
    first, second = (
        json.loads(path.read_text())["peak_memory_mib"] for path in sorted(tmp_path.glob("*/*/result.json"))
    )
    if not reset_peak():
        pytest.skip("this system cannot reset the peak of a process")
    assert second < first - 200


def test_a_run_watches_its_memory(monkeypatch, tmp_path):
    returned = []
    monkeypatch.setattr(freed_memory, "STEPS", 1)
    monkeypatch.setattr(freed_memory, "MOST_GROWTH", 0.0)
    monkeypatch.setattr(freed_memory, "return_freed_memory", lambda: returned.append(1))
    run_config(CONFIG, tmp_path)
    assert len(returned) > 0


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
