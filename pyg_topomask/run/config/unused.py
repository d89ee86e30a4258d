"""Keys that are given but not read, because of the values of other keys.

GraphGPS's files have many of them, so they are listed and not refused. Those of ``topomask`` are refused, in
:mod:`pyg_topomask.run.check`.
"""

from __future__ import annotations

from functools import cached_property
from inspect import signature

from pyg_topomask.nn import Attention
from pyg_topomask.nn.attention import EVERY_ATTENTION
from pyg_topomask.nn.attention.base import EdgeAttention
from pyg_topomask.nn.parameter_groups import mask_parameters
from pyg_topomask.run.config.base import PARTS, ReadIf
from pyg_topomask.run.config.load import ParsedConfig
from pyg_topomask.run.config.schema import Config, Key, keys
from pyg_topomask.run.data.formats import is_one_graph, level_of, possible_tasks
from pyg_topomask.run.model.attentions import (
    argument_keys,
    attention_arguments,
    attentions_of,
    built_attentions,
    requirements,
    uses_walks,
)
from pyg_topomask.run.model.convs import CONVS
from pyg_topomask.run.model.encoders import uses_pair_bias
from pyg_topomask.run.task import Level


class Conditions:
    """The conditions of keys in a config without errors, by the names that :class:`~.base.ReadIf` has.

    A condition returns True if the key is read, and otherwise the reason why it is not.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.attentions = {name: EVERY_ATTENTION[name] for name in attentions_of(config)}

    def unread_because(self, key: Key) -> str | None:
        """Why a key is not read; None if it is read."""
        if key.no_effect_because is not None:
            return key.no_effect_because
        found = (self._has(c) if c.values else getattr(self, c.name)(key.name) for c in key.read_if)
        return next((reason for reason in found if isinstance(reason, str)), None)

    def _has(self, condition: ReadIf) -> bool | str:
        """Whether another key has one of some values, or contains it."""
        name, (part, *_) = condition.name, condition.values
        if name in PARTS:
            return part in self.config.value(PARTS[name]) or f"{name} does not contain {part}"
        return self.config.value(name) in condition.values or f"{name} is {self.config.value(name)}"

    @property
    def _encoders(self) -> list[str]:
        return self.config.dataset.node_encoder_parts

    @cached_property
    def _arguments(self) -> set[str]:
        """The keys that are arguments of the attentions or their mask."""
        return {key for _, key in argument_keys(self.config)}

    def _used(self, used: bool) -> bool | str:
        return used or f"is given, but {self.config.gt.layer_type} has no use for it"

    def always(self, key: str) -> bool | str:
        """Also if the section is not read."""
        return True

    def argument(self, key: str) -> bool | str:
        """An attention in gt.layer_type or its mask has this argument."""
        return self._used(key in self._arguments)

    def walks(self, key: str) -> bool | str:
        """An attention or its mask needs random walks."""
        return self._used(key in self._arguments or uses_walks(self.config))

    def walk_tables(self, key: str) -> bool | str:
        """An attention or its mask may use several sets of walks."""
        return self._used("topomask.num_tables" in self._arguments)

    def edge_attention(self, key: str) -> bool | str:
        """An attention gives weights to the edges, which walks can follow."""
        return self._used(any(issubclass(cls, EdgeAttention) for cls in self.attentions.values()))

    def learned_mask(self, key: str) -> bool | str:
        """A mask has parameters."""
        return self._used(any(map(mask_parameters, built_attentions(self.config))))

    def trees(self, key: str) -> bool | str:
        """The mask needs a spanning tree."""
        return self._used("tree_index" in requirements(self.config))

    def auxiliary_loss(self, key: str) -> bool | str:
        """An attention has an auxiliary loss."""
        return self._used(any(cls.adds_loss for cls in self.attentions.values()))

    def random_features(self, key: str) -> bool | str:
        """An attention draws random features."""
        if key not in self._arguments:
            return self._used(False)
        found = {self._kernel(cls) for cls in self.attentions.values() if "kernel" in cls.config_keys}
        kernels = ", ".join(map(repr, sorted(found)))
        return not found or "softmax_rf" in found or f"only kernel softmax_rf has it (got {kernels})"

    def _kernel(self, cls: type[Attention]) -> str:
        """The kernel of an attention: that of the config, or the class's own default."""
        given, own = self.config.topomask.kernel, signature(cls).parameters.get("kernel")
        return given if own is None or self.config.is_given("topomask.kernel") else own.default

    def graph_layer_norm(self, key: str) -> bool | str:
        """Nodes are normalised by LayerNorm."""
        used = self.config.gt.layer_norm and self.config.model.type not in ("MultiModel", "SingleModel")
        needed = "node needs gt.layer_norm: true, gt.batch_norm: false, and a model.type"
        return used or f"{needed} other than MultiModel and SingleModel"

    def attention_dropout(self, key: str) -> bool | str:
        """An attention in gt.layer_type has dropout."""
        return key in self._arguments or "no part of gt.layer_type has it"

    def layers_before(self, key: str) -> bool | str:
        """There are layers between the encoders and the GraphGPS layers."""
        return self.config.gnn.layers_pre_mp > 0 or "gnn.layers_pre_mp is 0"

    def head_dropout(self, key: str) -> bool | str:
        """There are layers before the GraphGPS layers, or the head or the model has dropout of its own."""
        has = self.config.gnn.head == "mlp_graph" or self.config.model.type == "custom_gnn"
        missing = "gnn.layers_pre_mp is 0, and only the head mlp_graph and custom_gnn have it"
        return has or self.config.gnn.layers_pre_mp > 0 or missing

    def encoding(self, key: str) -> bool | str:
        """The encoding is a part of dataset.node_encoder_name."""
        named = key.split(".")[0].removeprefix("posenc_") in self._encoders
        return named or "dataset.node_encoder_name does not contain it"

    def finished_run(self, key: str) -> bool | str:
        """The config starts from a finished run."""
        return self.config.pretrained.dir != "" or "pretrained.dir is not given"

    def split_mode(self, key: str) -> bool | str:
        """The kind of split has this setting."""
        data = self.config.dataset
        return key in data.split_settings or f"dataset.split_mode is {data.split_mode}"

    @property
    def _level(self) -> Level:
        return level_of(self.config.dataset)

    def edge_task(self, key: str) -> bool | str:
        """Edges are predicted."""
        return self._level == "edge" or f"{self._level}s are predicted, not edges"

    def ranked_edges(self, key: str) -> bool | str:
        """Edges are ranked among all nodes of their graph."""
        return possible_tasks(self.config.dataset)[0].ranked or "only pcqm-contact draws such edges"

    def pooled(self, key: str) -> bool | str:
        """Graphs are predicted, or there is a graph token."""
        read = self._level == "graph" or self.config.model.graph_pooling == "graph_token"
        return read or "only graphs are pooled, and the data set has other targets"

    def one_graph(self, key: str) -> bool | str:
        """The data set is one graph."""
        return is_one_graph(self.config.dataset) or "the data set is not one graph"

    def batches(self, key: str) -> bool | str:
        """There are several graphs, or neighbourhoods are sampled."""
        several = not is_one_graph(self.config.dataset) or self.config.train.sampler in ("neighbor", "walks")
        return several or "the data set is one graph"

    def several_batches(self, key: str) -> bool | str:
        """There are several graphs, or parts of one are sampled."""
        several = not is_one_graph(self.config.dataset) or self.config.train.sampler != "full_batch"
        return several or "the data set is one graph"

    def edge_features(self, key: str) -> bool | str:
        """A convolution, an attention or the bias of pairs reads encoded edge features."""
        config, alone = self.config, self.config.model.type == "custom_gnn"  # whose GAT has none, as in GraphGPS
        convs = (name for name in config.gt.parts if name in CONVS and not (alone and name == "GAT"))
        named = "GraphormerBias" in self._encoders and uses_pair_bias(config)
        paths = named and config.dataset.edge_encoder_name == "TypeDictEdge"
        read = paths or any(map(self._attends_to_edges, self.attentions)) or any(CONVS[x].takes_edges for x in convs)
        return read or not config.dataset.edge_encoder or "no part of gt.layer_type reads edge features"

    def _attends_to_edges(self, name: str) -> bool:
        """Whether an attention reads edge features; taken as true for one that is defined outside of the package."""
        is_ours = self.attentions[name].__module__.startswith("pyg_topomask.")
        return not is_ours or attention_arguments(self.config, name).get("edge_dim") is not None


def keys_without_effect(parsed: ParsedConfig) -> dict[str, list[str]]:
    """The keys that were given without effect, grouped by the reason; an encoding's section represents its keys.

    Args:
        parsed: A config without errors.
    """
    written, conditions, found = parsed.written or parsed.config, Conditions(parsed.config), dict[str, list[str]]()
    is_draft = parsed.config.pretrained.dir and parsed.written is None  # the run with the model does not exist yet
    for key in keys():
        if written.is_given(key.name):
            reason = key.no_effect_because if is_draft else conditions.unread_because(key)
            unnamed = key.name.startswith("posenc_") and key.no_effect_because is None
            shown = key.name.split(".")[0] if unnamed else key.name
            if reason and shown not in found.setdefault(reason, []):
                found[reason].append(shown)
    return found


def unused_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, why it is not read) of keys of ``topomask`` whose value is not the default."""
    conditions, ours = Conditions(config), [key for key in keys() if key.name.startswith("topomask.")]
    found = [(key.name, conditions.unread_because(key)) for key in ours if config.is_set(key.name)]
    return [(name, why) for name, why in found if why is not None]
