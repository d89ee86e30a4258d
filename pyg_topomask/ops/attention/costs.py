"""Estimated times of the engines: amounts of work times the time of one unit, from one table."""

from collections.abc import Mapping

COSTS: dict[str, dict[str, dict[str, float]]] = {
    "cpu": {
        "unmasked_cpp": {"call": 360000.0, "number": 0.67},
        "unmasked": {"call": 1000000.0, "number": 1.3},
        "sdpa": {"call": 460000.0, "size": 220000.0, "number": 0.13},
        "pairs_cpp": {"call": 680000.0, "listed": 36.0, "pair": 15.0, "number": 0.25, "row": 6.6},
        "pairs": {"call": 1800000.0, "listed": 20.0, "pair": 71.0, "row": 7.4},
        "parts": {"listed": 41.0, "pair": 20.0, "number": 0.64},
        "blocks_cpp": {"held": 3.0, "size": 1100000.0, "made": 0.24, "pair": 2.2, "number": 0.05},
        "blocks": {"call": 160000.0, "size": 1200000.0, "made": 0.11, "pair": 20.0, "number": 0.17},
        "factored": {"call": 270000.0, "number": 20.0, "product": 1.0},
        "dense": {"call": 91000.0, "formed": 130000.0, "made": 2.3, "pair": 21.0},
    },
    "cuda": {
        "unmasked": {"call": 1600000.0},
        "sdpa": {"call": 360000.0, "size": 220000.0, "number": 0.00055},
        "pairs_triton": {"call": 2400000.0, "listed": 4.3},
        "pairs": {"call": 6800000.0, "listed": 1.6, "pair": 1.9},
        "parts": {"call": 500000.0, "listed": 20.0, "pair": 30.0, "number": 1.0},
        # Not measured: the calls of `pairs_triton`, and half of the instructions that a GPU can issue.
        "blocks_triton": {"call": 2400000.0, "size": 300000.0, "made": 0.0067, "pair": 0.012, "number": 0.00045},
        "blocks": {"call": 3100000.0, "size": 1200000.0, "made": 0.0067, "pair": 0.1},
        "factored": {"call": 7900000.0, "number": 0.46},
        "dense": {"call": 1800000.0, "made": 0.019, "formed": 2900000.0},
    },
}
"""Nanoseconds of the forward and the backward pass for each unit of an engine's work, by type of device.

There is no row of an engine that never serves tensors of the device.
"""


def estimate(engine: str, device: str, work: Mapping[str, float]) -> float:
    """Estimated nanoseconds of an engine.

    Args:
        engine: Name of the engine.
        device: Type of the device; one that was not measured is treated as the CPU.
        work: Amount of each unit of work. Units without a time cost nothing.
    """
    times = COSTS.get(device, COSTS["cpu"])[engine]
    return sum(times.get(unit, 0.0) * amount for unit, amount in work.items())
