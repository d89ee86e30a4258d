import importlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest

# One thread, unless a test sets more. Those that wait for each other sleep: on a busy machine, spinning threads made
# one test take twenty times as long. OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("MPLBACKEND", "Agg")  # pictures without a screen

import torch

# Without a GPU, Triton's kernels run in Python. Triton reads this when it is imported, which PyG does.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from pyg_topomask import checks
from pyg_topomask.ops.native import loader

SCRIPTS = Path(__file__).parents[1] / "scripts"


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="run the tests marked 'slow', too")


def pytest_collection_modifyitems(config, items):
    """Leaves out the slow tests, all of those of scripts among them, unless `--run-slow` or `-m` asks for them."""
    for item in items:
        if item.path.parent.name == "scripts":
            item.add_marker("slow")
    if config.getoption("--run-slow") or config.getoption("-m"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(autouse=True)
def _fixed_seed():
    """Each test draws the same random numbers, whichever ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _not_warned_yet(monkeypatch):
    monkeypatch.setattr(checks, "_warned", set())


@pytest.fixture(autouse=True, scope="session")
def _compiled_once():
    """Tests with a cache of their own, and those of other workers, share what is compiled."""
    folder = loader.library_folder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "library_folder", lambda: folder)
        yield


@pytest.fixture
def registries():
    """Restores the tables of names and the schema of configs after the test, or when it is called."""
    from pyg_topomask.datasets.registry import REGISTERED
    from pyg_topomask.nn import ATTENTION, MASK
    from pyg_topomask.run.graphgps.config.schema import Config
    from pyg_topomask.run.graphgps.config.topomask import TopomaskConfig

    tables = ATTENTION, MASK, REGISTERED, TopomaskConfig.model_fields
    before = [dict(table) for table in tables]

    def restore():
        for table, known in zip(tables, before):
            table.clear()
            table.update(known)
        TopomaskConfig.model_rebuild(force=True)
        Config.model_rebuild(force=True)

    yield restore
    restore()


@pytest.fixture
def scripts(monkeypatch):
    """``scripts(name)`` imports a script; what it changes is put back afterwards, and its modules are forgotten."""
    path, threads = list(sys.path), torch.get_num_threads()
    for folder in ("", "bench", "reproduce"):
        monkeypatch.syspath_prepend(str(SCRIPTS / folder))
    yield importlib.import_module
    sys.path[:] = path
    torch.set_num_threads(threads)
    for name, module in list(sys.modules.items()):
        if SCRIPTS in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]


@pytest.fixture
def script(scripts, request):
    """The script that the test file is named after."""
    return scripts(request.path.stem.removeprefix("test_"))
