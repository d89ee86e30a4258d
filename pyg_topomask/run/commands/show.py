"""``topomask show``: pictures of what a layer of a config's model looks at, on one graph of its data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.nn import GPSNetwork, KMIPAttention
from pyg_topomask.run.config import Config
from pyg_topomask.run.data.features import width
from pyg_topomask.run.data.formats import load_dataset
from pyg_topomask.run.data.loaders import served_features
from pyg_topomask.run.errors import RunError
from pyg_topomask.run.model.build import build_model, sized
from pyg_topomask.run.model.encoders import build_encodings
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.runner import check_config
from pyg_topomask.run.training.checkpoint import BEST, load_weights, read_checkpoint
from pyg_topomask.viz import plot_kept_pairs, plot_mask

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
    """Draw what one layer looks at.

    Args:
        kind: ``"attention"``: the pairs that a k-MIP layer keeps, as arrows over the graph, or as a matrix where they
            are many. ``"mask"``: a topological mask as a matrix, and one of its rows on the graph.
        config: YAML file.
        graph: Which graph of the data set.
        layer: Which layer, counted from 0.
        head: Which head, counted from 0.
        node: Draw only what this node looks at. All pairs, or for a mask the node with most neighbours, if
            :obj:`None`.
        checkpoint: ``best.ckpt`` of a run of this config, or the folder that holds it. An untrained model with weights
            drawn from the config's seed, which the title then says, if :obj:`None`.
        overrides: Settings in place of the file's.

    Raises:
        RunError: With one message that says what to change.
    """
    parsed, _ = check_config(config, overrides)
    if kind not in KINDS:
        raise RunError(f"there is no picture {kind!r}; there are {', '.join(KINDS)}")
    made = parsed.config
    for name, value, count in (("--layer", layer, made.gt.layers), ("--head", head, made.gt.n_heads)):
        if not 0 <= value < count:
            raise RunError(f"{name} must be from 0 to {count - 1} (got {value})")
    dataset = load_dataset(made.dataset)
    if not 0 <= graph < len(dataset):
        raise RunError(f"--graph must be from 0 to {len(dataset) - 1} (got {graph})")
    data = served_features(made, dataset, graph)
    if node is not None and not 0 <= node < data.num_nodes:
        raise RunError(f"--node must be from 0 to {data.num_nodes - 1} (got {node}), for graph {graph}")
    task = dataset.task
    with torch.random.fork_rng(devices=[]):
        for step in (*build_encodings(made), *build_sampling_transforms(made, made.seed)):
            data = step(data)
        torch.manual_seed(made.seed)
        sizes = (width(data.x) or 1, task.num_outputs, width(data.edge_attr), task.level)
        model = build_model(sized(made, *sizes), *sizes)
    origin = f"untrained, weights drawn from seed {made.seed}"
    if checkpoint is not None:
        origin = f"trained for {_restore(model, Path(checkpoint))} epochs"
    where = f"{parsed.name}, graph {graph}, layer {layer}, head {head}\n{origin}"
    try:
        return KINDS[kind](made, model.eval(), data, layer, head, node, where)
    except ValueError as error:  # too large to be drawn
        raise RunError(f"graph {graph}: {error}") from error


def _attention(
    config: Config, model: GPSNetwork, data: Data, layer: int, head: int, node: int | None, where: str
) -> Figure:
    attn: Any = model.layers[layer].attn
    if not isinstance(attn, KMIPAttention):
        raise RunError(
            f"gt.layer_type {config.gt.layer_type} keeps no pairs: the picture 'attention' is of k-MIP attention, such "
            f"as in gt.layer_type={config.gt.first}+KMIP" + _try_other(attn, "mask")
        )
    given: list[Any] = []
    handle = attn.register_forward_pre_hook(lambda module, inputs: given.extend(inputs))
    with torch.no_grad():
        model(data)
        handle.remove()
        index = attn(*given, return_index=True)[1]
    return plot_kept_pairs(index, data.edge_index, f"{attn.k} keys for each node: {where}", node, head)


def _mask(config: Config, model: GPSNetwork, data: Data, layer: int, head: int, node: int | None, where: str) -> Figure:
    attn: Any = model.layers[layer].attn
    mask = getattr(attn, "mask", None)
    if mask is None:
        raise RunError(
            f"gt.layer_type {config.gt.layer_type} has no mask; one that has is gt.layer_type={config.gt.first}+GRF"
            + _try_other(attn, "attention")
        )
    with torch.no_grad():
        operator = mask(data)
    return plot_mask(operator, data.edge_index, where, node, head if operator.heads else 0)


KINDS: dict[str, Callable[..., Figure]] = {"attention": _attention, "mask": _mask}
"""Name of a picture -> what draws it."""


def _try_other(attn: Module | None, kind: str) -> str:
    has = isinstance(attn, KMIPAttention) if kind == "attention" else getattr(attn, "mask", None) is not None
    return f"; for this config there is 'topomask show {kind}'" if has else ""


def _restore(model: GPSNetwork, path: Path) -> int:
    """Load a run's weights; return the number of epochs that they were trained for."""
    path = path / BEST if path.is_dir() else path
    saved = read_checkpoint(path, "name best.ckpt of a run, or its folder", "--checkpoint")
    weights = {name.removeprefix("model."): x for name, x in saved["state_dict"].items() if name.startswith("model.")}
    load_weights(model, weights, f"--checkpoint: {path}", "give the config of that run")
    return saved["epoch"] + 1
