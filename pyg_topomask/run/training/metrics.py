"""Metrics as the benchmarks define them, over a whole split and right on several processes.

Each class is a torchmetrics metric whose states are summed or joined over processes, and which gives several named
values at once: one pass over the predictions serves them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from pyg_topomask.run.task import Task
from pyg_topomask.run.training.ranking import (
    Candidates,
    area_under_roc,
    average_precision,
    link_ranks,
    mean_over_labels,
)

HITS = (1, 3, 10)


class _Scores(Metric):
    """Base: a metric that is updated by (prediction, target) and computes a dictionary."""

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def compute(self) -> dict[str, Tensor]:
        raise NotImplementedError


class LossMean(_Scores):
    """Mean of the loss over targets; updated by (mean loss of a batch, number of targets)."""

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")

    def update(self, loss: Tensor, count: int) -> None:
        self.total = self.total + loss.double() * count
        self.count = self.count + count

    def compute(self) -> dict[str, Tensor]:
        return {"loss": self.total / self.count}


class ClassScores(_Scores):
    """What the confusion matrix tells: accuracy, macro F1, mean recall, mean intersection over union.

    - ``accuracy``: share of right predictions.
    - ``f1``: unweighted mean of F1 over the classes that are predicted or true, 0 where precision and recall are.
      With two classes that of class 1, with ``precision`` and ``recall``.
    - ``accuracy-SBM``: unweighted mean of the recall over the classes that are predicted or true; the accuracy of
      PATTERN and CLUSTER (Dwivedi et al., arXiv:2003.00982).
    - ``miou``: mean of intersection over union over the classes that are predicted or true (S3DIS).

    The last two serve few data sets, and are there only where they are asked for.
    """

    confusion: Tensor

    def __init__(self, num_classes: int, metric_best: str = "accuracy") -> None:
        super().__init__()
        self.num_classes, self.metric_best = num_classes, metric_best
        self.add_state("confusion", torch.zeros(num_classes, num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count predicted classes, from one logit ``[n]`` or a logit per class ``[n, classes]``."""
        guess = (prediction > 0).long() if prediction.dim() == 1 else prediction.argmax(1)
        pair = target.long() * self.num_classes + guess
        self.confusion = self.confusion + pair.bincount(minlength=self.num_classes**2).view_as(self.confusion)

    def compute(self) -> dict[str, Tensor]:
        matrix = self.confusion.double()
        right, true, guessed = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
        present = true + guessed > 0
        f1 = 2 * right / (true + guessed).clamp(min=1)
        values = {"accuracy": right.sum() / matrix.sum()}
        if self.metric_best == "accuracy-SBM":
            values["accuracy-SBM"] = (right / true.clamp(min=1))[present].mean()
        elif self.metric_best == "miou":
            values["miou"] = (right / (true + guessed - right).clamp(min=1))[present].mean()
        if self.num_classes == 2:
            values |= {"precision": (right / guessed.clamp(min=1))[1], "recall": (right / true.clamp(min=1))[1]}
            return values | {"f1": f1[1]}
        return values | {"f1": f1[present].mean()}


class LabelAccuracy(_Scores):
    """Multilabel ``accuracy``: mean over labels of the share of known targets that are right."""

    right: Tensor
    known: Tensor

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        for name in ("right", "known"):
            self.add_state(name, torch.zeros(num_labels, dtype=torch.double), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.right = self.right + ((prediction > 0) == (target == 1)).logical_and(~target.isnan()).sum(0)
        self.known = self.known + (~target.isnan()).sum(0)

    def compute(self) -> dict[str, Tensor]:
        asked = self.known > 0
        return {"accuracy": (self.right[asked] / self.known[asked]).mean()}


class _Kept(_Scores):
    """Base: every prediction and target is kept until the end."""

    predictions: list[Tensor]
    targets: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("predictions", [], dist_reduce_fx="cat")
        self.add_state("targets", [], dist_reduce_fx="cat")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.predictions.append(prediction.detach())
        self.targets.append(target.detach())

    def _all(self) -> tuple[Tensor, Tensor]:
        """All predictions and targets, each ``[n, T]``."""
        both = []
        for state in (self.predictions, self.targets):  # synchronised states are tensors already
            joined = torch.cat(state) if isinstance(state, list) else state
            both.append(joined.unsqueeze(1) if joined.dim() == 1 else joined)
        return both[0], both[1]


class RankScores(_Kept):
    """``auc`` and ``ap`` on the whole split, equal to OGB's evaluators: the mean over labels of the exact areas.

    Scores are compared as they come: a sigmoid would make ties of confident ones.

    Args:
        names: Which of ``auc`` and ``ap``.
        num_classes: For targets that are classes: one against the rest, the mean over classes.
    """

    def __init__(self, names: Sequence[str], num_classes: int | None = None) -> None:
        super().__init__()
        self.names, self.num_classes = tuple(names), num_classes

    def compute(self) -> dict[str, Tensor]:
        prediction, target = self._all()
        if self.num_classes is not None:
            prediction = prediction.log_softmax(1)
            target = torch.nn.functional.one_hot(target.view(-1).long(), self.num_classes).float()
        scores = {"auc": area_under_roc, "ap": average_precision}
        return {name: mean_over_labels(scores[name], prediction, target.float()) for name in self.names}


class RegressionScores(_Kept):
    """``mae``, ``mse``, ``rmse``, ``r2`` and ``spearmanr`` on the whole split, unknown (NaN) targets left out.

    The first three are means over all known entries; the last two unweighted means over targets.
    """

    def compute(self) -> dict[str, Tensor]:
        prediction, target = (values.double() for values in self._all())
        known = ~target.isnan()
        error = prediction[known] - target[known]
        mse = error.square().mean()
        columns = [
            (prediction[mask, i], target[mask, i]) for i, mask in enumerate(known.unbind(1)) if int(mask.sum()) > 1
        ]
        return {
            "mae": error.abs().mean(),
            "mse": mse,
            "rmse": mse.sqrt(),
            "r2": _mean([1 - (p - t).square().sum() / (t - t.mean()).square().sum() for p, t in columns], mse),
            "spearmanr": _mean([_spearman(p, t) for p, t in columns], mse),
        }


def _mean(values: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(values).mean() if values else torch.full_like(like, float("nan"))


def _spearman(left: Tensor, right: Tensor) -> Tensor:
    ranks = []
    for values in (left, right):
        _, inverse, count = values.unique(return_inverse=True, return_counts=True)
        rank = (count.cumsum(0) - (count - 1) / 2).double()[inverse]  # the mean rank of equal values
        ranks.append(rank - rank.mean())
    return (ranks[0] * ranks[1]).sum() / (ranks[0].norm() * ranks[1].norm())


class LinkRanks(_Scores):
    """``mrr``, ``mrr_filt``, ``mrr_filt_self`` and ``hits@1/3/10`` of links ranked among the nodes of their graph.

    Raw: every node of the graph competes, other positive ends and the start itself included; ``_filt``: other
    positives do not; ``_filt_self``: nor does the start. As in GraphGPS and LRGB the value is a mean over links within
    a graph (0 where there are none), over the graphs of a batch, and over batches by their number of labelled edges;
    the batch of several processes is the union of theirs. Equal scores share their mean rank, as in OGB's evaluators.

    Reference: Dwivedi et al., *Long Range Graph Benchmark*, NeurIPS 2022; Tönshoff et al., *Where Did the Gap Go?*,
    arXiv:2309.00367, Section 3 for the filters.
    """

    names = ("mrr", "mrr_filt", "mrr_filt_self", *(f"hits@{k}" for k in HITS))
    rows: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, score: Tensor, pairs: Candidates) -> None:
        """Add a batch: the score of each pair, shape ``[P]``."""
        start, candidate = pairs.edge_index
        skips = (torch.zeros_like(pairs.is_other), pairs.is_other, pairs.is_other | (start == candidate))
        raw, filtered, without_self = (link_ranks(score, pairs, skip) for skip in skips)
        values = [1 / raw, 1 / filtered, 1 / without_self, *((raw <= k).double() for k in HITS)]
        table = torch.stack(values, dim=1)  # [L, metrics]
        sums = table.new_zeros(pairs.num_graphs, table.size(1)).index_add_(0, pairs.graph, table)
        links = pairs.graph.bincount(minlength=pairs.num_graphs).clamp(min=1)
        row = [sums.new_tensor([len(self.rows), pairs.num_graphs, float(pairs.num_labelled)])]
        self.rows.append(torch.cat([*row, (sums / links.unsqueeze(1)).sum(0)]).unsqueeze(0))

    def compute(self) -> dict[str, Tensor]:
        rows = torch.cat(self.rows) if isinstance(self.rows, list) else self.rows
        number, inverse = rows[:, 0].unique(return_inverse=True)  # parts of one batch on several processes
        merged = rows.new_zeros(number.numel(), rows.size(1)).index_add_(0, inverse, rows)
        graphs, edges, sums = merged[:, 1:2], merged[:, 2:3], merged[:, 3:]
        values = (sums / graphs * edges).sum(0) / edges.sum()
        return dict(zip(self.names, values.unbind()))


class CommonHits(_Kept):
    """OGB's Hits@K: the share of positive edges that score above the K-th best negative of the whole split."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def compute(self) -> dict[str, Tensor]:
        score, target = (values.view(-1) for values in self._all())
        positive, negative = score[target == 1], score[target == 0]
        if negative.numel() < self.k:
            return {f"hits@{self.k}": torch.ones((), dtype=torch.double, device=score.device)}
        bar = negative.topk(self.k).values[-1]
        return {f"hits@{self.k}": (positive > bar).double().mean()}


class PartScores(_Scores):
    """Mean IoU of ShapeNet: per shape over the parts of its category, a part neither there nor predicted counting 1.

    ``instance_miou`` is the mean over shapes, ``category_miou`` over categories of their shapes' mean. The prediction
    is the best among the category's own labels, as the benchmark asks.

    Reference: Yi et al., *A Scalable Active Framework for Region Annotation in 3D Shape Collections*, 2016.

    Args:
        part_labels: Labels of each category.
    """

    total: Tensor
    count: Tensor

    def __init__(self, part_labels: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.part_labels = part_labels
        for name in ("total", "count"):
            self.add_state(name, torch.zeros(len(part_labels), dtype=torch.double), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor, batch: Tensor, category: Tensor) -> None:
        """Add shapes: logits ``[n, labels]``, labels ``[n]``, shape of each point, category of each shape."""
        total, count = self.total.clone(), self.count.clone()
        for shape, kind in enumerate(category.view(-1).tolist()):
            own = batch == shape
            labels = torch.tensor(self.part_labels[kind], device=target.device)
            guess = labels[prediction[own][:, labels].argmax(1)].unsqueeze(1) == labels
            true = target[own].unsqueeze(1) == labels  # [points, parts]
            union = (guess | true).sum(0)
            overlap = torch.where(union > 0, (guess & true).sum(0) / union.clamp(min=1), 1.0)
            total[kind] += overlap.double().mean()
            count[kind] += 1
        self.total, self.count = total, count

    def compute(self) -> dict[str, Tensor]:
        seen = self.count > 0
        return {
            "instance_miou": self.total.sum() / self.count.sum(),
            "category_miou": (self.total[seen] / self.count[seen]).mean(),
        }


class WordScores(_Scores):
    """``f1`` of ogbg-code2: the mean over graphs of F1 between the sets of predicted and true words, as OGB has it."""

    total: Tensor
    count: Tensor

    def __init__(self, vocabulary: Sequence[str]) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.add_state("total", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.double), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, words: Sequence[Sequence[str]]) -> None:
        """Add graphs: logits ``[B, places, vocabulary]``, and all true words of each graph."""
        end = len(self.vocabulary) - 1
        total = 0.0
        for guess, true in zip(prediction.argmax(2).tolist(), words):
            length = guess.index(end) if end in guess else len(guess)
            said, meant = {self.vocabulary[word] for word in guess[:length]}, set(true)
            common = len(said & meant)
            total += 2 * common / (len(said) + len(meant)) if common else 0.0
        self.total, self.count = self.total + total, self.count + len(words)

    def compute(self) -> dict[str, Tensor]:
        return {"f1": self.total / self.count}


def build_metrics(task: Task, metric_best: str = "accuracy") -> dict[str, Metric]:
    """The metrics of a task, by the name of their group; each computes a dictionary of values.

    Groups: ``loss`` (updated by loss and count), ``scores``, ``ranks``, … (updated by prediction and target),
    ``links`` (by scores and candidates), ``parts``, ``words``. The area under the curve of several classes keeps every
    score, so it is computed only where it is ``metric_best``.
    """
    metrics: dict[str, Metric] = {"loss": LossMean()}
    if task.kind in ("binary", "multiclass"):
        metrics["scores"] = ClassScores(task.num_classes, metric_best)
    if task.kind == "binary":
        metrics["ranks"] = RankScores(("auc", "ap"))
    elif task.kind == "multilabel":
        metrics |= {"scores": LabelAccuracy(task.num_outputs), "ranks": RankScores(("auc", "ap"))}
    elif task.kind == "regression":
        metrics["scores"] = RegressionScores()
    elif task.kind == "subtoken":
        metrics["words"] = WordScores(task.vocabulary)
    elif metric_best in ("auc", "ap"):
        metrics["ranks"] = RankScores((metric_best,), task.num_outputs)
    if task.ranked:
        metrics["links"] = LinkRanks()
    if task.hits_at is not None:
        metrics["hits"] = CommonHits(task.hits_at)
    if task.part_labels:
        metrics["parts"] = PartScores(task.part_labels)
    return metrics


def metric_names(task: Task, metric_best: str = "accuracy") -> list[str]:
    """Names of the values that a task's metrics compute."""
    names = ["loss"]
    for group, metric in build_metrics(task, metric_best).items():
        names += _NAMES.get(group, ()) if group != "scores" else _score_names(task, metric_best)
        names += metric.names if isinstance(metric, (RankScores, LinkRanks)) else ()
        names += [f"hits@{metric.k}"] if isinstance(metric, CommonHits) else ()
    return names


_NAMES: dict[str, Sequence[str]] = {"words": ("f1",), "parts": ("instance_miou", "category_miou")}


def _score_names(task: Task, metric_best: str) -> Sequence[str]:
    if task.kind == "regression":
        return ("mae", "mse", "rmse", "r2", "spearmanr")
    if task.kind == "multilabel":
        return ("accuracy",)
    asked = (metric_best,) if metric_best in ("accuracy-SBM", "miou") else ()
    return ("accuracy", "f1", *asked, *(("precision", "recall") if task.kind == "binary" else ()))
