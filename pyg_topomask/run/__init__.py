"""Training of experiments: :class:`Experiment` from Python, ``topomask run`` and :func:`run_config` from YAML.

Only this folder needs the ``run`` extra, and nothing is imported from it before it is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyg_topomask.run.data.source import Serving as Serving
    from pyg_topomask.run.data.source import Source as Source
    from pyg_topomask.run.data.source import Split as Split
    from pyg_topomask.run.errors import RunError as RunError
    from pyg_topomask.run.experiment import Experiment as Experiment
    from pyg_topomask.run.graphgps.check import check_config as check_config
    from pyg_topomask.run.graphgps.config import Config as Config
    from pyg_topomask.run.graphgps.reading import run_config as run_config
    from pyg_topomask.run.output.progress import Display as Display
    from pyg_topomask.run.process_memory import keep_freed as keep_freed
    from pyg_topomask.run.task import Task as Task
    from pyg_topomask.run.training.scaled import Scaled as Scaled
    from pyg_topomask.run.training.settings import Training as Training

_HOME = {
    "Config": "graphgps.config",
    "Display": "output.progress",
    "RunError": "errors",
    "Experiment": "experiment",
    **dict.fromkeys(("Serving", "Source", "Split"), "data.source"),
    "Task": "task",
    "Scaled": "training.scaled",
    "Training": "training.settings",
    "check_config": "graphgps.check",
    "keep_freed": "process_memory",
    "run_config": "graphgps.reading",
}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
