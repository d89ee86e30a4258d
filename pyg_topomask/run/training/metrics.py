"""Metrics as the benchmarks define them, over a whole split, on one or several processes."""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.run.errors import need
from pyg_topomask.run.task import Task, metric_groups
from pyg_topomask.run.training.ranking import CommonHits, LinkRanks, OwnNegativeRanks, RankScores, mean_rank
from pyg_topomask.run.training.scores import Scores, StoredScores


class Mean(Scores):
    """One value, the mean over all items."""

    total: Tensor
    count: Tensor

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
        self.add_sums("total", "count")

    def update(self, mean: Tensor, count: int) -> None:
        """Add a batch: its mean, and its number of items."""
        self.total = self.total + mean.double() * count
        self.count = self.count + count

    def compute(self) -> dict[str, Tensor]:
        return {self.names[0]: self.total / self.count}


class WordScores(Mean):
    """``f1`` of ogbg-code2, by OGB's evaluator: the mean over names of F1 between predicted and true words."""

    def update(self, prediction: Tensor, target: Tensor, graphs: Data) -> None:  # type: ignore[override]
        """Add graphs: logits ``[B, positions, words]``, and the words of each name, ``graphs.words``."""
        evaluator = need("ogb.graphproppred", "the F1 of ogbg-code2").Evaluator("ogbg-code2")
        f1 = evaluator.eval({"seq_ref": graphs.words, "seq_pred": self.task.words(prediction)})["F1"]
        super().update(torch.as_tensor(f1, device=prediction.device), len(graphs.words))


class ClassScores(Scores):
    """Values of the confusion matrix: accuracy, F1, mean recall, mean intersection over union.

    - ``accuracy``: share of correct predictions.
    - ``f1``: unweighted mean of F1 over the classes that are predicted or true; F1 is 0 if precision and recall are.
      For two classes, F1 of class 1, together with its ``precision`` and ``recall``.
    - ``accuracy-SBM``: unweighted mean of the recall over the classes that are predicted or true; the accuracy of
      PATTERN and CLUSTER (Dwivedi et al., arXiv:2003.00982). Only if it is ``metric_best``.
    - ``miou``: mean of intersection over union over the classes that are predicted or true (S3DIS). Only if it is
      ``metric_best``.
    """

    confusion: Tensor

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
        num_classes = task.num_classes
        self.add_state("confusion", torch.zeros(num_classes, num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor, graphs: Data | None = None) -> None:
        """Count predicted classes, from one logit ``[n]`` or a logit per class ``[n, classes]``."""
        guess = (prediction > 0).long() if prediction.dim() == 1 else prediction.argmax(1)
        pair = target.long() * self.task.num_classes + guess
        self.confusion = self.confusion + pair.bincount(minlength=self.task.num_classes**2).view_as(self.confusion)

    def compute(self) -> dict[str, Tensor]:
        matrix = self.confusion.double()
        right, true, guessed = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
        present = true + guessed > 0
        precision, recall = right / guessed.clamp(min=1), right / true.clamp(min=1)
        f1 = 2 * right / (true + guessed).clamp(min=1)
        values = {
            "accuracy": right.sum() / matrix.sum(),
            "accuracy-SBM": recall[present].mean(),
            "miou": (right / (true + guessed - right).clamp(min=1))[present].mean(),
            "precision": precision[1],
            "recall": recall[1],
            "f1": f1[1] if self.task.num_classes == 2 else f1[present].mean(),
        }
        return {name: values[name] for name in self.names}


class LabelAccuracy(Scores):
    """Multilabel ``accuracy``: mean over labels of the share of known targets that are predicted correctly."""

    right: Tensor
    known: Tensor

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
        self.add_sums("right", "known", size=task.num_outputs)

    def update(self, prediction: Tensor, target: Tensor, graphs: Data | None = None) -> None:
        self.right = self.right + ((prediction > 0) == (target == 1)).logical_and(~target.isnan()).sum(0)
        self.known = self.known + (~target.isnan()).sum(0)

    def compute(self) -> dict[str, Tensor]:
        share = self.right / self.known
        return self.named({"accuracy": share[self.known > 0].mean()}, {"accuracy": share})


class RegressionScores(StoredScores):
    """``mae``, ``mse``, ``rmse``, ``r2`` and ``spearmanr`` on the whole split, without unknown (NaN) targets.

    ``mae`` and ``mse`` are means over all known entries; the others are unweighted means over targets, as in OGB and
    scikit-learn. If all values of a target are equal, its ``r2`` is 1 for an exact prediction and 0 otherwise.
    """

    def compute(self) -> dict[str, Tensor]:
        prediction, target = (values.double() for values in self.stored())
        known = ~target.isnan()
        rows = [_of_target(prediction[mask, i], target[mask, i]) for i, mask in enumerate(known.unbind(1))]
        each = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        error = prediction[known] - target[known]
        means = {"mae": error.abs().mean(), "mse": error.square().mean()}
        least = {"rmse": 1, "r2": 2, "spearmanr": 2}  # values that a target needs
        means |= {name: each[name][known.sum(0) >= count].mean() for name, count in least.items()}
        return self.named(means, each)


def _of_target(prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
    error = prediction - target
    mse = error.square().mean()
    scores = {"mae": error.abs().mean(), "mse": mse, "rmse": mse.sqrt()}
    return scores | {"r2": _r2(prediction, target), "spearmanr": _spearman(prediction, target)}


def _r2(prediction: Tensor, target: Tensor) -> Tensor:
    left, total = (prediction - target).square().sum(), (target - target.mean()).square().sum()
    return torch.where(total > 0, 1 - left / total, (left == 0).double())


def _spearman(left: Tensor, right: Tensor) -> Tensor:
    left, right = (rank - rank.mean() for rank in (mean_rank(left), mean_rank(right)))
    return (left * right).sum() / (left.norm() * right.norm())


class PartScores(Scores):
    """Mean IoU of ShapeNet: for each shape, over the parts of its category.

    A part that is neither present nor predicted counts 1. ``instance_miou`` is the mean over shapes; ``category_miou``
    is the mean over categories of the mean over their shapes. The prediction is the best among the labels of the
    shape's category, as in the benchmark.

    Reference: Yi et al., *A Scalable Active Framework for Region Annotation in 3D Shape Collections*, 2016.
    """

    total: Tensor
    count: Tensor

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
        self.add_sums("total", "count", size=len(task.part_labels))

    def update(self, prediction: Tensor, target: Tensor, graphs: Data) -> None:
        """Add shapes: logits ``[n, labels]``, labels ``[n]``, and the category of each graph."""
        total, count = self.total.clone(), self.count.clone()
        for shape, kind in enumerate(graphs.category.view(-1).tolist()):
            own = graphs.batch == shape
            labels = torch.tensor(self.task.part_labels[kind], device=target.device)
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


def build_metrics(task: Task, metric_best: str = "accuracy") -> dict[str, Scores]:
    """The metrics of a task by the name of their group; each computes a dictionary of values.

    ``loss`` is updated by loss and count, ``links`` by scores and candidates, and all others by predictions, targets
    and the batch.
    """
    classes: dict[str, Any] = {
        "loss": Mean,
        "scores": {"multilabel": LabelAccuracy, "regression": RegressionScores}.get(task.kind, ClassScores),
        "ranks": RankScores,
        "words": WordScores,
        "links": LinkRanks,
        "hits": OwnNegativeRanks if task.own_negatives else CommonHits,
        "parts": PartScores,
    }
    return {group: classes[group](task, *names) for group, names in metric_groups(task, metric_best).items()}
