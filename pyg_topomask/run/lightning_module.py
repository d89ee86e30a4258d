"""The Lightning module: the task's loss and metrics around a model, and the callback that records a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from torch import Tensor
from torch.nn import ModuleDict
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from pyg_topomask.nn import GPSModel, auxiliary_loss
from pyg_topomask.run.build import apply_model, build_optimizer, build_scheduler
from pyg_topomask.run.config import Config
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.files import replacing
from pyg_topomask.run.report import write_metrics

PARTS = ("train", "val", "test")


class GraphModule(pl.LightningModule):
    """A model with its task: graph classification, or node classification on the nodes of ``data.mask``.

    Metrics are those of a whole split, not means over batches. The loss that is minimised has the auxiliary loss
    added; the loss that is reported is the task's alone.

    Args:
        model: The model.
        config: Gives task, optimiser and schedule.
        num_classes: Number of classes.
    """

    def __init__(self, model: GPSModel, config: Config, num_classes: int) -> None:
        super().__init__()
        self.model, self.config = model, config
        self.metrics = ModuleDict(
            {
                part + "_metrics": ModuleDict(
                    {
                        "loss": MeanMetric(nan_strategy=float("nan")),
                        "accuracy": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
                    }
                )
                for part in PARTS
            }
        )

    def forward(self, data: Data) -> Tensor:
        """Logits ``[B, classes]`` of the graphs, or ``[N, classes]`` of the nodes."""
        return apply_model(self.model, data)

    def _logits(self, data: Data) -> Tensor:
        try:
            return self(data)
        except ValueError:  # modules refuse NaN; say so if it is the weights that are not finite
            if all(bool(parameter.isfinite().all()) for parameter in self.parameters()):
                raise
            raise self._diverged("the weights are no longer finite") from None

    def _diverged(self, what: str) -> RunError:
        return RunError(
            f"training diverged in epoch {self.current_epoch}: {what}; "
            "try a lower optim.base_lr or optim.clip_grad_norm true"
        )

    def _step(self, data: Data, part: str) -> Tensor:
        logits, target = self._logits(data), data.y
        if "mask" in data:
            logits, target = logits[data.mask], target[data.mask]
        loss = cross_entropy(logits, target)
        metrics: dict[str, Metric] = self.metrics[part + "_metrics"]  # type: ignore[assignment]
        metrics["loss"].update(loss.detach(), target.numel())
        metrics["accuracy"].update(logits.detach(), target)
        return loss

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        loss = self._step(batch, "train")
        return loss + auxiliary_loss(self.model)

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        """Add one batch to the validation metrics."""
        self._step(batch, "val")

    def test_step(self, batch: Data, batch_idx: int) -> None:
        """Add one batch to the test metrics."""
        self._step(batch, "test")

    def collect(self, part: str) -> dict[str, float]:
        """Metrics of a split since the last call."""
        values = {}
        for name, metric in self.metrics[part + "_metrics"].items():  # type: ignore[operator]
            values[f"{part}_{name}"] = float(metric.compute())
            metric.reset()
        return values

    def on_validation_epoch_end(self) -> None:
        """Hand the validation metrics to Lightning, for early stopping."""
        self.log_dict(self.collect("val"))

    def on_test_epoch_end(self) -> None:
        """Hand the test metrics to Lightning."""
        self.log_dict(self.collect("test"))

    def on_train_epoch_end(self) -> None:
        """Hand the training metrics to Lightning, and stop a run that has diverged."""
        values = self.collect("train")
        for name, loss in (("training", values["train_loss"]), ("validation", self._val_loss())):
            if not math.isfinite(loss):
                raise self._diverged(f"the {name} loss is {loss}")
        self.log_dict(values)

    def _val_loss(self) -> float:
        return float(self.trainer.callback_metrics.get("val_loss", 0.0))

    def configure_optimizers(self) -> Any:
        """Optimiser, and schedule by epoch."""
        optimizer = build_optimizer(self.config, self.parameters())
        scheduler = build_scheduler(self.config, optimizer)
        return optimizer if scheduler is None else {"optimizer": optimizer, "lr_scheduler": scheduler}


class EpochSeed(pl.Callback):
    """Make all that is random in an epoch a function of (seed, epoch), so that a resumed run equals an undisturbed one.

    Args:
        seed: Seed of the run.
        start: Epoch that training begins or resumes at.
        redraw: Transform whose ``set_epoch`` draws afresh.
    """

    def __init__(self, seed: int, start: int, redraw: BaseTransform | None) -> None:
        self.seed, self.redraw = seed, redraw
        self.prepare(start)

    def prepare(self, epoch: int) -> None:
        """Let the loader's next pass be that of an epoch."""
        if self.redraw is not None:
            self.redraw.set_epoch(epoch)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ahead of the loader's first batch."""
        self.prepare(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed here, since Lightning skips ``on_train_epoch_start`` in the first epoch after resuming."""
        if batch_idx == 0:
            torch.manual_seed(self.seed * 1_000_003 + trainer.current_epoch)


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
            self.rows.append(row)
            if self._is_best(row):
                self.best_epoch = epoch
                self._save(trainer, "best.ckpt")
            write_metrics(self.folder / "metrics.csv", self.rows)
        last = trainer.should_stop or epoch + 1 == self.config.optim.max_epoch
        if last or (epoch + 1) % self.config.train.ckpt_period == 0:
            self._save(trainer, "last.ckpt")
        self.on_epoch(epoch + 1, row)

    def _is_best(self, row: dict[str, float]) -> bool:
        if self.best_epoch < 0:
            return True
        key = f"val_{self.config.metric_best}"
        new, old = row[key], self.best_row()[key]
        return new > old if self.config.best_is_max else new < old

    def _save(self, trainer: pl.Trainer, name: str) -> None:
        with replacing(self.folder / name) as temporary:
            trainer.save_checkpoint(temporary)


def early_stopping(config: Config) -> list[EarlyStopping]:
    """Lightning's early stopping; its patience counts evaluations."""
    patience = config.train.early_stop_patience
    if patience == 0:
        return []
    return [
        EarlyStopping(
            monitor=f"val_{config.metric_best}",
            mode="max" if config.best_is_max else "min",
            patience=max(1, -(-patience // config.train.eval_period)),
        )
    ]
