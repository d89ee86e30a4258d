"""The Lightning module: the task's loss and metrics around a model."""

import copy
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn import ModuleDict
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch_geometric.data import Data

from pyg_topomask import __version__, loader, nn
from pyg_topomask.checks import NonFiniteError
from pyg_topomask.run.data.loaders import Splits
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.task import PARTS
from pyg_topomask.run.training.captured import Captured
from pyg_topomask.run.training.checkpoint import FORMAT, OURS
from pyg_topomask.run.training.losses import task_loss
from pyg_topomask.run.training.metrics import build_metrics, candidates
from pyg_topomask.run.training.scaled import Scaled

if TYPE_CHECKING:
    from pyg_topomask.run.experiment import Experiment


class GraphModule(pl.LightningModule):
    """A model with its task.

    Metrics are computed on a whole split, not averaged over batches. Training minimises the loss of the task plus
    ``auxiliary`` times the auxiliary loss; the reported loss is that of the task. If a graph has ``counted``,
    only the nodes in it count.

    Args:
        experiment: Builds the model and calls it; gives loss, metric, optimiser and schedule.
        splits: The data. A model that scales its predictions is fitted to the training targets.
    """

    def __init__(self, experiment: "Experiment", splits: Splits) -> None:
        super().__init__()
        training, source, call, task = experiment.training, experiment.data, experiment.call, splits.task
        model = experiment.build(splits.sizes)
        for part in model.modules():
            if isinstance(part, Scaled) and not part.is_fitted:  # pretrained weights are
                part.fit(splits.targets)
        self.data_format, self.source, self.call = splits.data_format(), source, call
        self.model, self.settings, self.task = model, training, task
        self.plans = (training.compile or training.cuda_graphs) and hasattr(model, "plan")
        called = torch.compile(model, dynamic=True, fullgraph=self.plans) if training.compile else model
        self._called: Any = [called]  # no second submodule
        self._captured = Captured(self._called[0], call) if training.cuda_graphs else None
        if training.cuda_graphs and (source.serving.sampler != "full_batch" or not self.plans):
            needed = "a model with a method plan(batch), and train.sampler: full_batch"
            raise RunError(f"train.cuda_graphs: it needs {needed}; set it to false")
        built = {part: build_metrics(task, training.metric) for part in PARTS}
        built["train"].pop("links", None)  # too expensive in training, because ranks need the scores of all pairs
        self.metrics = ModuleDict({f"{part}_metrics": ModuleDict(metrics) for part, metrics in built.items()})

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the number of the format and what a program needs to use the model."""
        checkpoint[OURS] = {"format": FORMAT, "version": __version__, "data": self.data_format}

    def forward(self, data: Data) -> Tensor:
        """Predictions for a batch; compiled ones read its plan, which a loader may have made."""
        if not self.plans:
            return self.call(self._called[0], data)
        model: Any = self.model
        plan = data["plan"] if "plan" in data else model.plan(data)
        if self._captured is not None and self.training:
            return self._captured(data, plan)
        planned: Any = partial(self._called[0], plan=plan)
        return self.call(planned, data)

    def _predict(self, data: Data) -> Tensor:
        try:
            prediction = self(data)
        except ValueError as error:  # a graph does not fit the model, or values are NaN
            if not all(bool(parameter.isfinite().all()) for parameter in self.parameters()):
                raise self._diverged("the weights are no longer finite") from None
            if not isinstance(error, NonFiniteError):
                with self.source.refusing():
                    raise
            if self.trainer.global_step > 0:
                raise self._diverged(f"a layer's output is no longer finite ({str(error).partition(';')[0]})") from None
            raise RunError(f"dataset.{self.source.name}: before any training, {error}") from None
        except RuntimeError as error:
            if not type(error).__module__.startswith("torch._dynamo"):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise RunError(f"train.compile: torch cannot compile the model ({reason}); set it to false") from error
        return self.task.shaped(prediction)

    def _diverged(self, what: str) -> RunError:
        rate = next((optimizer.defaults["lr"] for optimizer in self.trainer.optimizers), math.nan)
        clipped = self.settings.clip is not None
        clip = "optim.clip_grad_norm_value" if clipped else "optim.clip_grad_norm true"
        return RunError(
            f"training diverged in epoch {self.current_epoch + 1}: {what}; "
            f"try a lower optim.base_lr (it is {rate:g}) or {'a lower ' if clipped else ''}{clip}"
        )

    def _step(self, data: Data, part: str) -> Tensor:
        metrics: Any = self.metrics[part + "_metrics"]
        pairs = None
        if "links" in metrics:
            pairs, data = candidates(data), copy.copy(data)
            data.edge_label_index = torch.cat([data.edge_label_index, pairs.edge_index], dim=1)
        prediction = self._predict(data)
        if "real_graphs" in data:
            data = loader.unpadded(data)
            prediction = prediction[: data.num_graphs if self.task.level == "graph" else self.task.count(data)]
        if pairs is not None:
            count = prediction.size(0) - pairs.link.numel()
            metrics["links"].update(prediction[count:].detach(), pairs)
            prediction = prediction[:count]
        target = self.task.target(data)
        if len(prediction) != len(target):
            found, level = f"got {prediction.numel()} for {len(target)}", self.task.level
            raise RunError(f"the model must return {self.task.num_outputs} number(s) for each {level} ({found})")
        if "counted" in data:
            prediction, target = prediction[data.counted], target[data.counted]
        compared = self._standardised(prediction), self._standardised(target)
        loss = task_loss(self.settings.loss, *compared, self.task)
        known = int((~target.isnan()).sum()) if target.is_floating_point() else target.numel()
        metrics["loss"].update(loss.detach(), known)
        for group, metric in metrics.items():
            if group not in ("loss", "links"):
                metric.update(prediction.detach(), target, data)
        return loss

    def _standardised(self, values: Tensor) -> Tensor:
        """Predictions or targets as the loss compares them: in standard deviations, if the model scales them."""
        std = next((part.std for part in self.model.modules() if isinstance(part, Scaled)), None)
        return values if std is None else values / std

    def transfer_batch_to_device(self, batch: Data, device: torch.device, dataloader_idx: int) -> Data:
        """The batch on the device, without waiting for the copy."""
        return batch.to(device, non_blocking=True)

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        """Loss of one batch times ``accumulation``: Lightning divides by it, but GraphGPS sums gradients."""
        loss = self._step(batch, "train")
        auxiliary = nn.auxiliary_loss(self.model) if self._captured is None else self._captured.auxiliary
        loss = loss + self.settings.auxiliary * auxiliary
        return loss * self.settings.accumulation

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        """Add one batch to the validation metrics."""
        self._step(batch, "val")

    def test_step(self, batch: Data, batch_idx: int) -> None:
        """Add one batch to the test metrics."""
        self._step(batch, "test")

    def collect(self, part: str) -> dict[str, float]:
        """Metrics of a split over all processes; resets them."""
        values: dict[str, float] = {}
        for metric in self.metrics[part + "_metrics"].values():  # type: ignore[operator]
            values |= {f"{part}_{name}": float(value) for name, value in metric.compute().items()}
            metric.reset()
        return values

    def share_buffers(self) -> None:
        """Copy the first process's running statistics to all processes, as loading a checkpoint does."""
        if self.trainer.world_size > 1:
            for buffer in self.buffers():
                torch.distributed.broadcast(buffer, 0)

    def on_validation_epoch_start(self) -> None:
        """Make all processes evaluate the same model."""
        self.share_buffers()

    def on_validation_epoch_end(self) -> None:
        """Pass the validation metrics to Lightning, for early stopping."""
        self.log_dict(self.collect("val"))

    def on_test_epoch_end(self) -> None:
        """Pass the test metrics to Lightning."""
        self.log_dict(self.collect("test"))

    def on_train_epoch_end(self) -> None:
        """Pass the training metrics to Lightning, stop a run that has diverged, and step a schedule by the loss."""
        values = self.collect("train")
        val_loss = float(self.trainer.callback_metrics.get("val_loss", 0.0))
        for name, loss in (("training", values["train_loss"]), ("validation", val_loss)):
            if not math.isfinite(loss):
                raise self._diverged(f"the {name} loss is {loss}")
        self.log_dict(values)
        scheduler = self.lr_schedulers()
        if isinstance(scheduler, ReduceLROnPlateau) and (self.current_epoch + 1) % self.settings.eval_period == 0:
            scheduler.step(val_loss)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a schedule, unless it follows the validation loss: `on_train_epoch_end` has stepped it by then.

        Lightning would step it only after the checkpoint of the epoch, which would then lack that step.
        """
        if not isinstance(scheduler, ReduceLROnPlateau):
            super().lr_scheduler_step(scheduler, metric)

    def configure_optimizers(self) -> Any:
        """The optimiser, and the schedule by epoch."""
        optimizer = self.settings.optimizer(self)
        make = self.settings.scheduler
        scheduler: Any = make(optimizer) if make else None
        if isinstance(scheduler, ReduceLROnPlateau):
            period = self.settings.eval_period
            scheduler = {"scheduler": scheduler, "monitor": "val_loss", "frequency": period}
        return optimizer if scheduler is None else {"optimizer": optimizer, "lr_scheduler": scheduler}
