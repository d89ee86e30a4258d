"""Our layers, network and config keys, registered for PyG's GraphGym and for forks of GraphGPS.

Importing this module registers, in ``torch_geometric.graphgym.register``:

- a layer ``Topomask<attention>``, such as ``TopomaskGRF``, for each entry of :data:`~pyg_topomask.nn.ATTENTION`, to be
  used as ``gnn.layer_type``. The number of heads is ``gnn.att_heads``. Primphormer has no carry between layers here;
- the network ``TopomaskGPS`` for ``model.type``: any registered feature encoder and head, and between them the
  :class:`~pyg_topomask.nn.GPSStack` of ``gt.layer_type``, such as ``GCN+GRF``;
- the missing keys of the sections ``topomask``, ``gt`` and ``prep``, in the global ``cfg``; ``set_cfg`` adds them
  again.

:func:`build_transform` adds the attributes that attentions need to a graph. Encoders are those of GraphGym or the fork.
"""

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.models.gnn import FeatureEncoder, GNNPreMP
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.nn import ATTENTION, auxiliary_loss
from pyg_topomask.run.graphgps.attentions import build_attention, build_sampling_transforms
from pyg_topomask.run.graphgps.check import layer_problems, twice_given, unused_keys
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.base import noting_reads
from pyg_topomask.run.graphgps.config.schema import Key, add_mask_sections, contradictions, keys
from pyg_topomask.run.graphgps.model import build_stack

__all__ = ["TopomaskAttention", "TopomaskGPS", "add_config", "build_transform", "translate"]

PREFIX = "Topomask"
"""Prefix of all our names, so that they differ from all others."""

_SECTIONS = ("topomask", "gt", "prep")
"""Sections that are added to GraphGym's and translated completely."""

_READ = (
    *("gnn.act", "gnn.dim_inner", "dataset.edge_encoder"),
    *("posenc_EquivStableLapPE.enable", "share.gradient_checkpointing"),
)
"""Keys of other sections that are translated if ``cfg`` has them."""


def add_config(node: Any) -> None:
    """Add the keys of our sections to GraphGym's ``cfg``; existing keys keep their values."""
    add_mask_sections()
    for key, sections, name in _keys(*_SECTIONS):
        # None means not given: then the default of the attention or the value of a flat key holds.
        not_given = name in ("kernel", "mask") or sections[-1].startswith("mask_")
        section = reduce(lambda found, part: found.setdefault(part, type(node)()), sections, node)
        section.setdefault(name, None if not_given else key.field.get_default(call_default_factory=True))


def _keys(*names: str) -> Iterator[tuple[Key, list[str], str]]:
    """Each key that is read, of sections or keys of these names, with its sections and its own name."""
    for key in keys():
        *sections, name = key.name.split(".")
        if key.no_effect_because is None and {key.name, key.name.split(".")[0]} & {*names}:
            yield key, sections, name


def translate(node: Any, **changes: dict[str, Any]) -> Config:
    """Our config with the values of GraphGym's.

    A key with the value :obj:`None` counts as not given, so that its default holds; for ``topomask.kernel`` that is the
    default of the attention, and for ``topomask.mask`` none.

    Args:
        node: GraphGym's ``cfg``.
        **changes: For each section, values that replace those of ``cfg``.

    Raises:
        ValueError: If our config does not allow a value.
    """
    values: dict[str, Any] = {}
    for _, sections, name in _keys(*_SECTIONS, *_READ):
        value = reduce(lambda found, part: found.get(part, {}), sections, node).get(name)
        section = reduce(lambda found, part: found.setdefault(part, {}), sections, values)
        section |= {} if value is None else {name: value}
    values["dataset"] |= {"format": "PyG", "name": "graphgym"}
    for changed, change in changes.items():
        values[changed] |= change
    return Config.model_validate(values)


def _refuse(problems: Iterable[tuple[str, str]], *sections: str) -> None:
    for key, why in problems:
        if key.startswith(sections):
            raise ValueError(f"{key}: {why}")


def build_transform(seed: int | None = None) -> BaseTransform:
    """The transform that adds the attributes that the model of ``cfg`` reads: walks, expander edges, trees.

    Use it as ``transform`` or ``pre_transform`` of the data set, after all transforms that change the graph.

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
    return Compose(build_sampling_transforms(config, cfg.seed if seed is None else seed))


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
        return prediction.view_as(prediction)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], gradients[0].new_ones(())


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
        problems = [*contradictions(config), *layer_problems(config)]
        given = [key for key in ("topomask.pre_norm", "topomask.redraw") if config.is_set(key)]
        problems += [(key, "is not provided in GraphGym") for key in given]
        _refuse(problems, "gt.", "gnn.dim_inner", "topomask.")
        _refuse(twice_given(config, config.is_set), "topomask.")
        with noting_reads():
            self.mp, self.eta, width = build_stack(config), config.loss_weight, config.gt.dim_hidden
            build_sampling_transforms(config, 0)  # that users add to their data
        _refuse(unused_keys(config), "topomask.")
        self.encoder = FeatureEncoder(dim_in)
        given, layers = self.encoder.dim_in, cfg.gnn.layers_pre_mp
        if layers < 1 and given != width:
            raise ValueError(f"node features have {given} columns and layers have {width}: set gnn.layers_pre_mp 1")
        self.pre_mp = GNNPreMP(given, width, layers) if layers > 0 else torch.nn.Identity()
        self.reads_edges = config.dataset.edge_encoder and self.mp.takes("edge_attr")
        self.reads_pe = config.has_stable_gate
        self.post_mp = register.head_dict[cfg.gnn.head](dim_in=width, dim_out=dim_out)

    def forward(self, batch: Data) -> Any:
        """Prediction and label, as returned by the head."""
        batch = self.pre_mp(self.encoder(batch))
        extra = {"edge_attr": batch.edge_attr} if self.reads_edges else {}
        if self.reads_pe:
            extra["pe"] = batch["pe_EquivStableLapPE"]  # where GraphGPS's encoder stores it
        index = batch.get("batch")
        batch.x = self.mp(
            batch.x, batch.edge_index, index, batch, batch.num_graphs if "ptr" in batch else None, **extra
        )
        prediction, label = self.post_mp(batch)
        term = self.eta * auxiliary_loss(self.mp)
        if self.training and term.requires_grad:
            prediction = _AddToLoss.apply(prediction, term)
        return prediction, label


for _table, _modules in (
    (register.network_dict, {"GPS": TopomaskGPS}),
    (register.layer_dict, {name: partial(TopomaskAttention, name=name) for name in ATTENTION}),
    (register.config_dict, {"": add_config}),
):
    _table.update({PREFIX + name: module for name, module in _modules.items()})
add_config(cfg)
