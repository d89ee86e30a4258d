import random

import torch
from torch_geometric.nn import GCNConv, GINConv, GINEConv

from pyg_topomask.expressivity import distinguishes
from pyg_topomask.nn import GPSModel, MaskedAttention
from tests.expressivity.graphs import csl, cycles, random_graph, relabelled, switched

CONVS = {
    "GCN": lambda _: GCNConv(8, 8),
    "GIN": lambda _: GINConv(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))),
    "GINE": lambda _: GINEConv(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())),
}


def model_gap(data1, data2, conv, kernel, norm):
    attn = lambda _: MaskedAttention(8, heads=2, kernel=kernel)  # noqa: E731
    settings = {"edge_dim": 1 if conv == "GINE" else None, "pool": "add", "norm": norm}
    model = GPSModel(data1.x.size(1), 8, 4, 3, CONVS[conv], attn, **settings).double().eval()
    with torch.no_grad():
        edges = [d.edge_attr if conv == "GINE" else None for d in (data1, data2)]
        out = [model(d.x, d.edge_index, graph=d, edge_attr=e) for d, e in zip((data1, data2), edges)]
    return float((out[0] - out[1]).abs().max() / (1 + out[0].abs().max()))


def model_pairs(rng, count):
    """Pairs of which many agree for colour refinement, with features of few values and edge features."""
    regular = [cycles(6), cycles(3, 3), cycles(8), cycles(4, 4), cycles(3, 5), csl(11, 2), csl(11, 3), csl(13, 5)]
    for trial in range(count):
        first = rng.choice(regular) if trial % 3 else random_graph(rng, rng.randrange(2, 9))
        same_size = [data for data in regular if data.num_nodes == first.num_nodes]
        choices = [switched(first, rng) if first.num_edges > 6 else first, *same_size]
        result = []
        for data in (first, rng.choice(choices)):
            data = relabelled(data, rng)
            data.x = torch.ones(data.num_nodes, 2, dtype=torch.float64)
            if trial % 4 == 0:
                data.x[0] = 0.0
            data.edge_attr = torch.ones(data.num_edges, 1, dtype=torch.float64) * 0.3
            result.append(data)
        yield result


def test_an_untrained_model_separates_no_more_than_the_test():
    rng, equal, separated = random.Random(11), 0, 0
    for trial, (first, second) in enumerate(model_pairs(rng, 100)):
        conv, kernel = list(CONVS)[trial % 3], ("softmax", "relu")[trial % 2]
        gap = model_gap(first, second, conv, kernel, (None, "batch_norm")[trial // 2 % 2])
        told_apart = distinguishes(first, second)
        assert told_apart or gap < 1e-10, (trial, conv, kernel, gap)
        equal, separated = equal + (not told_apart), separated + (gap > 1e-6)
    assert equal > 25
    assert separated > 10  # the models are no constants
