import numpy as np
import pytest
import torch

from pyg_topomask.ops.encodings import lapack


def matrices():
    generator = np.random.default_rng(0)
    drawn = [generator.normal(size=(size, size)) for size in (1, 2, 7, 40, 150)]
    return [*(one + one.T for one in drawn), np.eye(9), np.zeros((3, 3))]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("threads", [1, 3])
def test_lowest_eigenpairs(direct, threads, monkeypatch):
    if not direct:
        monkeypatch.setattr(lapack, "_dsyevr", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    all_matrices = matrices()
    counts = [min(5, matrix.shape[0]) for matrix in all_matrices]
    found = lapack.lowest_eigenpairs([matrix.copy for matrix in all_matrices], counts)
    for matrix, count, (values, vectors) in zip(all_matrices, counts, found):
        np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[:count], atol=1e-12)
        np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-11)
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(count), atol=1e-12)


def test_scipy_exports_the_routine():
    assert lapack._dsyevr() is not None


def test_a_failure_of_lapack_is_taken_up_by_numpy(monkeypatch):
    def fails(*args, **kwargs):
        raise np.linalg.LinAlgError("did not converge")

    def overwrites(routine, matrix, count):
        matrix[:] = np.nan

    monkeypatch.setattr(lapack, "_call", overwrites)
    monkeypatch.setattr(lapack.linalg, "eigh", fails)
    matrix = np.asfortranarray(matrices()[2])
    values, vectors = lapack.lowest_of_one(lambda: matrix.copy(order="F"), 3)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-11)
