"""Training from YAML: ``topomask run`` on the command line, :func:`run_config` from Python.

Only this folder needs the ``run`` extra, and nothing is imported from it before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyg_topomask.run.errors import RunError
    from pyg_topomask.run.graphgps.check import check_config
    from pyg_topomask.run.graphgps.config import Config
    from pyg_topomask.run.output.progress import Display
    from pyg_topomask.run.runner import run_config

__all__ = ["Config", "Display", "RunError", "check_config", "run_config"]

_HOME = {
    "Config": "graphgps.config", "Display": "output.progress", "RunError": "errors", "check_config": "graphgps.check",
    "run_config": "runner",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
