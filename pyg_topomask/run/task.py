"""The task of a data set: what is predicted, the kind of target, and the number of outputs."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.run.errors import RunError, no_such

Level = Literal["graph", "node", "edge"]
Kind = Literal["binary", "multiclass", "multilabel", "regression", "subtoken"]

PARTS = ("train", "val", "test")
"""Names of the sets of a split."""

MOST_TARGETS = 20
"""Largest number of targets that have a score of their own; it is a column of the tables."""

HITS = (1, 3, 10)
"""K of Hits@K where links are ranked among the nodes of their graph."""

Parts = tuple[Tensor, Tensor, Tensor]
"""Indices of the training, validation and test graphs, or masks of nodes."""


@dataclass(frozen=True)
class Task:
    """The task of a data set.

    Args:
        level: What has a target: each graph, each node, or each edge of ``graph.edge_label_index``.
        kind: ``"binary"`` (one logit), ``"multiclass"`` (a logit per class), ``"multilabel"`` (a logit per label; NaN
            for unknown labels), ``"regression"`` (NaN for unknown targets) or ``"subtoken"`` (a logit per word, for
            each position of a name).
        num_outputs: Width of a prediction.
        vocabulary: Words of a subtoken task; the last is the end token.
        part_labels: Labels of the parts of each category, for the mean IoU of ShapeNet; empty for other data sets.
        ranked: Whether the edges of an edge task are also ranked among all nodes of their graph (MRR).
        hits_at: K of OGB's Hits@K, which has one set of negatives for all edges.
        own_negatives: Whether each positive edge is ranked among negatives of its own (OGB's MRR).
    """

    level: Level
    kind: Kind
    num_outputs: int
    vocabulary: tuple[str, ...] = ()
    part_labels: tuple[tuple[int, ...], ...] = ()
    ranked: bool = False
    hits_at: int | None = None
    own_negatives: bool = False

    def __post_init__(self) -> None:
        for what, name, choices in (("level", self.level, Level), ("kind of target", self.kind, Kind)):
            if name not in get_args(choices):
                raise ValueError(no_such(what, name, get_args(choices)))

    @property
    def num_classes(self) -> int:
        """Number of classes; 2 for a single logit."""
        return 2 if self.kind == "binary" else self.num_outputs

    @property
    def target_name(self) -> str:
        """Attribute of a graph with its targets."""
        return "edge_label" if self.level == "edge" else "y"

    @property
    def target_width(self) -> int:
        """Number of values of a target."""
        return self.num_outputs if self.kind in ("multilabel", "regression") else 1

    def count(self, data: Data) -> int:
        """Number of targets of one graph."""
        if self.level == "edge":
            return data.edge_label_index.size(1)
        return (data.num_nodes or 0) if self.level == "node" else 1

    def target(self, data: Data) -> Tensor:
        """Targets of a batch, before masking.

        Returns:
            ``[n]`` integers (multiclass), ``[n]`` floats (binary), ``[n, num_outputs]`` floats (multilabel,
            regression) or ``[n, positions]`` integers (subtoken); n graphs, nodes or edges.
        """
        if self.kind == "subtoken":
            return data.y
        target = data[self.target_name].view(-1)
        if self.kind == "multiclass":
            return target.long()
        return target.float() if self.kind == "binary" else target.view(-1, self.num_outputs).float()

    def shaped(self, prediction: Tensor) -> Tensor:
        """A model's prediction in the shape that fits :meth:`target`, in at least 32 bits.

        Raises:
            RunError: If it has another width.
        """
        if prediction.dtype in (torch.float16, torch.bfloat16):
            prediction = prediction.float()
        if self.kind == "subtoken":
            return prediction
        if prediction.numel() % self.num_outputs:
            found = f"got shape {list(prediction.shape)}"
            raise RunError(f"the model must return {self.num_outputs} number(s) for each {self.level} ({found})")
        return prediction.view(-1) if self.kind == "binary" else prediction.view(-1, self.num_outputs)

    def words(self, prediction: Tensor) -> list[list[str]]:
        """The words of each name, up to the end token."""
        end = self.num_outputs - 1
        rows = [row[: row.index(end)] if end in row else row for row in prediction.argmax(2).tolist()]
        return [[self.vocabulary[number] for number in row] for row in rows]


def classification(level: Level, num_classes: int, **more: Any) -> Task:
    """A task with one class of several; two classes have a single logit."""
    if num_classes < 2:
        raise RunError(f"dataset: classification needs at least 2 classes (got {num_classes})")
    if num_classes == 2:
        return Task(level, "binary", 1, **more)
    return Task(level, "multiclass", num_classes, **more)


def metric_groups(task: Task, metric_best: str = "accuracy") -> dict[str, tuple[str, ...]]:
    """Names of a task's metrics in groups, each of which is computed together.

    With several targets, at most `MOST_TARGETS`, there is also ``metric_best`` of each target, such as ``mae/0``. The
    area under the curve of several classes stores every score, so it is computed only if it is ``metric_best``.
    """
    areas: tuple[str, ...] = ("auc", "ap")
    names: dict[str, tuple[str, ...]] = {"loss": ("loss",)}
    if task.kind in ("binary", "multiclass"):
        chosen = (metric_best,) if metric_best in ("accuracy-SBM", "miou") else ()
        names["scores"] = ("accuracy", *chosen, *(("precision", "recall") if task.num_classes == 2 else ()), "f1")
    if task.kind in ("binary", "multilabel") or (task.kind == "multiclass" and metric_best in areas):
        names["ranks"] = (metric_best,) if task.kind == "multiclass" else areas
    if task.kind == "multilabel":
        names["scores"] = ("accuracy",)
    elif task.kind == "regression":
        names["scores"] = ("mae", "mse", "rmse", "r2", "spearmanr")
    elif task.kind == "subtoken":
        names["words"] = ("f1",)
    if task.ranked:
        names["links"] = ("mrr", "mrr_filt", "mrr_filt_self", *(f"hits@{k}" for k in HITS))
    if task.hits_at is not None or task.own_negatives:
        names["hits"] = ("mrr",) if task.own_negatives else (f"hits@{task.hits_at}",)
    if task.part_labels:
        names["parts"] = ("instance_miou", "category_miou")
    targets = range(task.target_width if 1 < task.target_width <= MOST_TARGETS and metric_best != "loss" else 0)
    each = tuple(f"{metric_best}/{target}" for target in targets)
    return {group: (*found, *(each if metric_best in found else ())) for group, found in names.items()}


def metric_names(task: Task, metric_best: str = "accuracy") -> list[str]:
    """Names of the values that a task's metrics compute."""
    return [name for names in metric_groups(task, metric_best).values() for name in names]


def check_targets(task: Task, data: Data) -> None:
    """Check that the targets of a graph fit the task.

    Raises:
        RunError: If they do not.
    """
    target = data.get(task.target_name)
    if target is None or task.kind == "subtoken":
        return
    expected, classes = task.count(data) * task.target_width, task.kind in ("binary", "multiclass")
    what, wrong = f"{task.target_width} numbers", torch.zeros(1, dtype=torch.bool)
    if classes:
        what = f"a class from 0 to {task.num_classes - 1}"
        wrong = (target < 0) | (target >= task.num_classes) | (target != target.long())
    elif task.kind == "regression":
        what += ", finite or NaN,"
        wrong = target.isinf()  # NaN is a target that is not known
    elif task.kind == "multilabel":
        what += " from 0 to 1"
        wrong = (target < 0) | (target > 1)  # NaN is a label that is not known
    if target.numel() != expected or wrong.any():
        sizes = f"expected size {expected}, got {target.numel()} of type {target.dtype}"
        first = ", ".join(f"{value:.3g}" for value in target.view(-1)[:3].tolist())
        other = "one for each node needs dataset.task node; " if task.level == "graph" else ""
        other += "numbers need dataset.task_type regression, model.loss_fun l1 and metric_best mae; several labels "
        raise RunError(
            f"dataset: {task.target_name!r} must hold {what} for each {task.level} ({sizes}, such as {first})"
            + (f". Other targets: {other}need dataset.task_type classification_multilabel" if classes else "")
        )
