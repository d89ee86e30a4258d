"""Values that are valid one by one and contradict each other.

The checks that need the tables of attentions, convolutions and encoders are in :mod:`pyg_topomask.run.check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from pyg_topomask.run.config.dataset import GENERATED
from pyg_topomask.run.config.model import CUSTOM_GNN_CONVS, SAN_LAYER
from pyg_topomask.run.config.schema import Config
from pyg_topomask.run.distributed import world_size

Problem = tuple[str, str]
"""(key, what is wrong)."""

_TASK_OF = {
    **dict.fromkeys(["PyG-MotifDataset", "PyG-InducedCycleDataset", "PyG-TUDataset"], "graph"),
    **dict.fromkeys(["PyG-Planetoid", "PyG-LongRangeDataset"], "node"),
}
_HEAD_TASKS = {
    **dict.fromkeys(["graph", "san_graph", "mlp_graph", "ogb_code_graph"], ("graph",)),
    "node": ("node",),
    "edge": ("edge", "link_pred"),
    "inductive_node": ("graph", "node"),
    "inductive_edge": ("graph", "edge", "link_pred"),
}
_REGRESSION_METRICS = ("mae", "mse", "rmse", "r2", "spearmanr", "loss")


def contradictions(config: Config) -> list[Problem]:
    """Pairs (key, what is wrong) of a config whose values are valid one by one.

    Those of `model_contradictions` are left out if the config takes missing keys of the model from another run.
    """
    checks = [_dataset, _encoders, _training, _walks]
    found = list(chain.from_iterable(check(config) for check in checks))
    return found if config.pretrained.dir else [*found, *model_contradictions(config)]


def model_contradictions(config: Config) -> list[Problem]:
    """Pairs (key, what is wrong) of the model and its encodings."""
    return [*_encodings(config), *_model(config)]


def _dataset(config: Config) -> Iterator[Problem]:
    data = config.dataset
    if data.dir is not None and data.format in GENERATED:
        yield "dataset.dir", "these graphs are generated: there are no raw files to look for"
    if data.task != _TASK_OF.get(data.format, data.task):
        yield "dataset.task", f"{data.format} is for task {_TASK_OF[data.format]!r} (got {data.task!r})"
    folds = data.num_folds
    if folds is not None and data.task == "node":
        yield "dataset.split_mode", "folds are for graph tasks; use standard or random for a node task"
    if folds is not None and folds < 3:
        yield "dataset.split_mode", "at least 3 folds are needed: test, validation and training"
    if data.split_mode == "errica":
        folds = 10
    several = config.run_multiple_splits
    for key, indices in (("dataset.split_index", [data.split_index]), ("run_multiple_splits", several)):
        for index in indices:
            if folds is not None and index >= folds >= 3:
                yield key, f"must be below the number of folds (got {index})"
    if data.split_mode in ("random", "fixed"):
        message = f"only folds and published splits have an index, and split_mode is {data.split_mode!r}"
        for key in ("dataset.split_index", "run_multiple_splits"):
            if config.is_set(key):
                yield key, message


def _encoders(config: Config) -> Iterator[Problem]:
    data = config.dataset
    for kind in ("node", "edge"):
        name = f"TypeDict{kind.capitalize()}"
        parts = [part.strip() for part in getattr(data, f"{kind}_encoder_name").split("+")]
        named = getattr(data, f"{kind}_encoder") and name in parts
        if named and getattr(data, f"{kind}_encoder_num_types") < 1:
            yield f"dataset.{kind}_encoder_num_types", f"{name} needs the number of types"
    if "CityNetworkNode" in data.node_encoder_parts and data.format != "PyG-CityNetwork":
        message = f"CityNetworkNode reads the coordinates of PyG-CityNetwork (got {data.format}); use LinearNode"
        yield "dataset.node_encoder_name", message
    if data.edge_encoder and "ER" in data.edge_encoder_name.split("+"):
        yield "dataset.edge_encoder_name", "effective resistances (ER) are not provided"


def _encodings(config: Config) -> Iterator[Problem]:
    used = [name for name in config.dataset.node_encoder_parts if f"posenc_{name}" in type(config).model_fields]
    for name in used:
        section = getattr(config, f"posenc_{name}")
        if not section.enable:
            message = f"posenc_{name}.enable is false, and dataset.node_encoder_name contains {name}"
            yield f"posenc_{name}.enable", message
        if name in ("RWSE", "HKdiagSE", "RRWP") and section.enable and not section.kernel.numbers:
            yield f"posenc_{name}.kernel", "needs times, or times_func such as range(1,17)"
        least = {"RWSE": 1, "RRWP": 0}.get(name)
        if least is not None and any(step != int(step) or step < least for step in section.kernel.numbers):
            yield f"posenc_{name}.kernel", f"the steps of a walk must be whole numbers from {least}"
    if len(set(used)) < len(used):
        yield "dataset.node_encoder_name", "contains an encoding twice"
    width = sum(getattr(getattr(config, f"posenc_{name}"), "dim_pe", 0) for name in used)
    if width >= config.gt.dim_hidden and len(used) < len(config.dataset.node_encoder_parts):
        message = f"encodings of width {width} leave no column of gt.dim_hidden {config.gt.dim_hidden} to node features"
        yield "dataset.node_encoder_name", message
    biased = "BiasedTransformer" in config.gt.layer_type.split("+")
    biases = [name for name in ("GraphormerBias", "RRWP") if name in used]
    if biased and not biases:
        message = "BiasedTransformer needs posenc_GraphormerBias or posenc_RRWP, enabled and in node_encoder_name"
        yield "gt.layer_type", message
    if len(biases) > 1 or (biases == ["RRWP"] and not biased):
        message = "RRWP needs gt.layer_type with BiasedTransformer and excludes GraphormerBias"
        yield "dataset.node_encoder_name", message


def _model(config: Config) -> Iterator[Problem]:
    yield from _widths(config)
    yield from _layers(config)
    task, head = config.dataset.task, config.gnn.head
    if task not in _HEAD_TASKS.get(head, (task,)):
        yield "gnn.head", f"{head!r} does not fit dataset.task {task!r}"
    if (head == "ogb_code_graph") != (config.dataset.task_type == "subtoken_prediction"):
        yield "gnn.head", "ogb_code_graph and task_type subtoken_prediction belong together"


def _widths(config: Config) -> Iterator[Problem]:
    """Widths, heads and norms."""
    gt, gnn, kind = config.gt, config.gnn, config.model.type
    parts = gt.layer_type.split("+")
    if gnn.dim_inner not in (None, gt.dim_hidden) and kind != "custom_gnn":
        yield "gnn.dim_inner", f"must equal gt.dim_hidden (got {gnn.dim_inner} and {gt.dim_hidden})"
    if gt.dim_edge not in (None, gt.dim_hidden):
        yield "gt.dim_edge", f"must equal gt.dim_hidden (got {gt.dim_edge} and {gt.dim_hidden})"
    headless = parts[1:] == ["None"] and parts[0] != "GAT"
    if gt.dim_hidden % gt.n_heads != 0 and not headless:
        yield "gt.n_heads", f"must divide gt.dim_hidden (got {gt.n_heads} and {gt.dim_hidden})"
    if gt.layer_norm and gt.batch_norm:
        yield "gt.layer_norm", "layer_norm and batch_norm are both true: set one to false"
    if config.topomask.layer_norm_mode == "node" and (not gt.layer_norm or kind in ("MultiModel", "SingleModel")):
        message = "node needs gt.layer_norm: true, gt.batch_norm: false, and a model.type"
        yield "topomask.layer_norm_mode", f"{message} other than MultiModel and SingleModel"


def _layers(config: Config) -> Iterator[Problem]:
    """Types of models and layers."""
    gt, gnn, kind = config.gt, config.gnn, config.model.type
    parts = gt.layer_type.split("+")
    if len(parts) == 1 and kind == "GPSModel":
        message = "must be a convolution and an attention joined by '+', such as GCN+GRF or GCN+None"
        yield "gt.layer_type", f"{message} (got {gt.layer_type!r})"
    if not gt.parts and (kind == "SingleModel" or not config.topomask.feed_forward):
        message = "there is nothing to train: without branches, topomask.feed_forward must be true"
        yield "gt.layer_type", f"{message} and model.type not SingleModel (got {gt.layer_type!r})"
    if len(parts) > 1 and kind == "SingleModel":
        yield "gt.layer_type", f"a SingleModel has one branch; use MultiModel (got {gt.layer_type!r})"
    if kind == "SANTransformer" and gt.layer_type != SAN_LAYER:
        message = "SANTransformer takes SANLayer; for another layer use model.type GPSModel"
        if gt.layer_type == "SAN2Layer":
            message = "SAN2Layer, which normalises edges and other pairs separately, is not provided; use SANLayer"
        yield "gt.layer_type", f"{message} (got {gt.layer_type!r})"
    if kind == "custom_gnn" and gnn.layer_type not in CUSTOM_GNN_CONVS:
        yield "gnn.layer_type", f"custom_gnn takes {', '.join(CUSTOM_GNN_CONVS)} (got {gnn.layer_type!r})"
    if kind == "custom_gnn" and not gnn.residual:
        yield "gnn.residual", "custom_gnn is provided with residuals only: set it to true"


def _training(config: Config) -> Iterator[Problem]:
    optim, train, best = config.optim, config.train, config.metric_best
    if config.devices != 1:
        yield "devices", f"must be 1: use torchrun to start several processes (got {config.devices})"
    if config.metric_agg is not None and (config.metric_agg == "argmax") != config.best_is_max:
        yield "metric_agg", f"{config.metric_agg} of {best} would choose the worst epoch"
    if config.dataset.task_type == "regression":
        if "cross_entropy" in config.model.loss_fun:
            yield "model.loss_fun", f"{config.model.loss_fun} is for classes; use l1, smoothl1 or mse"
        if best not in _REGRESSION_METRICS:
            yield "metric_best", f"{best} is for classes; use mae"
    if train.mode == "PCQM4Mv2-inference" and config.dataset.name != train.mode:
        yield "train.mode", f"PCQM4Mv2-inference is for the data set of that name (got {config.dataset.name})"
    if train.mode == "PCQM4Mv2-inference" and world_size() > 1:
        yield "train.mode", f"PCQM4Mv2-inference writes one file of predictions: start one process (got {world_size()})"
    if train.mode == "log-attn-weights":
        yield "train.mode", "log-attn-weights is not provided; `topomask show` draws attention"
    if train.is_inference and not config.pretrained.dir:
        yield "pretrained.dir", f"train.mode {train.mode!r} needs the folder of a finished run"
    if config.val.sampler not in ("full_batch", train.sampler):
        message = f"must be full_batch or the value of train.sampler, {train.sampler} (got {config.val.sampler})"
        yield "val.sampler", message
    if train.eval_period > optim.max_epoch and not train.is_inference:
        yield "train.eval_period", f"exceeds optim.max_epoch {optim.max_epoch}: there would be no evaluation"


def _walks(config: Config) -> Iterator[Problem]:
    walks, sampler, gt = config.topomask, config.train.sampler, config.gt
    in_parts = sampler != "full_batch"
    most = gt.layers * (gt.n_heads if walks.tables == "head" else 1)
    if walks.num_tables > max(most, 1):
        message = f"there are only {most:,} {walks.tables}s to use walks"
        yield "topomask.num_tables", f"{message}; lower it (got {walks.num_tables:,})"
    if walks.redraw > 1 and in_parts:
        message = f"with train.sampler {sampler}, each part gets new walks in each epoch: leave it out"
        yield "topomask.redraw", f"{message} (got {walks.redraw})"
    elif walks.redraw >= config.optim.max_epoch and not config.train.is_inference and walks.redraw > 1:
        message = f"must be below optim.max_epoch (got {walks.redraw} and {config.optim.max_epoch})"
        yield "topomask.redraw", f"{message}; 0 never redraws"
    if walks.transition == "attention" and in_parts:
        message = f"walks on parts of a graph (train.sampler {sampler}) cannot follow the attention"
        yield "topomask.transition", message
    elif walks.transition == "attention" and walks.redraw == 0:
        yield "topomask.transition", "only walks that are redrawn can follow the attention: set topomask.redraw"
