"""Metrics of ranked scores: areas under curves, and the ranks of links."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torchmetrics.utilities import dim_zero_cat

from pyg_topomask.run.task import HITS, Task
from pyg_topomask.run.training.scores import Scores, StoredScores


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
    num_labelled: Tensor  # 0-dim: number of labelled edges in the batch, positive and negative


def candidates(data: Data) -> Candidates:
    """The pairs to score in order to rank the positive links of a batch."""
    labelled, label = data.edge_label_index, data.edge_label.view(-1)
    start, end = labelled[:, label == 1]
    batch = data.batch if data.get("batch") is not None else start.new_zeros(data.num_nodes)
    num_graphs = data.num_graphs if data.get("batch") is not None else 1
    size = batch.bincount(minlength=num_graphs)
    first = size.cumsum(0) - size
    graph = batch[start]
    count = size[graph]
    link = torch.repeat_interleave(count)
    candidate = torch.arange(link.numel(), device=link.device) + (first[graph] - count.cumsum(0) + count)[link]
    is_end = candidate == end[link]
    number = data.num_nodes
    known = torch.isin(start[link] * number + candidate, start * number + end)
    num_labelled = torch.tensor(label.numel(), device=start.device)
    pairs = torch.stack([start[link], candidate])
    return Candidates(pairs, link, is_end, known & ~is_end, graph, num_graphs, num_labelled)


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
        row = [sums.new_tensor([len(self.rows), pairs.num_graphs, float(pairs.num_labelled)])]
        self.rows.append(torch.cat([*row, (sums / links.unsqueeze(1)).sum(0)]).unsqueeze(0))

    def compute(self) -> dict[str, Tensor]:
        rows = dim_zero_cat(self.rows)
        number, inverse = rows[:, 0].unique(return_inverse=True)  # parts of one batch on several processes
        merged = rows.new_zeros(number.numel(), rows.size(1)).index_add_(0, inverse, rows)
        graphs, edges, sums = merged[:, 1:2], merged[:, 2:3], merged[:, 3:]
        values = (sums / graphs * edges).sum(0) / edges.sum()
        return dict(zip(self.names, values.unbind()))


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
