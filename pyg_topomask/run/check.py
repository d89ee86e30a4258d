"""Checks of a config that need no data: names, keys that nothing uses, and a trial of the model on a fake graph."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature

import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.nn import (
    ATTENTION,
    EDGE_ENCODERS,
    HEADS,
    MASK,
    NODE_ENCODERS,
    POSITIONAL_ENCODERS,
    Attention,
    auxiliary_loss,
)
from pyg_topomask.nn.attention.base import EdgeAttention
from pyg_topomask.run.config import Config
from pyg_topomask.run.config.load import ParsedConfig
from pyg_topomask.run.config.model import PEER_ATTENTIONS
from pyg_topomask.run.config.schema import all_keys
from pyg_topomask.run.data.fakes import fake_graphs
from pyg_topomask.run.data.features import fitted_features, input_features, width
from pyg_topomask.run.data.formats import level_of, possible_tasks
from pyg_topomask.run.errors import ConfigError, did_you_mean
from pyg_topomask.run.model.attentions import (
    MASK_KEY,
    argument_keys,
    attentions_of,
    requirements,
    twice_given,
    uses_walks,
)
from pyg_topomask.run.model.build import MODEL_KEYS, build_model, convs_of, sized
from pyg_topomask.run.model.convs import CONVS
from pyg_topomask.run.model.encoders import PLAIN_ENCODERS, base_encoders, build_encodings
from pyg_topomask.run.model.sampling import WALK_KEYS, build_sampling_transforms, key_in
from pyg_topomask.run.task import Task
from pyg_topomask.run.training.losses import loss_problem
from pyg_topomask.run.training.metrics import metric_names
from pyg_topomask.run.training.optim import build_optimizer, build_scheduler


def name_problems(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of names of convolutions, attentions, masks, encoders and heads."""
    return [*layer_problems(config), *twice_given(config, config.is_given), *_encoder_problems(config)]


def layer_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Pairs (key, what is wrong) of names of convolutions, attentions and masks."""
    for name in sorted({*ATTENTION} & {*PEER_ATTENTIONS, *CONVS}):
        yield "gt.layer_type", f"{name!r} has another meaning here: register the attention under another name"
    if config.topomask.mask not in ("none", *MASK):
        message = f"no mask is called {config.topomask.mask!r}; there are {', '.join(('none', *MASK))}."
        yield MASK_KEY, message + did_you_mean(config.topomask.mask, MASK)
    for position, part in enumerate(config.gt.layer_type.split("+")):
        if part == "None" or PEER_ATTENTIONS.get(part, part) in {*CONVS, *ATTENTION}:
            continue
        kind, table = ("attention", [*ATTENTION, *PEER_ATTENTIONS]) if position else ("convolution", list(CONVS))
        choices = ", ".join([*table, "None"])
        hint = did_you_mean(part, {*CONVS, *ATTENTION, *PEER_ATTENTIONS})
        yield "gt.layer_type", f"no {kind} is called {part!r}; there are {choices}.{hint}"
    if config.model.graph_pooling == "graph_token" and not attentions_of(config):
        message = "graph_token needs an attention in gt.layer_type, because message passing does not reach the token"
        yield "model.graph_pooling", message
    for name in convs_of(config):
        if CONVS[name].needs_edges and not config.dataset.edge_encoder:
            yield "gt.layer_type", f"{name} needs edge features: set dataset.edge_encoder (and edge_encoder_name)"


def _encoder_problems(config: Config) -> Iterator[tuple[str, str]]:
    data = config.dataset
    for key, given, known in (
        ("dataset.node_encoder_name", data.node_encoder_parts, [*NODE_ENCODERS, *PLAIN_ENCODERS, *POSITIONAL_ENCODERS]),
        ("dataset.edge_encoder_name", [data.edge_encoder_name] if data.edge_encoder else [], list(EDGE_ENCODERS)),
        ("gnn.head", [config.gnn.head], ["default", *HEADS]),
    ):
        for name in given:
            if name not in known:
                kind = "head" if key == "gnn.head" else "encoder"
                message = f"no {kind} is called {name!r}; there are {', '.join(known)}." + did_you_mean(name, known)
                yield key, message
    bases = base_encoders(config)
    if len(bases) > 1:
        yield "dataset.node_encoder_name", f"{' and '.join(bases)} both encode node features: choose one"


def task_problems(config: Config, *tasks: Task) -> Iterator[tuple[str, str]]:
    """Pairs (key, what is wrong) of a loss, metric or head that fits none of the data set's possible tasks."""
    losses = [loss_problem(config.model.loss_fun, task) for task in tasks]
    if all(losses):
        yield "model.loss_fun", str(losses[-1])
    best = config.metric_best
    names = {name for task in tasks for name in metric_names(task, best)}
    if best not in names:
        yield "metric_best", f"the task has no {best!r}; there are {', '.join(sorted(names))}"
    head, level = config.gnn.head, tasks[0].level
    head_level = {"inductive_node": "node", "inductive_edge": "edge"}.get(head, level)
    if head_level != level:
        yield "gnn.head", f"{head} is for {head_level}s; {config.dataset.name} has {level}s"


def unused_keys(config: Config) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of keys of ``topomask`` that were given and that the config does not use."""
    used = {key for _, key in argument_keys(config)}
    classes = [ATTENTION[name] for name in attentions_of(config)]
    if any(cls.adds_loss for cls in classes):
        used.add("topomask.eta")
    if uses_walks(config):
        used |= {f"topomask.{name}" for name in (*WALK_KEYS, "redraw") if name not in ("diagonal", "num_tables")}
    if "topomask.num_tables" in used:
        used.add("topomask.tables")
    if "tree_index" in requirements(config):
        used.add("topomask.spanning_tree")
    if any(issubclass(cls, EdgeAttention) for cls in classes):
        used.add("topomask.transition")
    unused = []
    for key in all_keys(("topomask",)):
        if config.is_set(key) and key not in used and key not in MODEL_KEYS:
            unused.append((key, f"is given, but {config.gt.layer_type} has no use for it"))
    kernels = {_kernel(config, cls) for cls in classes if "kernel" in cls.config_keys}
    if config.is_set("topomask.num_features") and kernels and "softmax_rf" not in kernels:
        message = f"only kernel softmax_rf has it (got {', '.join(map(repr, sorted(kernels)))})"
        unused.append(("topomask.num_features", message))
    return unused


def _kernel(config: Config, cls: type[Attention]) -> str:
    """The kernel of an attention: that of the config, or the class's own default."""
    parameters = signature(cls).parameters
    own = "kernel" in parameters and not config.is_given("topomask.kernel")
    return parameters["kernel"].default if own else config.topomask.kernel


def check_parsed(parsed: ParsedConfig) -> list[str]:
    """Make all checks that need no data; return the keys that an override leaves unused.

    A key that the chosen attention does not use is refused, unless the command line chose the attention or its mask, so
    that a config can be run with another mask or without one.

    Raises:
        ConfigError: If the model cannot be built, or fails on a fake graph.
    """
    tasks = possible_tasks(parsed.config.dataset)
    parsed.refuse([*name_problems(parsed.config), *task_problems(parsed.config, *tasks)])
    random_state, section = torch.get_rng_state(), "gt"
    try:
        unused = unused_keys(parsed.config)
        section = "topomask"
        batch = fake_batch(parsed.config)
        section = "gt"
        _try_model(parsed.config, batch)
    except (ValueError, TypeError) as error:
        key = key_in(str(error), parsed.config) or section
        raise ConfigError(parsed.describe(key, f"the model cannot be built: {error}")) from error
    finally:
        torch.set_rng_state(random_state)
    if not {"gt.layer_type", MASK_KEY} & parsed.overridden:
        parsed.refuse(unused)
    return [key for key, _ in unused]


def fake_batch(config: Config) -> Data:
    """Two small graphs with all attributes that the model reads."""
    features = input_features(config)
    graphs = [features(graph) for graph in fake_graphs(config)]
    for step in (
        *(cls.fit(graphs) for cls in fitted_features(config)),
        *build_encodings(config),
        *build_sampling_transforms(config, seed=0),
    ):
        graphs = [step(graph) for graph in graphs]
    return Batch.from_data_list(graphs)


def _try_model(config: Config, batch: Data) -> None:
    level = level_of(config.dataset)
    outputs = 1 if level == "edge" else 2
    sizes = (width(batch.x) or 1, outputs, width(batch.edge_attr), level)
    model = build_model(sized(config, *sizes), *sizes)
    (model(batch).sum() + auxiliary_loss(model)).backward()
    build_scheduler(config, build_optimizer(config, model.parameters()))
