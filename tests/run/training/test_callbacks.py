from types import SimpleNamespace

from pyg_topomask.run.training.callbacks import BatchProgress

TRAINER = SimpleNamespace(num_training_batches=9, num_val_batches=[4], num_test_batches=[5])


def test_batches_of_training_are_counted():
    shown = []
    BatchProgress(shown.append).on_train_batch_end(TRAINER, None, None, None, 2)
    assert shown == ["training batch 3/9"]


def test_batches_of_evaluations_are_counted():
    shown, done = [], []
    progress = BatchProgress(shown.append, on_test=lambda: done.append(1))
    progress.on_validation_batch_end(TRAINER, None, None, None, 2)
    progress.on_test_batch_end(TRAINER, None, None, None, 0)
    progress.on_test_batch_end(TRAINER, None, None, None, 1)
    assert shown == ["validation batch 3/4", "test batch 1/5", "test batch 2/5"]
    assert len(done) == 2
