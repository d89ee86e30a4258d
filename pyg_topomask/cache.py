"""Where what is worth keeping between runs lies."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """``$TOPOMASK_CACHE``, else ``pyg_topomask`` in the user's cache folder."""
    named = os.environ.get("TOPOMASK_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pyg_topomask"
