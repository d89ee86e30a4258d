"""Common parts of the benchmarks, for the scripts of this folder. Only this file adds the benchmarks to the path."""

import sys
from pathlib import Path

import pyg_topomask.run  # noqa: F401  # before torch is imported, since it says how OpenMP's threads wait

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from _measure import *  # noqa: F403
