"""Checks of a config that need no data: names, keys that nothing uses, and a trial of the model on a fake graph."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch_geometric.data import Data

from pyg_topomask import nn
from pyg_topomask.run.data.source import Sizes
from pyg_topomask.run.errors import ConfigError, no_such, storage_errors
from pyg_topomask.run.graphgps.attentions import key_in
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.config.base import noting_reads
from pyg_topomask.run.graphgps.config.load import ConfigSource, ParsedConfig, load
from pyg_topomask.run.graphgps.config.model import PEER_ATTENTIONS
from pyg_topomask.run.graphgps.config.schema import MASK_KEY, all_keys, contradictions, keys
from pyg_topomask.run.graphgps.convs import CONVS
from pyg_topomask.run.graphgps.model import PLAIN_ENCODERS, build_model, sized
from pyg_topomask.run.graphgps.parts import build_optimizer, build_scheduler, fake_batch, parts_of
from pyg_topomask.run.graphgps.saved import checkpoint_of, with_model_of
from pyg_topomask.run.training.losses import is_distance, task_problems

_ON_DISK = ("random_partition", "cluster", "walks")
_WITHOUT_THE_WHOLE = {
    **dict.fromkeys(("dataset.to_undirected", "dataset.normalize", "dataset.normalize_targets"), False),
    **dict.fromkeys(("prep.add_self_loops", "topomask.normalize_features"), False),
    **{"topomask.transition": "uniform", "dataset.split_mode": "standard"},
}


def name_problems(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of names of convolutions, attentions, masks and encoders, and of heads."""
    return [*layer_problems(config), *_encoder_problems(config), *twice_given(config, config.is_given)]


def layer_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Pairs (key, what is wrong) of names of convolutions, attentions and masks."""
    attentions, convs, key = [*nn.EVERY_ATTENTION, *PEER_ATTENTIONS, "None"], [*CONVS, "None"], "gt.layer_type"
    for name in sorted({*nn.ATTENTION} & {*PEER_ATTENTIONS, *CONVS}):
        yield key, f"{name!r} has another meaning here: register the attention under another name"
    for name in config.topomask.masks:
        if name not in ("none", *nn.MASK):
            yield MASK_KEY, no_such("mask", name, ["none", *nn.MASK])
    named = {name.lower() for name in attentions}
    masks = {name.lower(): name for name in nn.MASK if name.lower() not in named}
    for position, part in enumerate(config.gt.layer_type.split("+")):
        if position and part.lower() in masks:
            yield key, f"{part!r} is a mask and no attention: use Masked, with {MASK_KEY}={masks[part.lower()]}"
        elif part != "None" and PEER_ATTENTIONS.get(part, part) not in {*CONVS, *nn.EVERY_ATTENTION}:
            found = ("attention", part, attentions, convs) if position else ("convolution", part, convs, attentions)
            yield key, no_such(*found)
    if config.model.graph_pooling == "graph_token" and not config.gt.attentions:
        message = "graph_token needs an attention in gt.layer_type, because message passing does not reach the token"
        yield "model.graph_pooling", message
    for name in config.gt.convs:
        if CONVS[name].needs_edges and not config.dataset.edge_encoder:
            advice = "set dataset.edge_encoder to true; then dataset.edge_encoder_name encodes the data's edge features"
            yield key, f"{name} needs edge features: {advice}, and its default, DummyEdge, needs none"
        if CONVS[name].takes_types and not config.dataset.edge_encoder_num_types:
            yield (
                "dataset.edge_encoder_num_types",
                f"{name} needs the number of edge types in the attribute 'edge_type'",
            )


def _encoder_problems(config: Config) -> Iterator[tuple[str, str]]:
    data, encoders = config.dataset, [*nn.NODE_ENCODERS, *PLAIN_ENCODERS, *nn.POSITIONAL_ENCODERS]
    head, task, bases = config.gnn.head, data.tasks[0], data.base_encoders
    for name in data.node_encoder_parts:
        if name not in encoders:
            yield "dataset.node_encoder_name", no_such("encoder", name, encoders)
    if data.edge_encoder and data.edge_encoder_name not in nn.EDGE_ENCODERS:
        yield "dataset.edge_encoder_name", no_such("encoder", data.edge_encoder_name, [*nn.EDGE_ENCODERS])
    if len(bases) > 1:
        yield "dataset.node_encoder_name", f"{' and '.join(bases)} both encode node features: choose one"
    of_head = head.rpartition("_")[2]  # the names of all heads end in what they predict
    if head not in ("default", *nn.HEADS):
        yield "gnn.head", no_such("head", head, ["default", *nn.HEADS])
    elif of_head not in ("default", task.level):
        yield "gnn.head", f"{head} is for {of_head}s; {data.name} has {task.level}s"
    if (head == "ogb_code_graph") != (task.kind == "subtoken"):
        yield "gnn.head", "ogb_code_graph and ogbg-code2, which predict words, belong together"
    if data.normalize_targets and task.kind != "regression":
        yield "dataset.normalize_targets", f"only numbers are scaled, and the task is {task.kind}"


def _task_problems(config: Config) -> list[tuple[str, str]]:
    return task_problems(config.model.loss_fun, config.metric_best, *config.dataset.tasks)


def twice_given(config: Config, is_given: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) for arguments of the mask that both its section and a flat key give.

    Args:
        config: The config.
        is_given: Whether a flat key counts as given. In GraphGym's ``cfg`` all keys have a value, and those count that
            differ from the default.
    """
    return [
        (f"topomask.mask_{mask}.{argument}", f"{key} gives the same setting: leave one of the two out")
        for mask in config.masks
        for argument, key in nn.MASK[mask].config_keys.items()
        if argument in config.value(f"topomask.mask_{mask}").model_fields_set and is_given(key)
    ]


_KINDS = {"regression": "regression", "classification_multilabel": "multilabel", "subtoken_prediction": "subtoken"}
"""Kinds of targets by ``dataset.task_type``; all others are classes."""


UNREAD = "nothing reads it with these settings"


def keys_without_effect(parsed: ParsedConfig) -> dict[str, list[str]]:
    """The keys that were given without effect, grouped by the reason; an encoding's section represents its keys.

    GraphGPS's files have many of them, so they are listed and not refused, except those of ``topomask``.

    Args:
        parsed: A config that was checked, so that keys were read.
    """
    written, found = parsed.written or parsed.config, dict[str, list[str]]()
    is_draft = parsed.config.pretrained.dir and parsed.written is None  # the run with the model does not exist yet
    for key in keys():
        if written.is_given(key.name):
            off = key.name.endswith((".enable", ".edge_encoder")) and not written.value(key.name)
            unread = not (is_draft or off or parsed.config.was_read(key.name))
            reason = key.no_effect_because or (UNREAD if unread and key.no_effect_because is None else None)
            section = key.name.split(".")[0]
            whole = section.startswith("posenc_") and not parsed.config.was_read(f"{section}.enable")
            shown = section if whole and key.no_effect_because is None else key.name
            if reason and shown not in found.setdefault(reason, []):
                found[reason].append(shown)
    return found


def unused_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, message) of keys of ``topomask`` that were not read and whose value is not the default."""
    ours = (name for name in all_keys() if name.startswith("topomask."))
    return [(name, f"{UNREAD}; leave it out") for name in ours if config.is_set(name) and not config.was_read(name)]


def notes_of(parsed: ParsedConfig) -> list[str]:
    """What a user should know of a valid config: keys without effect, and settings that are odd and can be run."""
    notes = [f"no effect: {', '.join(names)} ({why})" for why, names in keys_without_effect(parsed).items()]
    data, loss = parsed.config.dataset, parsed.config.model.loss_fun
    tasks = data.tasks
    task, kind = tasks[0], _KINDS.get(data.task_type, "multiclass")
    if data.task != "graph" and data.task.replace("link_pred", "edge") != task.level:  # GraphGPS writes graph for all
        notes.append(f"no effect: dataset.task {data.task} ({data.name} has targets of {task.level}s)")
    if kind not in {"multiclass" if it.kind == "binary" else it.kind for it in tasks}:
        notes.append(f"no effect: dataset.task_type {data.task_type} ({data.name} has {task.kind} targets)")
    if task.level == "edge" and is_distance(loss):
        notes.append(f"model.loss_fun: {loss} of raw scores and the targets 0 and 1; cross_entropy is usual for edges")
    return notes


def check_config(
    source: ConfigSource, overrides: Sequence[str] = (), name: str = "config"
) -> tuple[ParsedConfig, list[str]]:
    """Validate a config, and build its model and try it on a fake graph.

    The model is not built if the config starts from a run that does not exist yet.

    Returns:
        The config, and the keys that an overridden ``gt.layer_type`` does not use; these have their defaults.

    Raises:
        ConfigError: If the config cannot be run.
    """
    return try_model(read_valid(source, overrides, name))


@storage_errors()
def read_valid(source: ConfigSource, overrides: Sequence[str] = (), name: str = "config") -> ParsedConfig:
    """A config whose keys, values and names are right, before its model is built, which may compile C++."""
    parsed = load(source, overrides, name)
    data = parsed.config.dataset
    problems = data.problems()
    for index in () if problems else parsed.config.run_multiple_splits:
        problems += data.model_copy(update={"split_index": index}).problems()
    if problems and {key for key, _ in problems}.isdisjoint(("dataset.format", "dataset.name")):  # the task is known
        problems += _task_problems(parsed.config)
    parsed.refuse(problems or sampler_problems(parsed.config))
    if parsed.config.pretrained.dir:
        if checkpoint_of(parsed.config) is None:
            return parsed
        parsed = replace(parsed, config=with_model_of(parsed.config), written=parsed.config)
        parsed.refuse(contradictions(parsed.config))
    parsed.refuse([*name_problems(parsed.config), *_task_problems(parsed.config)])
    return parsed


@storage_errors()
def try_model(parsed: ParsedConfig) -> tuple[ParsedConfig, list[str]]:
    """Build the model of a config and try it on a fake graph; what is returned and raised is as in `check_config`.

    A key that the chosen attention does not use is refused, unless the command line chose the attention or its mask, so
    that a config can be run with another mask or without one.
    """
    if parsed.config.pretrained.dir and parsed.written is None:
        return parsed, []
    section = "topomask"
    try:
        with noting_reads(), torch.random.fork_rng(devices=[]):
            batch = fake_batch(parsed.config, parts_of(parsed.config)["data"])
            section = "gt"
            _try_model(parsed.config, batch)
    except (ValueError, TypeError) as error:
        key = key_in(str(error), parsed.config) or section
        raise ConfigError(parsed.describe(key, f"the model cannot be built: {error}")) from error
    unused = unused_keys(parsed.config)
    if not {"gt.layer_type", MASK_KEY} & parsed.overridden:
        parsed.refuse(unused)
    left = [key for key, _ in unused]
    return replace(parsed, config=parsed.config.with_defaults(left)), left


def sampler_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Pairs (key, what is wrong) of a sampler that cannot be used with the data set."""
    data = config.dataset
    if config.train.sampler != "full_batch" and not data.is_one_graph:
        message = f"{config.train.sampler} takes parts of one large graph, which {data.format} {data.name} is not"
        yield "train.sampler", message
    if data.is_on_disk:
        for key in ("train.sampler", "val.sampler"):
            if config.value(key) not in _ON_DISK:
                yield key, f"a graph on disk is read in parts: {', '.join(_ON_DISK)} (got {config.value(key)})"
        yield from disk_problems(config)


def disk_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Pairs (key, what is wrong) of settings for which a graph on disk would be read whole."""
    for key, value in _WITHOUT_THE_WHOLE.items():
        if config.value(key) != value:
            yield key, f"must be {value} for a graph on disk, which is not read whole (got {config.value(key)})"
    if config.used_encodings:
        yield "dataset.node_encoder_name", f"a graph on disk has no encodings (got {', '.join(config.used_encodings)})"


def _try_model(config: Config, batch: Data) -> None:
    level = config.dataset.level
    sizes = Sizes.of(batch, 1 if level == "edge" else 2, level)
    model = build_model(sized(config, *sizes), *sizes)
    (model(batch).sum() + nn.auxiliary_loss(model)).backward()
    build_scheduler(config, build_optimizer(config, model))
