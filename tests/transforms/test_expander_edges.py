import math

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.ops.expander import EXPANDERS, random_cycles, spectral_gap
from pyg_topomask.transforms import AddExpanderEdges


def ring(num_nodes):
    node = torch.arange(num_nodes)
    return Data(edge_index=torch.stack([node, node.roll(1)]), num_nodes=num_nodes)


def expanded(data, **settings):
    return AddExpanderEdges(**{"seed": 0, **settings})(data.clone())


def multiplicity(index, num_nodes):
    counts = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    return counts.index_put_(tuple(index.long()), torch.ones(index.size(1), dtype=torch.float64), accumulate=True)


@pytest.mark.parametrize("degree", [1, 3, 5])
@pytest.mark.parametrize("num_nodes", [*range(12, 60, 3), 13, 120, 193, 250, 300])
def test_regular_symmetric_connected_without_loops(degree, num_nodes):
    data = expanded(ring(num_nodes), degree=degree)
    adj = multiplicity(data.expander_index, num_nodes)
    assert torch.equal(adj, adj.t())
    assert (adj.diagonal() == 0).all()
    assert (adj.sum(0) == 2 * degree).all()
    gap = torch.linalg.eigvalsh(torch.diag(adj.sum(0)) - adj)[1]
    assert gap > max(1e-9, 2 * degree - 2 * math.sqrt(2 * degree - 1) - 0.101)  # the best but for 0.1
    key = data.expander_index[0].long() * num_nodes + data.expander_index[1]
    assert torch.equal(key, key.sort()[0])
    assert data.expander_index.dtype == torch.int32
    assert data.expander_size == num_nodes
    assert set(data.keys()) - set(ring(num_nodes).keys()) == {"expander_index", "expander_size"}


@pytest.mark.parametrize("algorithm", ["Random-d", "Random-d-2"])
def test_permutations_join_every_node_to_its_image(algorithm):
    draw, degree = EXPANDERS[algorithm], 4
    for num_nodes in (12, 40):
        adj = multiplicity(draw(num_nodes, degree, torch.Generator().manual_seed(1)), num_nodes)
        assert torch.equal(adj, adj.t())
        assert (adj.diagonal() == 0).all()
        assert (adj.sum(0) <= 2 * degree).all()
    # Chances of fixed points: degree nodes are expected over all permutations, whatever the number of nodes.
    missing = [2 * degree * 30 - draw(30, degree, torch.Generator().manual_seed(i)).size(1) for i in range(400)]
    mean = sum(missing) / len(missing) / 2
    assert abs(mean - degree) < 5 * (degree / len(missing)) ** 0.5  # five standard errors of a Poisson number
    data = expanded(ring(50), degree=degree, algorithm=algorithm)
    adj = multiplicity(data.expander_index, 50)
    assert torch.linalg.eigvalsh(torch.diag(adj.sum(0)) - adj)[1] > 1  # disconnected draws are not taken
    assert not torch.equal(data.expander_index, expanded(ring(50), degree=degree).expander_index)


def test_each_cycle_visits_every_node_once():
    index = random_cycles(20, 3, torch.Generator().manual_seed(0))
    forward, backward = index.split(60, dim=1)
    assert torch.equal(forward, backward.flip(0))
    for cycle in forward.split(20, dim=1):
        after, node, seen = dict(cycle.t().tolist()), 0, set()
        while node not in seen:
            seen.add(node)
            node = after[node]
        assert seen == {*range(20)}


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 3, 7])
def test_small_graphs_are_complete(num_nodes):
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=num_nodes)
    index = expanded(data, degree=3).expander_index
    assert index.shape == (2, num_nodes * (num_nodes - 1))
    assert torch.equal(multiplicity(index, num_nodes), 1 - torch.eye(num_nodes, dtype=torch.float64))


@pytest.mark.parametrize("num_nodes", [20, 150, 400])
def test_measured_gap_is_the_eigenvalue(num_nodes):
    index = random_cycles(num_nodes, 3, torch.Generator().manual_seed(1))
    adj = multiplicity(index, num_nodes)
    wanted = float(torch.linalg.eigvalsh(torch.diag(adj.sum(0)) - adj)[1])
    assert spectral_gap(index, num_nodes) == pytest.approx(wanted, abs=1e-3)


def test_a_draw_that_expands_badly_is_repeated():
    bound, gaps = 4 - 2 * math.sqrt(3) - 0.1, []
    for draws in (1, 100):
        indices = (expanded(ring(60), degree=2, seed=seed, max_iters=draws).expander_index for seed in range(30))
        gaps.append([spectral_gap(index.long(), 60) for index in indices])
    assert min(gaps[0]) < bound <= min(gaps[1])
    assert all(one == best for one, best in zip(*gaps) if one >= bound)  # the first one that suffices


def test_no_edges_at_all_and_a_second_time():
    points = Data(pos=torch.rand(20, 3))
    data = AddExpanderEdges(seed=0, num_virtual=2)(points)
    assert data.expander_index.shape == (2, 200)
    assert data.expander_virtual == 2
    again = AddExpanderEdges(seed=0, degree=2)(data)
    assert again.expander_index.shape == (2, 80)
    assert "expander_virtual" not in again
    assert set(points.keys()) == {"pos"}
