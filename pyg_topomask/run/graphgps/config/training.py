"""``train``, ``val``, ``optim``, ``pretrained`` and ``wandb``: how the model is trained."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pyg_topomask.run.distributed import world_size
from pyg_topomask.run.graphgps.config.base import NO_LOADERS, AlsoCalled, Count, Probability, Section, Size

Sampler = Literal["full_batch", "random_partition", "cluster", "neighbor", "walks"]


class TrainConfig(Section):
    """``train``: batches, evaluation and checkpoints."""

    no_effect_because: ClassVar[dict[str, str]] = {
        NO_LOADERS: "skip_train_eval eval_smoothing_metrics node_per_graph radius iter_per_epoch walk_length",
        "checkpoints are always written, and an interrupted run always resumes": "enable_ckpt ckpt_best ckpt_clean "
        "auto_resume",
    }
    only = "epoch_resume: -1, sample_node: false"

    mode: Literal["custom", "standard", "inference-only", "PCQM4Mv2-inference"] = "custom"
    """custom, standard: train (both are the same here); inference-only: evaluate `pretrained.dir` on all three sets;
    PCQM4Mv2-inference: also write OGB's files of predictions for its hidden parts. For GraphGPS's log-attn-weights, use
    `topomask show`."""
    batch_size: Size = 32
    """Number of graphs in a batch, or of training nodes in a batch of neighbourhoods (neighbor, walks). Read if there
    are several graphs, or parts of one are sampled."""
    sampler: Sampler = "full_batch"
    """full_batch: whole graphs; random_partition, cluster, neighbor, walks: parts of one large graph."""
    num_parts: Annotated[Size, Field(le=10**6)] = 10
    """Number of parts of the graph. Read if train.sampler is random_partition or cluster."""
    neighbor_sizes: list[Size] = Field(default=[20, 15, 10, 5])
    """Number of neighbours drawn per node, for each hop. Read if train.sampler is neighbor."""
    max_nodes: Size = 32
    """Largest number of nodes in the neighbourhood of a training node. Read if train.sampler is walks."""
    shuffle: bool = True
    """Whether the training graphs, or parts of one graph, are shuffled in each epoch. Read if there are several graphs,
    or parts of one are sampled."""
    compile: bool = False
    """Compile the model with torch.compile, in one graph; what depends on a batch alone is planned in loaders."""
    cuda_graphs: bool = False
    """Capture forward and backward passes of the training in CUDA graphs, one for each size of batches, which are
    padded to few sizes. It needs a CUDA device."""
    eval_period: Size = 1
    """Number of epochs between evaluations on the validation set."""
    ckpt_period: Size = 10
    """Number of epochs between checkpoints that a run resumes from."""
    early_stop_patience: Count = 0
    """Number of epochs without a better `metric_best` after which training stops; 0: never."""

    @property
    def is_inference(self) -> bool:
        """Whether the run evaluates a finished run without training."""
        return self.mode in ("inference-only", "PCQM4Mv2-inference")

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """What is wrong with inference and the number of evaluations."""
        if self.mode == "PCQM4Mv2-inference" and (config.dataset.name != self.mode or world_size() > 1):
            given = f"(got {config.dataset.name}, {world_size()})"
            yield "train.mode", f"{self.mode} needs the data set of that name, and one process {given}"
        if self.is_inference and not config.pretrained.dir:
            yield "pretrained.dir", f"train.mode {self.mode!r} needs the folder of a finished run"
        if self.eval_period > config.optim.max_epoch and not self.is_inference:
            limit = f"exceeds optim.max_epoch {config.optim.max_epoch}"
            yield "train.eval_period", f"{limit}: there would be no evaluation"
        if config.val.sampler not in ("full_batch", self.sampler):
            message = f"must be full_batch or the value of train.sampler, {self.sampler} (got {config.val.sampler})"
            yield "val.sampler", message


class ValConfig(Section):
    """``val``: what evaluations see."""

    no_effect_because: ClassVar[dict[str, str]] = {NO_LOADERS: "node_per_graph radius iter_per_epoch walk_length"}
    only = "sample_node: false"

    sampler: Sampler = "full_batch"
    """full_batch: whole graphs; the value of `train.sampler`: parts of one large graph, drawn as in training and the
    same in all evaluations."""


class OptimConfig(Section):
    """``optim``: the optimiser and its schedule."""

    optimizer: Literal["adamW", "adam", "adagrad", "sgd"] = "adamW"
    """Optimiser; only adamW decouples the weight decay from the gradient."""
    base_lr: Annotated[float, Field(gt=0), AlsoCalled("lr"), AlsoCalled("learning_rate")] = 1e-3
    """Learning rate; with a schedule, its largest value."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay."""
    momentum: Probability = 0.9
    """Momentum. Read if optim.optimizer is sgd."""
    max_epoch: Annotated[Size, AlsoCalled("epochs"), AlsoCalled("num_epochs")] = 100
    """Number of epochs."""
    scheduler: Literal[
        "none", "cos", "step", "cosine_with_warmup", "linear_with_warmup", "polynomial_with_warmup", "plateau",
        "reduce_on_plateau",
    ] = "none"  # fmt: skip
    """Learning rate by epoch. none: constant; cos: half a cosine; step: lower after `steps`; *_with_warmup: linear
    warm-up, then half a cosine, a line to 0, or a line to 1e-7 (polynomial); plateau, reduce_on_plateau: lower when the
    validation loss no longer falls."""
    num_warmup_epochs: Count = 0
    """Number of epochs of linear warm-up. It may exceed max_epoch, as in a short trial. Read if optim.scheduler is
    cosine_with_warmup or linear_with_warmup or polynomial_with_warmup."""
    steps: list[Size] = Field(default=[30, 60, 90])
    """Epochs after which the learning rate is lowered. Read if optim.scheduler is step."""
    lr_decay: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Factor on the learning rate. Read if optim.scheduler is step or plateau."""
    reduce_factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Factor on the learning rate. Read if optim.scheduler is reduce_on_plateau."""
    schedule_patience: Count = 10
    """Number of evaluations without a lower validation loss before the rate is lowered. Read if optim.scheduler is
    plateau or reduce_on_plateau."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Smallest learning rate. Read if optim.scheduler is reduce_on_plateau."""
    clip_grad_norm: bool = False
    """Clip the norm of the gradient."""
    clip_grad_norm_value: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of the gradient. Read if optim.clip_grad_norm is true."""
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
