import copy
import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from pyg_topomask.ops.native.loader import library_folder

pytest.importorskip("lightning")
pytest.importorskip("pydantic")

from pyg_topomask.run import run_config


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """A cache folder with the compiled code of all tests, for other processes."""
    folder, compiled = tmp_path_factory.mktemp("cache"), library_folder()
    compiled.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / compiled.name).symlink_to(compiled)
    return folder


@pytest.fixture
def curves():
    """Requested by tests of the picture of a run's curves; without it, the picture is an empty file."""


@pytest.fixture(autouse=True)
def _no_curves(request, monkeypatch):
    if "curves" not in request.fixturenames:  # drawing takes as long as the rest of a small run
        monkeypatch.setattr("pyg_topomask.run.seed_run.write_curves", lambda path, *_: path.touch())


@pytest.fixture(autouse=True)
def surroundings(shared_cache, monkeypatch):
    """A separate cache, and one thread."""
    monkeypatch.setenv("TOPOMASK_CACHE", str(shared_cache))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def two_processes(*arguments, **settings):
    """The arguments as a command of Python in two processes."""
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.Popen([*command, *map(str, arguments)], env=surroundings, stderr=subprocess.STDOUT, **settings)


def table(text):
    """The rows of predictions, each by the names of its columns."""
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def real_data():
    folder = os.environ.get("TOPOMASK_DATA")
    if not folder:
        pytest.skip("TOPOMASK_DATA is not set")
    return Path(folder)


TINY = {
    "dataset": {"format": "PyG-MotifDataset", "name": "circle", "num_graphs": 48, "num_nodes": 12},
    "train": {"batch_size": 16, "ckpt_period": 1},
    "gt": {"layer_type": "GIN+GRF", "layers": 1, "n_heads": 2, "dim_hidden": 8, "dropout": 0.1},
    "optim": {"base_lr": 0.01, "max_epoch": 4, "scheduler": "cosine_with_warmup", "num_warmup_epochs": 1},
    "topomask": {"num_walks": 4, "max_length": 2},
}


@pytest.fixture
def tiny():
    """A config that trains in a second."""
    return copy.deepcopy(TINY)


@pytest.fixture
def tiny_file(tiny, tmp_path):
    """The same config as a file in a folder."""
    path = tmp_path / "configs" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(tiny))
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory, shared_cache):
    """The output folder of a run of the tiny config, made once."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPOMASK_CACHE", str(shared_cache))
        run_config(TINY, folder)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """The folder of the seed in a copy of it."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "config" / "0"


TU_EDGES = [(1, 2), (2, 1), (2, 3), (3, 2)]


@pytest.fixture
def tu_folder(tmp_path):
    """Raw files of a TU data set without node features: 12 paths of three nodes, classes 1 and 2."""
    raw = tmp_path / "data" / "TUDataset" / "TINY" / "raw"
    raw.mkdir(parents=True)
    edges = [(i + 3 * g, j + 3 * g) for g in range(12) for i, j in TU_EDGES]
    (raw / "TINY_A.txt").write_text("".join(f"{i}, {j}\n" for i, j in edges))
    (raw / "TINY_graph_indicator.txt").write_text("".join(f"{g + 1}\n" * 3 for g in range(12)))
    (raw / "TINY_graph_labels.txt").write_text("".join(f"{1 + g % 2}\n" for g in range(12)))
    return tmp_path / "data"
