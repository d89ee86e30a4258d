"""Files that would run a program are refused before they do, and all that data sets really hold is read."""

import collections
import contextlib
import io
import os
import pickle
import subprocess
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.io import fs

from pyg_topomask.fingerprint import describe
from pyg_topomask.tensor_files import UnreadableFileError, load_tensors, only_data, reason_of
from tests.hostile import Calls, touch, unpacks_safely


class Sets(Calls):
    """What is pickled as an object whose ``__setstate__`` calls the function."""

    def __reduce__(self):
        return collections.OrderedDict, (), {"a": Calls(*self.call)}


def hostile(marker):
    """Objects whose pickles make a file, each in another way."""
    text = str(marker)
    inner = io.BytesIO()
    torch.save(Calls(touch, text), inner)
    return {
        "system": Calls(os.system, f"touch {text}"),
        "popen": Calls(subprocess.Popen, ["touch", text]),
        "exec": Calls(exec, f"open({text!r}, 'w')"),
        "open": Calls(open, text, "w"),
        "partial": Calls(partial(touch, text)),
        "inside": {"x": torch.ones(2), "y": [Calls(touch, text)]},
        "state": Sets(touch, text),
        "storage": Calls(torch.storage._load_from_bytes, inner.getvalue()),
        "loads": Calls(pickle.loads, pickle.dumps(Calls(touch, text))),
        "array": np.array([Calls(touch, text)], dtype=object),
        "getattr": Calls(getattr, "x", "upper"),
    }


WAYS = list(hostile("x"))


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("writer", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_hostile_files_are_refused(tmp_path, marker, way, writer):
    path = tmp_path / "data.pt"
    writer(hostile(marker)[way], path)
    with pytest.raises(UnreadableFileError, match=r"data\.pt cannot be read: it (refers to|was not written)") as caught:
        load_tensors(path)
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)
    with only_data():
        for load in (fs.torch_load, partial(torch.load, weights_only=False)):  # PyG's tries without the allow-list
            with pytest.raises(pickle.UnpicklingError):
                load(path)
        for load in (pickle.load, lambda file: pickle.loads(file.read())) if writer is not torch.save else ():
            with pytest.raises(pickle.UnpicklingError), path.open("rb") as file:
                load(file)
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore:'torch.load' received a zip file", "ignore:.*torch.jit")
def test_torchscript_is_not_opened(tmp_path):
    path = tmp_path / "model.pt"
    torch.jit.script(torch.nn.Linear(1, 1)).save(path)
    with only_data(), pytest.raises(RuntimeError, match="weights_only"):
        torch.load(path, weights_only=False)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_torch_files_of_every_protocol_are_read(tmp_path, protocol):
    """As the splits of ogb's large link data sets, which were saved with protocol 4."""
    path, value = tmp_path / "split.pt", {"train": {"edge": torch.arange(6).view(3, 2), "weight": np.arange(3)}}
    torch.save(value, path, pickle_protocol=protocol)
    with only_data():
        assert describe(torch.load(path, weights_only=False)) == describe(fs.torch_load(path)) == describe(value)


def test_everything_is_put_back(tmp_path, marker):
    def patched():
        return torch.load, pickle.load, pickle.loads, vars(tarfile.TarFile).copy()

    before = patched()
    with contextlib.suppress(KeyError), only_data():
        assert pickle.load is not before[1]
        raise KeyError
    assert before == patched()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_raw_pickles_are_read(protocol):
    """What Planetoid, ZINC, AQSOL, CSL and LRGB's superpixels are made of."""
    matrix = scipy.sparse.random(5, 7, 0.3, format="csr", dtype=np.float32, rng=0)
    values = [
        *(matrix, matrix.tocsc(), matrix.tocoo(), scipy.sparse.csr_array(matrix)),
        *(np.arange(3), np.eye(2, dtype=np.float32), np.array([[1, None]], dtype=object), np.array("a")),
        *(np.float32(0.5), np.int64(3), True, None, 1.5, 2**70, "é", b"\xff", (1, {2}), 1j),
        *(torch.arange(4), torch.ones(2, 3).t(), torch.zeros(0), torch.ones(2, dtype=torch.bfloat16)),
        *(collections.defaultdict(list, {0: [1, 2], 1: [0]}), collections.OrderedDict(a=1)),
    ]
    content = pickle.dumps(values, protocol)
    with only_data():
        assert describe(pickle.loads(content)) == describe(pickle.load(io.BytesIO(content))) == describe(values)


def test_pickles_with_old_names_are_read():
    """As Planetoid's are: csr_matrix and its arrays by the names of Python 2, numpy 1 and an old scipy."""
    matrix = scipy.sparse.csr_matrix(np.eye(2))
    content = pickle.dumps(matrix, 0).replace(b"numpy._core", b"numpy.core").replace(b"sparse._csr", b"sparse.csr")
    assert b"copy_reg" in content
    with only_data():
        assert describe(pickle.loads(content, encoding="latin1")) == describe(matrix)


def test_graphs_and_arrays_are_read(tmp_path):
    data = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), name="a", table=np.arange(3.0))
    hetero = HeteroData(a={"x": torch.ones(2)})
    path = tmp_path / "x.pt"
    torch.save({"data": data, "hetero": hetero, "row": np.arange(2), "number": np.float64(2)}, path)
    found = load_tensors(path)
    assert describe(found["data"].to_dict()) == describe(data.to_dict())
    assert torch.equal(found["hetero"]["a"].x, hetero["a"].x)
    assert (found["row"].tolist(), found["number"]) == ([0, 1], 2)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04", b"\x80\x02.", b"\x80\x05N.", None])
def test_damaged_files(tmp_path, content):
    path = tmp_path / "x.pt"
    torch.save(torch.ones(100), path)
    path.write_bytes(path.read_bytes()[:300] if content is None else content)
    with pytest.raises(UnreadableFileError, match=r"x\.pt cannot be read: \w") as caught:
        print(load_tensors(path))
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_tensors(path)
    path.mkdir()
    with pytest.raises(UnreadableFileError, match=r"Is a directory|Permission"):
        load_tensors(path)


@pytest.mark.parametrize("checked", [pytest.param(True, marks=unpacks_safely), False])
def test_archives_stay_in_their_folder(tmp_path, monkeypatch, checked):
    if not checked:  # as in Python 3.10.0 and 3.11.2
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    inside, link = tmp_path / "inside", tarfile.TarInfo("link")
    inside.mkdir()
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    for member in (tarfile.TarInfo("../outside"), link, tarfile.TarInfo("good")):
        with tarfile.open(tmp_path / "x.tar", "w") as archive:
            archive.addfile(member)
        message = None if checked else r"cannot unpack archives safely; update it to 3\.10\.12, 3\.11\.4 or later"
        accepted = checked and member.name == "good"
        refused = contextlib.nullcontext() if accepted else pytest.raises(tarfile.TarError, match=message)
        with only_data(), tarfile.open(tmp_path / "x.tar") as archive, refused:
            archive.extractall(inside)
    assert not (tmp_path / "outside").exists()
    assert [path.name for path in inside.iterdir()] == (["good"] if checked else [])


def test_reasons_fit_in_a_line():
    errors = OSError(28, "No space left on device"), EOFError(), ValueError("one\ntwo")
    assert [reason_of(error) for error in errors] == ["No space left on device", "EOFError", "one"]


def test_only_the_safe_reader_calls_torch_load():
    root = Path(__file__).parents[1]
    files = [path for folder in ("pyg_topomask", "scripts", "examples") for path in (root / folder).rglob("*.py")]
    assert [path.name for path in files if "torch.load(" in path.read_text()] == ["tensor_files.py"]
