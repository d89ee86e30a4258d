"""From measured steps to the time of an epoch and the memory of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyg_topomask.run.advise.fit import estimate, fitted
from pyg_topomask.run.advise.sample import Epoch, Size
from pyg_topomask.run.advise.stopwatch import Seconds, Step
from pyg_topomask.run.advise.trial import Trial


@dataclass(frozen=True)
class Prediction:
    """What a run with an attention takes.

    Args:
        epoch: Seconds per epoch, with evaluation.
        prepare: Seconds before the first epoch for encodings, walks, edges and trees.
        step_mib: Rise of the peak memory in training, in MiB; None if it cannot be measured.
        stored_mib: Memory of what is added to the graphs and of the batches of evaluations, in MiB.
        is_extrapolated: Whether steps of full size were not measured.
    """

    epoch: Seconds
    prepare: Seconds
    step_mib: float | None
    stored_mib: float
    is_extrapolated: bool


def predict(trial: Trial, epoch: Epoch, largest: Size, bytes_per_node: float, eval_period: int = 1) -> Prediction:
    """Predict a run from a trial.

    Args:
        trial: The measurements.
        epoch: What an epoch processes.
        largest: Size of the largest batch.
        bytes_per_node: Bytes per node of the graphs without additions.
        eval_period: Number of epochs per evaluation.
    """
    both = [_epoch_seconds(trial, epoch, clock, eval_period) for clock in (0, 1)]
    prepare = Seconds(*(seconds * epoch.num_nodes for seconds in trial.prepare))
    stored = trial.stored * epoch.num_nodes + (bytes_per_node + trial.stored) * epoch.evaluated_nodes
    measured = [mib for size, mib in trial.memory if size == largest]
    memory = measured[-1] if measured else estimate(trial.memory, largest) if trial.memory else None
    return Prediction(Seconds(*both), prepare, memory, stored / 2**20, not trial.is_full)


def _epoch_seconds(trial: Trial, epoch: Epoch, clock: int, eval_period: int) -> float:
    train = _total(trial.train, epoch.train, clock, trial.num_steps)
    val = _total(trial.val, epoch.val, clock, trial.num_val_steps)
    return train + val / eval_period + trial.fixed[clock]


def _total(steps: Sequence[Step], sizes: Sequence[Size], clock: int, num_parts: int | None) -> float:
    """Seconds of steps of these sizes, or of that number of parts of a graph, which have about the same size."""
    if num_parts is not None:
        return num_parts * float(np.mean([step.seconds[clock] for step in steps]))
    return sum(fitted([(step.size, step.seconds[clock]) for step in steps], sizes)) if sizes else 0.0
