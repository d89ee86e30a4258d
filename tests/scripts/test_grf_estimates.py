"""The comparison of GRF estimates: one table with a corrected diagonal errs less than two of half as many walks."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "reproduce" / "grf_estimates.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("grf_estimates", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["kNN", "grid", "molecule", "power law"])
def test_the_corrected_diagonal_errs_less_off_the_diagonal(script, name):
    data = script.graphs(36)[name]
    apart, symmetrised, corrected = (
        script.errors(data, diagonal, "iid", 6)[0] for diagonal in ("independent", "symmetrised", "corrected")
    )
    assert corrected < 0.9 * apart
    assert symmetrised < 0.9 * apart
