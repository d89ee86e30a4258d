"""Coupled walkers: each alone walks as an independent one does, and together they err no more."""

from collections import Counter, defaultdict

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

from pyg_topomask.ops import sample_walks
from pyg_topomask.ops.csr import to_csr
from pyg_topomask.ops.hashing import draw_seeds
from pyg_topomask.ops.walks import sample as walks
from pyg_topomask.ops.walks.merge import revisits
from pyg_topomask.ops.walks.settings import walk_settings
from pyg_topomask.ops.walks.transition import step_table
from pyg_topomask.testing import GRAPHS, dense_adjacency
from tests.ops.walks.draws import draw, seeded

SCHEMES = [("iid", {}), ("antithetic", {}), ("repelling", {}), ("repelling", {"block_size": 3})]
each_scheme = pytest.mark.parametrize(("scheme", "more"), SCHEMES, ids=["iid", "antithetic", "repelling", "blocks"])
MODULATION = torch.tensor([1.0, 0.5, 0.25, -0.125], dtype=torch.float64)
LOW = 2**64 - 1


def dense(table, num_nodes, max_length=3):
    out = torch.zeros(max_length + 1, num_nodes, num_nodes, dtype=torch.float64)
    out[(table.length, *table.index)] = table.load.double()
    return out


def draw_many(data, draws, seed=0, **settings):
    """Loads [draws, K + 1, N, N] and own products [draws, N, Q] of walks on as many copies of a graph."""
    size, settings = data.num_nodes, {"num_walks": 8, "max_length": 3, **settings}
    copies = torch.arange(draws).repeat_interleave(data.num_edges) * size
    weight = None if data.get("edge_weight") is None else data.edge_weight.repeat(draws)
    edges = data.edge_index.repeat(1, draws) + copies
    table = sample_walks(edges, size * draws, edge_weight=weight, generator=seeded(seed), **settings)
    start, visited = table.index
    loads = torch.zeros(draws, settings["max_length"] + 1, size, size, dtype=torch.float64)
    loads[start // size, table.length, start % size, visited % size] = table.load.double()
    return loads, table.own.double().view(draws, size, -1)


def features(loads):
    """Graph random features under MODULATION, [draws, N, N]."""
    return torch.einsum("k,dkij->dij", MODULATION, loads)


def monomials(modulation):
    return torch.stack([modulation[a] * modulation[b] for b in range(len(modulation)) for a in range(b + 1)])


def mix(z):  # SplitMix64 on Python's integers
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & LOW
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & LOW
    return z ^ (z >> 31)


GOLDEN = 0x9E3779B97F4A7C15


def walk_reference(data, seed, num_walks, max_length, halt_prob, scheme, block_size):
    """Walkers one by one, from the definitions: for each start and walk the list of (node, load)."""
    adj, found = dense_adjacency(data), {}
    neighbours = [adj[i].nonzero().flatten().tolist() for i in range(data.num_nodes)]
    for start in range(data.num_nodes):
        stream = mix((start * GOLDEN + seed + GOLDEN) & LOW)
        states = [mix((stream + (walk + 1) * GOLDEN) & LOW) for walk in range(num_walks)]
        paths, alive = [[(start, 1.0)] for _ in states], list(range(num_walks))
        for step in range(1, max_length + 1):
            draws = [mix((state + step * GOLDEN) & LOW) for state in states]
            left = defaultdict(list)  # neighbours not taken yet, by block and node
            going = []
            if scheme == "repelling":  # by what they leave together, those of one path after each other
                alive.sort(key=lambda walk: (walk // block_size, paths[walk][-1][0]))
            for walk in alive:
                node, load = paths[walk][-1]
                high = draws[walk] >> 32
                if scheme == "antithetic" and walk % 2 == 1:
                    high = ((draws[walk - 1] >> 32) + 2**31) % 2**32
                if not neighbours[node] or high < round(halt_prob * 2**32):
                    continue
                going.append(walk)
                choices = list(neighbours[node])
                if scheme == "repelling":
                    choices = left[walk // block_size, node]
                    choices.extend(neighbours[node] if not choices else [])
                picked = choices.pop((draws[walk] & (2**32 - 1)) * len(choices) >> 32)
                load *= float(adj[node, picked]) * len(neighbours[node]) / (1 - halt_prob)
                paths[walk].append((picked, load))
            alive = going
        found[start] = paths
    return found


@each_scheme
@pytest.mark.parametrize("name", ["star", "weighted", "one_way", "isolated", "two_parts"])
def test_walks_are_those_of_walkers_moved_one_by_one(name, scheme, more):
    data = GRAPHS[name].clone()
    data.edge_weight = dense_adjacency(data)[tuple(data.edge_index)]
    settings = {"num_walks": 7, "max_length": 4, "halt_prob": 0.2, "scheme": scheme}
    size = walk_settings(**settings, **more).block_size
    for seed in range(3):
        table = draw(data, seed, **settings, **more)
        paths = walk_reference(data, int(draw_seeds(1, seeded(seed))), **settings, block_size=size)
        loads, visits, own = defaultdict(float), Counter(), torch.zeros(data.num_nodes, 15, dtype=torch.float64)
        for start, of_start in paths.items():
            for first in range(0, 7, size):
                block = defaultdict(float)
                for path in of_start[first : first + size]:
                    for length, (node, load) in enumerate(path):
                        loads[start, node, length] += load / 7
                        visits[start, node, length] += 1
                        block[node, length] += load / 7
                for (node, a), x in block.items():
                    for (other, b), y in block.items():
                        own[start, max(a, b) * (max(a, b) + 1) // 2 + min(a, b)] += x * y * (node == other)
        keys = list(zip(*table.index.tolist(), table.length.tolist()))
        assert keys == sorted(loads)
        torch.testing.assert_close(table.load, torch.tensor([loads[key] for key in keys]).double())
        torch.testing.assert_close(table.count * 7, torch.tensor([visits[key] for key in keys]).double())
        torch.testing.assert_close(table.own, own)


@each_scheme
@pytest.mark.parametrize("halt_prob", [0.0, 0.3])
@pytest.mark.parametrize("name", ["star", "weighted", "one_way", "isolated"])
def test_loads_and_the_corrected_diagonal_are_unbiased(name, halt_prob, scheme, more):
    data, draws, adj = GRAPHS[name], 300, dense_adjacency(GRAPHS[name])
    more = {"block_size": 4} if scheme == "repelling" else more  # of one block alone there is no diagonal
    settings = walk_settings(8, 3, halt_prob, scheme, more.get("block_size"))
    powers = torch.stack([torch.linalg.matrix_power(adj, k) for k in range(4)])
    loads, own = draw_many(data, draws, halt_prob=halt_prob, scheme=scheme, **more)
    diagonal = (features(loads).square().sum(2) - own @ monomials(MODULATION)) / (1 - settings.coupled_share)
    for samples, wanted in ((loads, powers), (diagonal, features(powers[None])[0].square().sum(1))):
        error = (samples.mean(0) - wanted).abs()
        assert (error <= 5 * samples.std(0) / draws**0.5 + 1e-6).all()  # five standard errors


def test_without_the_correction_the_diagonal_would_be_too_large():
    data, draws = GRAPHS["star"].clone(), 1000
    data.edge_weight = torch.full((8,), 0.5, dtype=torch.float64)
    powers = torch.stack([torch.linalg.matrix_power(dense_adjacency(data), k) for k in range(4)])
    samples = features(draw_many(data, draws, num_walks=2, halt_prob=0.3)[0]).square().sum(2)
    error = samples.mean(0) - features(powers[None])[0].square().sum(1)
    assert error[0] > 5 * samples[:, 0].std() / draws**0.5


@each_scheme
def test_each_walker_alone_steps_uniformly_and_halts_with_the_given_probability(scheme, more):
    """Of one walk in eight, whichever: steps over the 5 neighbours of a hub, then halting."""
    data = Data(edge_index=torch.tensor([[0] * 5, [1, 2, 3, 4, 5]]), num_nodes=6)
    draws, chosen = 4000, {"num_walks": 8, "max_length": 1, "halt_prob": 0.25, "scheme": scheme, **more}
    stream = walks.start_stream(torch.zeros(draws, dtype=torch.int64), torch.arange(draws) * 7919)
    settings = walk_settings(8, 1, 0.25, scheme, more.get("block_size"))
    csr = walks.drop_zeros(walks.to_csr(data.edge_index, 6))
    visits = walks.move_walkers(walks.walk_graph(csr, settings, None), stream.new_zeros(draws), stream, 1, settings)[1]
    for walk in range(8):
        node = visits.node[visits.walker // draws == walk]
        observed = torch.bincount(node, minlength=6)[1:].tolist()
        observed.append(draws - sum(observed))
        expected = np.array([0.75 / 5] * 5 + [0.25]) * draws
        assert ((observed - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-4, 5), (walk, chosen)


def test_two_repelling_walkers_take_any_two_neighbours_alike():
    edges, draws = torch.tensor([[0] * 4, [1, 2, 3, 4]]), 6000
    stream = walks.start_stream(torch.zeros(draws, dtype=torch.int64), torch.arange(draws) * 104729)
    settings = walk_settings(2, 1, 0.0, "repelling")
    graph = walks.walk_graph(walks.to_csr(edges, 5), settings, None)
    visits = walks.move_walkers(graph, stream.new_zeros(draws), stream, 1, settings)[1]
    node = visits.node[visits.walker.argsort()].view(2, draws)
    observed = torch.bincount((node[0] - 1) * 4 + node[1] - 1, minlength=16).view(4, 4)
    assert (observed.diagonal() == 0).all()
    pairs = observed[~torch.eye(4, dtype=torch.bool)].numpy()
    assert ((pairs - draws / 12) ** 2 / (draws / 12)).sum() < chi2.ppf(1 - 1e-4, 11)


def test_repelling_walkers_visit_all_neighbours_equally_often():
    data = GRAPHS["star"]
    table = draw(data, num_walks=10, max_length=1, halt_prob=0.0, scheme="repelling")
    hub = (table.index[0] == 0) & (table.length == 1)
    assert sorted((table.count[hub] * 10).round().tolist()) == [2, 2, 3, 3]
    table = draw(data, num_walks=3, max_length=1, halt_prob=0.0, scheme="repelling")
    assert ((table.count[(table.index[0] == 0) & (table.length == 1)] * 3).round() == 1).all()
    in_blocks = draw(data, num_walks=8, max_length=1, halt_prob=0.0, scheme="repelling", block_size=4)
    torch.testing.assert_close(in_blocks.count[(in_blocks.index[0] == 0) & (in_blocks.length == 1)], torch.ones(4) / 4)


def test_27_repelling_walks_of_3_hops_over_3_neighbours_have_no_variance():
    generator = np.random.default_rng(0)
    col = torch.tensor(np.array([generator.choice(20, 3, replace=False) for _ in range(20)])).flatten()
    data = Data(edge_index=torch.stack([torch.arange(20).repeat_interleave(3), col]), num_nodes=20)
    data.edge_weight = torch.rand(60, dtype=torch.float64)
    settings = {"num_walks": 27, "max_length": 3, "halt_prob": 0.0}
    found = dense(draw(data, scheme="repelling", **settings), 20)
    adj = dense_adjacency(data)
    torch.testing.assert_close(found, torch.stack([torch.linalg.matrix_power(adj, k) for k in range(4)]))
    assert not torch.allclose(dense(draw(data, **settings), 20)[1], adj)


def test_of_two_antithetic_walkers_one_halts_at_even_odds():
    table = draw(GRAPHS["star"], num_walks=16, max_length=1, halt_prob=0.5, scheme="antithetic")
    alive = torch.zeros(5).index_add_(0, table.index[0], torch.where(table.length == 1, table.count, 0))
    torch.testing.assert_close(alive, torch.full((5,), 0.5))


def molecule():
    rings = nx.disjoint_union_all([nx.cycle_graph(6), nx.cycle_graph(5), nx.path_graph(8)])
    rings.add_edges_from([(0, 6), (3, 11), (8, 15)])
    return rings


def neighbours_on_a_plane():
    points = torch.rand(40, 2, generator=seeded(0))
    near = torch.cdist(points, points).topk(5, largest=False).indices[:, 1:]
    index = torch.stack([torch.arange(40).repeat_interleave(4), near.flatten()])
    return Data(edge_index=torch.cat([index, index.flip(0)], 1).unique(dim=1), num_nodes=40)


FAMILIES = {
    "grid": from_networkx(nx.grid_2d_graph(6, 6)),
    "knn": neighbours_on_a_plane(),
    "erdos_renyi": from_networkx(nx.gnp_random_graph(40, 0.12, seed=1)),
    "molecule": from_networkx(molecule()),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("scheme", "halt_prob"), [("antithetic", 0.5), ("repelling", 0.5), ("repelling", 0.0)])
def test_coupling_does_not_raise_the_variance(name, scheme, halt_prob):
    """At most that of independent walkers by more than three standard errors (one in 700 by chance)."""
    data, draws = FAMILIES[name], 60
    data.edge_index = data.edge_index.unique(dim=1)
    adj = dense_adjacency(data)
    scale = adj.sum(1).clamp(min=1).rsqrt()
    weight = (scale[:, None] * adj * scale)[tuple(data.edge_index)]
    data = Data(edge_index=data.edge_index, edge_weight=weight, num_nodes=data.num_nodes)
    powers = torch.stack([torch.linalg.matrix_power(scale[:, None] * adj * scale, k) for k in range(4)])
    errors = [
        (features(draw_many(data, draws, seed, halt_prob=halt_prob, scheme=kind)[0]) - features(powers[None]))
        .square()
        .sum((1, 2))
        for seed, kind in enumerate(("iid", scheme))
    ]
    gain = errors[0] - errors[1]
    assert gain.mean() > -3 * gain.std() / draws**0.5
    assert scheme == "antithetic" or gain.mean() > 3 * gain.std() / draws**0.5  # it is seen


@each_scheme
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_shards_equal_the_whole_bit_for_bit(scheme, more, shards, monkeypatch):
    data = FAMILIES["molecule"]
    whole = draw(data, scheme=scheme, **more)
    parts = [draw(data, start=start, scheme=scheme, **more) for start in torch.arange(19).tensor_split(shards)]
    monkeypatch.setattr(walks, "_WALKERS_PER_BLOCK", {"cpu": 17})
    for table in (walks._concatenate(parts), draw(data, scheme=scheme, **more)):
        for name in ("index", "length", "load", "count", "own"):
            assert torch.equal(getattr(table, name), getattr(whole, name)), name


def test_revisits_are_squares():
    """The squared norms of a table's rows, from the table itself."""
    table = draw(GRAPHS["weighted"])
    place = table.index[0] * 5 + table.index[1]
    squares = revisits(table.index[0], place, table.length, table.load.double(), 5, 3) @ monomials(MODULATION)
    features = (MODULATION[:, None, None] * dense(table, 5)).sum(0)
    torch.testing.assert_close(squares, features.square().sum(1))


def test_visits_that_are_not_weighted():
    table = draw(GRAPHS["weighted"], importance=False)
    assert torch.equal(table.load, table.count)
    weighted = draw(GRAPHS["weighted"])
    assert torch.equal(table.index, weighted.index)
    assert torch.equal(table.count, weighted.count)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "levy"}, "one of iid, antithetic, repelling.*got 'levy'"),
        ({"scheme": "antithetic", "block_size": 4}, "'block_size' is for scheme='repelling'.*got 4"),
        ({"scheme": "repelling", "block_size": 0}, "'block_size' must be at least 1"),
        ({"scheme": "repelling", "transition": torch.ones(8)}, "takes uniform steps"),
    ],
)
def test_bad_schemes_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        draw(GRAPHS["star"], **settings)


def test_no_positive_transition_is_rounded_to_0():
    """2^-40 of the largest weight of a node with many neighbours."""
    many = 2**13
    edges = torch.stack([torch.zeros(many, dtype=torch.long), torch.arange(1, many + 1)])
    weight = torch.full((many,), 1.0, dtype=torch.float64).index_fill(0, torch.tensor([0, 7, many - 1]), 2.0**-40)
    weight[9] = 0
    table = step_table(to_csr(edges, many + 1), edges, weight)
    assert ((table.prob > 0) == (weight > 0)).all()
    assert float(table.prob.sum()) == 1
    assert float(table.prob[7]) < 2.0**-30


@pytest.mark.parametrize("many", [257, 513])
def test_the_least_positive_transition_grows_with_the_number_of_neighbours(many):
    """It is at least d 2^-32 of the largest weight of a node with d > 256 neighbours."""
    edges = torch.stack([torch.zeros(many, dtype=torch.long), torch.arange(1, many + 1)])
    weight = torch.ones(many, dtype=torch.float64).index_fill(0, torch.tensor([many - 1]), 1e-12)
    prob = step_table(to_csr(edges, many + 1), edges, weight).prob
    assert float(prob[-1] / prob.max()) >= many * 2.0**-32
