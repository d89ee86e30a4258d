"""Metrics as the benchmarks define them, over a whole split, on one or several processes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from pyg_topomask.run.errors import need
from pyg_topomask.run.task import HITS, Task, metric_groups


class Scores(Metric):
    """A metric whose :meth:`compute` returns a dictionary; its states are summed or joined over processes."""

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def __init__(self, task: Task, *names: str) -> None:
        """The values of these names for a task."""
        super().__init__()
        self.task, self.names = task, names

    def named(self, means: Mapping[str, Tensor], each: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The values of `names` among means over targets and, as ``name/0``, …, values ``[T]`` of each target."""
        found = {f"{name}/{i}": value for name, values in (each or {}).items() for i, value in enumerate(values)}
        return {name: (found | {**means})[name] for name in self.names}


class Sums(Scores):
    """A metric of sums over batches, in double precision."""

    sums: Tensor

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
        self.add_state("sums", torch.zeros(self.shape(), dtype=torch.double), dist_reduce_fx="sum")

    def shape(self) -> tuple[int, ...]:
        """Shape of the sums."""
        return (2,)

    def counted(self, *batch: Any) -> Tensor:
        """What a batch adds: predictions and targets as the task shapes them, and the graphs."""
        raise NotImplementedError

    def update(self, *batch: Any) -> None:
        """Add a batch."""
        self.sums = self.sums + self.counted(*batch)


class StoredScores(Scores):
    """A metric that stores every prediction and target until the end."""

    predictions: list[Tensor]
    targets: list[Tensor]

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
        self.add_state("predictions", [], dist_reduce_fx="cat")
        self.add_state("targets", [], dist_reduce_fx="cat")

    def update(self, prediction: Tensor, target: Tensor, graphs: Data | None = None) -> None:
        """Add a batch: predictions and targets as the task shapes them, and the graphs."""
        self.predictions.append(prediction.detach())
        self.targets.append(target.detach())

    def stored(self) -> tuple[Tensor, Tensor]:
        """All predictions and targets, each ``[n, T]``."""
        joined = (dim_zero_cat(state) for state in (self.predictions, self.targets))
        prediction, target = (values if values.dim() > 1 else values.unsqueeze(1) for values in joined)
        return prediction, target


class Mean(Sums):
    """One value, the mean over all items."""

    def counted(self, mean: Tensor, count: int) -> Tensor:
        """A batch by its mean and its number of items."""
        return torch.stack([mean.double() * count, torch.full_like(mean, count, dtype=torch.double)])

    def compute(self) -> dict[str, Tensor]:
        return {self.names[0]: self.sums[0] / self.sums[1]}


class WordScores(Mean):
    """``f1`` of ogbg-code2, by OGB's evaluator: the mean over names of F1 between predicted and true words."""

    def counted(self, prediction: Tensor, target: Tensor, graphs: Data) -> Tensor:  # type: ignore[override]
        """Graphs by logits ``[B, positions, words]``, and the words of each name, ``graphs.words``."""
        evaluator = need("ogb.graphproppred", "the F1 of ogbg-code2").Evaluator("ogbg-code2")
        f1 = evaluator.eval({"seq_ref": graphs.words, "seq_pred": self.task.words(prediction)})["F1"]
        return super().counted(torch.as_tensor(f1, device=prediction.device), len(graphs.words))


class ClassScores(Sums):
    """Values of the confusion matrix: accuracy, F1, mean recall, mean intersection over union.

    - ``accuracy``: share of correct predictions.
    - ``f1``: unweighted mean of F1 over the classes that are predicted or true; F1 is 0 if precision and recall are.
      For two classes, F1 of class 1, together with its ``precision`` and ``recall``.
    - ``accuracy-SBM``: unweighted mean of the recall over the classes that are predicted or true; the accuracy of
      PATTERN and CLUSTER (Dwivedi et al., arXiv:2003.00982). Only if it is ``metric_best``.
    - ``miou``: mean of intersection over union over the classes that are predicted or true (S3DIS). Only if it is
      ``metric_best``.
    """

    def shape(self) -> tuple[int, ...]:
        return self.task.num_classes, self.task.num_classes

    def counted(self, prediction: Tensor, target: Tensor, graphs: Data | None = None) -> Tensor:
        """Predicted classes, from one logit ``[n]`` or a logit per class ``[n, classes]``, by target."""
        guess = (prediction > 0).long() if prediction.dim() == 1 else prediction.argmax(1)
        pair = target.long() * self.task.num_classes + guess
        return pair.bincount(minlength=self.task.num_classes**2).view_as(self.sums)

    def compute(self) -> dict[str, Tensor]:
        right, true, guessed = self.sums.diagonal(), self.sums.sum(1), self.sums.sum(0)
        present = true + guessed > 0
        precision, recall = right / guessed.clamp(min=1), right / true.clamp(min=1)
        f1 = 2 * right / (true + guessed).clamp(min=1)
        values = {
            "accuracy": right.sum() / true.sum(),
            "accuracy-SBM": recall[present].mean(),
            "miou": (right / (true + guessed - right).clamp(min=1))[present].mean(),
            "precision": precision[1],
            "recall": recall[1],
            "f1": f1[1] if self.task.num_classes == 2 else f1[present].mean(),
        }
        return self.named(values)


class LabelAccuracy(Sums):
    """Multilabel ``accuracy``: mean over labels of the share of known targets that are predicted correctly."""

    def shape(self) -> tuple[int, ...]:
        return 2, self.task.num_outputs

    def counted(self, prediction: Tensor, target: Tensor, graphs: Data | None = None) -> Tensor:
        known = ~target.isnan()
        return torch.stack([(known & ((prediction > 0) == (target == 1))).sum(0), known.sum(0)])

    def compute(self) -> dict[str, Tensor]:
        share = self.sums[0] / self.sums[1]
        return self.named({"accuracy": share[self.sums[1] > 0].mean()}, {"accuracy": share})


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


class PartScores(Sums):
    """Mean IoU of ShapeNet: for each shape, over the parts of its category.

    A part that is neither present nor predicted counts 1. ``instance_miou`` is the mean over shapes; ``category_miou``
    is the mean over categories of the mean over their shapes. The prediction is the best among the labels of the
    shape's category, as in the benchmark.

    Reference: Yi et al., *A Scalable Active Framework for Region Annotation in 3D Shape Collections*, 2016.
    """

    def shape(self) -> tuple[int, ...]:
        return 2, len(self.task.part_labels)

    def counted(self, prediction: Tensor, target: Tensor, graphs: Data) -> Tensor:
        """Shapes by logits ``[n, labels]``, labels ``[n]``, and the category of each graph."""
        found = torch.zeros_like(self.sums)
        for shape, kind in enumerate(graphs.category.view(-1).tolist()):
            own = graphs.batch == shape
            labels = torch.tensor(self.task.part_labels[kind], device=target.device)
            guess = labels[prediction[own][:, labels].argmax(1)].unsqueeze(1) == labels
            true = target[own].unsqueeze(1) == labels  # [points, parts]
            union = (guess | true).sum(0)
            overlap = torch.where(union > 0, (guess & true).sum(0) / union.clamp(min=1), 1.0)
            found[:, kind] += torch.stack([overlap.double().mean(), overlap.new_ones((), dtype=torch.double)])
        return found

    def compute(self) -> dict[str, Tensor]:
        (total, count), seen = self.sums, self.sums[1] > 0
        return {"instance_miou": total.sum() / count.sum(), "category_miou": (total[seen] / count[seen]).mean()}


def average_precision(score: Tensor, positive: Tensor) -> Tensor:
    r""":math:`\sum_n (R_n - R_{n-1}) P_n` over the distinct scores in descending order, without interpolation.

    Args:
        score: Scores, shape ``[n]``.
        positive: Boolean, shape ``[n]``, with at least one true entry.
    """
    order = score.argsort(descending=True)
    score, positive = score[order], positive[order]
    last = torch.cat([score[1:] != score[:-1], score.new_ones(1, dtype=torch.bool)])  # equal scores are one threshold
    found = positive.double().cumsum(0)[last]
    seen = last.nonzero().view(-1) + 1
    gained = found.diff(prepend=found.new_zeros(1))
    return (gained * found / seen).sum() / found[-1]


def mean_rank(values: Tensor) -> Tensor:
    """Rank of each value in ascending order, from 1; equal values share their mean rank."""
    _, inverse, count = values.unique(return_inverse=True, return_counts=True)
    return (count.cumsum(0) - (count - 1) / 2).double()[inverse]


def area_under_roc(score: Tensor, positive: Tensor) -> Tensor:
    """Probability that a positive scores above a negative; ties count one half.

    Args:
        score: Scores, shape ``[n]``.
        positive: Boolean, shape ``[n]``, with entries of both kinds.
    """
    num_positive = positive.sum().double()
    num_negative = positive.numel() - num_positive
    rank_sum = mean_rank(score)[positive].sum()
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def of_each_label(score: Callable[[Tensor, Tensor], Tensor], prediction: Tensor, target: Tensor) -> Tensor:
    """A score of each label ``[T]``, without unknown (NaN) targets.

    It is NaN for a label without positives or without negatives, which OGB's evaluators leave out of the mean.

    Args:
        score: Function of (scores ``[n]``, positive ``[n]``).
        prediction: Scores, shape ``[n, T]``.
        target: 0, 1 or NaN, shape ``[n, T]``.
    """
    values = prediction.new_full((target.size(1),), float("nan"), dtype=torch.double)
    for column in range(target.size(1)):
        known = ~target[:, column].isnan()
        positive = target[known, column] == 1
        if bool(positive.any()) and not bool(positive.all()):
            values[column] = score(prediction[known, column], positive)
    return values


class RankScores(StoredScores):
    """``auc`` and ``ap`` on the whole split, the mean over labels of the exact areas, equal to OGB's evaluators.

    Logits are compared directly, because a sigmoid would round large logits to equal scores.
    Of several classes, each is compared with the others, and the value is the mean over classes.
    """

    def compute(self) -> dict[str, Tensor]:
        prediction, target = self.stored()
        if self.task.kind == "multiclass":
            prediction, target = prediction.log_softmax(1), one_hot(target.view(-1).long(), self.task.num_outputs)
        scores = {"auc": area_under_roc, "ap": average_precision}
        each = {x: of_each_label(scores[x], prediction, target.float()) for x in scores if x in self.names}
        return self.named({name: values[~values.isnan()].mean() for name, values in each.items()}, each)


@dataclass
class Candidates:
    """For each positive link, every node of its graph as a possible end; MRR ranks them.

    Shapes: P pairs, L positive links in all graphs.
    """

    edge_index: Tensor  # [2, P] start and candidate end; the pairs of one link are adjacent
    link: Tensor  # [P] the link that a pair is a candidate for
    is_end: Tensor  # [P] whether the candidate is the link's own end
    is_other: Tensor  # [P] whether the pair is another positive link
    graph: Tensor  # [L] graph of each link
    num_graphs: int
    num_labelled: int  # labelled edges in the batch, positive and negative


def candidates(data: Data) -> Candidates:
    """The pairs to score in order to rank the positive links of a ``Batch``."""
    labelled, label = data.edge_label_index, data.edge_label.view(-1)
    start, end = labelled[:, label == 1]
    size = data.batch.bincount(minlength=data.num_graphs)
    first = size.cumsum(0) - size
    graph = data.batch[start]
    count = size[graph]
    link = torch.repeat_interleave(count)
    candidate = torch.arange(link.numel(), device=link.device) + (first[graph] - count.cumsum(0) + count)[link]
    is_end = candidate == end[link]
    number = data.num_nodes
    known = torch.isin(start[link] * number + candidate, start * number + end)
    pairs = torch.stack([start[link], candidate])
    return Candidates(pairs, link, is_end, known & ~is_end, graph, data.num_graphs, label.numel())


def link_ranks(score: Tensor, pairs: Candidates, skip: Tensor) -> Tensor:
    """Rank ``[L]`` of each link's end among its candidates; equal scores share their mean rank.

    Args:
        score: Score of each pair, shape ``[P]``.
        pairs: The pairs.
        skip: Candidates that do not compete, shape ``[P]``; the link's own end never does.
    """
    links = pairs.graph.numel()
    own = score.new_zeros(links).index_put_((pairs.link[pairs.is_end],), score[pairs.is_end])[pairs.link]
    rival = ~(skip | pairs.is_end)
    beaten = ((score > own) & rival).double() + ((score == own) & rival).double() / 2
    return 1 + beaten.new_zeros(links).index_add_(0, pairs.link, beaten)


class LinkRanks(Scores):
    """``mrr``, ``mrr_filt``, ``mrr_filt_self`` and ``hits@1/3/10`` of links ranked among the nodes of their graph.

    ``mrr``: every node of the graph competes, also other positive ends and the start itself. ``mrr_filt``: other
    positive ends are left out. ``mrr_filt_self``: the start is left out, too. As in GraphGPS and LRGB, a value is the
    mean over the links of a graph (0 if it has none), then over the graphs of a batch, then over the batches, weighted
    by their numbers of labelled edges. The batches of several processes are joined to one. Equal scores share their
    mean rank, as in OGB's evaluators.

    Reference: Dwivedi et al., *Long Range Graph Benchmark*, NeurIPS 2022; Tönshoff et al., *Where Did the Gap Go?*,
    arXiv:2309.00367, Section 3 for the filters.
    """

    rows: list[Tensor]

    def __init__(self, task: Task, *names: str) -> None:
        super().__init__(task, *names)
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
        sizes = sums.new_tensor([len(self.rows), pairs.num_graphs, pairs.num_labelled])
        self.rows.append(torch.cat([sizes, (sums / links.unsqueeze(1)).sum(0)]).unsqueeze(0))

    def compute(self) -> dict[str, Tensor]:
        rows = dim_zero_cat(self.rows)
        number, inverse = rows[:, 0].unique(return_inverse=True)  # parts of one batch on several processes
        merged = rows.new_zeros(number.numel(), rows.size(1)).index_add_(0, inverse, rows)
        graphs, edges, sums = merged[:, 1:2], merged[:, 2:3], merged[:, 3:]
        values = (sums / graphs * edges).sum(0) / edges.sum()
        return dict(zip(self.names, values))


class CommonHits(StoredScores):
    """OGB's Hits@K: the share of positive edges that score above the K-th best negative of the whole split."""

    def compute(self) -> dict[str, Tensor]:
        score, target = (values.view(-1) for values in self.stored())
        positive, negative = score[target == 1], score[target == 0]
        k = self.task.hits_at or 1
        if negative.numel() < k:
            return {self.names[0]: torch.ones((), dtype=torch.double, device=score.device)}
        threshold = negative.topk(k).values[-1]
        return {self.names[0]: (positive > threshold).double().mean()}


class OwnNegativeRanks(StoredScores):
    """OGB's ``mrr``: each positive edge is ranked among negatives of its own, which follow in the order of the edges.

    Equal scores share their mean rank.
    """

    def compute(self) -> dict[str, Tensor]:
        score, target = (values.view(-1) for values in self.stored())
        positive, negative = score[target == 1, None], score[target == 0]
        count = negative.numel() // max(positive.numel(), 1)
        negative = negative[: count * positive.numel()].view(-1, count)
        ranks = 1 + ((negative > positive).sum(1) + (negative >= positive).sum(1)) / 2
        return {"mrr": (1 / ranks.double()).mean()}


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
