"""From measured steps to the time of an epoch and the memory of a run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyg_topomask.run.advise.sample import Epoch, estimate
from pyg_topomask.run.advise.trial import Trial


class Prediction(NamedTuple):
    """What a run with an attention takes.

    Args:
        epoch_s: Seconds per epoch, with evaluation.
        prepare_s: Seconds before the first epoch for encodings, walks, edges and trees.
        step_mib: Rise of the peak memory in training, in MiB; None if it cannot be measured.
        stored_mib: Memory of what is added to the graphs and of the batches of evaluations, in MiB.
    """

    epoch_s: float
    prepare_s: float
    step_mib: float | None
    stored_mib: float


def predict(trial: Trial, epoch: Epoch, eval_period: int = 1) -> Prediction:
    """Predict a run from a trial.

    Args:
        trial: The measurements.
        epoch: What an epoch processes.
        eval_period: Number of epochs per evaluation.
    """
    if trial.parts is not None:  # parts of one graph have about the same size
        pairs = zip(trial.parts, (trial.train, trial.val))
        train, val = (count * float(np.mean([step.seconds for step in steps])) for count, steps in pairs)
    else:
        train, val = (
            sum(estimate(steps, size) for size in sizes)
            for steps, sizes in ((trial.train, epoch.train), (trial.val, epoch.val))
        )
    given, added = trial.stored
    stored = (added * epoch.num_nodes + (given + added) * epoch.evaluated_nodes) / 2**20
    prepare = trial.prepare * epoch.num_nodes
    return Prediction(train + val / eval_period + trial.fixed, prepare, trial.step_mib, stored)
