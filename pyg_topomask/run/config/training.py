"""``train``, ``val``, ``optim``, ``pretrained`` and ``wandb``: how the model is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pyg_topomask.run.config.base import Count, Probability, Section, Size

INFERENCE_MODES = ("inference-only", "PCQM4Mv2-inference", "log-attn-weights")
"""Values of ``train.mode`` without training."""


class TrainConfig(Section):
    """``train``: batches, evaluation and checkpoints."""

    mode: Literal["custom", "standard", "inference-only", "PCQM4Mv2-inference", "log-attn-weights"] = "custom"
    """custom, standard: train (both are the same here); inference-only: evaluate `pretrained.dir` on all three sets;
    PCQM4Mv2-inference: write its predictions for OGB's hidden parts; log-attn-weights: not provided, use `topomask
    show`."""
    batch_size: Size = 32
    """Number of graphs in a batch, or of training nodes in a neighbourhood (neighbor)."""
    sampler: Literal["full_batch", "random_partition", "cluster", "neighbor"] = "full_batch"
    """full_batch: whole graphs; random_partition, cluster, neighbor: parts of one large graph."""
    num_parts: Size = Field(default=10, le=10**6)
    """Number of parts of the graph (random_partition, cluster)."""
    neighbor_sizes: list[Size] = Field(default=[20, 15, 10, 5])
    """Number of neighbours drawn per node, for each hop (neighbor)."""
    shuffle: bool = True
    """Whether the training graphs, or parts of one graph, are shuffled in each epoch."""
    eval_period: Size = 1
    """Number of epochs between evaluations on the validation set."""
    ckpt_period: Size = 10
    """Number of epochs between checkpoints that a run resumes from."""
    early_stop_patience: Count = 0
    """Number of epochs without a better `metric_best` after which training stops; 0: never."""

    @property
    def is_inference(self) -> bool:
        """Whether the run evaluates a finished run without training."""
        return self.mode in INFERENCE_MODES


class ValConfig(Section):
    """``val``: what evaluations see."""

    sampler: Literal["full_batch", "random_partition", "cluster", "neighbor"] = "full_batch"
    """full_batch: whole graphs; the value of `train.sampler`: parts of one large graph, drawn as in training and the
    same in all evaluations."""


class OptimConfig(Section):
    """``optim``: the optimiser and its schedule."""

    optimizer: Literal["adamW", "adam", "adagrad", "sgd"] = "adamW"
    """Optimiser; only adamW decouples the weight decay from the gradient."""
    base_lr: float = Field(default=1e-3, gt=0)
    """Learning rate; with a schedule, its largest value."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay."""
    momentum: Probability = 0.9
    """Momentum (sgd)."""
    max_epoch: Size = 100
    """Number of epochs."""
    scheduler: Literal[
        "none",
        "cos",
        "step",
        "cosine_with_warmup",
        "linear_with_warmup",
        "polynomial_with_warmup",
        "plateau",
        "reduce_on_plateau",
    ] = "none"
    """Learning rate by epoch. none: constant; cos: half a cosine; step: lower after `steps`; *_with_warmup: linear
    warm-up, then half a cosine, a line to 0, or a line to 1e-7 (polynomial); plateau, reduce_on_plateau: lower when the
    validation loss no longer falls."""
    num_warmup_epochs: Count = 0
    """Number of epochs of linear warm-up (*_with_warmup). It may exceed max_epoch, as in a short trial."""
    steps: list[Size] = Field(default=[30, 60, 90])
    """Epochs after which the learning rate is lowered (step)."""
    lr_decay: float = Field(default=0.1, gt=0, lt=1)
    """Factor on the learning rate (step, plateau)."""
    reduce_factor: float = Field(default=0.1, gt=0, lt=1)
    """Factor on the learning rate (reduce_on_plateau)."""
    schedule_patience: Count = 10
    """Number of evaluations without a lower validation loss before the rate is lowered (plateau, reduce_on_plateau)."""
    min_lr: float = Field(default=0.0, ge=0)
    """Smallest learning rate (reduce_on_plateau)."""
    clip_grad_norm: bool = False
    """Clip the norm of the gradient."""
    clip_grad_norm_value: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    batch_accumulation: Size = 1
    """Number of batches whose gradients make one step."""


class PretrainedConfig(Section):
    """``pretrained``: a finished run to start from."""

    dir: str = ""
    """Folder of that run, with its config and best checkpoint; empty: no such run."""
    reset_prediction_head: bool = True
    """Start with a newly initialised head."""
    freeze_main: bool = False
    """Train only the head. Running means and variances of batch norms still follow the batches, as in GraphGPS."""


class WandbConfig(Section):
    """``wandb``: log to Weights & Biases, if its package is installed."""

    use: bool = False
    """Whether to log; without the package, a note is printed and nothing is logged."""
    entity: str = ""
    """Owner of the project."""
    project: str = "pyg_topomask"
    """Name of the project."""
    name: str = ""
    """Name of the run; empty: the name of the config."""
