"""Our layers, network, encoders and heads, registered for PyG's GraphGym and for forks of GraphGPS.

Importing this module registers, in ``torch_geometric.graphgym.register``:

- a layer ``Topomask<attention>``, such as ``TopomaskGRF``, for each entry of :data:`~pyg_topomask.nn.ATTENTION`, to be
  used as ``gnn.layer_type``. The number of heads is ``gnn.att_heads``. Primphormer has no carry between layers here;
- the network ``TopomaskGPS`` for ``model.type``: any registered feature encoder and head, and between them the
  :class:`~pyg_topomask.nn.GPSStack` of ``gt.layer_type``, such as ``GCN+GRF``;
- node encoders ``Topomask<name>``, such as ``TopomaskLinearNode``, each also followed by ``+LapPE``, ``+RWSE`` or
  ``+LapPE+RWSE``, and edge encoders ``Topomask<name>``, such as ``TopomaskLinearEdge``;
- a head ``Topomask<name>``, such as ``Topomasksan_graph``, for each entry of :data:`~pyg_topomask.nn.HEADS` except
  ``ogb_code_graph``;
- the missing keys of the sections ``topomask``, ``gt``, ``prep``, ``posenc_LapPE`` and ``posenc_RWSE``, in the global
  ``cfg``; ``set_cfg`` adds them again.

:func:`build_transform` adds the attributes that attentions and encodings need to a graph.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models.gnn import FeatureEncoder, GNNPreMP

from pyg_topomask.nn import ATTENTION, EDGE_ENCODERS, HEADS, NODE_ENCODERS, auxiliary_loss
from pyg_topomask.nn.pool import count_graphs
from pyg_topomask.run.check import layer_problems, unused_keys
from pyg_topomask.run.config.contradictions import contradictions
from pyg_topomask.run.graphgym_config import PREFIX, add_config, translate
from pyg_topomask.run.model.attentions import build_attention, twice_given
from pyg_topomask.run.model.build import build_head, build_stack
from pyg_topomask.run.model.encoders import build_edge_encoder, build_encodings, build_node_encoder, uses_stable_gate
from pyg_topomask.run.model.sampling import build_sampling_transforms

__all__ = ["TopomaskAttention", "TopomaskGPS", "add_config", "build_transform", "translate"]

_STABLE = "pe_EquivStableLapPE"
"""Attribute in which GraphGPS's encoder stores the encodings that gate messages."""

_RUNNER_KEYS = (
    "topomask.redraw",
    "topomask.transition",
    "topomask.normalize_features",
    "topomask.encoder_dropout",
    "topomask.pre_norm",
)
"""Keys that only our own runner reads; for ``pre_norm``, it adds a norm after the last layer."""


def _refuse(problems: Iterable[tuple[str, str]], *sections: str) -> None:
    for key, why in problems:
        if key.startswith(sections):
            raise ValueError(f"{key}: {why}")


def build_transform(seed: int | None = None) -> BaseTransform:
    """The transform that adds the attributes that the model of ``cfg`` reads: encodings, walks, expander edges.

    It adds encodings for our own node encoders only; a fork computes its own. Use it as ``transform`` or
    ``pre_transform`` of the data set, after all transforms that change the graph.

    Args:
        seed: Seed of walks and expander edges; ``cfg.seed`` if :obj:`None`.

    Raises:
        ValueError: If our config does not allow a value of ``cfg``.
    """
    layer_type = cfg.gt.layer_type
    if cfg.model.type == "gnn" and cfg.gnn.layer_type.startswith(PREFIX):
        layer_type = f"None+{cfg.gnn.layer_type.removeprefix(PREFIX)}"
    config = translate(cfg, gt={"layer_type": layer_type})
    _refuse(layer_problems(config), "gt.")
    own = cfg.dataset.node_encoder and cfg.dataset.node_encoder_name.startswith(PREFIX)
    encodings = build_encodings(config) if own else []
    return Compose([*encodings, *build_sampling_transforms(config, cfg.seed if seed is None else seed)])


class TopomaskAttention(Module):
    """An attention as a layer of GraphGym: it reads ``batch.x [N, dim_in]`` and writes ``batch.x [N, dim_out]``.

    Args:
        layer_config: GraphGym's ``LayerConfig``; if its widths differ, a linear map comes before the attention.
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
        """The batch with new ``x``."""
        x = batch.x if self.project is None else self.project(batch.x)
        batch.x = self.attention(x, batch.get("batch"), batch)
        return batch


class _AddToLoss(torch.autograd.Function):
    """Returns a prediction unchanged and gives a scalar the gradient 1, as if the scalar were added to the loss.

    It is needed because GraphGym's loss functions take only predictions and targets.
    """

    @staticmethod
    def forward(ctx: Any, prediction: Tensor, term: Tensor) -> Tensor:
        ctx.save_for_backward(term)
        return prediction.view_as(prediction)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (term,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(term)


class TopomaskGPS(Module):
    """A GraphGPS network from GraphGym's ``cfg``, called as ``network(batch) → (prediction, label)``.

    It consists of GraphGym's feature encoder, ``gnn.layers_pre_mp`` linear layers, ``gt.layers`` layers of
    ``gt.layer_type``, and the head ``gnn.head``. In training, ``topomask.eta`` times the attentions' auxiliary loss
    takes part in the backward pass. It is not part of the reported loss, and factors on that loss (float16, Lightning's
    gradient accumulation) do not apply to it. GraphGym's own ``dataset.edge_encoder_bn`` normalises nodes again, not
    edges.

    Args:
        dim_in: Number of columns of ``batch.x``.
        dim_out: Number of classes or targets.

    Raises:
        ValueError: If values of ``cfg`` contradict each other or are unknown.
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
                f"node features have {given} columns and layers have {width}: set gnn.layers_pre_mp 1, or "
                f"dataset.node_encoder True and node_encoder_name {PREFIX}LinearNode"
            )
        self.mp = build_stack(config)
        self.post_mp = register.head_dict[cfg.gnn.head](dim_in=width, dim_out=dim_out)

    def forward(self, batch: Data) -> Any:
        """Prediction and label, as returned by the head.

        Raises:
            ValueError: If the batch lacks the encoding that gates messages.
        """
        batch = self.encoder(batch)
        if self.pre_mp is not None:
            batch = self.pre_mp(batch)
        extra = {"edge_attr": batch.edge_attr} if self.reads_edges else {}
        if self.reads_pe:
            if _STABLE not in batch:
                raise ValueError(f"posenc_EquivStableLapPE needs an encoder that adds {_STABLE!r}, such as GraphGPS's")
            extra["pe"] = batch[_STABLE]
        index = batch.get("batch")
        batch.x = self.mp(batch.x, batch.edge_index, index, batch, count_graphs(batch, index), **extra)
        prediction, label = self.post_mp(batch)
        if self.training and torch.is_grad_enabled():
            term = self.eta * auxiliary_loss(self.mp)
            if term.requires_grad and isinstance(prediction, (list, tuple)):  # one for each of several words
                prediction = [_AddToLoss.apply(prediction[0], term), *prediction[1:]]
            elif term.requires_grad:
                prediction = _AddToLoss.apply(prediction, term)
        return prediction, label


class TopomaskEncoder(Module):
    """Our encoder of nodes or edges as GraphGym's: it replaces ``batch.x`` or ``batch.edge_attr``.

    Args:
        emb_dim: Width of its output.
        name: Name in a config, such as ``LinearNode+RWSE`` or ``LinearEdge``; the latter reads ``dataset.edge_dim``
            columns.
        kind: ``"node"`` or ``"edge"``.

    Raises:
        ValueError: If the sections ``posenc_*`` or the number of types do not fit the name.
    """

    def __init__(self, emb_dim: int, name: str, kind: str) -> None:
        super().__init__()
        # GraphGym itself adds a norm and layers after the encoder.
        data = {f"{kind}_encoder": True, f"{kind}_encoder_name": name, f"{kind}_encoder_bn": False}
        config = translate(cfg, dataset=data, gt={"dim_hidden": emb_dim})
        self.encoder: Any
        if kind == "node":
            _refuse(contradictions(config), "posenc_", "dataset.node_encoder")
            self.attribute, self.encoder = "x", build_node_encoder(config, cfg.share.dim_in)
        else:
            _refuse(contradictions(config), "dataset.edge_encoder")
            self.attribute, self.encoder = "edge_attr", build_edge_encoder(config, cfg.dataset.edge_dim)

    def forward(self, batch: Data) -> Data:
        """The batch with encoded ``x`` or ``edge_attr``."""
        batch[self.attribute] = self.encoder(batch)
        return batch


class TopomaskHead(Module):
    """Our head as GraphGym's: ``head(batch) → (prediction, label)``.

    Labels of graphs and nodes are ``batch.y``; if the split has a mask, only the nodes in it count. Labels of pairs are
    ``batch.edge_label``, for the pairs in ``batch.edge_label_index``.

    Args:
        dim_in: Width of the node embeddings.
        dim_out: Number of classes or targets.
        name: Name in a config, such as ``san_graph``.

    Raises:
        ValueError: If ``model.graph_pooling`` is ``graph_token``, which our own runner adds to the layers.
    """

    def __init__(self, dim_in: int, dim_out: int, name: str) -> None:
        super().__init__()
        config = translate(cfg, gnn={"head": name}, gt={"dim_hidden": dim_in})
        if config.model.graph_pooling == "graph_token":
            raise ValueError("model.graph_pooling: graph_token is not provided in GraphGym; use mean, add or max")
        self.head = build_head(config, dim_out, name)
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
    mapping.pop(key, None)  # registered before this module was reloaded; only we use the prefix
    register.register_base(mapping, key, module)


def _register_all() -> None:
    for name in ATTENTION:
        _register(register.layer_dict, PREFIX + name, partial(TopomaskAttention, name=name))
    for base in NODE_ENCODERS:
        for encodings in ("", "+LapPE", "+RWSE", "+LapPE+RWSE"):
            name = base + encodings
            _register(register.node_encoder_dict, PREFIX + name, partial(TopomaskEncoder, name=name, kind="node"))
    for name in EDGE_ENCODERS:
        _register(register.edge_encoder_dict, PREFIX + name, partial(TopomaskEncoder, name=name, kind="edge"))
    for name in HEADS:
        if name != "ogb_code_graph":  # GraphGym has no loss over several words
            _register(register.head_dict, PREFIX + name, partial(TopomaskHead, name=name))
    _register(register.network_dict, PREFIX + "GPS", TopomaskGPS)
    _register(register.config_dict, PREFIX, add_config)
    add_config(cfg)


_register_all()
