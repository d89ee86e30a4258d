"""Area under the ROC curve, average precision, and ranks of links, on whole arrays of scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.ops.segment import ragged_ranges

Score = Callable[[Tensor, Tensor], Tensor]


def average_precision(score: Tensor, positive: Tensor) -> Tensor:
    r""":math:`\sum_n (R_n - R_{n-1}) P_n` over the distinct scores from the top down, without interpolation.

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


def area_under_roc(score: Tensor, positive: Tensor) -> Tensor:
    """Probability that a positive scores above a negative, ties counting one half.

    Args:
        score: Scores, shape ``[n]``.
        positive: Boolean, shape ``[n]``, with entries of both kinds.
    """
    _, inverse, count = score.unique(return_inverse=True, return_counts=True)
    below = count.cumsum(0) - count
    rank = (below.double() + (count.double() + 1) / 2)[inverse]  # mean rank of equal scores, from 1
    num_positive = positive.sum().double()
    num_negative = positive.numel() - num_positive
    return (rank[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def mean_over_labels(score: Score, prediction: Tensor, target: Tensor) -> Tensor:
    """Mean of a score over labels, as OGB's evaluators have it.

    Unknown (NaN) targets are left out, and so is a label that lacks positives or negatives. NaN if none is left.

    Args:
        score: Function of (scores ``[n]``, positive ``[n]``).
        prediction: Scores, shape ``[n, T]``.
        target: 0, 1 or NaN, shape ``[n, T]``.
    """
    values = []
    for column in range(target.size(1)):
        known = ~target[:, column].isnan()
        positive = target[known, column] == 1
        if bool(positive.any()) and not bool(positive.all()):
            values.append(score(prediction[known, column], positive))
    return torch.stack(values).mean() if values else prediction.new_tensor(float("nan"), dtype=torch.double)


@dataclass
class Candidates:
    """Every node of the graph as the end of each positive link: what MRR ranks.

    Shapes: P pairs, L positive links in all graphs.
    """

    edge_index: Tensor  # [2, P] start, candidate end; those of one link stand together
    link: Tensor  # [P] the link that a pair is a candidate for
    is_end: Tensor  # [P] whether the candidate is the link's own end
    is_other: Tensor  # [P] whether the pair is another positive link
    graph: Tensor  # [L] graph of each link
    num_graphs: int
    num_labelled: Tensor  # 0-dim: labelled edges, positive and negative, in the batch


def candidates(data: Data) -> Candidates:
    """The pairs to score in order to rank the positive links of a batch."""
    labelled, label = data.edge_label_index, data.edge_label.view(-1)
    start, end = labelled[:, label == 1]
    batch = data.batch if data.get("batch") is not None else start.new_zeros(data.num_nodes)
    num_graphs = data.num_graphs if data.get("batch") is not None else 1
    size = batch.bincount(minlength=num_graphs)
    first = size.cumsum(0) - size
    graph = batch[start]
    link, candidate = ragged_ranges(first[graph], size[graph])
    is_end = candidate == end[link]
    number = data.num_nodes
    known = torch.isin(start[link] * number + candidate, start * number + end)
    num_labelled = torch.tensor(label.numel(), device=start.device)
    pairs = torch.stack([start[link], candidate])
    return Candidates(pairs, link, is_end, known & ~is_end, graph, num_graphs, num_labelled)


def link_ranks(score: Tensor, pairs: Candidates, skip: Tensor) -> Tensor:
    """Rank ``[L]`` of each link's end among its candidates, the mean of best and worst where scores are equal.

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
