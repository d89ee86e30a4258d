"""Our layers, network, encoders and heads under names that PyG's GraphGym, and forks of GraphGPS, can call.

Importing this module registers, in ``torch_geometric.graphgym.register``:

- layers ``Topomask<attention>``, such as ``TopomaskGRF``, for ``gnn.layer_type``, one for each entry of
  :data:`~pyg_topomask.nn.ATTENTION`. Heads are ``gnn.att_heads``; Primphormer carries nothing from layer to layer here;
- the network ``TopomaskGPS`` for ``model.type``: feature encoder and head, whichever are registered, around the
  :class:`~pyg_topomask.nn.GPSStack` that ``gt.layer_type``, such as ``GCN+GRF``, names;
- node encoders ``Topomask<name>``, such as ``TopomaskLinearNode``, each also with ``+LapPE``, ``+RWSE`` and
  ``+LapPE+RWSE`` after it, and edge encoders ``Topomask<name>``, such as ``TopomaskLinearEdge``;
- heads ``Topomask<name>``, such as ``Topomasksan_graph``, for all of :data:`~pyg_topomask.nn.HEADS` but that of code;
- the keys of the sections ``topomask``, ``gt``, ``prep``, ``posenc_LapPE`` and ``posenc_RWSE`` that the fork lacks.
  They go into the global ``cfg`` at once, and again whenever ``set_cfg`` fills it.

What attentions and encodings read on a graph is added by :func:`build_transform`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

try:
    import yacs.config  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pyg_topomask.run.graphgym needs yacs, as PyG's GraphGym does: pip install 'pyg_topomask[run,graphgym]'"
    ) from error
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models.gnn import FeatureEncoder, GNNPreMP

from pyg_topomask.nn import ATTENTION, EDGE_ENCODERS, HEADS, NODE_ENCODERS, auxiliary_loss
from pyg_topomask.nn.pool import count_graphs
from pyg_topomask.run.check import layer_problems, unused_keys
from pyg_topomask.run.config import Config
from pyg_topomask.run.config.contradictions import contradictions
from pyg_topomask.run.config.dataset import PrepConfig
from pyg_topomask.run.config.encodings import KernelEncodingConfig, LapPEConfig
from pyg_topomask.run.config.model import GTConfig
from pyg_topomask.run.config.schema import add_mask_sections
from pyg_topomask.run.config.topomask import TopomaskConfig
from pyg_topomask.run.model.attentions import build_attention, twice_given
from pyg_topomask.run.model.build import build_head, build_stack
from pyg_topomask.run.model.encoders import build_edge_encoder, build_encodings, build_node_encoder, uses_stable_gate
from pyg_topomask.run.model.sampling import build_sampling_transforms

__all__ = ["TopomaskAttention", "TopomaskGPS", "add_config", "build_transform", "translate"]

PREFIX = "Topomask"
"""What all our names start with, so that they meet no other's."""

STABLE = "pe_EquivStableLapPE"
"""Attribute under which GraphGPS's encoder leaves what gates messages."""

_SECTIONS: dict[str, type[BaseModel]] = {
    "topomask": TopomaskConfig,
    "gt": GTConfig,
    "prep": PrepConfig,
    "posenc_LapPE": LapPEConfig,
    "posenc_RWSE": KernelEncodingConfig,
}
"""Sections that GraphGym lacks, read whole."""

_TYPES = {"node_encoder_num_types": 0, "edge_encoder_num_types": 0}
"""Keys of ``dataset`` that GraphGym lacks."""

_READ: dict[str, tuple[str, ...]] = {
    "gnn": ("act", "dropout", "batchnorm", "layers_post_mp"),
    "model": ("graph_pooling", "edge_decoding"),
    "dataset": ("node_encoder", "node_encoder_name", "edge_encoder", *_TYPES),
    "posenc_EquivStableLapPE": ("enable",),
    "share": ("gradient_checkpointing",),
}
"""Keys that are read of other sections, where they are there."""


_RUNNER_KEYS = (
    "topomask.redraw",
    "topomask.transition",
    "topomask.normalize_features",
    "topomask.encoder_dropout",
)
"""Keys that our own runner alone reads."""


def add_config(node: Any) -> None:
    """Add the keys of our sections to GraphGym's ``cfg``; one that is there already keeps its value."""
    add_mask_sections()
    for name, model in _SECTIONS.items():
        _fill(node, name, model)
    for name, default in _TYPES.items():
        if "dataset" in node and name not in node.dataset:
            node.dataset[name] = default


def _fill(node: Any, name: str, model: type[BaseModel]) -> None:
    if name not in node:
        node[name] = type(node)()
    for key, field in model.model_fields.items():
        nested = _nested(field)
        if nested is not None:
            _fill(node[name], key, nested)
        elif key not in node[name]:
            # None: not given. The attention's own holds, which differs from one to the other, or a flat key's.
            left = key == "kernel" or name.startswith("mask_")
            node[name][key] = None if left else field.get_default(call_default_factory=True)


def _nested(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a key that is a section; none for others."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def translate(node: Any, **changes: dict[str, Any]) -> Config:
    """Our config with what we read of GraphGym's.

    A key at :obj:`None` counts as not given: the default holds, for ``topomask.kernel`` the attention's own.

    Args:
        node: GraphGym's ``cfg``.
        **changes: For each section, values that replace those of ``cfg``.

    Raises:
        ValueError: If a value is not one that we know.
    """
    values: dict[str, Any] = {"dataset": {"format": "PyG", "name": "graphgym"}}
    for section, model in _SECTIONS.items():
        values[section] = _known(node[section], model) if section in node else {}
    for section, keys in _READ.items():
        found = {key: node[section][key] for key in keys if section in node and key in node[section]}
        values[section] = values.get(section, {}) | found
    values["gnn"]["layers_post_mp"] = max(values["gnn"]["layers_post_mp"], 1)  # as GraphGym's own check does
    name = values["dataset"]["node_encoder_name"]
    values["dataset"]["node_encoder_name"] = name.removeprefix(PREFIX)
    for section, change in changes.items():
        values[section] |= change
    if "BiasedTransformer" in values["gt"].get("layer_type", "").split("+"):
        raise ValueError("gt.layer_type: BiasedTransformer is not provided in GraphGym; use Transformer")
    return Config.model_validate(values)


def _known(node: Any, model: type[BaseModel]) -> dict[str, Any]:
    """The keys of a section that our schema has, without those at None."""
    values = {}
    for key, field in model.model_fields.items():
        if key in node and node[key] is not None:
            nested = _nested(field)
            values[key] = node[key] if nested is None else _known(node[key], nested)
    return values


def _refuse(problems: list[tuple[str, str]], *sections: str) -> None:
    for key, why in problems:
        if key.startswith(sections):
            raise ValueError(f"{key}: {why}")


def _own_layer_type() -> str:
    """What ``gt.layer_type`` would be for the network that ``cfg`` names."""
    if cfg.model.type == "gnn" and cfg.gnn.layer_type.startswith(PREFIX):
        return f"None+{cfg.gnn.layer_type.removeprefix(PREFIX)}"
    return cfg.gt.layer_type


def build_transform(seed: int | None = None) -> BaseTransform:
    """The transform that adds what ``cfg`` makes the model read: encodings, walks, expander edges.

    Encodings are those of our own node encoders; a fork computes those of its own. Set it as the data set's
    ``transform`` or ``pre_transform``, after everything that changes the graph.

    Args:
        seed: Of walks and expanders; ``cfg.seed`` if :obj:`None`.

    Raises:
        ValueError: If ``cfg`` has values that we do not know.
    """
    config = translate(cfg, gt={"layer_type": _own_layer_type()})
    _refuse(layer_problems(config), "gt.")
    own = cfg.dataset.node_encoder and cfg.dataset.node_encoder_name.startswith(PREFIX)
    encodings = build_encodings(config) if own else []
    return Compose([*encodings, *build_sampling_transforms(config, cfg.seed if seed is None else seed)])


class TopomaskAttention(Module):
    """An attention as a layer of GraphGym: reads and writes ``batch.x``, of ``[N, dim_in]`` and ``[N, dim_out]``.

    Args:
        layer_config: GraphGym's ``LayerConfig``; a linear map comes first where its widths differ.
        name: Name of the attention in :data:`~pyg_topomask.nn.ATTENTION`.

    Raises:
        ValueError: If ``gnn.att_heads`` does not divide ``dim_out``.
    """

    def __init__(self, layer_config: Any, name: str, **_: Any) -> None:
        super().__init__()
        width, given = layer_config.dim_out, layer_config.dim_in
        changes = {"layer_type": f"None+{name}", "dim_hidden": width, "n_heads": cfg.gnn.att_heads}
        self.project = Linear(given, width, bias=layer_config.has_bias) if given != width else None
        self.attention = build_attention(translate(cfg, gt=changes), name)

    def forward(self, batch: Data) -> Data:
        """The batch, with new ``x``."""
        x = batch.x if self.project is None else self.project(batch.x)
        batch.x = self.attention(x, batch.get("batch"), batch)
        return batch


class _AddToLoss(torch.autograd.Function):
    """Hands on a prediction unchanged, and gives a scalar the gradient 1: as if it were added to the loss.

    GraphGym's loss functions see only predictions and targets, not the model.
    """

    @staticmethod
    def forward(ctx: Any, prediction: Tensor, term: Tensor) -> Tensor:
        ctx.save_for_backward(term)
        return prediction.view_as(prediction)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (term,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(term)


def _with_term(prediction: Any, term: Tensor) -> Any:
    """The prediction, or the list of them that a head for several words returns, followed by the term."""
    if isinstance(prediction, (list, tuple)):
        return [_AddToLoss.apply(prediction[0], term), *prediction[1:]]
    return _AddToLoss.apply(prediction, term)


class TopomaskGPS(Module):
    """A GraphGPS network from GraphGym's ``cfg``, called as ``network(batch) → (prediction, label)``.

    GraphGym's feature encoder, ``gnn.layers_pre_mp`` linear layers, ``gt.layers`` layers as ``gt.layer_type`` names
    them, and the head ``gnn.head``. In training ``topomask.eta`` times the attentions' auxiliary loss takes part in the
    backward pass; it is not in the loss that is reported, and what scales that loss (float16, Lightning's gradient
    accumulation) does not scale it. GraphGym's own ``dataset.edge_encoder_bn`` normalises nodes once more, not edges.

    Args:
        dim_in: Columns of ``batch.x``.
        dim_out: Classes or targets.

    Raises:
        ValueError: If ``cfg`` contradicts itself or names what we do not know.
    """

    def __init__(self, dim_in: int, dim_out: int, **_: Any) -> None:
        super().__init__()
        config = translate(cfg)
        _refuse([*contradictions(config), *layer_problems(config)], "gt.", "topomask.")
        _refuse([(key, "is not provided in GraphGym") for key in _RUNNER_KEYS if config.is_set(key)], "topomask.")
        _refuse([*twice_given(config, config.is_set), *unused_keys(config)], "topomask.")
        width, eta = config.gt.dim_hidden, config.topomask.eta
        if cfg.gnn.dim_inner != width:
            raise ValueError(f"gnn.dim_inner must equal gt.dim_hidden (got {cfg.gnn.dim_inner} and {width})")
        self.reads_edges, self.reads_pe, self.eta = config.dataset.edge_encoder, uses_stable_gate(config), eta
        self.encoder = FeatureEncoder(dim_in)
        given, self.pre_mp = self.encoder.dim_in, None
        if cfg.gnn.layers_pre_mp > 0:
            self.pre_mp = GNNPreMP(given, width, cfg.gnn.layers_pre_mp)
        elif given != width:
            raise ValueError(
                f"node features have {given} columns and layers {width}: set gnn.layers_pre_mp 1, or "
                f"dataset.node_encoder True and node_encoder_name {PREFIX}LinearNode"
            )
        self.mp = build_stack(config)
        self.post_mp = register.head_dict[cfg.gnn.head](dim_in=width, dim_out=dim_out)

    def forward(self, batch: Data) -> Any:
        """Prediction and label, as the head pairs them.

        Raises:
            ValueError: If messages are gated by an encoding that no encoder left on the batch.
        """
        batch = self.encoder(batch)
        if self.pre_mp is not None:
            batch = self.pre_mp(batch)
        extra = {"edge_attr": batch.edge_attr} if self.reads_edges else {}
        if self.reads_pe:
            if STABLE not in batch:
                raise ValueError(f"posenc_EquivStableLapPE needs an encoder that adds {STABLE!r}, such as GraphGPS's")
            extra["pe"] = batch[STABLE]
        index = batch.get("batch")
        batch.x = self.mp(batch.x, batch.edge_index, index, batch, count_graphs(batch, index), **extra)
        prediction, label = self.post_mp(batch)
        if self.training and torch.is_grad_enabled():
            term = self.eta * auxiliary_loss(self.mp)
            if term.requires_grad:
                prediction = _with_term(prediction, term)
        return prediction, label


class TopomaskNodeEncoder(Module):
    """Our encoder of nodes, by its name in a config, as GraphGym's: it replaces ``batch.x``.

    Args:
        emb_dim: Width of its output.
        name: Such as ``LinearNode+RWSE``.

    Raises:
        ValueError: If the sections ``posenc_*`` do not fit the name.
    """

    def __init__(self, emb_dim: int, name: str) -> None:
        super().__init__()
        # The norm and the layers that may follow are GraphGym's.
        data = {"node_encoder": True, "node_encoder_name": name, "node_encoder_bn": False}
        config = translate(cfg, dataset=data, gt={"dim_hidden": emb_dim})
        _refuse(contradictions(config), "posenc_", "dataset.node_encoder")
        self.encoder = build_node_encoder(config, cfg.share.dim_in)

    def forward(self, batch: Data) -> Data:
        """The batch, with ``x`` encoded."""
        batch.x = self.encoder(batch)
        return batch


class TopomaskEdgeEncoder(Module):
    """Our encoder of edges, by its name in a config, as GraphGym's: it replaces ``batch.edge_attr``.

    Args:
        emb_dim: Width of its output.
        name: Such as ``LinearEdge``, which reads ``dataset.edge_dim`` columns.

    Raises:
        ValueError: If the number of types that the name needs is not given.
    """

    def __init__(self, emb_dim: int, name: str) -> None:
        super().__init__()
        data = {"edge_encoder": True, "edge_encoder_name": name, "edge_encoder_bn": False}
        config = translate(cfg, dataset=data, gt={"dim_hidden": emb_dim})
        _refuse(contradictions(config), "dataset.edge_encoder")
        self.encoder: Any = build_edge_encoder(config, cfg.dataset.edge_dim)

    def forward(self, batch: Data) -> Data:
        """The batch, with ``edge_attr`` encoded."""
        batch.edge_attr = self.encoder(batch)
        return batch


class TopomaskHead(Module):
    """Our head, by its name in a config, as GraphGym's: ``head(batch) → (prediction, label)``.

    Labels are ``batch.y``; of nodes only those of the split's mask, where there is one; of pairs
    ``batch.edge_label``, with the pairs in ``batch.edge_label_index``.

    Args:
        dim_in: Width of the nodes.
        dim_out: Classes or targets.
        name: Such as ``san_graph``.
    """

    def __init__(self, dim_in: int, dim_out: int, name: str) -> None:
        super().__init__()
        self.head = build_head(translate(cfg, gnn={"head": name}, gt={"dim_hidden": dim_in}), dim_out, name)
        self.level = name.split("_")[-1]  # node, edge or graph

    def forward(self, batch: Data) -> tuple[Tensor, Tensor | None]:
        """Prediction and label."""
        prediction = self.head(batch.x, batch)
        label = batch.get("edge_label" if self.level == "edge" else "y")
        mask = batch.get(f"{batch.get('split')}_mask") if self.level == "node" else None
        if mask is None:
            return prediction, label
        return prediction[mask], None if label is None else label[mask]


def _register(mapping: dict[str, Any], key: str, module: Any) -> None:
    mapping.pop(key, None)  # from before this module was loaded again: no other has our prefix
    register.register_base(mapping, key, module)


def _register_all() -> None:
    for name in ATTENTION:
        _register(register.layer_dict, PREFIX + name, partial(TopomaskAttention, name=name))
    for base in NODE_ENCODERS:
        for encodings in ("", "+LapPE", "+RWSE", "+LapPE+RWSE"):
            name = base + encodings
            _register(register.node_encoder_dict, PREFIX + name, partial(TopomaskNodeEncoder, name=name))
    for name in EDGE_ENCODERS:
        _register(register.edge_encoder_dict, PREFIX + name, partial(TopomaskEdgeEncoder, name=name))
    for name in HEADS:
        if name != "ogb_code_graph":  # its loss is over several words, which GraphGym has none for
            _register(register.head_dict, PREFIX + name, partial(TopomaskHead, name=name))
    _register(register.network_dict, PREFIX + "GPS", TopomaskGPS)
    _register(register.config_dict, PREFIX, add_config)
    add_config(cfg)


_register_all()
