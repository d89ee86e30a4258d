"""Damaged, wrong or hostile files in an output folder, and full disks, give one line that says what to do."""

import errno
import json
import os
import pickle
import shutil
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from pyg_topomask.run import run_config
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.graphgps.saved import read_config
from pyg_topomask.run.output.results import read_result, read_results
from pyg_topomask.run.trained_model import find_run
from pyg_topomask.run.training.checkpoint import BEST, LAST, epochs_done
from tests.hostile import Calls, touch


@contextmanager
def refused(*words):
    with pytest.raises(RunError) as caught:
        yield
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    assert all(word in text for word in words), text


def changed(path, **values):
    found = torch.load(path, weights_only=True)
    torch.save({key: value for key, value in (found | values).items() if value is not None}, path)


DAMAGE = {
    "junk": lambda path: path.write_bytes(b"{half"),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"epoch": 1})),
    "hostile": lambda path: torch.save(Calls(touch, str(path.with_name("marker"))), path),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "list": lambda path: torch.save([1], path),
    "other": lambda path: changed(path, topomask=None),
}


@pytest.mark.parametrize("name", [BEST, LAST])
def test_damaged_checkpoints_are_named_before_training_goes_on(run, name):
    assert epochs_done(run) == 4
    whole = (run / name).read_bytes()
    for kind, damage in DAMAGE.items():
        damage(run / name)
        with refused(str(run / name), "is damaged", "delete it to train that seed"):
            epochs_done(run)
        (run / name).rmdir() if kind == "folder" else None
        (run / name).write_bytes(whole)
    assert not (run / "marker").exists()
    (run / name).unlink()
    assert epochs_done(run) == 0


@pytest.mark.parametrize("wrong", [{"optimizer_states": [{"state": 3}]}, {"loops": 3}])
def test_what_cannot_be_resumed_is_named(tiny, run, tmp_path, wrong):
    (run / "result.json").unlink()
    changed(run / LAST, **wrong)
    with refused(f"{run / LAST} is damaged", "delete it to train that seed"):
        run_config(tiny, tmp_path)


def test_damaged_results_are_named(run):
    path, again = run / "result.json", "delete it to run that seed again"
    whole = json.loads(path.read_text())
    less = [json.dumps({k: v for k, v in whole.items() if k != key}) for key in ("epochs", "seed")]
    broken = ["[]", "{}", "{", "null", "\x00", '{"seed": "x", "metrics": []}', '{"seed": 0, "metrics": {"a": "x"}}']
    for content in (*(text.encode() for text in (*broken, *less)), b"\xff\xfe"):
        path.write_bytes(content)
        with refused(f"{path} is damaged", again):
            read_result(run)
    path.write_text(json.dumps(whole | {"environment": "abc"}))
    with refused(f"{path} is damaged (environment", again):
        read_result(run)
    path.unlink()
    assert read_result(run) is None
    path.write_text(json.dumps(whole))
    shutil.copytree(run, run.with_name("0-backup"))
    assert read_results(run.parent) == find_run(run.parent).results == {run: whole}  # a copy is not a seed
    shutil.copytree(run, run.with_name("1"))
    with refused(f"{run.parent} contains a seed twice", "delete one of the folders"):
        read_results(run.parent)


def test_damaged_configs_are_named(tiny, run, tmp_path):
    path = run / "config.yaml"
    for content in (b"[]", b"3", b"a: [", b"[" * 3000, b"gt: 3", b"\x00", b"\xff\xfe", b"", b"gt: {layrs: 3}"):
        path.write_bytes(content)
        with refused(f"{path} is missing, damaged or of another version ("):
            read_config(path)
    with refused(str(path), "is missing, damaged or of another version", "choose another folder (--out)"):
        run_config(tiny, tmp_path)
    with refused("pretrained.dir", str(path)):
        run_config(tiny, tmp_path / "next", overrides=[f"pretrained.dir={run}"])
    path.unlink()
    with refused(f"{path} is missing, damaged or of another version ("):
        read_config(path)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tiny, tmp_path, monkeypatch, curves):
    """If any file does not fit on the disk: one line, no leftovers, and the same numbers after space was freed."""
    tiny["optim"]["max_epoch"] = 2
    original, asked = os.replace, []

    def full(at):
        def replace(source, target):
            if tmp_path in Path(target).parents:  # not the data set, which only the first run puts into the cache
                asked.append(target)
                if len(asked) == at:
                    raise OSError(errno.ENOSPC, "No space left on device")
            original(source, target)

        return replace

    monkeypatch.setattr("pyg_topomask.cache.os.replace", full(-1))
    wanted = run_config(tiny, tmp_path / "whole")["metrics"]
    names = [os.path.basename(path) for path in asked]
    assert {"config.yaml", BEST, LAST, "metrics.csv", "curves.png", "result.json", "summary.json"} <= set(names)
    for name in (BEST, LAST, "summary.json"):
        asked.clear()
        at = len(names) - names[::-1].index(name)  # the last time that the file is written
        monkeypatch.setattr("pyg_topomask.cache.os.replace", full(at))
        with refused(f"{name}: No space left on device; free some space, and the same"):
            run_config(tiny, tmp_path / name)
        assert not list(tmp_path.rglob(".*part-*"))
        monkeypatch.setattr("pyg_topomask.cache.os.replace", original)
        assert run_config(tiny, tmp_path / name)["metrics"] == wanted


def test_a_full_cache_is_named(tiny, tmp_path, monkeypatch):
    full, cache = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")), tmp_path / "cache"
    monkeypatch.setenv("TOPOMASK_CACHE", str(cache))
    monkeypatch.setattr("torch_geometric.io.fs.torch_save", full)
    with refused(f"the cache folder {cache} cannot be written to: No space"):
        run_config(tiny, tmp_path)
    assert {path.suffix for path in cache.rglob("*") if path.is_file()} <= {".lock"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/x/a.json"), "/x/a.json: Permission denied"),
        (IsADirectoryError(21, "Is a directory", "/x/.a.part-m-1-2", None, "/x/a"), "/x/a: Is a directory"),
        (PermissionError(13, "Permission denied", "/x/.a.ckpt.part-m-1-2.ckpt"), "/x: Permission denied"),
        (OSError(errno.EROFS, "Read-only file system"), "the disk: Read-only file system"),
        (MemoryError("Unable to allocate 8 GiB"), "out of memory (Unable to allocate 8 GiB); lower train.batch_size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory (DefaultCPUAllocator"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nto"), "out of memory (CUDA out of memory. Tried)"),
    ],
)
def test_what_disk_and_memory_refuse_is_one_line(error, words):
    with refused(words), storage_errors():
        raise error


@pytest.mark.parametrize("error", [RuntimeError("a bug"), BrokenPipeError(32, "x"), ConnectionError(111, "x")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as caught, storage_errors():
        raise error
    assert caught.value is error
