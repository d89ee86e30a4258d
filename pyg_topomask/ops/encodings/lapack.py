"""Lowest eigenpairs of many small symmetric matrices, on several threads.

SciPy's own wrapper holds Python's interpreter lock while LAPACK works. A BLAS that splits a 150 × 150 matrix over
several threads is slower than one thread, especially if cores are shared. Therefore LAPACK is called through the
pointers that SciPy exports for this purpose (`scipy.linalg.cython_lapack`), with one BLAS thread for each of our
threads.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg

Array = NDArray[np.float64]


def lowest_eigenpairs(matrices: Sequence[Callable[[], Array]], counts: Sequence[int]) -> list[tuple[Array, Array]]:
    """The ``count`` smallest eigenvalues of each matrix, ascending, and orthonormal eigenvectors ``[n, count]``.

    Args:
        matrices: Functions that build the symmetric matrices ``[n, n]``, float64. The matrices may be overwritten.
        counts: Number of eigenpairs of each matrix, at most n.
    """
    with _one_blas_thread() as limited:
        threads = torch.get_num_threads() if limited else 1

        def solve(job: tuple[Callable[[], Array], int]) -> tuple[Array, Array]:
            return lowest_of_one(*job)

        jobs = list(zip(matrices, counts))
        if threads == 1 or len(jobs) == 1:
            return [solve(job) for job in jobs]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(solve, jobs))


def lowest_of_one(build: Callable[[], Array], count: int) -> tuple[Array, Array]:
    """`lowest_eigenpairs` of a single matrix."""
    routine = _dsyevr()
    if routine is not None:
        found = _call(routine, np.asfortranarray(build()), count)  # which overwrites the matrix
        if found is not None:
            return found
    matrix = build()
    try:
        return linalg.eigh(matrix, subset_by_index=[0, count - 1], driver="evr", check_finite=False)
    except linalg.LinAlgError:  # inverse iteration for single vectors failed
        values, vectors = np.linalg.eigh(matrix)
        return values[:count], vectors[:, :count]


@cache
def _dsyevr() -> Any:
    """LAPACK's ``dsyevr`` as a C function of 21 pointers; None if SciPy does not export it as expected."""
    try:
        from scipy.linalg import cython_lapack

        capsule = cython_lapack.__pyx_capi__["dsyevr"]
    except (ImportError, AttributeError, KeyError):
        return None
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    kinds = [part.strip() for part in name.decode().partition("(")[2].rstrip(")").split(",")]
    if len(kinds) != 21 or [position for position, kind in enumerate(kinds) if kind == "int *"] != _INTEGERS:
        return None  # for example, 64-bit integers
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 21)  # a call releases the interpreter lock
    return prototype(api.PyCapsule_GetPointer(capsule, name))


_INTEGERS = [3, 5, 8, 9, 11, 14, 15, 17, 18, 19, 20]  # positions of the integer arguments of dsyevr


def _call(routine: Any, matrix: Array, count: int) -> tuple[Array, Array] | None:
    size = matrix.shape[0]
    values, vectors = np.empty(size), np.empty((size, count), order="F")
    support = np.empty(2 * size, dtype=np.intc)
    work, integer_work = np.empty(64 * size), np.empty(10 * size, dtype=np.intc)
    letters = ctypes.create_string_buffer(b"VIL")  # eigenvectors, by number, lower triangle
    numbers = np.array([size, size, 1, count, 0, size, work.size, integer_work.size, 0], dtype=np.intc)
    reals = np.zeros(3)
    letter, number, real = ctypes.addressof(letters), numbers.ctypes.data, reals.ctypes.data
    step = numbers.itemsize
    routine(
        letter,
        letter + 1,
        letter + 2,
        number,  # n
        matrix.ctypes.data,
        number + step,  # lda
        real,
        real + 8,
        number + 2 * step,  # il
        number + 3 * step,  # iu
        real + 16,  # tolerance 0: as accurate as possible
        number + 4 * step,  # number of eigenvalues found
        values.ctypes.data,
        vectors.ctypes.data,
        number + 5 * step,  # ldz
        support.ctypes.data,
        work.ctypes.data,
        number + 6 * step,
        integer_work.ctypes.data,
        number + 7 * step,
        number + 8 * step,  # info
    )
    return (values[:count], vectors) if numbers[8] == 0 and numbers[4] == count else None


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[bool]:
    """Limit each BLAS call to one thread; yields False if that is not possible (without ``threadpoolctl``)."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield False
        return
    with threadpool_limits(1, user_api="blas"):
        yield True
