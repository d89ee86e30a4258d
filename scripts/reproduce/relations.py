"""Relations as masks: merged, a mask for each, products of them, or walks that remember the relations of their steps.

    python scripts/reproduce/relations.py --quick       # a trial
    python scripts/reproduce/relations.py               # all rows, 3 seeds; 4 minutes on one core

Generated graphs have two relations, in each of which a node has about 3 random neighbours. The target of a node is the
mean of a feature over its neighbours by the first relation minus that by the second ("difference"), its mean over
those whom a step of the first and then one of the second relation reach ("path"), or its mean over all neighbours
("merged"). One layer has attention alone, under masks of up to 2 hops, among which its heads are divided unless they
are summed. "remembered" has a coefficient for every sequence of relations, so that walks remember the relations of
their steps; it is a dense matrix here. The epoch is chosen on the validation part; no choice looks at the test part.
The same command continues an interrupted one.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _fitting import begin, fit_graphs
from _folds import Comparison
from near_far import relative_error
from torch import Tensor
from torch.nn.functional import mse_loss, normalize
from torch_geometric.data import Data
from torch_geometric.transforms import Compose
from torch_geometric.utils import to_dense_adj, to_undirected

from pyg_topomask.nn import GPSModel, GRFMask, Mask, MaskedAttention, PowerSeriesMask, ProductMask
from pyg_topomask.operators import DenseOperator
from pyg_topomask.transforms import AddRandomWalks

WIDTH, HEADS, BATCH, EPOCHS, RATE, DECAY, NODES, LENGTH = 32, 4, 8, 10, 1e-2, 1e-4, 48, 2
GRAPHS = {"train": 96, "val": 32, "test": 32}
WORDS = [word for length in range(LENGTH + 1) for word in product((0, 1), repeat=length)]


def relation_matrices(graph: Data) -> Tensor:
    """Edges of both relations, ``[2, N, N]``."""
    edges = (graph.edge_index[:, graph.edge_type == number] for number in (0, 1))
    return torch.cat([to_dense_adj(each, max_num_nodes=graph.num_nodes) for each in edges])


class WordMask(Mask):
    """Walks with a learned coefficient for each sequence of relations, exactly and densely."""

    requires = ("edge_type",)

    def __init__(self) -> None:
        super().__init__(HEADS)
        self.coeffs = self.learned(torch.tensor([0.5 ** len(word) for word in WORDS]))

    def forward(self, graph: Data) -> DenseOperator:
        """The mask of a graph or batch."""
        matrices = relation_matrices(graph)
        root = matrices.sum(2, keepdim=True).clamp(min=1).sqrt()
        steps, walks = matrices / root / root.mT, {(): torch.eye(graph.num_nodes)}
        for word in WORDS[1:]:
            walks[word] = walks[word[:-1]] @ steps[word[-1]]
        return DenseOperator(torch.tensordot(self.coeffs, torch.stack([*walks.values()]), 1))


def exact(heads: int, *relation: int) -> Mask:
    """The power series of a relation, or of several that are merged."""
    return PowerSeriesMask(heads, LENGTH, symmetric=False, edge_type=relation)


def name_of(relation: Sequence[int]) -> str:
    """Name of the walks of a relation."""
    return "walk" + "_".join(map(str, relation))


def walks(heads: int, *relation: int) -> Mask:
    """Its estimate by random walks."""
    return GRFMask(heads, LENGTH, symmetric=False, name=name_of(relation))


MASKS = {
    "merged": lambda of: ([of(4, 0, 1)], [4]),
    "one each": lambda of: ([of(2, 0), of(2, 1)], [2, 2]),
    "one each, summed": lambda of: ([of(4, 0), of(4, 1)], None),
    "one each and product": lambda of: ([of(1, 0), of(1, 1), ProductMask(of(2, 0), of(2, 1))], [1, 1, 2]),
    "remembered": lambda of: ([WordMask()], [4]),
}
"""The masks of a row, and the heads of each."""
TABLES = [(0,), (1,), (0, 1)]
METHODS = [*MASKS, *(f"{name}, walks" for name in MASKS if name not in ("remembered", "one each, summed"))]


def graphs_of(target: str, count: int) -> list[Data]:
    """Graphs with their targets, ``y [N, 1]``."""
    torch.manual_seed(0)
    graphs = []
    for _ in range(count):
        edges = [to_undirected(torch.randint(NODES, (2, 3 * NODES // 2))) for _ in range(2)]
        types = torch.tensor([0, 1]).repeat_interleave(torch.tensor([each.size(1) for each in edges]))
        graphs.append(Data(torch.randn(NODES, 4), torch.cat(edges, 1), edge_type=types))
        one, other = relation_matrices(graphs[-1])
        first, second, both = normalize(torch.stack([one, other, one + other]), 1, dim=2)
        means = {"difference": first - second, "path": first @ second, "merged": both}[target]
        graphs[-1].y = means @ graphs[-1].x[:, :1]
    return graphs


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    begin(run)
    masks, heads = MASKS[row["method"].removesuffix(", walks")](walks if "walks" in row["method"] else exact)
    model = GPSModel(4, WIDTH, 1, 1, attn=lambda _: MaskedAttention(WIDTH, HEADS, "elu1", masks, mask_heads=heads))
    walked = [AddRandomWalks(seed=run, max_length=LENGTH, edge_type=kept, name=name_of(kept)) for kept in TABLES]
    prepared = iter(Compose(walked)(graphs_of(row["dataset"], sum(GRAPHS.values()))))
    parts = {name: [next(prepared) for _ in range(count)] for name, count in GRAPHS.items()}
    return fit_graphs(model, parts, mse_loss, relative_error, BATCH, epochs=epochs, rate=RATE, decay=DECAY)


COMPARISON = Comparison(
    __doc__,
    "relations",
    dict.fromkeys(("difference", "path", "merged"), EPOCHS),
    METHODS,
    make_run,
    "Mean squared error over the variance, after the epoch of the least validation error.",
    {"dataset": "target", "method": "masks"},
    form=(1, 3),
    label="mean squared error over variance, test",
)


if __name__ == "__main__":
    COMPARISON.start()
