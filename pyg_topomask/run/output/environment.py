"""What a result depends on beside its config: versions, machine, and the commit of the user's repository."""

from __future__ import annotations

import platform
import subprocess
from functools import cache

import torch
import torch_geometric


@cache
def environment() -> dict[str, str | int | None]:
    """Versions, system, threads, and the git commit of the current folder; None without a repository or git."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "system": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit, followed by ``with changes`` if tracked files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty= with changes"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
