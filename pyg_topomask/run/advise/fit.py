"""Values at other sizes than those that were measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from pyg_topomask.run.advise.sample import Size


def fitted(points: Sequence[tuple[Size, float]], sizes: Sequence[Size]) -> list[float]:
    """Values at other sizes, by the model constant + a · nodes + b · pairs.

    The three numbers are not negative and have the least squared error over the points. Two sizes do not determine
    three numbers, so that the constant is 0. From one size, values are proportional to nodes or to pairs, whichever
    changes more.
    """
    known = {size for size, _ in points}
    if len(known) == 1:
        mean, (one,) = float(np.mean([value for _, value in points])), known
        ratios = [(size.nodes / one.nodes, size.pairs / one.pairs) for size in sizes]
        return [mean * (max if pairs > 1 else min)(nodes, pairs) for nodes, pairs in ratios]
    constant = 1.0 if len(known) > 2 else 0.0
    at, wanted = (np.array([[constant, *size] for size in some]) for some in ([size for size, _ in points], sizes))
    scale = np.maximum(at.max(axis=0), 1e-9)
    factors, _ = nnls(at / scale, np.array([value for _, value in points]))
    return [float(value) for value in (wanted / scale) @ factors]


def estimate(points: Sequence[tuple[Size, float]], size: Size) -> float:
    """The value at one size."""
    return fitted(points, [size])[0]
