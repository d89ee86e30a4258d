"""``topomask show``: pictures and tables of one layer on graphs of a config's data set."""

import copy
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.nn import Module
from torch_geometric.data import Batch, Data

from pyg_topomask import operators, transforms, viz
from pyg_topomask.nn import Attention, GPSNetwork, GRFMask, walk_errors
from pyg_topomask.ops import engines_of, mean_hops, reach
from pyg_topomask.run.data.loaders import served_features
from pyg_topomask.run.data.source import Sizes
from pyg_topomask.run.errors import NoPictureError, RunError
from pyg_topomask.run.experiment import Experiment
from pyg_topomask.run.files import output_path, write_output
from pyg_topomask.run.graphgps.reading import read
from pyg_topomask.run.output.progress import Display, error_output, standard_output
from pyg_topomask.run.training.checkpoint import BEST, load_weights, model_weights, read_checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GRAPHS, _NUMBERS, _NODES = 16, 2**22, 16
"""Number of graphs, of entries of a mask that are computed for each head, and of nodes with an influence."""

_RISK, _DRAWS = 0.05, 8
"""Share of the entries that may exceed a bound on the error of walks, and draws of the walks of each number."""

_HOPS = {"0": (0, 1), "1": (1, 2), "2": (2, 3), "3–4": (3, 5), "5–8": (5, 9), "9–16": (9, 17), "> 16": (17, 18)}
"""Columns of the table, with their places among the shares."""


_READERS = {"head": ("attention", "mask", "walks"), "node": ("attention", "mask")}
"""The kinds that read an option; all kinds read the others."""

_WALK_COLUMNS = {
    "error": "rms error",
    "quantile": "e",
    "bound": "bound on e",
    "needed": "walks whose bound is e",
    "nonzeros": "k",
    "most": "bound on k",
}
"""Columns of the table of walks, by the name in `walk_errors`."""


@dataclass(frozen=True)
class View:
    """A layer of a model, and graphs of the data set with everything that the model reads.

    Args:
        experiment: The experiment.
        model: The model in evaluation mode.
        graphs: The chosen graph, followed by the other graphs of a batch if these are needed.
        layer: Number of the layer.
        head: Number of the head.
        node: Node whose row is drawn; one with many neighbours if :obj:`None`.
        title: What is shown: name of the config or its data set, graph, layer, head, and where the weights come from.
        untrained: The model before training, if there is a checkpoint.
    """

    experiment: Experiment
    model: GPSNetwork
    graphs: list[Data]
    layer: int
    head: int
    node: int | None
    title: str
    untrained: GPSNetwork | None = None

    def attention(self) -> Any:
        """The first attention of this package in the layer, or None."""
        return next((attn for attn in self.model.layers[self.layer].attentions if isinstance(attn, Attention)), None)

    def mask(self) -> Any:
        """The first mask in the layer, or None."""
        masks = (getattr(attn, "mask", None) for attn in self.model.layers[self.layer].attentions)
        return next((mask for mask in masks if mask is not None), None)

    @property
    def where(self) -> str:
        """The data set and the layer, for titles of several graphs."""
        return f"{viz.literal(self.experiment.data.name)}, layer {self.layer}"

    @cached_property
    def reach(self) -> dict[str, Tensor]:
        """Share of a row's mass at 0, 1, … 16 hops and beyond, ``[H, 18]``, or ``[1, 18]`` if all heads are equal.

        It is that of attention without a mask, that of the layer's mask, if it has one, and that of the `influence` in
        the model, before training and, if there is a checkpoint, after training.
        """
        graph = Batch.from_data_list(self.graphs[:_GRAPHS])
        views = {"untrained": self}
        if self.untrained is not None:
            views = {"untrained": replace(self, model=self.untrained), "trained": self}
        masks: dict[str, Any] = {"no mask": lambda data: operators.OnesOperator(data.batch)}
        masks |= {name: view.mask() for name, view in views.items() if view.mask() is not None}
        with self.experiment.data.refusing():
            rows = max(1, min(256, _NUMBERS // int(graph.num_nodes or 1)))
            found = {name: reach(mask, graph, 16, rows).view(-1, 18) for name, mask in masks.items()}
            rows = max(1, min(_NODES, 10_000 // int(graph.num_nodes or 1)))  # each row needs a Jacobian
            for name, view in views.items():
                if not view.model.pool_token:  # otherwise, there are no nodes after the last layer
                    shares = reach(influence(view.model, graph, rows), graph, 16, rows)
                    found[f"influence, {name}"] = shares.view(-1, 18)
        return {name: by_head[:1] if (by_head == by_head[0]).all() else by_head for name, by_head in found.items()}

    @property
    def reach_title(self) -> str:
        """The title of its table and its picture."""
        return f"{self.where}: share of a row's mass by hop, mean over {min(len(self.graphs), _GRAPHS)} graphs"

    @cached_property
    def walk_errors(self) -> tuple[list[dict[str, Any]], int, str]:
        """The rows of `walk_errors` for the layer's GRF mask, the config's number of walks, and the title."""
        source, layer = self.experiment.data, self.model.layers[self.layer]
        mask = next((mask for mask in layer.modules() if isinstance(mask, GRFMask)), None)
        if mask is None:
            raise self.missing("walks", "an attention with a GRF mask", "GRF")
        steps = source.draws(self.experiment.seed)
        walks = next(step for step in steps if isinstance(step, transforms.AddRandomWalks) and step.name == mask.name)
        with source.refusing():
            rows = walk_errors(mask, walks, self.graphs[0], self.head % mask.heads, _DRAWS, _RISK)
        return rows, walks.num_walks, f"{self.title}\nentries between two nodes, {_DRAWS} draws of {walks.scheme} walks"

    def missing(self, kind: str, needed: str, attention: str) -> NoPictureError:
        """The error of a layer that has nothing to draw of this kind."""
        found = {"mask": self.mask(), "attention": self.attention()}
        others = [f"; 'topomask show {name}' works for this config" for name, part in found.items() if part is not None]
        layers = self.experiment.labels["layer_type"]
        example = f"such as gt.layer_type={layers.split('+')[0]}+{attention} (got {layers})"
        return NoPictureError(f"the picture '{kind}' needs {needed}, {example}{''.join(others)}")


def main(arguments: Namespace, overrides: Sequence[str]) -> None:
    """Run the command."""
    names = ("config", "graph", "layer", "head", "node", "checkpoint")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    for name, kinds in _READERS.items():
        if name in given and arguments.kind not in kinds:
            raise RunError(f"show {arguments.kind} does not read --{name} (got {given[name]}); leave it out")
    if arguments.out is not None and arguments.kind not in PICTURES:
        raise RunError(f"show {arguments.kind} prints a table and draws nothing; leave out --out")
    out = None if arguments.out is None else output_path(arguments.out)
    if out is None and arguments.kind not in TABLES:
        raise RunError(f"show {arguments.kind} needs --out FILE, the picture to write")
    view = load_view(whole_batch=arguments.kind in TABLES, overrides=overrides, **given)
    if arguments.kind in TABLES:
        standard_output().print(TABLES[arguments.kind](view))
    if out is not None:
        with Display(error_output()) as display, display.working("drawing"):
            figure = draw(arguments.kind, view, arguments.graph)
        print(write_output(out, figure))


def picture(kind: str, config: str | Path, **place: Any) -> "Figure":
    """Draw the attention, the mask, the reach or the errors of the mask of one layer.

    Args:
        kind: ``"attention"``: the weights of the layer's first attention as a matrix, and those of one node on the
            graph. ``"mask"``: the same of a topological mask. ``"reach"``: the share of a row's mass by hop, on a batch
            of graphs. ``"walks"``: the error of a GRF mask on the graph, by the number of walks.
        config: YAML file.
        **place: Further arguments of `load_view`.

    Raises:
        RunError: If a setting is wrong; the message says what to change.
    """
    return draw(kind, load_view(config, whole_batch=kind in TABLES, **place), place.get("graph", 0))


def draw(kind: str, view: View, graph: int = 0) -> "Figure":
    """Draw a view of the graph with this number; see :func:`picture`."""
    try:
        return PICTURES[kind](view)
    except ValueError as error:  # the graph is too large to be drawn
        raise RunError(f"graph {graph}: {error}") from error


def load_view(
    config: str | Path,
    graph: int = 0,
    layer: int = 0,
    head: int = 0,
    node: int | None = None,
    checkpoint: str | Path | None = None,
    overrides: Sequence[str] = (),
    whole_batch: bool = False,
) -> View:
    """The model of a config and one graph of its data set, or a batch that begins with this graph.

    Args:
        config: YAML file.
        graph: Number of the graph in the data set.
        layer: Number of the layer, from 0.
        head: Number of the head, from 0.
        node: Draw the row of this node; that of the node with most neighbours if :obj:`None`.
        checkpoint: ``best.ckpt`` of a run of this config, or its folder. If :obj:`None`, the model is untrained with
            weights drawn from the config's seed, and the title says so.
        overrides: Settings that override the file's.
        whole_batch: Whether to load a batch.

    Raises:
        RunError: If a setting is wrong; the message says what to change.
    """
    experiment = read(config, overrides)
    source, seed = experiment.data, experiment.seed
    _refuse_outside("--layer", layer, experiment.config.gt.layers)
    _refuse_outside("--head", head, experiment.config.gt.n_heads)
    dataset = source.load()
    _refuse_outside("--graph", graph, len(dataset))
    numbers = range(graph, min(graph + (source.serving.batch_size if whole_batch else 1), len(dataset)))
    data = served_features(source, dataset, numbers, seed)
    _refuse_outside("--node", node or 0, data[0].num_nodes or 1)
    with torch.random.fork_rng(devices=[]):
        with source.refusing():
            data = transforms.apply_all([*source.encodings, *source.draws(seed)], data)
        torch.manual_seed(seed)
        sizes = Sizes.of(data[0], dataset.task.num_outputs, dataset.task.level)
        model: Any = experiment.build(sizes).eval()
    origin, untrained = f"untrained, weights drawn from seed {seed}", None
    if checkpoint is not None:
        untrained = copy.deepcopy(model)
        origin = f"trained for {_restore(model, Path(checkpoint))} epochs"
    name = source.name if experiment.name == "config" else experiment.name  # a run's own file is config.yaml
    title = f"{viz.literal(name)}, graph {graph}, layer {layer}, head {head}\n{origin}"
    return View(experiment, model, data, layer, head, node, title, untrained)


def _refuse_outside(option: str, value: int, count: int) -> None:
    if not 0 <= value < count:
        raise RunError(f"{option} must be from 0 to {count - 1} (got {value})")


def _restore(model: GPSNetwork, path: Path) -> int:
    """Load a run's weights, and return the number of epochs of their training."""
    path = path / BEST if path.is_dir() else path
    saved = read_checkpoint(path, "give best.ckpt of a run, or its folder", "--checkpoint")
    load_weights(model, model_weights(saved), f"--checkpoint: {path}", "use the config of that run")
    return saved["epoch"] + 1


def _draw_attention(view: View) -> "Figure":
    attn, (data,) = view.attention(), view.graphs
    if attn is None:
        raise view.missing("attention", "an attention", "KMIP")
    inputs, more = inputs_of(attn, view.model, data)
    with torch.no_grad():
        try:
            pairs, weights = attn.attention_weights(*inputs, **more)
        except NotImplementedError as error:
            raise NoPictureError(str(error)) from None
    matrix = viz.matrix_of(pairs, weights, int(data.num_nodes or 0))
    # A node may attend to none, such as one with relu features that no other node has.
    empty = (matrix[view.head, : data.num_nodes] == 0).all(1).double().mean()
    title = f"{type(attn).__name__}, {view.title}" + (f", {empty:.1%} of the nodes attend to none" if empty else "")
    return viz.plot_mask(matrix, data.edge_index, title, view.node, view.head, symbol="A")


@torch.no_grad()
def inputs_of(part: Module, model: Module, graph: Data) -> tuple[Any, Any]:
    """The positional and the keyword arguments of a part of a model when the model is called with a graph."""
    calls: list[Any] = []
    handle = part.register_forward_pre_hook(lambda _, *given: calls.append(given), with_kwargs=True)
    model(graph)
    handle.remove()
    return calls[0]


def _draw_mask(view: View) -> "Figure":
    mask, (data,) = view.mask(), view.graphs
    if mask is None:
        raise view.missing("mask", "an attention with a mask", "GRF")
    with torch.no_grad(), view.experiment.data.refusing():
        operator = mask(data)
    return viz.plot_mask(operator, data.edge_index, view.title, view.node, view.head if operator.heads else 0)


def influence(model: GPSNetwork, graph: Data, most: int) -> operators.LowRankOperator:
    """How much ``most`` nodes i after the last layer depend on all encoded nodes j: rows :math:`\\sum |∂h_i / ∂x_j|`.

    PyG's ``total_influence`` calls the mean number of hops the receptive field.
    Reference: Liang et al., *Towards Quantifying Long-Range Interactions in Graph Machine Learning: a Large Graph
    Dataset and a Measurement*, 2025, arXiv:2503.09008, Section 5.
    """
    x = model.node_encoder(graph).detach()
    nodes = torch.arange(0, len(x), -(-len(x) // most))

    def after(x: Tensor, node: int) -> Tensor:
        hook = model.node_encoder.register_forward_hook(lambda *_: x)
        out = model.embed(graph)[node]
        hook.remove()
        return out

    rows = [jacobian(lambda x, i=i: after(x, i), x, vectorize=True).abs().sum((0, 2)) for i in nodes.tolist()]
    return operators.LowRankOperator((torch.arange(len(x))[:, None] == nodes).to(x), torch.stack(rows, dim=1))


def reach_table(view: View) -> Table:
    """Shares of a row's mass by hop, and the mean number of hops, in which more than 16, or no path, count as 17."""
    table = Table("mask", "head", *_HOPS, "mean", title=view.reach_title)
    table.caption = "mean: nodes that are more than 16 hops away, or that no path reaches, count as 17 hops."
    for name, by_head in view.reach.items():
        for head, shares in enumerate(by_head):
            cells = [f"{float(shares[start:stop].sum()):.2f}" for start, stop in _HOPS.values()]
            table.add_row(name, str(head) if len(by_head) > 1 else "all", *cells, f"{float(mean_hops(shares)):.2f}")
        table.add_section()
    return table


def walk_table(view: View) -> Table:
    """Errors of a GRF mask and entries of its features by the number of walks; a dash where no bound is known."""
    rows, own, title = view.walk_errors
    table = Table("walks", *_WALK_COLUMNS.values(), title=title)
    table.caption = (
        f"*: the config's number. e, k: the error of an entry of the mask, and the non-zeros of a row of its features, "
        f"that a share of {_RISK:g} exceeds. –: no bound is known, or more than 10⁹ walks. The root mean square of the "
        f"exact entries is {rows[0]['typical']:.3g}."
    )
    for row in rows:
        cells = [_cell(row[name]) for name in _WALK_COLUMNS]
        table.add_row(f"{row['walks']}{' *' if row['walks'] == own else ''}", *cells)
    return table


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else f"{value:,}"


@torch.no_grad()
def path_table(view: View) -> Table:
    """Estimated time of each engine of masked attention on a batch, or the reason why it cannot serve.

    Raises:
        RunError: If the layer has no masked attention; the message says what to change.
    """
    layer = view.model.layers[view.layer]
    inputs, more = inputs_of(layer, view.model, Batch.from_data_list(view.graphs))
    found = engines_of(lambda: layer(*inputs, **more))
    if not found:
        example = f"such as gt.layer_type=GCN+GRF (got {view.experiment.labels['layer_type']})"
        raise RunError(f"layer {view.layer} has no attention with a choice of engines, {example}")
    title = f"{view.where}: attention on {len(view.graphs)} graphs"
    table = Table("engine", "path", "estimated ms", "reason", title=title)
    for engines in found:
        for name, path, why, is_taken in engines:
            cells = ("", why) if isinstance(why, str) else (f"{why / 1e6:.3g}", "taken by path=auto" * is_taken)
            table.add_row(name, path, *cells)
        table.add_section()
    return table


PICTURES: "dict[str, Callable[[View], Figure]]" = {
    "attention": _draw_attention,
    "mask": _draw_mask,
    "reach": lambda view: viz.plot_reach(view.reach, view.reach_title),
    "walks": lambda view: viz.plot_walks(*view.walk_errors),
}
TABLES: dict[str, Callable[[View], Any]] = {"path": path_table, "reach": reach_table, "walks": walk_table}
"""What ``topomask show`` draws, and what it prints, by the name of the kind."""
