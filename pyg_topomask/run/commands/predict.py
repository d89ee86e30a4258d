"""``topomask predict``: a trained model's predictions as CSV."""

import csv
import io
import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.utils import index_to_mask

from pyg_topomask.run.data.loaders import read_features
from pyg_topomask.run.data.parts import evaluation_loader, graph_parts
from pyg_topomask.run.errors import RunError, storage_errors
from pyg_topomask.run.experiment import Experiment
from pyg_topomask.run.files import output_path, write_output
from pyg_topomask.run.graphgps.formats.own import read_graphs
from pyg_topomask.run.output.progress import Display, error_output
from pyg_topomask.run.output.report import rounded
from pyg_topomask.run.output.results import unfinished_note
from pyg_topomask.run.task import PARTS, Task
from pyg_topomask.run.trained_model import RunTransform, load, seed_folder


class Items(NamedTuple):
    """What to predict.

    Args:
        graphs: Graphs, not yet prepared.
        numbers: Number of each graph in the data set or file.
        nodes: Nodes whose predictions are written; all if :obj:`None`.
        in_parts: Whether the graph is evaluated in parts, as the run does.
    """

    graphs: Sequence[Data]
    numbers: Sequence[int]
    nodes: Tensor | None = None
    in_parts: bool = False


def main(arguments: Namespace, rest: list[str]) -> None:
    """Run the command."""
    out = None if arguments.out is None else output_path(arguments.out)
    with Display(error_output()) as display:
        text = predict(arguments.run, arguments.data, display)
    print(text if out is None else f"{write_output(out, text)}\n", end="")


def predict(folder: str | Path, data: str = "test", display: Display | None = None) -> str:
    """Predictions of a trained model as text in CSV, with a line for each graph, node or edge.

    The first columns number the graph and the node, or give both ends of the edge. ``target`` follows if all graphs
    have one. The other columns are, by the kind of task, the predicted class and the probability of each class, the
    probability of each label, the predicted values, or the predicted words.

    Args:
        folder: Folder of a seed.
        data: ``"train"``, ``"val"``, ``"test"`` or ``"all"``, for items of the run's data set, or a file of
            ``torch.save`` with a graph or a list of graphs.
        display: Progress display; none if :obj:`None`.

    Raises:
        RunError: If the run or the data cannot be read, or the graphs do not fit the model.
    """
    seed, shown = seed_folder(Path(folder).expanduser()), display or Display(Console(quiet=True))
    model, transform = load(seed)
    task, note = transform.task, unfinished_note(seed)
    if note:
        shown.say(f"note: {note}")
    if data in (*PARTS, "all"):
        items = _of_the_run(transform.experiment, data)
    elif Path(data).expanduser().is_file():
        graphs = read_graphs(Path(data).expanduser())
        items = Items(graphs, range(len(graphs)))
    else:
        raise RunError(f"--data must be {', '.join(PARTS)}, all, or a file that torch.save has written (got {data})")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    job = shown.job("predicting", len(items.graphs))
    try:
        with storage_errors():
            targets = all(_has_target(task, graph) for graph in items.graphs)
            named = _numbered("target", task.target_width) if targets else []
            ids = {"graph": [], "node": ["node"], "edge": ["from", "to"]}[task.level]
            writer.writerow(["graph", *ids, *named, *_columns(task)])
            for done, rows in enumerate(_rows(model, transform, items, targets), start=1):
                writer.writerows(rows)
                job.update(done)
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RuntimeError) as error:
        reason = str(error) or "they lack attributes"
        raise RunError(f"the graphs of {data} do not fit {seed}: {reason}") from error
    return text.getvalue()


def _of_the_run(experiment: Experiment, part: str) -> Items:
    source = experiment.data
    dataset = source.load()
    parts = dict(zip(PARTS, read_features(source, dataset, experiment.seed)[1]))
    if dataset.is_one_graph:
        nodes = None if part == "all" else parts[part].nonzero().view(-1)
        return Items([dataset.graphs[0]], [0], nodes, source.serving.evaluation != "full_batch")
    numbers = range(len(dataset)) if part == "all" else parts[part]
    return Items([dataset.graphs[i] for i in numbers], list(numbers))


def _rows(model: Module, transform: RunTransform, items: Items, targets: bool) -> Iterator[list[list[Any]]]:
    """The lines of each graph."""
    size, task = transform.experiment.data.serving.batch_size, transform.task
    for first in range(0, len(items.graphs), size):
        graphs = items.graphs[first : first + size]
        if items.in_parts:
            predicted = _in_parts(model, transform, graphs[0], items.nodes)
        else:
            predicted = _together(model, transform, graphs)
        counts = [task.count(graph) for graph in graphs]
        for number, graph, values in zip(items.numbers[first:], graphs, predicted.split(counts)):
            known = _targets(task, graph) if targets else [[]] * len(values)
            cells = zip(_ids(task, number, graph), known, _cells(task, values))
            rows = [[*ids, *target, *said] for ids, target, said in cells]
            yield rows if items.nodes is None else [rows[node] for node in items.nodes.tolist()]


def _together(model: Module, transform: RunTransform, graphs: Sequence[Data]) -> Tensor:
    """Predictions for graphs, without their targets: in a batch, or one by one if they differ in their attributes."""
    ready, target = [transform(graph) for graph in graphs], transform.task.target_name
    together = len({frozenset(graph.keys()) - {target} for graph in ready}) == 1
    batches = [Batch.from_data_list(some, exclude_keys=[target]) for some in ([ready] if together else zip(ready))]
    with torch.no_grad():
        return torch.cat([transform.task.shaped(model(batch)) for batch in batches])


def _in_parts(model: Module, transform: RunTransform, graph: Data, nodes: Tensor | None) -> Tensor:
    """Predictions for these nodes of one graph, from the parts of the run's evaluations; zeros for other nodes."""
    whole, size = transform.encoded(graph), int(graph.num_nodes or 0)
    whole.counted = torch.ones(size, dtype=torch.bool) if nodes is None else index_to_mask(nodes, size)
    whole.node_number = torch.arange(size)
    experiment = transform.experiment
    parts = graph_parts(experiment.data.serving, whole, experiment.seed, transform.sampling)
    numbers, values = [], []
    for part in evaluation_loader(parts, whole, {}):
        with torch.no_grad():
            values.append(transform.task.shaped(model(part))[part.counted])
        numbers.append(part.node_number[part.counted])
    predicted = torch.cat(values)
    return predicted.new_zeros(size, *predicted.shape[1:]).index_copy(0, torch.cat(numbers), predicted)


def _ids(task: Task, number: int, graph: Data) -> list[list[int]]:
    if task.level == "edge":
        return [[number, *pair] for pair in graph.edge_label_index.t().tolist()]
    return [[number, node] for node in range(task.count(graph))] if task.level == "node" else [[number]]


def _has_target(task: Task, graph: Data) -> bool:
    target = graph.get(task.target_name)
    known = task.kind != "subtoken" and isinstance(target, Tensor)
    return known and target.numel() == task.count(graph) * task.target_width


def _targets(task: Task, graph: Data) -> list[list[Any]]:
    found = task.target(graph).view(-1, task.target_width).tolist()
    return [["" if math.isnan(value) else _number(value) for value in row] for row in found]


def _columns(task: Task) -> list[str]:
    if task.kind in ("binary", "multiclass"):
        return ["predicted", *(f"probability_{i}" for i in range(task.num_classes))]
    if task.kind == "subtoken":
        return ["words"]
    return _numbered("predicted" if task.kind == "regression" else "probability", task.num_outputs)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


def _cells(task: Task, values: Tensor) -> list[list[Any]]:
    """What the model says about each item, from logits or values ``[n, ...]``."""
    if task.kind == "subtoken":
        return [[" ".join(words)] for words in task.words(values)]
    if task.kind in ("regression", "multilabel"):
        shown = values if task.kind == "regression" else values.sigmoid()
        return [[_number(value) for value in row] for row in shown.tolist()]
    if task.kind == "binary":
        values = torch.stack([torch.zeros_like(values), values], dim=1)  # whose softmax is the sigmoid
    shares = values.softmax(1).tolist()
    return [[label, *map(_number, row)] for label, row in zip(values.argmax(1).tolist(), shares)]


def _number(value: float) -> float | int:
    """A value with 8 digits; whole numbers without a point."""
    return int(value) if float(value).is_integer() else rounded(value)
