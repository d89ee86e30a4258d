"""Callbacks: seeds by epoch, the record of a run, early stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn import redraw_walks
from pyg_topomask.run.config import Config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.files import replacing
from pyg_topomask.run.metrics import best_is_max
from pyg_topomask.run.processes import is_main, rank
from pyg_topomask.run.report import write_metrics
from pyg_topomask.transforms import AddRandomWalks


class EpochSeed(pl.Callback):
    """Make all that is random in an epoch a function of (seed, epoch), so that a resumed run equals an undisturbed one.

    Args:
        seed: Seed of the run.
        start: Epoch that training begins or resumes at.
        set_epoch: Called with the number of an epoch ahead of the loader's pass.
    """

    def __init__(self, seed: int, start: int, set_epoch: Callable[[int], None]) -> None:
        self.seed, self.prepare = seed, set_epoch
        self.prepare(start)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ahead of the loader's first batch."""
        self.prepare(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed here, since Lightning skips ``on_train_epoch_start`` in the first epoch after resuming."""
        if batch_idx == 0:
            torch.manual_seed((self.seed + 1_000_003 * rank()) * 1_000_003 + trainer.current_epoch)


class RedrawWalks(pl.Callback):
    """Dynamic GKAT: before each epoch but the first, walks drawn afresh that follow a layer's attention.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Appendix A.5.

    Args:
        graphs: The training graphs with walks, a list that the loader reads; its items are replaced.
        transform: The transform that drew them, with ``transition=`` set if there is a ``layer``.
        layer: As in :func:`~pyg_topomask.nn.redraw_walks`; steps are uniform if :obj:`None`.
        batch_size: Graphs in one pass of the model.
    """

    def __init__(
        self, graphs: list[Data], transform: AddRandomWalks, layer: Module | None = None, batch_size: int = 32
    ) -> None:
        self.graphs, self.transform, self.layer, self.batch_size = graphs, transform, layer, batch_size

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ahead of the loader's first batch of an epoch."""
        if trainer.current_epoch == 0:
            return
        training = pl_module.training

        def forward(batch: Data) -> Any:
            return pl_module(batch.to(pl_module.device))

        pl_module.eval()
        self.graphs[:] = redraw_walks(
            self.graphs, self.transform, trainer.current_epoch, self.layer, forward, self.batch_size
        )
        pl_module.train(training)


class Recorder(Checkpoint):
    """Keep the metrics of every evaluated epoch, the best and the last checkpoint, each file whole or absent.

    Its state lies in the checkpoints: a resumed run goes on with the rows and the best epoch so far.

    Args:
        folder: Where ``metrics.csv``, ``best.ckpt`` and ``last.ckpt`` go.
        config: Gives the metric, the periods, and the number of epochs.
        on_epoch: Called with (epochs done, row or none) after each epoch.
    """

    def __init__(self, folder: Path, config: Config, on_epoch: Callable[[int, dict[str, float] | None], None]) -> None:
        self.folder, self.config, self.on_epoch = folder, config, on_epoch
        self.rows: list[dict[str, float]] = []
        self.best_epoch = -1
        self.lr = 0.0
        self.seconds = 0.0
        self._since = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"rows": self.rows, "best_epoch": self.best_epoch, "seconds": self.elapsed()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.rows, self.best_epoch, self.seconds = list(state["rows"]), state["best_epoch"], state["seconds"]

    def elapsed(self) -> float:
        """Seconds of training, those before a resumption included."""
        return self.seconds + time.perf_counter() - self._since

    def best_row(self) -> dict[str, float]:
        """Metrics of the best evaluated epoch."""
        return next(row for row in self.rows if row["epoch"] == self.best_epoch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Do not go on with a run that had stopped early before it was killed."""
        self._since = time.perf_counter()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping) and callback.wait_count >= callback.patience:
                trainer.should_stop = True

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the learning rate, which the schedule has changed by the end of the epoch."""
        self.lr = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the epoch, after everything else has seen it."""
        epoch, row = trainer.current_epoch, None
        if (epoch + 1) % self.config.train.eval_period == 0:
            values = trainer.callback_metrics
            row = {"epoch": float(epoch), "lr": self.lr}
            row |= {name: float(values[name]) for name in sorted(values)}  # train before val
            self._check_metric(row)
            self.rows.append(row)
            if self._is_best(row):
                self.best_epoch = epoch
                self._save(trainer, "best.ckpt")
            if is_main():
                write_metrics(self.folder / "metrics.csv", self.rows)
        last = trainer.should_stop or epoch + 1 == self.config.optim.max_epoch
        if last or (epoch + 1) % self.config.train.ckpt_period == 0:
            self._save(trainer, "last.ckpt")
        self.on_epoch(epoch + 1, row)

    def _check_metric(self, row: dict[str, float]) -> None:
        key = f"val_{self.config.metric_best}"
        if key not in row:
            names = sorted(name.removeprefix("val_") for name in row if name.startswith("val_"))
            raise RunError(f"metric_best: the task has no {self.config.metric_best!r}; there are {', '.join(names)}")

    def _is_best(self, row: dict[str, float]) -> bool:
        if self.best_epoch < 0:
            return True
        key = f"val_{self.config.metric_best}"
        new, old = row[key], self.best_row()[key]
        if math.isnan(old):  # such as the area under a curve without positives
            return not math.isnan(new)
        return new > old if best_is_max(self.config.metric_best, self.config.metric_agg) else new < old

    def _save(self, trainer: pl.Trainer, name: str) -> None:
        if is_main():
            with replacing(self.folder / name) as temporary:
                trainer.save_checkpoint(temporary)
        else:
            trainer.save_checkpoint(self.folder / name)  # takes part, writes nothing
        trainer.strategy.barrier()


def early_stopping(config: Config) -> list[EarlyStopping]:
    """Lightning's early stopping; its patience counts evaluations."""
    patience = config.train.early_stop_patience
    if patience == 0:
        return []
    return [
        EarlyStopping(
            monitor=f"val_{config.metric_best}",
            mode="max" if best_is_max(config.metric_best, config.metric_agg) else "min",
            patience=max(1, -(-patience // config.train.eval_period)),
        )
    ]
