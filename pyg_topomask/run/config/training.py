"""``train``, ``val``, ``optim``, ``pretrained`` and ``wandb``: how the model is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pyg_topomask.run.config.base import Count, Section, Size

INFERENCE_MODES = ("inference-only", "PCQM4Mv2-inference", "log-attn-weights")
"""Values of ``train.mode`` that train nothing."""


class TrainConfig(Section):
    """``train``: how the data are served and when the model is evaluated."""

    mode: Literal["custom", "standard", "inference-only", "PCQM4Mv2-inference", "log-attn-weights"] = Field(
        default="custom",
        description="custom, standard: train (one and the same loop here); inference-only: evaluate `pretrained.dir` "
        "on all parts; PCQM4Mv2-inference: write its predictions for OGB's hidden parts; log-attn-weights: "
        "GraphGPS's, refused; `topomask show` draws attention.",
    )
    batch_size: Size = Field(
        default=32, description="Graphs in a batch, or training nodes in a neighbourhood (neighbor)."
    )
    sampler: Literal["full_batch", "random_partition", "cluster", "neighbor"] = Field(
        default="full_batch",
        description="full_batch: every graph whole; random_partition, cluster, neighbor: parts of one large graph.",
    )
    num_parts: Size = Field(
        default=10, le=10**6, description="Parts of a partitioned graph (random_partition, cluster)."
    )
    neighbor_sizes: list[Size] = Field(
        default=[20, 15, 10, 5], description="Neighbours drawn per node, hop by hop (neighbor)."
    )
    shuffle: bool = Field(
        default=True, description="Whether training graphs, or parts of one, come in a new order in each epoch."
    )
    eval_period: Size = Field(default=1, description="Epochs from one evaluation on the validation set to the next.")
    ckpt_period: Size = Field(default=10, description="Epochs from one `last` checkpoint to the next, to resume from.")
    early_stop_patience: Count = Field(
        default=0, description="Stop after so many epochs without a better `metric_best`; 0: never."
    )

    @property
    def is_inference(self) -> bool:
        """Whether nothing is trained."""
        return self.mode in INFERENCE_MODES


class OptimConfig(Section):
    """``optim``: the optimiser and its schedule."""

    optimizer: Literal["adamW", "adam", "adagrad", "sgd"] = Field(
        default="adamW", description="Optimiser; all but adamW add the decay to the gradient."
    )
    base_lr: float = Field(default=1e-3, gt=0, description="Learning rate, the peak of the schedule.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay.")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.9, description="Momentum (sgd).")
    max_epoch: Size = Field(default=100, description="Number of epochs.")
    scheduler: Literal[
        "none",
        "cos",
        "step",
        "cosine_with_warmup",
        "linear_with_warmup",
        "polynomial_with_warmup",
        "plateau",
        "reduce_on_plateau",
    ] = Field(
        default="none",
        description="Learning rate by epoch: constant; half a cosine; steps; after linear warm-up half a cosine, a "
        "line or a line to 1e-7; reduced where the validation loss stalls (the last two).",
    )
    num_warmup_epochs: Count = Field(
        default=0,
        description="Epochs of linear warm-up (*_with_warmup); a shorter training, as for a trial, ends within it.",
    )
    steps: list[Size] = Field(default=[30, 60, 90], description="Epochs that end in a smaller learning rate (step).")
    lr_decay: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1, description="Factor on the learning rate (step, plateau)."
    )
    reduce_factor: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1, description="Factor on the learning rate (reduce_on_plateau)."
    )
    schedule_patience: Count = Field(
        default=10, description="Epochs without a lower validation loss before that (plateau, reduce_on_plateau)."
    )
    min_lr: float = Field(default=0.0, ge=0, description="Smallest learning rate (reduce_on_plateau).")
    clip_grad_norm: bool = Field(default=False, description="Clip the norm of the gradient.")
    clip_grad_norm_value: float = Field(default=1.0, gt=0, description="Norm that gradients are clipped to.")
    batch_accumulation: Size = Field(default=1, description="Batches whose gradients are summed for one step.")


class PretrainedConfig(Section):
    """``pretrained``: a finished run to start from."""

    dir: str = Field(
        default="", description="Folder of that run, with its config and best checkpoint; none where empty."
    )
    reset_prediction_head: bool = Field(default=True, description="Start with a fresh head.")
    freeze_main: bool = Field(default=False, description="Train the head only.")


class WandbConfig(Section):
    """``wandb``: log to Weights & Biases, where its package is installed."""

    use: bool = Field(default=False, description="Whether to log there; without the package a note is printed.")
    entity: str = Field(default="", description="Who owns the project.")
    project: str = Field(default="pyg_topomask", description="The project.")
    name: str = Field(default="", description="Name of the run; that of the config where empty.")
