import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.transforms import AddRandomWalkPE, Compose, Constant

from pyg_topomask.fingerprint import describe, stable_hash


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def test_code_of_methods_counts():
    members = {
        "__call__": lambda self, data: data * self.factor,
        "factor": property(lambda self: 1),
        "shift": staticmethod(lambda x: x + 1),
    }
    changes = {
        "__call__": lambda self, data: data * self.factor - 1,
        "factor": property(lambda self: 3),
        "shift": staticmethod(lambda x: x + 2),
    }
    texts = [describe(type("Scale", (), members | {name: changes[name]})()) for name in changes]
    assert len({describe(type("Scale", (), members)()), *texts}) == 4
    assert describe(type("Scale", (), {**members})()) == describe(type("Scale", (), members)())


def test_describe_tells_settings_apart():
    def scaled(factor):
        return lambda data: data * factor

    def named(factor):
        def scale(data, *, factor=factor):
            return data * factor

        return scale

    different = [
        *(AddRandomWalkPE(2), AddRandomWalkPE(3), scaled(2.0), scaled(3.0), named(2.0), named(3.0)),
        *(Compose([AddRandomWalkPE(2)]), Compose([AddRandomWalkPE(2), Constant()])),
        *(lambda data: [part + 1 for part in data], lambda data: [part + 2 for part in data]),
        *(partial(AddRandomWalkPE, 2), partial(AddRandomWalkPE, 3), AddRandomWalkPE, torch.relu, torch.sigmoid),
        *(Slotted(1), Slotted(2), AddRandomWalkPE(2).forward, {"a": {1, 2}}, Path("a"), Path("b"), range(3), range(4)),
        *(torch.ones(2), torch.zeros(2), torch.float32, torch.float64, torch.device("cpu")),
    ]
    texts = [describe(value) for value in different]
    assert len(set(texts)) == len(different)
    assert not any(" at 0x" in text for text in texts)
    assert describe(AddRandomWalkPE(2)) == texts[0]
    assert describe(scaled(2.0)) == texts[2]
    assert describe(AddRandomWalkPE(np.int64(2))) == texts[0]
    with pytest.raises(TypeError, match="lock cannot be compared"):
        describe(Slotted([threading.Lock()]))


def test_tensors_of_every_kind_are_told_apart():
    row = torch.arange(4.0)
    square, waves = row.view(2, 2), torch.complex(row, row)
    different = [row, row.double(), row.bfloat16(), square, square.t(), square.to_sparse(), square.t().to_sparse()]
    different += [waves, waves.conj(), row[:0], row[3], row.bool()]
    texts = [describe(value) for value in different]
    assert len(set(texts)) == len(different)
    assert describe(square.t().contiguous()) == texts[4]
    assert describe(row.clone().requires_grad_()) == texts[0]
    edges = torch.tensor([[0, 1], [1, 0]])
    assert describe(EdgeIndex(edges, sparse_size=(2, 2))) == describe(EdgeIndex(edges.clone(), sparse_size=(2, 2)))


@pytest.mark.slow
def test_the_hash_is_the_same_in_every_process():
    values = "{'b', 'a', 'c'}, {2: 'x', 1: 'y'}, 0.1"
    code = f"from pyg_topomask.fingerprint import stable_hash; print(stable_hash({values}))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == stable_hash({"c", "a", "b"}, {1: "y", 2: "x"}, 0.1) + "\n"


def test_places_of_values_count():
    assert stable_hash("a", "b") != stable_hash("ab") != stable_hash(["a", "b"])
