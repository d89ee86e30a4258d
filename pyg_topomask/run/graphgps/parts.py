"""From a config to the parts of an experiment: features, data, training, and graphs on which the model is tried."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, MultiStepLR, ReduceLROnPlateau
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddSelfLoops, BaseTransform, Compose, Constant, NormalizeFeatures
from torch_geometric.utils import to_undirected

from pyg_topomask.nn import Mask, parameter_groups
from pyg_topomask.run.data.features import FittedTransform, Standardize
from pyg_topomask.run.data.source import Serving, Source
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.graphgps.attentions import build_sampling_transforms, key_to_set
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.dataset import ONLY_FOR, OWN
from pyg_topomask.run.graphgps.formats import load_dataset
from pyg_topomask.run.graphgps.model import build_encoding
from pyg_topomask.run.output.report import layers_text
from pyg_topomask.run.training.settings import Training
from pyg_topomask.transforms import apply_all

CATEGORICAL = ("Atom", "ASTNode", "PPANode", "TypeDictNode")
"""Node encoders that take integer categories; all others take floats."""

CATEGORICAL_EDGES = ("Bond", "ASTEdge", "TypeDictEdge")
"""Edge encoders that take integer categories."""


COLUMNS = {
    **{"Atom": 9, "ASTNode": 3, "TypeDictNode": 1, "PPANode": 1, "VOCNode": 14, "COCONode": 14, "CityNetworkNode": 37},
    **{"Bond": 3, "ASTEdge": 2, "TypeDictEdge": 1, "PPAEdge": 7, "VOCEdge": 2, "COCOEdge": 2, "LinearEdge": 1},
}
"""Number of columns of the features that an encoder takes; others take any number, here 3."""


def input_features(config: Config) -> BaseTransform:
    """The transform that puts node and edge features into the form that the model takes."""
    data = config.dataset
    reduce = "max" if data.peek("edge_encoder_name") in CATEGORICAL_EDGES else "mean"
    steps: list[Callable[[Data], Data]] = [partial(_both_ways, reduce=reduce)] if data.to_undirected else []
    steps.append(partial(_with_node_features, encoders=data.node_encoder_parts))
    if data.is_one_graph and config.prep.add_self_loops:
        steps.append(AddSelfLoops(attr="edge_weight"))
    if config.topomask.normalize_features:
        steps.append(NormalizeFeatures())
    encoder = data.peek("edge_encoder_name") if data.peek("edge_encoder") else None  # what takes edges reads these keys
    steps.append(partial(_with_edge_features, encoder=encoder))
    return Compose(steps)


def _both_ways(data: Data, reduce: str) -> Data:
    """Add the reverse of each edge. Targets are not features of edges, even if there are as many of them."""
    edges, size = data.edge_index, data.num_nodes
    if edges is None:  # only attention without a mask takes such a graph
        return data
    for name in data.edge_attrs():
        if name not in ("edge_index", "y", "edge_label", "edge_label_index"):
            how = {"edge_attr": reduce, "edge_type": "max"}.get(name, "mean")
            data[name] = to_undirected(edges, data[name], size, how)[1]
    data.edge_index = to_undirected(edges, num_nodes=size)
    return data


def _with_node_features(data: Data, encoders: Sequence[str]) -> Data:
    """Make features floats, except categories; nodes without features get a 1."""
    if "Constant" in encoders or data.x is None:
        return Constant(cat=False)(data)
    categorical = next((encoder for encoder in encoders if encoder in CATEGORICAL), None)
    if categorical is None:
        data.x = _real_rows("x", data.x, int(data.num_nodes or 0))
    elif data.x.is_floating_point():
        message = f"{categorical} takes integer categories (got {data.x.dtype}); use LinearNode"
        raise RunError(f"dataset.node_encoder_name: {message}")
    return data


def _with_edge_features(data: Data, encoder: str | None) -> Data:
    """Put edge features into the form that the encoder takes; remove them if there is no encoder."""
    if encoder is None:
        data.edge_attr = None
    elif encoder == "DummyEdge":
        data.edge_attr = torch.ones(1, 1).expand(data.num_edges, 1)
    elif data.edge_attr is None:
        raise RunError("dataset.edge_encoder_name: the data have no edge features; use DummyEdge")
    elif encoder in ("LinearEdge", "VOCEdge", "COCOEdge"):
        data.edge_attr = _real_rows("edge_attr", data.edge_attr, data.num_edges)
    return data


def _real_rows(name: str, features: Tensor, count: int) -> Tensor:
    """Features as floats, one row for each of ``count`` nodes or edges."""
    if features.dim() == 0 or features.size(0) != count:
        kind = "nodes" if name == "x" else "edges"
        raise RunError(f"'{name}' must have a row for each of the {count} {kind} (got shape {list(features.shape)})")
    features = (features if features.layout == torch.strided else features.to_dense()).float()
    return features[:, None] if features.dim() == 1 else features.flatten(1)


def fitted_features(config: Config) -> list[type[FittedTransform]]:
    """Classes of transforms that are fitted to the training graphs and applied to the features of all graphs."""
    steps: list[type[FittedTransform]] = [Standardize] if config.dataset.normalize else []
    return [*steps, Coordinates] if "CityNetworkNode" in config.dataset.node_encoder_parts else steps


class Coordinates(FittedTransform):
    r"""Replaces longitude and latitude by sines and cosines, and standardises all other node features.

    A value v in each of the first two columns becomes :math:`\sin 2^i u` and :math:`\cos 2^i u`,
    :math:`i = 0, \ldots, 7`, with :math:`u = 0.9 \cdot 2 \pi (v - v_{\min}) / (v_{\max} - v_{\min}) - 0.9 \pi`. The
    minimum and maximum are those of the training nodes; the factor 0.9 leaves room for nodes beyond them. This is the
    encoding of City-Networks by k-MIP's authors. Training graphs have ``x`` of ``[N, d]``.
    """

    frequencies = 2.0 ** torch.arange(8)

    @classmethod
    def fit(cls, graphs: Sequence[Data]) -> "Coordinates":
        coordinates = torch.cat([graph.x[:, :2] for graph in graphs])
        low = coordinates.min(0).values
        extent = (coordinates.max(0).values - low).clamp(min=1e-6)
        others = Standardize.fit([Data(x=graph.x[:, 2:]) for graph in graphs])
        return cls({"low": low, "extent": extent, "others": others.constants})

    def forward(self, data: Data) -> Data:
        low, extent, others = (self.constants[name] for name in ("low", "extent", "others"))
        angle = 0.9 * 2 * torch.pi * ((data.x[:, :2] - low) / extent - 0.5)
        angle = angle.unsqueeze(-1) * self.frequencies
        waves = torch.cat([angle.sin(), angle.cos()], dim=-1).flatten(1)
        data.x = torch.cat([waves, Standardize(others)(Data(x=data.x[:, 2:])).x], dim=1)
        return data


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adamW": AdamW, "adagrad": Adagrad, "sgd": SGD}
"""Optimisers by their names in ``optim.optimizer``."""


def build_optimizer(config: Config, model: Module) -> Optimizer:
    """The optimiser; weight decay is decoupled in AdamW and added to the gradient in all others.

    Masks have the learning rate of ``topomask.mask_lr``.
    """
    optim = config.optim
    momentum = {"momentum": optim.momentum} if optim.optimizer == "sgd" else {}
    cls: Callable[..., Optimizer] = OPTIMIZERS[optim.optimizer]
    learned = any(isinstance(part, Mask) and [*part.parameters()] for part in model.modules())
    mask_lr = config.topomask.mask_lr if learned else None
    groups = parameter_groups(model, optim.base_lr, mask_lr, optim.weight_decay)
    return cls(groups, lr=optim.base_lr, weight_decay=optim.weight_decay, **momentum)


def learning_rate_factor(name: str, epoch: int, num_warmup_epochs: int, max_epoch: int, base_lr: float = 1.0) -> float:
    """GraphGPS's ``*_with_warmup``: linear from 0 (1e-6 in epoch 1) to 1, then down along half a cosine or a line.

    The line ends at 0 (``linear_with_warmup``) or at a learning rate of 1e-7 (``polynomial_with_warmup`` of power 1).
    """
    if epoch < num_warmup_epochs:
        return max(1e-6, epoch / num_warmup_epochs)
    progress = (epoch - num_warmup_epochs) / max(1, max_epoch - num_warmup_epochs)
    if name == "cosine_with_warmup":
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
    if name == "linear_with_warmup":
        return max(0.0, 1.0 - progress)
    end = 1e-7 / base_lr
    return end + (1.0 - end) * max(0.0, 1.0 - progress)


def build_scheduler(config: Config, optimizer: Optimizer) -> LRScheduler | None:
    """The schedule, stepped once per epoch; a :class:`ReduceLROnPlateau` reads the validation loss."""
    optim, name, base_lr = config.optim, config.optim.scheduler, config.optim.base_lr
    if name == "none":
        return None
    if name == "cos":
        return CosineAnnealingLR(optimizer, T_max=optim.max_epoch)
    if name == "step":
        return MultiStepLR(optimizer, milestones=optim.steps, gamma=optim.lr_decay)
    if name == "plateau":
        return ReduceLROnPlateau(optimizer, factor=optim.lr_decay, patience=optim.schedule_patience)
    if name == "reduce_on_plateau":
        factor, patience, least = optim.reduce_factor, optim.schedule_patience, optim.min_lr
        return ReduceLROnPlateau(optimizer, factor=factor, patience=patience, min_lr=least)
    warmup, last = optim.num_warmup_epochs, optim.max_epoch
    return LambdaLR(optimizer, lambda epoch: learning_rate_factor(name, epoch, warmup, last, base_lr))


_IDENTITY = ("name", "format", "task", "task_type", "num_graphs", "num_nodes", "slic_compactness", "dir")


def parts_of(config: Config) -> dict[str, Any]:
    """The arguments of an experiment, except what depends on the file. Only keys that have an effect are read."""
    wandb, start = config.wandb, config.pretrained
    return {
        "data": source_of(config),
        "training": training_of(config),
        "seed": config.seed,
        "splits": tuple(config.run_multiple_splits),
        "out": config.out_dir,
        "tensorboard": config.tensorboard_each_run,
        "wandb": {"entity": wandb.entity, "project": wandb.project, "name": wandb.name} if wandb.use else None,
        "start": {"reset": start.reset_prediction_head, "freeze": start.freeze_main} if start.dir else None,
    }


def source_of(config: Config) -> Source:
    """The data of a config, how they are prepared, split and served."""
    data = config.dataset
    own = ["name", "dir", "task", "task_type", *(key for key, formats in ONLY_FOR.items() if data.format in formats)]
    own += ["resample_negative"] if data.tasks[0].ranked else []
    loaded = data.model_copy(update={key: getattr(data, key) for key in own})  # these are read when it is loaded
    return Source(
        partial(load_dataset, loaded),
        name=data.name,
        features=input_features(config),
        encodings=[build_encoding(config, name) for name in config.used_encodings],
        draws=partial(build_sampling_transforms, config),
        fitted=fitted_features(config),
        split=data.division,
        serving=serving_of(config),
        follows_attention=config.follows_attention,
        title=layers_text(config.gt.layer_type, config.mask_name),
        hint=partial(key_to_set, config=config),
        identity={f"dataset.{key}": data.peek(key) for key in _IDENTITY},
    )


def serving_of(config: Config) -> Serving:
    """How the data are put into batches."""
    train = config.train
    given: dict[str, Any] = {"num_workers": config.num_workers, "sampler": train.sampler}
    own, sampled = config.dataset.format in OWN, train.sampler != "full_batch"  # the user's nodes may be of many graphs
    if own or sampled or not config.dataset.is_one_graph:
        given |= {"batch_size": train.batch_size, "shuffle": train.shuffle}
    more = {"neighbor": ["neighbor_sizes"], "walks": ["max_nodes"], "random_partition": ["num_parts"]}
    given |= {name: getattr(train, name) for name in (more | {"cluster": ["num_parts"]}).get(train.sampler, [])}
    return Serving(**given, evaluation=config.val.sampler, redraw=config.topomask.peek("redraw"))


def training_of(config: Config) -> Training:
    """How the model of a config is trained."""
    train, optim = config.train, config.optim
    return Training(
        loss=config.model.loss_fun,
        metric=config.metric_best,
        epochs=optim.max_epoch,
        optimizer=partial(build_optimizer, config),
        scheduler=partial(build_scheduler, config),
        clip=optim.clip_grad_norm_value if optim.clip_grad_norm else None,
        accumulation=optim.batch_accumulation,
        eval_period=train.eval_period,
        ckpt_period=train.ckpt_period,
        patience=train.early_stop_patience,
        auxiliary=config.loss_weight,
        accelerator=config.accelerator,
        precision=config.precision,
        compile=train.compile,
        cuda_graphs=train.cuda_graphs,
        inference=train.is_inference,
        submission=train.mode == "PCQM4Mv2-inference",
    )


def fake_batch(config: Config, source: Source) -> Data:
    """Two small graphs with all attributes that the model reads."""
    graphs = [source.features(graph) for graph in fake_graphs(config)]
    steps = [*(cls.fit(graphs) for cls in source.fitted), *source.encodings, *source.draws(0)]
    return Batch.from_data_list(apply_all(steps, graphs))


def fake_graphs(config: Config, count: int = 2) -> list[Data]:
    """Grids of two nodes along each axis in the form of the data set's class, without targets."""
    generator, graphs, data = torch.Generator().manual_seed(0), [], config.dataset
    shapes = (getattr(config.value(f"topomask.mask_{mask}"), "grid_shape", None) for mask in config.masks)
    axes = len(next(filter(None, shapes), (2, 2)))  # those of the mask; by default a cycle of four nodes
    edge_index = torch.tensor([(i, i ^ (1 << axis)) for i in range(2**axes) for axis in range(axes)]).t()
    for _ in range(count):
        graph = Data(_fake(next(iter(data.base_encoders), "LinearNode"), 2**axes, generator), edge_index)
        if data.peek("edge_encoder") and data.peek("edge_encoder_name") != "DummyEdge":
            graph.edge_attr = _fake(data.peek("edge_encoder_name"), graph.num_edges, generator)
        if config.topomask.peek("spanning_tree") == "minimum":
            graph.edge_weight = torch.ones(graph.num_edges)
        if data.level == "edge":
            graph.edge_label_index = torch.tensor([[0, 1, 0], [1, 2, 2]])
            graph.edge_label = torch.tensor([1, 1, 0])
        graph.edge_type = torch.zeros(graph.num_edges, dtype=torch.long)
        graphs.append(graph)
    return graphs


def _fake(encoder: str, rows: int, generator: torch.Generator) -> Tensor:
    """Features that an encoder takes."""
    columns = COLUMNS.get(encoder, 3)
    if encoder in (*CATEGORICAL, *CATEGORICAL_EDGES):
        return torch.randint(2, (rows, columns), generator=generator)  # each has at least two categories
    return torch.rand(rows, columns, generator=generator)
