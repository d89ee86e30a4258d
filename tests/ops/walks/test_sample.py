"""Walks, alone and coupled: those of walkers moved one by one, unbiased, and the same in shards of any size."""

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
from pyg_topomask.ops.walks.settings import walk_settings
from pyg_topomask.ops.walks.transition import step_table
from pyg_topomask.testing import GRAPHS, dense_adjacency
from tests.matrices import normalised_adjacency
from tests.ops.walks.draws import draw, draw_many, seeded

SCHEMES = {
    "iid": {},
    "antithetic": {"scheme": "antithetic"},
    "repelling": {"scheme": "repelling"},
    "blocks": {"scheme": "repelling", "block_size": 3},
}
each_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
COLUMNS = ("index", "length", "load", "count", "own")
LENGTHS = (0.1, 0.4, 0.3, 0.2)
MODULATION = torch.tensor([1.0, 0.5, 0.25, -0.125], dtype=torch.float64)
LOW = 2**64 - 1
HUB = Data(edge_index=torch.tensor([[0] * 5, [1, 2, 3, 4, 5]]), num_nodes=6)


def features(loads):
    """Graph random features under MODULATION, [draws, N, N]."""
    return torch.einsum("k,dkij->dij", MODULATION, loads)


def powers(matrix, max_length=3):
    return torch.stack([torch.linalg.matrix_power(matrix, k) for k in range(max_length + 1)])


def monomials(modulation):
    return torch.stack([modulation[a] * modulation[b] for b in range(len(modulation)) for a in range(b + 1)])


def assert_mean(samples, wanted):
    """Within five standard errors."""
    error = (samples.mean(0) - wanted).abs()
    assert (error <= 5 * samples.std(0) / len(samples) ** 0.5 + 1e-6).all()


def assert_drawn(observed, expected, prob=1e-4):
    observed, expected = np.asarray(observed), np.asarray(expected)
    assert ((observed - expected) ** 2 / expected).sum() < chi2.ppf(1 - prob, expected.size - 1)


def same(a, b, names=COLUMNS):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


def mix(z):  # SplitMix64 on Python's integers
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & LOW
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & LOW
    return z ^ (z >> 31)


GOLDEN = 0x9E3779B97F4A7C15


def walk_reference(data, seed, num_walks, max_length, halting, scheme, block_size):
    """Walkers one by one, from the definitions: for each start and walk the list of (node, load). They halt before step
    ``k`` with probability ``halting[k - 1]``.
    """
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
                if not neighbours[node] or high < round(halting[step - 1] * 2**32):
                    continue
                going.append(walk)
                choices = list(neighbours[node])
                if scheme == "repelling":
                    choices = left[walk // block_size, node]
                    choices.extend(neighbours[node] if not choices else [])
                picked = choices.pop((draws[walk] & (2**32 - 1)) * len(choices) >> 32)
                load *= float(adj[node, picked]) * len(neighbours[node]) / (1 - halting[step - 1])
                paths[walk].append((picked, load))
            alive = going
        found[start] = paths
    return found


@each_scheme
@pytest.mark.parametrize("name", ["star", "weighted", "one_way", "isolated", "single", "two_parts"])
@pytest.mark.parametrize("lengths", [None, (0.1, 0.5, 0, 0.25, 0.15), "uniform"])
def test_walks_are_those_of_walkers_moved_one_by_one(name, scheme, lengths):
    data = GRAPHS[name].clone()
    data.edge_weight = dense_adjacency(data)[tuple(data.edge_index)]
    settings = {"num_walks": 7, "max_length": 4, "scheme": "iid", **scheme}
    halt_prob = 0.2 if lengths is None else 0.0
    table = draw(data, halt_prob=halt_prob, lengths=lengths, **settings)
    halting = {None: [0.2] * 4, "uniform": [1 / 5, 1 / 4, 1 / 3, 1 / 2]}.get(lengths, [0.1, 5 / 9, 0, 5 / 8])
    size = settings["block_size"] = walk_settings(**settings, halt_prob=0.0).block_size
    paths = walk_reference(data, int(draw_seeds(1, seeded(0))), halting=halting, **settings)
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
    assert (table.index.dtype, table.length.dtype) == (torch.int64, torch.int64)
    torch.testing.assert_close(table.load, torch.tensor([loads[key] for key in keys]).double())
    torch.testing.assert_close(table.count * 7, torch.tensor([visits[key] for key in keys]).double())
    torch.testing.assert_close(table.own, own)


@each_scheme
@pytest.mark.parametrize("halting", [{"halt_prob": 0.0}, {"halt_prob": 0.3}, {"halt_prob": 0.0, "lengths": LENGTHS}])
@pytest.mark.parametrize("name", ["star", "weighted", "one_way", "isolated"])
def test_loads_counts_and_the_corrected_diagonal_are_unbiased(name, halting, scheme):
    data, adj = GRAPHS[name], dense_adjacency(GRAPHS[name])
    scheme = {**scheme, "block_size": 4} if scheme.get("scheme") == "repelling" else scheme  # one block has no diagonal
    settings = walk_settings(8, 3, **halting, **scheme)
    loads, counts, own = draw_many(data, 300, **halting, **scheme)
    tail = torch.tensor([1, 0.9, 0.5, 0.2]) if "lengths" in halting else (1 - halting["halt_prob"]) ** torch.arange(4)
    assert settings.tail == pytest.approx(tail.tolist())
    uniform = (adj != 0).double() / (adj != 0).sum(1, keepdim=True).clamp(min=1)
    diagonal = (features(loads).square().sum(2) - own @ monomials(MODULATION)) / (1 - settings.coupled_share)
    assert_mean(loads, powers(adj))
    assert_mean(counts, tail[:, None, None] * powers(uniform))
    assert_mean(diagonal, features(powers(adj)[None])[0].square().sum(1))


@pytest.mark.parametrize("name", ["star", "weighted", "one_way"])
@pytest.mark.parametrize("halt_prob", [0.0, 0.3])
def test_walks_that_follow_transitions_have_the_exact_means(name, halt_prob):
    data = GRAPHS[name]
    weight = torch.rand(data.num_edges, generator=seeded(1), dtype=torch.float64) * 3 + 0.1
    loads, counts, _ = draw_many(data, 300, num_walks=32, halt_prob=halt_prob, transition=weight)
    step = torch.zeros(2 * (data.num_nodes,), dtype=torch.float64).index_put_(tuple(data.edge_index), weight, True)
    assert_mean(loads, powers(dense_adjacency(data)))
    assert_mean(counts, powers((1 - halt_prob) * step / step.sum(1, keepdim=True).clamp(min=1e-9)))


def test_two_repelling_walkers_take_any_two_neighbours_alike():
    draws, settings = 3000, {"num_walks": 2, "max_length": 1, "halt_prob": 0.0, "scheme": "repelling"}
    visited = draw_many(HUB, draws, **settings)[1][:, 1, 0].nonzero()[:, 1].view(draws, 2) - 1
    observed = torch.bincount(visited[:, 0] * 5 + visited[:, 1], minlength=25).view(5, 5)
    assert_drawn(observed[torch.ones(5, 5).triu(1).bool()], np.full(10, draws / 10))


FAMILIES = {
    "grid": from_networkx(nx.grid_2d_graph(6, 6)),
    "erdos_renyi": from_networkx(nx.gnp_random_graph(40, 0.12, seed=1)),
    "circle": from_networkx(nx.watts_strogatz_graph(24, 4, 0.2, seed=0)),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("scheme", "halt_prob"), [("antithetic", 0.5), ("repelling", 0.5), ("repelling", 0.0)])
def test_coupling_does_not_raise_the_variance(name, scheme, halt_prob):
    """At most that of independent walkers by more than three standard errors (one in 700 by chance)."""
    data, draws = FAMILIES[name], 60
    adj = normalised_adjacency(data)
    data = Data(edge_index=data.edge_index, edge_weight=adj[tuple(data.edge_index)], num_nodes=data.num_nodes)
    wanted = features(powers(adj)[None])
    errors = [
        (features(draw_many(data, draws, seed, halt_prob=halt_prob, scheme=kind)[0]) - wanted).square().sum((1, 2))
        for seed, kind in enumerate(("iid", scheme))
    ]
    gain = errors[0] - errors[1]
    assert gain.mean() > -3 * gain.std() / draws**0.5
    assert scheme == "antithetic" or gain.mean() > 3 * gain.std() / draws**0.5  # it is seen


SPLIT = SCHEMES | {"transition": {"transition": True}, "lengths": {"lengths": LENGTHS, "halt_prob": 0.0}}


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("settings", SPLIT.values(), ids=SPLIT)
def test_shards_blocks_and_the_order_of_edges_change_no_bit(settings, native, monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", native)
    data, order = FAMILIES["circle"].clone(), torch.randperm(FAMILIES["circle"].num_edges)
    data.edge_weight = torch.rand(data.num_edges, dtype=torch.float64)
    mixed = Data(edge_index=data.edge_index[:, order].int(), edge_weight=data.edge_weight[order], num_nodes=24)
    settings, moved = dict(settings), dict(settings)
    if "transition" in settings:
        settings["transition"] = torch.arange(1.0, data.num_edges + 1)
        moved["transition"] = 4 * settings["transition"][order]
    whole = draw(data, **settings)
    monkeypatch.setattr(walks, "_WALKERS_PER_BLOCK", {"cpu": 17})
    for shards in (1, 3):
        parts = [draw(data, start=start, **settings) for start in torch.arange(24).tensor_split(shards)]
        assert same(walks._concatenate(vars(part).values() for part in parts), whole)
    assert same(draw(mixed, **moved), whole)
    csr, settings["halt_prob"] = to_csr(data.edge_index, 24, data.edge_weight), settings.get("halt_prob", 0.3)
    sorted_edges = data.edge_index[0] * 24 + data.edge_index[1]
    if "transition" in settings:
        settings["transition"] = settings["transition"][sorted_edges.argsort()]
    prepared = sample_walks(csr, 24, num_walks=8, max_length=3, generator=seeded(0), **settings)
    assert same(prepared, whole)
    starts = torch.tensor([3, 1, 1], dtype=torch.int32)
    assert same(draw(data, start=starts, **settings), draw(data, start=torch.tensor([1, 3]), **settings))
    assert draw(data, start=starts[:0], **settings).index.shape == (2, 0)


def test_equal_edges_add_up_and_count_as_one_neighbour():
    once = Data(edge_index=torch.tensor([[0, 0, 1], [1, 2, 0]]), num_nodes=3)
    once.edge_weight = torch.tensor([0.75, 0.5, 1.0])
    twice = Data(edge_index=torch.tensor([[0, 0, 1, 0], [1, 2, 0, 1]]), num_nodes=3)
    twice.edge_weight = torch.tensor([0.25, 0.5, 1.0, 0.5])
    before = twice.edge_weight.clone()
    assert same(draw(once), draw(twice))
    assert torch.equal(twice.edge_weight, before)
    once.edge_weight = torch.tensor([2.0, 1, 1])
    assert same(draw(once), draw(Data(edge_index=twice.edge_index, num_nodes=3)))


def test_generator_decides_the_walks():
    data, generator = GRAPHS["two_parts"], seeded(3)
    settings = {"num_walks": 8, "max_length": 3}
    first, second = (sample_walks(data.edge_index, 6, generator=generator, **settings) for _ in range(2))
    assert not same(first, second, ("count",))
    assert same(sample_walks(data.edge_index, 6, generator=seeded(3), **settings), first)
    torch.manual_seed(5)
    default = sample_walks(data.edge_index, 6, **settings)
    assert not same(sample_walks(data.edge_index, 6, **settings), default, ("count",))
    torch.manual_seed(5)
    assert same(sample_walks(data.edge_index, 6, **settings), default)
    state = torch.get_rng_state()
    draw(data)
    assert torch.equal(torch.get_rng_state(), state)  # a generator of one's own leaves the default alone


def test_no_nodes_and_no_hops():
    table = sample_walks(torch.empty(2, 0, dtype=torch.long), 0, num_walks=2, max_length=2)
    assert (table.index.shape, table.load.shape) == ((2, 0), (0,))
    assert draw(GRAPHS["path"], max_length=0).index.tolist() == [[0, 1, 2, 3]] * 2


def test_visits_that_are_not_weighted():
    table, weighted = (draw(GRAPHS["weighted"], importance=importance) for importance in (False, True))
    assert torch.equal(table.load, table.count)
    assert same(table, weighted, ("index", "count"))


TRANSITION = r"one floating-point number per edge, \[6\]"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"edge_index": [[0], [1]]}, TypeError, r"SparseTensor \(got list\)"),
        ({"edge_index": to_csr(GRAPHS["path"].edge_index, 4), "num_nodes": 3}, ValueError, "but nodes are 0 to 2"),
        ({"edge_index": torch.tensor([[0], [4]])}, ValueError, "contains node 4, but nodes are 0 to 3"),
        ({"num_nodes": -1}, ValueError, "must not be negative"),
        ({"edge_weight": torch.ones(6, dtype=torch.long)}, TypeError, r"floating point \(got torch.int64\)"),
        ({"edge_weight": torch.ones(5)}, ValueError, r"one number per edge, \[6\] \(got \[5\]\)"),
        ({"edge_weight": torch.tensor([1, 1, torch.nan, 1, 1, 1])}, ValueError, "NaN or infinity"),
        ({"num_walks": 0}, ValueError, r"at least 1 \(got 0\)"),
        ({"max_length": -1}, ValueError, r"'max_length' must be at least 0: it counts hops \(got -1\)"),
        ({"halt_prob": -0.1}, ValueError, r"per-step probability in \[0, 1\) \(got -0.1\)"),
        ({"halt_prob": 1.0}, ValueError, r"per-step probability in \[0, 1\) \(got 1.0\)"),
        ({"lengths": "gamma"}, ValueError, "'lengths' must be one of uniform.*got 'gamma'"),
        ({"lengths": [0.5, 0.5]}, ValueError, r"0, 1, … 'max_length' = 2 hops.*\(got \[0.5, 0.5\]\)"),
        ({"lengths": [0.5, 0.1, 0.5]}, ValueError, "they add up to 1"),
        ({"lengths": [0.5, 0.5, 0.0]}, ValueError, "some walks must be that long"),
        ({"lengths": "uniform", "halt_prob": 0.5}, ValueError, r"pass only one of them \(got uniform and 0.5\)"),
        ({"scheme": "levy"}, ValueError, "one of iid, antithetic, repelling.*got 'levy'"),
        ({"scheme": "antithetic", "block_size": 4}, ValueError, "'block_size' is for scheme='repelling'.*got 4"),
        ({"scheme": "repelling", "block_size": 0}, ValueError, "'block_size' must be at least 1"),
        ({"scheme": "repelling", "transition": torch.ones(6)}, ValueError, "takes uniform steps"),
        ({"start": torch.tensor([0.0])}, ValueError, r"1-D integer tensor \(got torch.float32"),
        ({"start": torch.tensor([4])}, ValueError, r"nodes 0 to 3 \(got 4 to 4\)"),
        ({"transition": torch.ones(3)}, ValueError, TRANSITION),
        ({"transition": torch.full((6,), -1.0)}, ValueError, "must be finite and ≥ 0"),
        ({"transition": torch.zeros(6)}, ValueError, "is 0 on all edges of node 0"),
        ({"transition": (GRAPHS["path"].edge_index[0] < 3).float()}, ValueError, "is 0 on all edges of node 3"),
    ],
)
def test_bad_arguments_are_refused(change, error, message):
    arguments = {"edge_index": GRAPHS["path"].edge_index, "num_nodes": 4, "num_walks": 2, "max_length": 2, **change}
    edge_index, num_nodes = arguments.pop("edge_index"), arguments.pop("num_nodes")
    with pytest.raises(error, match=message):
        sample_walks(edge_index, num_nodes, **arguments)


@pytest.mark.parametrize("many", [257, 513, 2**13])
def test_only_transitions_of_0_are_never_taken(many):
    """Others count as at least d 2^-32 of the largest weight of a node with d > 256 neighbours, rounded to 2^-32."""
    edges = torch.stack([torch.zeros(many, dtype=torch.long), torch.arange(1, many + 1)])
    weight = torch.ones(many, dtype=torch.float64).index_fill(0, torch.tensor([0, 7, many - 1]), 2.0**-40)
    weight[9] = 0
    prob = step_table(to_csr(edges, many + 1), edges, weight).prob
    assert torch.equal(prob > 0, weight > 0)
    assert float(prob.sum()) == 1
    assert many * 2.0**-33 <= float(prob[7] / prob.max()) < 2.0**-18
    table = draw(HUB, num_walks=100, transition=torch.tensor([1.0, 0, 0, 1, 0]))
    assert set(table.index[1, table.index[0] == 0].tolist()) == {0, 1, 4}


def test_27_repelling_walks_of_3_hops_over_3_neighbours_have_no_variance():
    """The setting of the point clouds: 3³ walks take all ways, so their loads are the powers of the weights."""
    col = torch.stack([torch.randperm(20)[:3] for _ in range(20)]).flatten()
    edge_index, weight = torch.stack([torch.arange(20).repeat_interleave(3), col]), torch.rand(60).double()
    adjacency = torch.zeros(20, 20).double().index_put(tuple(edge_index), weight)
    wanted = powers(adjacency)
    for scheme in ("repelling", "iid"):
        walks = sample_walks(edge_index, 20, num_walks=27, max_length=3, edge_weight=weight, scheme=scheme)
        place = (walks.length.long(), *walks.index.long())
        found = torch.zeros_like(wanted).index_put(place, walks.load.double(), accumulate=True)
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6) == (scheme == "repelling")
