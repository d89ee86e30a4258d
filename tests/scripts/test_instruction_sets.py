"""The bench of sets of instructions measures every compiled library, and finds what a set computes wrongly."""

import torch

from pyg_topomask.ops.native import sources


def test_every_library_is_measured(scripts, monkeypatch):
    bench = scripts("instruction_sets")
    own = sources.instructions(torch.backends.cpu.get_cpu_capability())
    monkeypatch.setattr(bench, "SETS", (own, "other"))
    monkeypatch.setattr(bench, "libraries", lambda name, find=bench.libraries: find(own))
    rows = bench.measure(64, 1)
    assert {row["library"] for row in rows} == set(sources.LIBRARIES)
    assert all(row[own] > 0 and row[f"other / {own}"] > 0 and row["difference"] == 0 for row in rows)
    results = iter(torch.arange(1.0, 100))
    monkeypatch.setattr(bench, "step", lambda call, made: next(results))
    assert bench.measure(64, 1)[0]["difference"] == 1
