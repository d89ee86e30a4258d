"""``topomask show``: pictures of a layer's attention, mask or walks, on one graph of a config's data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn import GPSNetwork, GRFMask, KMIPAttention
from pyg_topomask.run.commands.walk_quality import walk_quality
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.features import width
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.data.loaders import served_features
from pyg_topomask.run.errors import NoPictureError, RunError
from pyg_topomask.run.model.build import build_model, sized
from pyg_topomask.run.model.encoders import build_encodings
from pyg_topomask.run.model.sampling import build_sampling_transforms, refusing_graphs
from pyg_topomask.run.runner import check_config
from pyg_topomask.run.training.checkpoint import BEST, load_weights, model_weights, read_checkpoint
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.transforms.base import apply_all
from pyg_topomask.viz import plot_kept_pairs, plot_mask, plot_walks
from pyg_topomask.viz.drawing import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture(
    kind: str,
    config: str | Path,
    graph: int = 0,
    layer: int = 0,
    head: int = 0,
    node: int | None = None,
    checkpoint: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> Figure:
    """Draw the attention, the mask or the quality of the walks of one layer.

    Args:
        kind: ``"attention"``: the pairs that a k-MIP layer keeps, as arrows on the graph, or as a matrix if they are
            many. ``"mask"``: a topological mask as a matrix, and one of its rows on the graph. ``"walks"``: coverage,
            non-zeros and errors of a GRF mask against the number of walks.
        config: YAML file.
        graph: Number of the graph in the data set.
        layer: Number of the layer, from 0.
        head: Number of the head, from 0.
        node: Draw only the row of this node. If :obj:`None`, draw all pairs, or the row of the node with most
            neighbours for a mask.
        checkpoint: ``best.ckpt`` of a run of this config, or its folder. If :obj:`None`, the model is untrained with
            weights drawn from the config's seed, and the title says so.
        overrides: Settings that override the file's.

    Raises:
        RunError: If a setting is wrong; the message says what to change.
    """
    if kind not in KINDS:
        raise RunError(f"there is no picture {kind!r}; there are {', '.join(KINDS)}")
    sample = load_sample(config, graph, layer, head, checkpoint, overrides)
    data = sample.graphs[0]
    if node is not None and not 0 <= node < data.num_nodes:
        raise RunError(f"--node must be from 0 to {data.num_nodes - 1} (got {node}), for graph {graph}")
    where = f"{literal(sample.name)}, graph {graph}, layer {layer}, head {head}\n{sample.origin}"
    try:
        return KINDS[kind](sample.config, sample.model, data, layer, head, node, where)
    except ValueError as error:  # the graph is too large to be drawn
        raise RunError(f"graph {graph}: {error}") from error


class Sample(NamedTuple):
    """A model, and graphs of the data set with everything that it reads."""

    config: Config
    model: GPSNetwork
    graphs: list[Data]
    name: str
    """Name of the config, or of its data set."""
    origin: str
    """Where the model's weights come from."""


def load_sample(
    config: str | Path,
    graph: int,
    layer: int,
    head: int,
    checkpoint: str | Path | None,
    overrides: Sequence[str],
    whole_batch: bool = False,
) -> Sample:
    """The model of a config and one graph of its data set, or a batch that begins with this graph.

    Arguments and errors are those of `picture`.
    """
    parsed, _ = check_config(config, overrides)
    checked = parsed.config
    for option, value, count in (("--layer", layer, checked.gt.layers), ("--head", head, checked.gt.n_heads)):
        if not 0 <= value < count:
            raise RunError(f"{option} must be from 0 to {count - 1} (got {value})")
    dataset = load_dataset(checked.dataset)
    if not 0 <= graph < len(dataset):
        raise RunError(f"--graph must be from 0 to {len(dataset) - 1} (got {graph})")
    numbers = range(graph, min(graph + (checked.train.batch_size if whole_batch else 1), len(dataset)))
    data, task = [served_features(checked, dataset, number) for number in numbers], dataset.task
    with torch.random.fork_rng(devices=[]):
        for step in build_encodings(checked):
            data = [step(one) for one in data]
        with refusing_graphs(checked):
            data = apply_all(build_sampling_transforms(checked, checked.seed), data)
        torch.manual_seed(checked.seed)
        sizes = (width(data[0].x) or 1, task.num_outputs, width(data[0].edge_attr), task.level)
        model = build_model(sized(checked, *sizes), *sizes)
    origin = f"untrained, weights drawn from seed {checked.seed}"
    if checkpoint is not None:
        origin = f"trained for {_restore(model, Path(checkpoint))} epochs"
    name = checked.dataset.name if parsed.name == "config" else parsed.name  # a run's own file is config.yaml
    return Sample(checked, model.eval(), data, name, origin)


def _attention(
    config: Config, model: GPSNetwork, data: Data, layer: int, head: int, node: int | None, where: str
) -> Figure:
    attn = _first_kmip(model, layer)
    if attn is None:
        raise NoPictureError(
            f"the picture 'attention' needs k-MIP attention, such as gt.layer_type={config.gt.first}+KMIP "
            f"(got {config.gt.layer_type})" + ("" if _first_mask(model, layer) is None else _OTHER.format("mask"))
        )
    given: list[Any] = []
    handle = attn.register_forward_pre_hook(lambda module, inputs: given.extend(inputs))
    with torch.no_grad():
        model(data)
        handle.remove()
        index = attn(*given, return_index=True)[1]
    return plot_kept_pairs(index, data.edge_index, f"{attn.k} keys for each node: {where}", node, head)


def _mask(config: Config, model: GPSNetwork, data: Data, layer: int, head: int, node: int | None, where: str) -> Figure:
    mask = _first_mask(model, layer)
    if mask is None:
        raise NoPictureError(
            f"the picture 'mask' needs an attention with a mask, such as gt.layer_type={config.gt.first}+GRF "
            f"(got {config.gt.layer_type})" + ("" if _first_kmip(model, layer) is None else _OTHER.format("attention"))
        )
    with torch.no_grad(), refusing_graphs(config):
        operator = mask(data)
    return plot_mask(operator, data.edge_index, where, node, head if operator.heads else 0)


def _walks(
    config: Config, model: GPSNetwork, data: Data, layer: int, head: int, node: int | None, where: str
) -> Figure:
    mask = _first_mask(model, layer, GRFMask)
    if mask is None:
        raise NoPictureError(
            f"the picture 'walks' needs a mask of graph random features, such as gt.layer_type={config.gt.first}+GRF "
            f"(got {config.gt.layer_type})"
        )
    if node is not None:
        raise RunError("--node is for the pictures of attentions and masks; 'walks' averages over all nodes")
    steps = build_sampling_transforms(config, config.seed)
    walks = next(step for step in steps if isinstance(step, AddRandomWalks))
    with torch.no_grad():
        quality = walk_quality(mask, walks, data, head if mask.heads > 1 else 0)
    return plot_walks(quality, where, walks.num_walks)


KINDS: dict[str, Callable[..., Figure]] = {"attention": _attention, "mask": _mask, "walks": _walks}
"""Functions that draw a picture, by its name."""


_OTHER = "; 'topomask show {}' works for this config"


def _first_kmip(model: GPSNetwork, layer: int) -> KMIPAttention | None:
    """The first k-MIP attention of a layer, which may have several attentions."""
    return next((attn for attn in model.layers[layer].attentions if isinstance(attn, KMIPAttention)), None)


def _first_mask(model: GPSNetwork, layer: int, kind: type[Module] = Module) -> Any:
    """The first mask of this kind of a layer's attentions, or None."""
    masks = (getattr(attn, "mask", None) for attn in model.layers[layer].attentions)
    return next((mask for mask in masks if isinstance(mask, kind)), None)


def _restore(model: GPSNetwork, path: Path) -> int:
    """Load a run's weights, and return the number of epochs of their training."""
    path = path / BEST if path.is_dir() else path
    saved = read_checkpoint(path, "give best.ckpt of a run, or its folder", "--checkpoint")
    load_weights(model, model_weights(saved), f"--checkpoint: {path}", "use the config of that run")
    return saved["epoch"] + 1
