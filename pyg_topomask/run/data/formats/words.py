"""ogbg-code2: the name of a function, predicted as a sequence of words from its syntax tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from pyg_topomask.run.data.formats.base import LoadedDataset
from pyg_topomask.run.task import Task

NUM_WORDS, SEQUENCE_LENGTH, MAX_NODES = 5000, 5, 1000
UNKNOWN, END = "__UNK__", "__EOS__"


def vocabulary(sequences: Iterable[Sequence[str]], size: int = NUM_WORDS) -> tuple[str, ...]:
    """The most frequent words (equally frequent ones in order of appearance), then the unknown and the end token."""
    count = Counter(word for words in sequences for word in words)
    return (*(word for word, _ in count.most_common(size)), UNKNOWN, END)


class EncodeWords(BaseTransform):
    """Adds ``y_arr [1, length]`` to a graph: the numbers of its words, truncated or padded by the end token."""

    def __init__(self, words: Sequence[str], length: int = SEQUENCE_LENGTH) -> None:
        self.number, self.length = {word: i for i, word in enumerate(words)}, length

    def forward(self, data: Data) -> Data:
        unknown, end = self.number[UNKNOWN], self.number[END]
        known = [self.number.get(word, unknown) for word in data.y[: self.length]]
        data.y_arr = torch.tensor([known + [end] * (self.length - len(known))])
        return data


class AddTokenEdges(BaseTransform):
    """Adds edges to the next token and all inverse edges; ``edge_attr`` is (whether next token, whether inverse).

    Tokens are the attributed nodes, which are in depth-first order. Graphs are first cut to their first 1,000 nodes.
    """

    def forward(self, data: Data) -> Data:
        if data.num_nodes > MAX_NODES:
            keep = (data.edge_index < MAX_NODES).all(dim=0)
            data.edge_index, data.num_nodes = data.edge_index[:, keep], MAX_NODES
            for name in ("x", "node_is_attributed", "node_dfs_order", "node_depth"):
                data[name] = data[name][:MAX_NODES]
        token = (data.node_is_attributed.view(-1) == 1).nonzero().view(-1)
        tree, following = data.edge_index, torch.stack([token[:-1], token[1:]])
        data.edge_index = torch.cat([tree, tree.flip(0), following, following.flip(0)], dim=1)
        count = (tree.size(1), tree.size(1), following.size(1), following.size(1))
        kinds = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
        data.edge_attr = kinds.repeat_interleave(torch.tensor(count), dim=0)
        return data


def code2(dataset: Any, parts: tuple[Tensor, Tensor, Tensor]) -> LoadedDataset:
    """The data set with its words numbered by the vocabulary of the training set."""
    words = vocabulary(dataset[int(i)].y for i in parts[0])
    encode, edges = EncodeWords(words), AddTokenEdges()
    dataset.transform = lambda data: encode(edges(data))
    task = Task("graph", "subtoken", len(words), sequence_length=SEQUENCE_LENGTH, vocabulary=words)
    return LoadedDataset(dataset, task, parts)
