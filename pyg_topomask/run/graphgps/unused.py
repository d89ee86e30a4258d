"""Keys that are given but not read, because of the values of other keys.

GraphGPS's files have many of them, so they are listed and not refused. Those of ``topomask`` are refused, in
:mod:`pyg_topomask.run.graphgps.check`.
"""

from __future__ import annotations

from functools import cached_property

from pyg_topomask.nn.attention import EVERY_ATTENTION
from pyg_topomask.nn.feature_map import SoftmaxFeatures
from pyg_topomask.nn.parameter_groups import mask_parameters
from pyg_topomask.run.graphgps.config.base import PARTS, ReadIf
from pyg_topomask.run.graphgps.config.load import ParsedConfig
from pyg_topomask.run.graphgps.config.schema import Config, Key, keys
from pyg_topomask.run.graphgps.formats import is_one_graph, level_of, possible_tasks
from pyg_topomask.run.graphgps.model import attentions
from pyg_topomask.run.graphgps.model.convs import CONVS
from pyg_topomask.run.graphgps.model.encoders import uses_pair_bias


class Conditions:
    """The conditions of keys in a config without errors, by the names that :class:`~.base.ReadIf` has.

    A condition returns whether the key is read; its first line says when, for messages and the list of keys.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.encoders = config, config.dataset.node_encoder_parts
        self.attentions = {name: EVERY_ATTENTION[name] for name in attentions.attentions_of(config)}

    def unread_because(self, key: Key) -> str | None:
        """Why a key is not read; None if it is read."""
        if key.no_effect_because is not None:
            return key.no_effect_because
        unmet = next((condition for condition in key.read_if if not self._holds(condition, key.name)), None)
        return None if unmet is None else f"read only if {in_words(unmet)}"

    def _holds(self, condition: ReadIf, key: str) -> bool:
        """Whether a condition of a name holds, or another key has one of some values, or contains it."""
        name, values = condition.name, condition.values
        if not values:
            return getattr(self, name)(key)
        return values[0] in self.config.value(PARTS[name]) if name in PARTS else self.config.value(name) in values

    @cached_property
    def _arguments(self) -> set[str]:
        """The keys that are arguments of the attentions or their mask."""
        return {key for _, key in attentions.argument_keys(self.config)}

    def always(self, key: str) -> bool:
        """Also if the section is not read."""
        return True

    def argument(self, key: str) -> bool:
        """An attention in gt.layer_type or its mask has this argument."""
        return key in self._arguments

    def walks(self, key: str) -> bool:
        """An attention or its mask needs random walks."""
        return key in self._arguments or any(name.startswith("walk") for name in attentions.requirements(self.config))

    def walk_tables(self, key: str) -> bool:
        """An attention or its mask may use several sets of walks."""
        return "topomask.num_tables" in self._arguments

    def edge_attention(self, key: str) -> bool:
        """An attention gives weights to the edges, which walks can follow."""
        return any(hasattr(cls, "edge_attention") for cls in self.attentions.values())

    def learned_mask(self, key: str) -> bool:
        """A mask has parameters."""
        return any(map(mask_parameters, attentions.built_attentions(self.config)))

    def trees(self, key: str) -> bool:
        """The mask needs a spanning tree."""
        return "tree_index" in attentions.requirements(self.config)

    def auxiliary_loss(self, key: str) -> bool:
        """An attention has an auxiliary loss."""
        return any(cls.adds_loss for cls in self.attentions.values())

    def random_features(self, key: str) -> bool:
        """An attention draws random features: Performer, or one with topomask.kernel softmax_rf."""
        parts = (part for attention in attentions.built_attentions(self.config) for part in attention.modules())
        return any(isinstance(part, SoftmaxFeatures) for part in parts)

    def graph_layer_norm(self, key: str) -> bool:
        """Nodes are normalised by gt.layer_norm, in a model.type other than MultiModel and SingleModel."""
        return self.config.gt.layer_norm and self.config.model.type not in ("MultiModel", "SingleModel")

    def layers_before(self, key: str) -> bool:
        """There are layers between the encoders and the GraphGPS layers, gnn.layers_pre_mp."""
        return self.config.gnn.layers_pre_mp > 0

    def head_dropout(self, key: str) -> bool:
        """There are layers before the GraphGPS layers (gnn.layers_pre_mp), the head mlp_graph, or custom_gnn."""
        has = self.config.gnn.head == "mlp_graph" or self.config.model.type == "custom_gnn"
        return has or self.config.gnn.layers_pre_mp > 0

    def encoding(self, key: str) -> bool:
        """The encoding is a part of dataset.node_encoder_name."""
        return key.split(".")[0].removeprefix("posenc_") in self.encoders

    def layered_encoding(self, key: str) -> bool:
        """The encoding's model is not Linear."""
        return self.config.value(f"{key.split('.')[0]}.model").lower() != "linear"

    def enabled_encoding(self, key: str) -> bool:
        """The encoding is a part of dataset.node_encoder_name."""  # nothing is said of one that is switched off
        return self.encoding(key) or not self.config.value(key)

    def finished_run(self, key: str) -> bool:
        """The config starts from a finished run, pretrained.dir."""
        return self.config.pretrained.dir != ""

    def split_mode(self, key: str) -> bool:
        """The kind of split, dataset.split_mode, has this setting."""
        return key in self.config.dataset.split_settings

    def edge_task(self, key: str) -> bool:
        """Edges are predicted."""
        return level_of(self.config.dataset) == "edge"

    def ranked_edges(self, key: str) -> bool:
        """Edges are ranked among all nodes of their graph, as in pcqm-contact."""
        return possible_tasks(self.config.dataset)[0].ranked

    def pooled(self, key: str) -> bool:
        """Graphs are predicted, or there is a graph token."""
        return level_of(self.config.dataset) == "graph" or self.config.model.graph_pooling == "graph_token"

    def one_graph(self, key: str) -> bool:
        """The data set is one graph."""
        return is_one_graph(self.config.dataset)

    def several_batches(self, key: str) -> bool:
        """There are several graphs, or parts of one are sampled."""
        return not is_one_graph(self.config.dataset) or self.config.train.sampler != "full_batch"

    def edge_features(self, key: str) -> bool:
        """A convolution, an attention or the bias of pairs reads encoded edge features."""
        config, alone = self.config, self.config.model.type == "custom_gnn"  # whose GAT has none, as in GraphGPS
        convs = (name for name in config.gt.parts if name in CONVS and not (alone and name == "GAT"))
        named = "GraphormerBias" in self.encoders and uses_pair_bias(config)
        paths = named and config.dataset.edge_encoder_name == "TypeDictEdge"
        read = paths or any(map(self._attends_to_edges, self.attentions)) or any(CONVS[x].takes_edges for x in convs)
        return read or not config.dataset.edge_encoder

    def _attends_to_edges(self, name: str) -> bool:
        """Whether an attention reads edge features; taken as true for one that is defined outside of the package."""
        is_ours = self.attentions[name].__module__.startswith("pyg_topomask.")
        return not is_ours or attentions.attention_arguments(self.config, name).get("edge_dim") is not None


def in_words(condition: ReadIf) -> str:
    """A condition of a key, such as ``gt.layer_type contains KMIP``."""
    if not condition.values:
        text = (getattr(Conditions, condition.name).__doc__ or condition.name).rstrip(".")  # ``python -OO`` drops it
        return text[0].lower() + text[1:]
    values = " or ".join("true" if value is True else value for value in condition.values)
    return f"{condition.name} {'contains' if condition.name in PARTS else 'is'} {values}"


def keys_without_effect(parsed: ParsedConfig) -> dict[str, list[str]]:
    """The keys that were given without effect, grouped by the reason.

    The section of an encoding that is not used represents its keys.

    Args:
        parsed: A config without errors.
    """
    written, conditions, found = parsed.written or parsed.config, Conditions(parsed.config), dict[str, list[str]]()
    is_draft = parsed.config.pretrained.dir and parsed.written is None  # the run with the model does not exist yet
    for key in keys():
        if written.is_given(key.name):
            reason = key.no_effect_because if is_draft else conditions.unread_because(key)
            unused = key.name.startswith("posenc_") and not conditions.encoding(key.name)
            shown = key.name.split(".")[0] if unused and key.no_effect_because is None else key.name
            if reason and shown not in found.setdefault(reason, []):
                found[reason].append(shown)
    return found


def unused_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, why it is not read) of keys of ``topomask`` whose value is not the default."""
    conditions, ours = Conditions(config), [key for key in keys() if key.name.startswith("topomask.")]
    found = [(key.name, conditions.unread_because(key)) for key in ours if config.is_set(key.name)]
    return [(name, why) for name, why in found if why is not None]
