"""Callbacks: seeds of the epochs, walks that follow the attention, the record of a run, early stopping."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, LambdaCallback
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn import redraw_walks, walks_along
from pyg_topomask.run.data.loaders import Served
from pyg_topomask.run.distributed import is_main, rank
from pyg_topomask.run.output.report import write_metrics
from pyg_topomask.run.training.checkpoint import BEST, LAST
from pyg_topomask.run.training.settings import Training
from pyg_topomask.transforms import AddRandomWalks


class EpochSeed(pl.Callback):
    """Make every random draw of an epoch a function of (seed, epoch), so that a resumed run equals an undisturbed one.

    Args:
        seed: Seed of the run.
        start: Epoch at which training begins or resumes.
        set_epoch: Called with the number of an epoch before the loader starts its pass.
    """

    def __init__(self, seed: int, start: int, set_epoch: Callable[[int], None]) -> None:
        self.seed, self.prepare = seed, set_epoch
        self.prepare(start)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the epoch before the loader's first batch."""
        self.prepare(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed here, because Lightning skips ``on_train_epoch_start`` in the first epoch after resuming."""
        if batch_idx == 0:
            torch.manual_seed((self.seed + 1_000_003 * rank()) * 1_000_003 + trainer.current_epoch)


class RedrawWalks(pl.Callback):
    """Dynamic GKAT: redrawn walks that follow the first layer's attention over neighbours.

    Training graphs get new walks before every ``period``-th epoch except the first, whose walks are uniform. Validation
    and test graphs get new walks before each evaluation, so that metrics are a function of the weights. Checkpoints
    contain the attention that the walks of the next epoch follow, so that a resumed run has the same walks.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Appendix A.5.

    Args:
        transform: The transform that drew the walks, with ``transition=`` set.
        batch_size: Number of graphs in one pass of the model.
        train: The training graphs; None without training.
        period: Number of epochs that share their walks.
    """

    def __init__(
        self, transform: AddRandomWalks, batch_size: int, train: Served | None = None, period: int = 1
    ) -> None:
        self.transform, self.batch_size, self.train, self.period = transform, batch_size, train, period
        self.epoch, self.weight = 0, torch.empty(0)

    def state_dict(self) -> dict[str, Any]:
        """The epoch of the last draw, and the attention that its walks follow: a number per edge of all graphs."""
        return {"epoch": self.epoch, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint."""
        self.epoch, self.weight = state["epoch"], state["weight"]

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the walks of a resumed run, before the loader's workers start."""
        if self.train is not None and self.epoch > 0:
            weights = self.weight.split([graph.num_edges for graph in self.train.graphs])
            self.train.replace(walks_along(self.train.graphs, self.transform, self.epoch, weights))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw the walks of the next epoch, so that its checkpoint contains their attention."""
        following = trainer.current_epoch + 1
        if self.train is None or following % self.period != 0 or following == trainer.max_epochs:
            return
        self.epoch = following
        graphs = self._redraw(self.train, pl_module, following)
        self.weight = torch.cat([graph[self.transform.transition] for graph in graphs])

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw walks before each evaluation, and before the test with the weights of the best epoch."""
        loader: Any = trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders
        self._redraw(loader.dataset, pl_module, epoch=0)

    on_test_start = on_validation_start

    def _redraw(self, served: Served, pl_module: Any, epoch: int) -> list[Data]:
        model: Module = pl_module.model
        layer = next(part for part in model.modules() if hasattr(part, "edge_attention"))
        pl_module.share_buffers()
        modes = {part: part.training for part in model.modules()}
        model.eval()
        call = lambda batch: pl_module.call(model, batch.to(pl_module.device))  # noqa: E731
        graphs = redraw_walks(served.graphs, self.transform, epoch, layer, call, self.batch_size)
        for part, mode in modes.items():
            part.training = mode
        served.replace(graphs)
        return graphs


class Recorder(Checkpoint):
    """Write the metrics of every evaluated epoch and the best and the last checkpoint, each completely or not at all.

    Checkpoints contain its state, so that a resumed run keeps the rows and the best epoch. A better epoch is written as
    the last checkpoint, too, because not every device would repeat it exactly.

    Args:
        folder: Folder of ``metrics.csv``, ``best.ckpt`` and ``last.ckpt``.
        training: Gives the metric, the periods, and the number of epochs.
        on_epoch: Called with (number of epochs done, row or None) after each epoch.
    """

    def __init__(
        self, folder: Path, training: Training, on_epoch: Callable[[int, dict[str, float] | None], None]
    ) -> None:
        self.folder, self.training, self.on_epoch = folder, training, on_epoch
        self.rows: list[dict[str, float]] = []
        self.best_epoch = 0  # epochs count from 1 in rows, files and messages
        self.lr = self.seconds = 0.0
        self.started = False
        self._since = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """The rows, the best epoch, and the time so far."""
        return {"rows": self.rows, "best_epoch": self.best_epoch, "seconds": self.elapsed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint."""
        self.rows, self.best_epoch, self.seconds = list(state["rows"]), state["best_epoch"], state["seconds"]

    def elapsed(self) -> float:
        """Seconds of training, including those before an interruption."""
        return self.seconds + time.perf_counter() - self._since

    def best_row(self) -> dict[str, float]:
        """Metrics of the best evaluated epoch."""
        return next(row for row in self.rows if row["epoch"] == self.best_epoch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop a resumed run that had already stopped early before it was killed."""
        self.started, self._since = True, time.perf_counter()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping) and callback.wait_count >= callback.patience:
                trainer.should_stop = True

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record the learning rate, because the schedule changes it before the end of the epoch."""
        self.lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the epoch, after all other callbacks."""
        epoch, row, is_best = trainer.current_epoch + 1, None, False
        if epoch % self.training.eval_period == 0:
            values = trainer.callback_metrics
            row = {"epoch": float(epoch), "lr": self.lr}
            row |= {name: float(values[name]) for name in sorted(values)}  # train before val
            is_best = self._is_best(row)
            self.rows.append(row)
            if is_best:
                self.best_epoch = epoch  # the first process writes files while the others wait
                trainer.save_checkpoint(self.folder / BEST, weights_only=True)
            if is_main():
                write_metrics(self.folder / "metrics.csv", self.rows)
        last = trainer.should_stop or epoch == self.training.epochs
        if last or is_best or epoch % self.training.ckpt_period == 0:
            trainer.save_checkpoint(self.folder / LAST)
        self.on_epoch(epoch, row)

    def _is_best(self, row: dict[str, float]) -> bool:
        if self.best_epoch == 0:
            return True
        key = f"val_{self.training.metric}"
        new, old = row[key], self.best_row()[key]
        if math.isnan(old):  # such as the area under the ROC curve without positives
            return not math.isnan(new)
        return new > old if self.training.best_is_max else new < old


def batch_counter(show: Callable[[str], None]) -> LambdaCallback:
    """Show the number of each batch of an epoch, which may take minutes."""

    def counted(trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, index: int, *_: Any) -> None:
        total = trainer.num_val_batches[0] if trainer.validating else trainer.num_training_batches
        show(f"{'validation ' if trainer.validating else ''}batch {index + 1}/{total}")

    return LambdaCallback(on_train_batch_end=counted, on_validation_batch_end=counted)


def early_stopping(training: Training) -> list[EarlyStopping]:
    """Lightning's early stopping; its patience counts evaluations."""
    if training.patience == 0:
        return []
    mode = "max" if training.best_is_max else "min"
    evaluations = max(1, -(-training.patience // training.eval_period))
    # NaN, such as that of a set without positives, counts as not better.
    return [EarlyStopping(f"val_{training.metric}", mode=mode, patience=evaluations, check_finite=False)]
