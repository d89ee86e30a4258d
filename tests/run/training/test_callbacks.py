from types import SimpleNamespace

import pytest

from pyg_topomask.run.training import callbacks
from pyg_topomask.run.training.callbacks import BatchProgress

TRAINER = SimpleNamespace(num_training_batches=9, num_val_batches=[4], num_test_batches=[5])


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    return now


def test_a_batch_is_shown_once_a_second(clock):
    shown = []
    progress = BatchProgress(shown.append)
    for number in range(9):
        clock[0] += 0.5
        progress.on_train_batch_end(TRAINER, None, None, None, number)
    assert shown == [f"training batch {number}/9" for number in (2, 4, 6, 8)]


def test_batches_of_evaluations_are_counted(clock):
    shown, done = [], []
    progress = BatchProgress(shown.append, on_test=lambda: done.append(1))
    clock[0] += 1
    progress.on_validation_batch_end(TRAINER, None, None, None, 2)
    progress.on_test_batch_end(TRAINER, None, None, None, 0)
    clock[0] += 1
    progress.on_test_batch_end(TRAINER, None, None, None, 1)
    assert shown == ["validation batch 3/4", "test batch 2/5"]
    assert len(done) == 2
