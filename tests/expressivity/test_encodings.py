import random

import numpy as np
import pytest
import torch
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose

from pyg_topomask.expressivity import distinguishes, laplacian_invariants
from pyg_topomask.transforms import AddRandomWalks
from tests.expressivity.graphs import csl, cycles, graph, relabelled

RWSE, LAPPE = AddRandomWalkPE(8), AddLaplacianEigenvectorPE(4)


@pytest.mark.parametrize(("num_walks", "max_length"), [(1, 0), (1, 1), (4, 3)])
def test_walk_tables_are_no_encodings(num_walks, max_length):
    walks = AddRandomWalks(num_walks=num_walks, max_length=max_length, halt_prob=0.0)  # (1, 1): as many rows as edges
    assert not distinguishes(cycles(6), cycles(3, 3), walks)
    assert not distinguishes(cycles(6), relabelled(cycles(6), random.Random(1)), walks)
    assert not distinguishes(cycles(6), relabelled(cycles(6), random.Random(1)), Compose([walks, RWSE]))


def noise(data):
    data.noise = torch.randn(data.num_nodes, 1)
    return data


def node_numbers(data):
    data.x = torch.arange(data.num_nodes).view(-1, 1)
    return data


def rewired(data):
    data.edge_index = torch.cat([data.edge_index, torch.randint(data.num_nodes, (2, 3))], dim=1)
    return data


@pytest.mark.parametrize(("transform", "name"), [(noise, "'noise'"), (node_numbers, "'x'"), (rewired, "'edge_index'")])
def test_encodings_that_do_not_follow_a_relabelling_are_refused(transform, name):
    with pytest.raises(ValueError, match=f"{name} differs between a graph and a relabelled copy"):
        distinguishes(csl(11, 2), csl(11, 3), transform)


@pytest.mark.parametrize("name", ["cycle_index", "rebatched", "adaptr"])
def test_an_encoding_that_is_left_out_for_its_name_is_told(name):
    def numbered(data):
        data[name] = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
        return data

    with pytest.warns(UserWarning, match=f"'{name}' is not compared"):
        assert not distinguishes(cycles(6), cycles(3, 3), numbered)


def test_own_invariant_encodings_are_taken():
    def degree(data):
        data.degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes).view(-1, 1).float() / 3
        data.edge_degree = data.degree[data.edge_index[0]]
        return data

    star, path = graph(4, [(0, 1), (0, 2), (0, 3)]), graph(4, [(0, 1), (1, 2), (2, 3)])
    assert not distinguishes(star, path, rounds=0)
    assert distinguishes(star, path, degree, rounds=0)


def test_wrapped_laplacian_eigenvectors_are_replaced_by_invariants():
    data = cycles(8)
    assert not distinguishes(data, relabelled(data, random.Random(0)), lambda graph: LAPPE(graph))
    assert distinguishes(csl(11, 2), csl(11, 3), lambda graph: LAPPE(graph))


def test_laplacian_invariants_of_a_cycle():
    n, k = 7, 3
    value = laplacian_invariants(cycles(n), k)
    expected = 1 - np.cos(2 * np.pi * np.array([1, 1, 2]) / n)  # the eigenspace of frequency 2 is cut by k = 3
    assert value.shape == (n, 2 * k)
    np.testing.assert_allclose(value[:, :k], np.tile(expected, (n, 1)), atol=1e-12)
    np.testing.assert_allclose(value[:, k:], 2 / n, atol=1e-12)
    assert (laplacian_invariants(graph(2, [(0, 1)]), 3)[:, 1:3] == -1).all()
    with pytest.raises(ValueError, match=r"edge weights ≥ 0 \(got -3"):
        laplacian_invariants(graph(2, [(0, 1)], edge_weight=torch.tensor([1.0, -3.0])), 2)


def test_inputs_and_random_state_stay_as_they_were():
    data, state = csl(11, 2), torch.get_rng_state()
    before = data.clone()
    distinguishes(data, csl(11, 3), Compose([RWSE, LAPPE, lambda graph: LAPPE(graph)]))
    assert list(data.to_dict()) == list(before.to_dict())
    assert torch.equal(data.edge_index, before.edge_index)
    assert torch.equal(torch.get_rng_state(), state)
