"""Values that are each valid and contradict each other.

The checks that need the tables of attentions, convolutions and encoders stand in :mod:`pyg_topomask.run.check`.
"""

from __future__ import annotations

from pyg_topomask.run.config.dataset import WITHOUT_STANDARD_SPLIT
from pyg_topomask.run.config.model import CUSTOM_GNN_CONVS, SAN_LAYER
from pyg_topomask.run.config.schema import Config

Problems = list[tuple[str, str]]

_MOTIFS = ("PyG-MotifDataset", "PyG-InducedCycleDataset")
_ONLY_FOR = {
    "use_node_attr": ("PyG-TUDataset",),
    "num_graphs": _MOTIFS,
    "num_nodes": _MOTIFS,
    "slic_compactness": ("PyG-VOCSuperpixels", "PyG-COCOSuperpixels", "PyG-LRGBDataset"),
}
_TASK_OF = {
    "PyG-MotifDataset": "graph",
    "PyG-InducedCycleDataset": "graph",
    "PyG-TUDataset": "graph",
    "PyG-Planetoid": "node",
}
_HEAD_TASKS = {
    "graph": ("graph",),
    "node": ("node",),
    "edge": ("edge", "link_pred"),
    "san_graph": ("graph",),
    "mlp_graph": ("graph",),
    "ogb_code_graph": ("graph",),
    "inductive_node": ("graph", "node"),
    "inductive_edge": ("graph", "edge", "link_pred"),
}


def contradictions(config: Config) -> Problems:
    """Pairs (key, what is wrong) of a config whose single values are all right."""
    found = [*_dataset(config), *_encoders(config), *_training(config), *_walks(config), *_sizes(config)]
    # GraphGPS takes model and encodings of an inference run from the pretrained run's own config.
    return found if config.pretrained.dir else [*found, *_encodings(config), *_model(config)]


def _sizes(config: Config) -> Problems:
    """Sizes that are each within their bounds and together fit into no memory."""
    found: Problems = []
    layers, width = config.gt.layers, config.gt.dim_hidden
    weights = 4 * layers * width**2  # queries, keys, values and the output; the rest comes on top
    if weights > 4e9:
        message = f"{layers:,} layers of width {width:,} have more than {weights / 1e9:.0f} billion weights"
        found.append(("gt.dim_hidden", f"{message}; lower gt.dim_hidden or gt.layers"))
    walks, steps = config.topomask.num_walks, config.topomask.max_length
    if walks * steps > 10**6:
        message = f"{walks:,} walks of up to {steps:,} steps from each node fit into no memory"
        found.append(("topomask.num_walks", f"{message}; lower topomask.num_walks or topomask.max_length"))
    return found


def _dataset(config: Config) -> Problems:
    found: Problems = []
    data = config.dataset
    for name, owners in _ONLY_FOR.items():
        if config.is_set(f"dataset.{name}") and data.format not in owners:
            found.append((f"dataset.{name}", f"only {owners[0]} has it, and dataset.format is {data.format}"))
    if data.dir is not None and data.format in _MOTIFS:
        found.append(("dataset.dir", "motif graphs are generated: there are no raw files to look for"))
    if data.task != _TASK_OF.get(data.format, data.task):
        found.append(("dataset.task", f"{data.format} is for task {_TASK_OF[data.format]!r} (got {data.task!r})"))
    if data.split_mode == "standard" and data.format in WITHOUT_STANDARD_SPLIT:
        found.append(("dataset.split_mode", f"{data.format} has no standard split; use random or cv-kfold-10"))
    folds = data.num_folds
    if folds is not None and data.task == "node":
        found.append(("dataset.split_mode", "folds are for graph tasks; a node task takes standard or random"))
    if folds is not None and folds < 3:
        found.append(("dataset.split_mode", "at least 3 folds are needed: test, validation and training"))
    if data.split_mode == "errica":
        folds = 10
    for key in [
        ("dataset.split_index", data.split_index),
        *(("run_multiple_splits", i) for i in config.run_multiple_splits),
    ]:
        if folds is not None and folds >= 3 and key[1] >= folds:
            found.append((key[0], f"must be below the number of folds (got {key[1]})"))
    if config.is_set("dataset.split_index") and data.split_mode == "random":
        found.append(("dataset.split_index", "only folds have an index, and split_mode is 'random'"))
    return found


def _encoders(config: Config) -> Problems:
    found: Problems = []
    data = config.dataset
    for kind in ("node", "edge"):
        named = f"TypeDict{kind.capitalize()}" in getattr(data, f"{kind}_encoder_name").split("+")
        if getattr(data, f"{kind}_encoder") and named and getattr(data, f"{kind}_encoder_num_types") < 1:
            found.append(
                (f"dataset.{kind}_encoder_num_types", f"TypeDict{kind.capitalize()} needs the number of types")
            )
    if "CityNetworkNode" in data.node_encoder_parts and data.format != "PyG-CityNetwork":
        message = f"CityNetworkNode reads the coordinates of PyG-CityNetwork (got {data.format}); use LinearNode"
        found.append(("dataset.node_encoder_name", message))
    if data.edge_encoder and "ER" in data.edge_encoder_name.split("+"):
        found.append(("dataset.edge_encoder_name", "effective resistances (ER) are not provided"))
    return found


def _encodings(config: Config) -> Problems:
    found: Problems = []
    sections = [name for name in type(config).model_fields if name.startswith("posenc_")]
    used = [name for name in config.dataset.node_encoder_parts if f"posenc_{name}" in sections]
    for name in used:
        section = getattr(config, f"posenc_{name}")
        if not section.enable:
            message = f"posenc_{name}.enable is false, and dataset.node_encoder_name asks for {name}"
            found.append((f"posenc_{name}.enable", message))
        if name in ("RWSE", "HKdiagSE", "RRWP") and section.enable and not section.kernel.numbers:
            found.append((f"posenc_{name}.kernel", "needs times, or times_func such as range(1,17)"))
        least = {"RWSE": 1, "RRWP": 0}.get(name)
        if least is not None and any(step != int(step) or step < least for step in section.kernel.numbers):
            found.append((f"posenc_{name}.kernel", f"steps of a walk are whole numbers from {least}"))
    if len(set(used)) < len(used):
        found.append(("dataset.node_encoder_name", "names an encoding twice"))
    width = sum(getattr(getattr(config, f"posenc_{name}"), "dim_pe", 0) for name in used)
    if width >= config.gt.dim_hidden and len(used) < len(config.dataset.node_encoder_parts):
        message = f"encodings of width {width} leave nothing of gt.dim_hidden {config.gt.dim_hidden} to node features"
        found.append(("dataset.node_encoder_name", message))
    biased = "BiasedTransformer" in config.gt.layer_type.split("+")
    biases = [name for name in ("GraphormerBias", "RRWP") if name in used]
    if biased and not biases:
        message = "BiasedTransformer needs posenc_GraphormerBias or posenc_RRWP, enabled and in node_encoder_name"
        found.append(("gt.layer_type", message))
    if len(biases) > 1 or (biases == ["RRWP"] and not biased):
        found.append(("dataset.node_encoder_name", "RRWP is the only bias of BiasedTransformer, or left out"))
    if config.model.graph_pooling == "graph_token" and not (
        config.posenc_GraphormerBias.enable and config.graphormer.use_graph_token
    ):
        found.append(("model.graph_pooling", "graph_token needs posenc_GraphormerBias and graphormer.use_graph_token"))
    return found


def _model(config: Config) -> Problems:
    found: Problems = []
    gt, task, parts = config.gt, config.dataset.task, config.gt.layer_type.split("+")
    if config.gnn.dim_inner not in (None, gt.dim_hidden) and config.model.type != "custom_gnn":
        found.append(("gnn.dim_inner", f"must equal gt.dim_hidden (got {config.gnn.dim_inner} and {gt.dim_hidden})"))
    if gt.dim_edge not in (None, gt.dim_hidden):
        found.append(("gt.dim_edge", f"must equal gt.dim_hidden (got {gt.dim_edge} and {gt.dim_hidden})"))
    headless = parts[1:] == ["None"] and parts[0] != "GAT"
    if gt.dim_hidden % gt.n_heads != 0 and not headless:
        found.append(("gt.n_heads", f"must divide gt.dim_hidden (got {gt.n_heads} and {gt.dim_hidden})"))
    if gt.layer_norm and gt.batch_norm:
        found.append(("gt.layer_norm", "layer_norm and batch_norm are both true: set one to false"))
    if len(parts) == 1 and config.model.type == "GPSModel":
        message = "must be a convolution and an attention joined by '+', such as GCN+GRF or GCN+None"
        found.append(("gt.layer_type", f"{message} (got {gt.layer_type!r})"))
    if len(parts) > 1 and config.model.type == "SingleModel":
        found.append(("gt.layer_type", f"a SingleModel has one branch; use MultiModel (got {gt.layer_type!r})"))
    if config.model.type == "SANTransformer" and gt.layer_type != SAN_LAYER:
        message = "SANTransformer takes SANLayer; for another layer use model.type GPSModel"
        if gt.layer_type == "SAN2Layer":
            message = "SAN2Layer, which normalises pairs with and without an edge apart, is not provided; use SANLayer"
        found.append(("gt.layer_type", f"{message} (got {gt.layer_type!r})"))
    if config.model.type == "custom_gnn":
        found += _custom_gnn(config)
    fitting = _HEAD_TASKS.get(config.gnn.head, (task,))
    if task not in fitting:
        found.append(("gnn.head", f"{config.gnn.head!r} does not fit dataset.task {task!r}"))
    if (config.gnn.head == "ogb_code_graph") != (config.dataset.task_type == "subtoken_prediction"):
        found.append(("gnn.head", "ogb_code_graph and task_type subtoken_prediction belong together"))
    if config.topomask.pair_table and not config.topomask.symmetric:
        found.append(("topomask.pair_table", "only symmetric masks have a pair table, and topomask.symmetric is false"))
    return found


def _custom_gnn(config: Config) -> Problems:
    found: Problems = []
    if config.gnn.layer_type not in CUSTOM_GNN_CONVS:
        message = f"custom_gnn takes {', '.join(CUSTOM_GNN_CONVS)} (got {config.gnn.layer_type!r})"
        found.append(("gnn.layer_type", message))
    if not config.gnn.residual:
        found.append(("gnn.residual", "custom_gnn is provided with residuals only: set it to true"))
    return found


def _training(config: Config) -> Problems:
    found: Problems = []
    optim, train = config.optim, config.train
    if config.devices != 1:
        found.append(("devices", f"torchrun starts several processes: leave it at 1 (got {config.devices})"))
    if config.metric_agg is not None and (config.metric_agg == "argmax") != config.best_is_max:
        found.append(("metric_agg", f"{config.metric_agg} of {config.metric_best} would choose the worst epoch"))
    regression = config.dataset.task_type == "regression"
    if regression and "cross_entropy" in config.model.loss_fun:
        found.append(("model.loss_fun", f"{config.model.loss_fun} is for classes; use l1, smoothl1 or mse"))
    if regression and config.metric_best not in ("mae", "mse", "rmse", "r2", "spearmanr", "loss"):
        found.append(("metric_best", f"{config.metric_best} is for classes; use mae"))
    if train.mode == "PCQM4Mv2-inference" and config.dataset.name != train.mode:
        found.append(("train.mode", f"PCQM4Mv2-inference is for the data set of that name (got {config.dataset.name})"))
    if train.mode == "log-attn-weights":
        found.append(("train.mode", "log-attn-weights is not provided; `topomask show` draws attention"))
    if train.is_inference and not config.pretrained.dir:
        found.append(("pretrained.dir", f"train.mode {train.mode!r} needs the folder of a finished run"))
    if train.is_inference:
        return found
    if train.eval_period > optim.max_epoch:
        found.append(("train.eval_period", f"exceeds optim.max_epoch {optim.max_epoch}: there would be no evaluation"))
    return found


def _walks(config: Config) -> Problems:
    found: Problems = []
    walks, sampler = config.topomask, config.train.sampler
    in_parts = sampler != "full_batch"
    if walks.redraw > 1 and in_parts:
        message = f"{sampler} serves parts with walks of their own, afresh in each epoch: leave it out"
        found.append(("topomask.redraw", f"{message} (got {walks.redraw})"))
    elif walks.redraw >= config.optim.max_epoch and not config.train.is_inference and walks.redraw > 1:
        message = f"must be below optim.max_epoch (got {walks.redraw} and {config.optim.max_epoch})"
        found.append(("topomask.redraw", f"{message}; 0 never redraws"))
    if walks.transition == "attention" and in_parts:
        found.append(
            ("topomask.transition", f"walks on parts of a graph (train.sampler {sampler}) follow no attention")
        )
    elif walks.transition == "attention" and walks.redraw == 0:
        found.append(("topomask.transition", "only walks that are redrawn follow the attention: set topomask.redraw"))
    return found
