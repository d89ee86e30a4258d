"""The rank and number of the processes that ``torchrun`` or a batch system has started."""

import os


def world_size() -> int:
    """Number of processes; 1 unless ``torchrun`` started more."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def rank() -> int:
    """Number of this process, from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def is_main() -> bool:
    """Whether this process is the one that writes files and prints messages."""
    return rank() == 0


def local_world_size() -> int:
    """Number of processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size() > 1 else 1
