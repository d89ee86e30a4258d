from types import SimpleNamespace

from pyg_topomask.run.training.callbacks import BatchProgress

COUNTS = {"num_training_batches": 9, "num_val_batches": [4], "num_test_batches": [5]}


def test_batches_are_counted():
    shown = []
    progress, trainer = BatchProgress(shown.append), SimpleNamespace(**COUNTS, testing=False)
    progress.on_train_batch_end(trainer, None, None, None, 2)
    progress.on_validation_batch_end(trainer, None, None, None, 2)
    trainer.testing = True
    progress.on_test_batch_end(trainer, None, None, None, 0)
    assert shown == ["training batch 3/9", "validation batch 3/4", "test batch 1/5"]
