"""What a config may say: one model per section, in GraphGPS's spelling, one sentence for each key."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import getitem
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Probability = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Unknown keys are refused and numbers must be finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)


class DatasetConfig(Section):
    """``dataset``: what is learned from."""

    format: Literal["PyG-MotifDataset", "PyG-TUDataset", "PyG-Planetoid"] = Field(
        description="Family of data sets: our generated motif graphs, or PyG's class of that name."
    )
    name: str = Field(description="Data set of the family: a motif (circle, ...), ENZYMES, Cora, ...")
    dir: str | None = Field(
        default=None, description="Folder looked in for raw files before $TOPOMASK_DATA; may be read-only."
    )
    task: Literal["graph", "node"] = Field(
        default="graph", description="Whether whole graphs or single nodes are classified."
    )
    task_type: Literal["classification"] = Field(
        default="classification", description="Kind of target: one class of several."
    )
    split_mode: Literal["standard", "random"] | Annotated[str, Field(pattern=r"^cv-(stratified)?kfold-\d+$")] = Field(
        default="random",
        description="standard: the data set's own masks; random: by `split`; cv-[stratified]kfold-K: folds.",
    )
    split: tuple[float, float, float] = Field(
        default=(0.8, 0.1, 0.1), description="Shares of training, validation and test in a random split."
    )
    split_index: int = Field(
        default=0, ge=0, description="Fold that is the test set; the one after it is for validation."
    )
    split_seed: int | None = Field(
        default=None, ge=0, description="Seed of the split; none: the run's own seed for random splits, 0 for folds."
    )
    node_encoder_name: Literal["LinearNode", "Constant"] = Field(
        default="LinearNode", description="What is encoded: the features (1 where there are none), or 1 in their place."
    )
    edge_encoder: bool = Field(default=False, description="Whether edges carry encoded features into the convolution.")
    edge_encoder_name: Literal["LinearEdge", "DummyEdge"] = Field(
        default="DummyEdge",
        description="LinearEdge encodes the data's edge features; DummyEdge learns one vector for all.",
    )
    use_node_attr: bool = Field(default=False, description="Add the continuous node attributes of a TU data set.")
    num_graphs: int = Field(default=4096, ge=3, description="Graphs to generate (PyG-MotifDataset).")
    num_nodes: int = Field(default=100, ge=10, description="Nodes of each generated random graph (PyG-MotifDataset).")

    @field_validator("split")
    @classmethod
    def _split_adds_up(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(value) <= 0 or sum(value) > 1 + 1e-6:
            raise ValueError("the three shares must be positive and add up to at most 1")
        return value

    @property
    def num_folds(self) -> int | None:
        """K of ``cv-[stratified]kfold-K``; none for other split modes."""
        return int(self.split_mode.rsplit("-", 1)[1]) if self.split_mode.startswith("cv-") else None


class TrainConfig(Section):
    """``train``: how the data are served and when the model is evaluated."""

    mode: Literal["custom", "standard"] = Field(
        default="custom", description="Training loop; both are the same one here."
    )
    batch_size: int = Field(
        default=32, ge=1, description="Graphs in a batch (task graph; a node task takes the whole graph)."
    )
    sampler: Literal["full_batch"] = Field(
        default="full_batch", description="full_batch: every graph whole, none sampled."
    )
    eval_period: int = Field(
        default=1, ge=1, description="Epochs from one evaluation on the validation set to the next."
    )
    ckpt_period: int = Field(
        default=10, ge=1, description="Epochs from one `last` checkpoint to the next, to resume from."
    )
    early_stop_patience: int = Field(
        default=0, ge=0, description="Stop after so many epochs without a better `metric_best`; 0: never."
    )


class ModelConfig(Section):
    """``model``: what kind of model and loss."""

    type: Literal["GPSModel"] = Field(default="GPSModel", description="Architecture: a stack of GraphGPS layers.")
    loss_fun: Literal["cross_entropy"] = Field(default="cross_entropy", description="Loss of the task.")
    graph_pooling: Literal["mean", "add", "max"] = Field(
        default="mean", description="How nodes become one vector per graph."
    )


class SparseConfig(Section):
    """``gt.sparse``: the k-MIP attention, in the spelling of its authors."""

    k: int = Field(default=10, ge=1, description="Keys that each query attends to.")
    kq_dim: int | None = Field(
        default=None, ge=1, description="Width of one head's queries and keys; none: `gt.dim_hidden` / `gt.n_heads`."
    )
    val_dim: int | None = Field(
        default=None, ge=1, description="Width of one head's values; none: `gt.dim_hidden` / `gt.n_heads`."
    )
    head_agg: Literal["Linear", "none"] = Field(
        default="Linear", description="Linear mixes the heads by an output projection; none only joins them."
    )


class GTConfig(Section):
    """``gt``: the GraphGPS layers."""

    layer_type: str = Field(
        default="GCN+GRF",
        description="Convolution + attention, either may be None: GCN+GRF, GINE+KMIP, None+Linear, GCN+None.",
    )
    layers: int = Field(default=2, ge=1, description="Number of layers.")
    n_heads: int = Field(default=1, ge=1, description="Attention heads; they divide `dim_hidden`.")
    dim_hidden: int = Field(default=64, ge=1, description="Width of the layers.")
    dropout: Probability = Field(default=0.0, description="Dropout after each branch and in the feed-forward part.")
    attn_dropout: Probability = Field(default=0.0, description="Dropout inside the attention.")
    layer_norm: bool = Field(default=False, description="Normalise by LayerNorm.")
    batch_norm: bool = Field(default=True, description="Normalise by BatchNorm.")
    sparse: SparseConfig = Field(default_factory=SparseConfig, description="The k-MIP attention.")

    @field_validator("layer_type")
    @classmethod
    def _two_parts(cls, value: str) -> str:
        parts = [part.strip() for part in value.split("+")]
        if len(parts) != 2 or not all(parts):
            raise ValueError("must be a convolution and an attention joined by '+', such as GCN+GRF or GCN+None")
        if parts == ["None", "None"]:
            raise ValueError("leaves nothing to train: at most one part may be None")
        return "+".join(parts)

    @property
    def conv(self) -> str:
        """Name of the convolution."""
        return self.layer_type.split("+")[0]

    @property
    def attention(self) -> str:
        """Name of the attention, in our table."""
        name = self.layer_type.split("+")[1]
        return "KMIP" if name == "SparseAttention" else name  # as its authors call it


class PrepConfig(Section):
    """``prep``: Exphormer's expander edges and virtual nodes."""

    exp: bool = Field(default=True, description="Whether nodes attend along expander edges.")
    exp_deg: int = Field(default=5, ge=1, description="Random cycles of the expander: half of a node's neighbours.")
    exp_max_num_iters: int = Field(default=100, ge=1, description="Draws before the best expander is taken.")
    num_virt_node: int = Field(default=0, ge=0, description="Virtual nodes of each graph.")


class GNNConfig(Section):
    """``gnn``: the head, and the activation of the whole model."""

    head: Literal["default", "graph", "node"] = Field(
        default="default", description="Prediction head; default: by the task."
    )
    layers_post_mp: int = Field(default=1, ge=1, description="Linear layers of the head.")
    dim_inner: int | None = Field(
        default=None, ge=1, description="Width of the model as GraphGPS repeats it: `gt.dim_hidden`."
    )
    act: Literal["relu", "gelu", "elu", "silu", "tanh"] = Field(default="relu", description="Activation.")


class OptimConfig(Section):
    """``optim``: the optimiser and its schedule."""

    optimizer: Literal["adamW", "adam"] = Field(
        default="adamW", description="Optimiser; adam adds the decay to the gradient."
    )
    base_lr: float = Field(default=1e-3, gt=0, description="Learning rate, the peak of the schedule.")
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay.")
    max_epoch: int = Field(default=100, ge=1, description="Number of epochs.")
    scheduler: Literal["cosine_with_warmup", "none"] = Field(
        default="none", description="Learning rate by epoch: linear warm-up and half a cosine down to 0, or constant."
    )
    num_warmup_epochs: int = Field(default=0, ge=0, description="Epochs of linear warm-up (cosine_with_warmup).")
    clip_grad_norm: bool = Field(default=False, description="Clip the norm of the gradient.")
    clip_grad_norm_value: float = Field(default=1.0, gt=0, description="Norm that gradients are clipped to.")
    batch_accumulation: int = Field(default=1, ge=1, description="Batches whose gradients are summed for one step.")


class TopomaskConfig(Section):
    """``topomask``: our attentions and masks, which GraphGPS does not have."""

    num_walks: int = Field(default=16, ge=1, description="Random walks from each node.")
    max_length: int = Field(default=4, ge=0, description="Longest walk, in edges.")
    halt_prob: Probability = Field(default=0.5, description="Probability of halting, per step.")
    scheme: str = Field(default="iid", description="How walks from one node are coupled.")
    independent: bool = Field(
        default=True, description="Two independent walk tables, so that the mask is unbiased everywhere."
    )
    symmetric: bool = Field(
        default=True, description="One modulation function for both tables, so that the mask is symmetric."
    )
    redraw: Literal["never", "epoch"] = Field(
        default="never",
        description="never: walks are drawn once, ahead of training; epoch: afresh in each training epoch.",
    )
    pair_table: bool = Field(default=False, description="Store the pairs of nodes the mask reaches with the walks.")
    kernel: str = Field(default="relu", description="Feature map of the linear attention.")
    num_features: int = Field(default=64, ge=1, description="Random features per head of kernel softmax_rf.")
    path: Literal["auto", "factored", "pairwise"] = Field(
        default="auto", description="How the masked product is computed."
    )
    feed_forward: bool = Field(default=True, description="Whether a layer ends in a feed-forward part.")
    normalize_features: bool = Field(default=False, description="Scale the features of each node to sum to one.")
    input_dropout: Probability = Field(default=0.0, description="Dropout of node features, ahead of the encoder.")


class Config(Section):
    """A whole config."""

    out_dir: str = Field(default="results", description="Folder of all results; --out goes before it.")
    name_tag: str = Field(default="", description="Results lie in <config name>-<name_tag>.", pattern=r"^[\w.+-]*$")
    metric_best: Literal["accuracy", "loss"] = Field(
        default="accuracy", description="Validation metric of the best epoch."
    )
    metric_agg: Literal["argmax", "argmin"] | None = Field(
        default=None, description="Whether the largest or smallest is best; none: by the metric."
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed of the first run; the next ones count up from it.")
    num_workers: int = Field(default=0, ge=0, description="Processes that load data; no influence on the results.")
    accelerator: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Device to train on.")
    dataset: DatasetConfig = Field(description="The data.")
    train: TrainConfig = Field(default_factory=TrainConfig, description="Serving and evaluation.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="Model and loss.")
    gt: GTConfig = Field(default_factory=GTConfig, description="The layers.")
    prep: PrepConfig = Field(default_factory=PrepConfig, description="Expander edges.")
    gnn: GNNConfig = Field(default_factory=GNNConfig, description="The head.")
    optim: OptimConfig = Field(default_factory=OptimConfig, description="The optimiser.")
    topomask: TopomaskConfig = Field(default_factory=TopomaskConfig, description="Our masks.")

    @property
    def best_is_max(self) -> bool:
        """Whether the best epoch has the largest ``metric_best``."""
        return self.metric_best == "accuracy"

    def is_set(self, key: str) -> bool:
        """Whether ``section.name`` was given a value other than its default."""
        *sections, name = key.split(".")
        values = reduce(getattr, sections, self)
        return getattr(values, name) != type(values).model_fields[name].default

    def value(self, key: str) -> Any:
        """The value of ``section.name``."""
        return reduce(getattr, key.split("."), self)

    def with_defaults(self, keys: Iterable[str]) -> Config:
        """A copy with each ``section.name`` at its default."""
        values = self.model_dump(exclude_unset=True)
        for key in keys:
            *sections, name = key.split(".")
            del reduce(getitem, sections, values)[name]
        return Config.model_validate(values)


FREE_KEYS = ("out_dir", "name_tag", "seed", "num_workers", "accelerator")
"""Keys that do not make another experiment: the same results, in another place or for another seed."""

_ONLY_FOR = {
    "use_node_attr": "PyG-TUDataset",
    "num_graphs": "PyG-MotifDataset",
    "num_nodes": "PyG-MotifDataset",
}
_TASK_OF = {"PyG-MotifDataset": "graph", "PyG-TUDataset": "graph", "PyG-Planetoid": "node"}


def contradictions(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of a config whose single values are all right."""
    return [*_dataset_contradictions(config), *_model_contradictions(config), *_training_contradictions(config)]


def _dataset_contradictions(config: Config) -> list[tuple[str, str]]:
    found, data = [], config.dataset
    for name, owner in _ONLY_FOR.items():
        if config.is_set(f"dataset.{name}") and data.format != owner:
            found.append((f"dataset.{name}", f"only {owner} has it, and dataset.format is {data.format}"))
    if data.dir is not None and data.format == "PyG-MotifDataset":
        found.append(("dataset.dir", "motif graphs are generated: there are no raw files to look for"))
    if data.task != _TASK_OF[data.format]:
        found.append(("dataset.task", f"{data.format} is for task {_TASK_OF[data.format]!r} (got {data.task!r})"))
    if data.split_mode == "standard" and data.format != "PyG-Planetoid":
        found.append(("dataset.split_mode", f"{data.format} has no standard split; use random or cv-kfold-10"))
    if data.num_folds is not None and data.task == "node":
        found.append(("dataset.split_mode", "folds are for graph tasks; a node task takes standard or random"))
    if data.num_folds is not None and data.num_folds < 3:
        found.append(("dataset.split_mode", "at least 3 folds are needed: test, validation and training"))
    elif data.num_folds is not None and data.split_index >= data.num_folds:
        found.append(("dataset.split_index", f"must be below the number of folds (got {data.split_index})"))
    if config.is_set("dataset.split_index") and data.num_folds is None:
        found.append(("dataset.split_index", f"only folds have an index, and split_mode is {data.split_mode!r}"))
    if config.is_set("dataset.split") and data.split_mode != "random":
        found.append(("dataset.split", f"shares are for split_mode 'random' (got {data.split_mode!r})"))
    if config.is_set("dataset.edge_encoder_name") and not data.edge_encoder:
        found.append(("dataset.edge_encoder_name", "is given, but dataset.edge_encoder is false"))
    return found


def _model_contradictions(config: Config) -> list[tuple[str, str]]:
    found, gt, task = [], config.gt, config.dataset.task
    if config.gnn.dim_inner not in (None, gt.dim_hidden):
        found.append(("gnn.dim_inner", f"must equal gt.dim_hidden (got {config.gnn.dim_inner} and {gt.dim_hidden})"))
    if gt.dim_hidden % gt.n_heads != 0:
        found.append(("gt.n_heads", f"must divide gt.dim_hidden (got {gt.n_heads} and {gt.dim_hidden})"))
    if gt.layer_norm and gt.batch_norm:
        found.append(("gt.layer_norm", "layer_norm and batch_norm are both true: set one to false"))
    if config.gnn.head not in ("default", task):
        found.append(("gnn.head", f"{config.gnn.head!r} does not fit dataset.task {task!r}"))
    if config.is_set("model.graph_pooling") and task == "node":
        found.append(("model.graph_pooling", "a node task pools nothing"))
    if config.is_set("topomask.num_features") and config.topomask.kernel != "softmax_rf":
        found.append(("topomask.num_features", f"only kernel softmax_rf has it (got {config.topomask.kernel!r})"))
    if config.topomask.pair_table and not config.topomask.symmetric:
        found.append(("topomask.pair_table", "only symmetric masks have a pair table, and topomask.symmetric is false"))
    return found


def _training_contradictions(config: Config) -> list[tuple[str, str]]:
    found, optim, train = [], config.optim, config.train
    if config.metric_agg is not None and (config.metric_agg == "argmax") != config.best_is_max:
        found.append(("metric_agg", f"{config.metric_agg} of {config.metric_best} would choose the worst epoch"))
    if optim.scheduler == "none" and config.is_set("optim.num_warmup_epochs") and optim.num_warmup_epochs > 0:
        found.append(("optim.num_warmup_epochs", "scheduler 'none' has no warm-up; use cosine_with_warmup"))
    if optim.scheduler != "none" and optim.num_warmup_epochs >= optim.max_epoch:
        got = f"got {optim.num_warmup_epochs} and {optim.max_epoch}"
        found.append(("optim.num_warmup_epochs", f"must be below optim.max_epoch ({got})"))
    if train.eval_period > optim.max_epoch:
        found.append(("train.eval_period", f"exceeds optim.max_epoch {optim.max_epoch}: there would be no evaluation"))
    if config.is_set("optim.clip_grad_norm_value") and not optim.clip_grad_norm:
        found.append(("optim.clip_grad_norm_value", "is given, but optim.clip_grad_norm is false"))
    if config.is_set("train.batch_size") and config.dataset.task == "node":
        found.append(("train.batch_size", "a node task takes the whole graph in one batch"))
    return found
