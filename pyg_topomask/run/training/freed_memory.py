"""Return freed memory to the system, so that the memory of long runs stays bounded."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

from pyg_topomask.run.process_memory import available_mib, own_mib, return_freed_memory

# The memory of the process is read every STEPS training steps. Freed memory is returned if the process has more than
# MOST_GROWTH times its usual memory: that of the first reading, or what a return left, if that is more. It is also
# returned if it has grown by more than the machine has left. Memory that was returned must be requested again, which
# takes time: on Peptides-func with batches of 200 graphs, each return costs 1.2 s, or 3 % of the steps between two.
STEPS, MOST_GROWTH = 10, 2.0


class ReturnFreedMemory(pl.Callback):
    """Returns freed memory when the process has twice the memory of its first steps, or the machine has little left.

    The sizes of tensors differ from batch to batch. The C library keeps freed memory for later tensors that fit into
    it, so that without this callback, the memory of a process grows with the number of steps: on Peptides-func from
    3 GB after 5 steps to 8 GB after 80, while tensors use 0.5 GB between two steps.
    """

    def __init__(self) -> None:
        self.usual_mib: float | None = None
        self.steps = 0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Read the memory after every `STEPS` steps."""
        self.steps += 1
        if self.steps % STEPS != 0:
            return
        now = own_mib()
        if self.usual_mib is None:
            self.usual_mib = now
        elif now > MOST_GROWTH * self.usual_mib or now - self.usual_mib > available_mib():
            return_freed_memory()
            self.usual_mib = max(self.usual_mib, own_mib())  # what is in use cannot be returned
