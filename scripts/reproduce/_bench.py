"""Common parts of the benchmarks, for the scripts of this folder. Only this file adds the benchmarks to the path."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported: threads that wait sleep
sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from _measure import *  # noqa: F403
