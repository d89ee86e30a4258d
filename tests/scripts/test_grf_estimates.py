"""The comparison of GRF estimates: one table with a corrected diagonal errs less than two of half as many walks."""

import json

import pytest


@pytest.mark.parametrize("name", ["kNN", "grid", "molecule", "power law"])
def test_the_corrected_diagonal_errs_less_off_the_diagonal(script, name):
    data = script.graphs(36)[name]
    found = {
        (estimate, walks): script.errors(data, estimate, "iid", 6, walks)
        for estimate, walks in (("independent", 8), ("symmetrised", 8), ("corrected", 16), ("corrected", 8))
    }
    apart = found["independent", 8]
    assert found["corrected", 16]["off"] < 0.9 * apart["off"]
    assert found["symmetrised", 8]["off"] < 0.9 * apart["off"]
    assert found["corrected", 8]["off"] == pytest.approx(apart["off"], rel=0.2)  # with half of the walkers
    assert found["corrected", 8]["multiply_adds"] == pytest.approx(apart["multiply_adds"], rel=0.05)


def test_stitched_walks_halve_the_error_of_far_pairs(script):
    data, walk = script.graphs(64)["molecule"], {"halt_prob": 0.0}
    plain, stitched = (script.errors_by_distance(data, pairs, walk, 6) for pairs in (1, 3))
    assert plain["steps"] == stitched["steps"] == script.STEPS
    assert sum(stitched["far"]) < 0.5 * sum(plain["far"])
    assert script.errors_by_distance(data, 0.5, walk, 2)["walks"] == 8  # one table is the mask, too


def test_a_trial_writes_the_table(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ESTIMATES", (("independent", 2), ("corrected", 4)))
    monkeypatch.setattr(script, "BY_DISTANCE", {"plain": (1, {}), "stitched": (2, {"lengths": "uniform"})})
    script.main(["--quick", "--out", str(tmp_path)])
    report = json.loads((tmp_path / "quick/grf_estimates.json").read_text())
    assert (len(report["rows"]), len(report["by_distance"])) == (8, 8)
    assert "| kNN | independent | 2 × 2 |" in (tmp_path / "quick/grf_estimates.md").read_text()
