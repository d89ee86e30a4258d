"""Training steps in CUDA graphs, with a capture that runs the function again on the memory of its first batch."""

from typing import ClassVar

import pytest
import torch

from pyg_topomask.run import run_config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.training.settings import Training
from pyg_topomask.run.training.trainer import device_problems

CAPTURED = ["train.cuda_graphs=true", "gt.dropout=0", "gt.attn_dropout=0"]


class Replayed:
    """What ``torch.cuda.make_graphed_callables`` promises: each call copies its inputs to those of the capture."""

    made: ClassVar[list] = []

    def __init__(self, module, sample, allow_unused_input):
        self.module, self.sample, self.calls = module, sample, 0
        self.made.append(self)
        for _ in range(3):  # before a capture
            module(*sample)

    def __call__(self, *given):
        self.calls += 1
        for old, new in zip(self.sample, given, strict=True):
            assert old.shape == new.shape
            old.copy_(new)
        return self.module(*self.sample)


@pytest.fixture
def captures(monkeypatch):
    monkeypatch.setattr(Replayed, "made", [])
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", Replayed)
    monkeypatch.setattr("pyg_topomask.run.experiment.device_problems", lambda training: [])
    return Replayed.made


@pytest.mark.parametrize("layers", ["GIN+GRF", "GIN+Primphormer"])
def test_a_captured_run_equals_another_one(tiny, tmp_path, captures, layers):
    settings = [f"gt.layer_type={layers}", "precision=64-true", *CAPTURED[1:]]
    runs = [run_config(tiny, tmp_path / str(n), overrides=settings + CAPTURED[:n])["folder"] for n in (0, 1)]
    plain, captured = (torch.load(f"{folder}/0/last.ckpt", weights_only=True)["state_dict"] for folder in runs)
    torch.testing.assert_close(captured, plain, rtol=1e-6, atol=1e-9)
    steps = 4 * 3
    assert sum(graph.calls for graph in captures) == steps
    assert 1 <= len(captures) < steps
    sizes = [tuple(x.shape for x in graph.sample) for graph in captures]
    assert len({*sizes}) == len(sizes)


def test_a_model_that_cannot_be_captured(tiny, tmp_path, captures, monkeypatch):
    def fail(*_, **settings):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", fail)
    with pytest.raises(RunError, match=r"train.cuda_graphs: the model cannot be captured \(operation .* capturing\)"):
        run_config(tiny, tmp_path, overrides=CAPTURED)


def test_what_cannot_be_captured_is_refused(tiny, tmp_path, monkeypatch):
    with pytest.raises(RunError, match=r"train.cuda_graphs: there is no CUDA device; set it to false"):
        run_config(tiny, tmp_path, overrides=CAPTURED)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("pyg_topomask.run.training.trainer.world_size", lambda: 2)
    training = Training(cuda_graphs=True, precision="bf16-mixed", accumulation=2)
    wrong = [message for key, message in device_problems(training) if key == "train.cuda_graphs"]
    assert [message.split()[0] for message in wrong] == ["captured", "each", "captured"]
