import numpy as np
import pytest
import torch
from torch_geometric.utils import to_dense_adj, to_undirected

from pyg_topomask.datasets import MOTIFS, MotifDataset
from pyg_topomask.datasets.motif import random_pairs

# From their definitions: nodes, edges, sorted degrees, triangles, closed walks of length 4.
SHAPES = {
    "caveman": (9, 12, [2] * 6 + [4] * 3, 4),
    "circle": (10, 10, [2] * 10, 0),
    "grid": (9, 12, [2] * 4 + [3] * 4 + [4], 0),
    "ladder": (10, 13, [2] * 4 + [3] * 6, 0),
    "circular_ladder": (10, 15, [3] * 10, 0),
}


def dense(edges, num_nodes):
    return to_dense_adj(edges, max_num_nodes=num_nodes)[0].long().numpy()


def adjacency(motif):
    return dense(to_undirected(torch.tensor(MOTIFS[motif]).T), SHAPES[motif][0])


@pytest.mark.parametrize("motif", SHAPES)
def test_motif_is_the_graph_of_its_name(motif):
    num_nodes, num_edges, degrees, triangles = SHAPES[motif]
    adj = adjacency(motif)
    assert adj.max() == 1
    assert adj.trace() == 0
    assert adj.sum() == 2 * num_edges
    assert sorted(adj.sum(0)) == degrees
    assert np.trace(adj @ adj @ adj) == 6 * triangles
    assert (np.linalg.matrix_power(adj + np.eye(num_nodes, dtype=int), num_nodes) > 0).all()  # connected


@pytest.mark.parametrize("motif", SHAPES)
def test_graphs_follow_the_protocol(tmp_path, motif):
    dataset = MotifDataset(tmp_path, motif, num_graphs=200, num_nodes=60, seed=3)
    small, num_edges = SHAPES[motif][:2]
    planted = adjacency(motif)
    degree = planted.sum() / small
    large_degrees, cross_counts = [], []
    assert dataset.y.sum() == 100
    for data in dataset:
        assert data.num_nodes == 60 + small  # in both classes
        adj = dense(data.edge_index, data.num_nodes)
        assert adj.max() == 1
        if data.y.item() == 1:
            assert (adj[60:, 60:] == planted).all()
        else:
            assert adj[60:, 60:].sum() == 2 * num_edges
            assert (adj[60:, 60:] != planted).any()
        large_degrees.append(adj[:60, :60].sum() / 60)
        cross_counts.append(adj[:60, 60:].sum())
    assert min(cross_counts) >= 1
    for values, expected in ((large_degrees, degree), (cross_counts, 0.4 * small)):
        error = np.std(values) / len(values) ** 0.5
        assert abs(np.mean(values) - expected) <= 5 * error + 0.03  # the forced edge adds exp(-0.4 * 9) = 0.03


def test_features_are_the_largest_neighbour_degrees(tmp_path):
    for data in MotifDataset(tmp_path, "caveman", num_graphs=10, num_nodes=80):
        adj = dense(data.edge_index, data.num_nodes)
        degree = adj.sum(1)
        for node in range(data.num_nodes):
            largest = sorted(degree[adj[node] > 0], reverse=True)[:5]
            assert data.x[node].tolist() == [*largest, *[0] * (5 - len(largest))]


def test_label_cannot_be_read_from_the_number_of_edges(tmp_path):
    dataset = MotifDataset(tmp_path, "circular_ladder", num_graphs=1000)
    edges = torch.tensor([data.num_edges / 2 for data in dataset])
    label = torch.tensor([data.y.item() for data in dataset]).bool()
    gap = edges[label].mean() - edges[~label].mean()
    assert gap.abs() <= 5 * (2 * edges.var() / 500).sqrt()


def test_random_pairs_are_uniform_and_distinct():
    rng = np.random.default_rng(0)
    row, col = random_pairs(rng, 7, 21)
    assert set(zip(row.tolist(), col.tolist())) == {(i, j) for j in range(7) for i in range(j)}
    counts = np.zeros((5, 5))
    for _ in range(4000):
        row, col = random_pairs(rng, 5, 3)
        counts[row, col] += 1
    expected = 4000 * 3 / 10
    upper = counts[np.triu_indices(5, 1)]
    assert np.abs(upper - expected).max() <= 5 * (expected * 0.7) ** 0.5
