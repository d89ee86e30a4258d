import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch_geometric.data import Data

from pyg_topomask.ops import sample_walks
from pyg_topomask.ops.walks import sample as walks
from pyg_topomask.testing import GRAPHS, dense_adjacency
from pyg_topomask.transforms import AddRandomWalks
from tests.ops.walks.draws import draw, seeded


def dense(table, column, num_nodes, max_length):
    """Column of a walk table as [K + 1, N, N]; an entry given twice would add up."""
    out = torch.zeros(max_length + 1, num_nodes, num_nodes, dtype=torch.float64)
    out.index_put_((table.length, *table.index), getattr(table, column).double(), accumulate=True)
    return out


def same(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("index", "length", "load", "count"))


ONE_WAY_WEIGHTED = GRAPHS["one_way"].clone()
ONE_WAY_WEIGHTED.edge_weight = torch.tensor([0.5, -1.5, 2.0, 0.25, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("halt_prob", [0.0, 0.3])
@pytest.mark.parametrize("data", [*GRAPHS.values(), ONE_WAY_WEIGHTED], ids=[*GRAPHS, "one_way_weighted"])
def test_expectations_are_matrix_powers(data, halt_prob):
    draws, num_nodes, adj = 300, data.num_nodes, dense_adjacency(data)
    tables = [draw(data, seed, num_walks=32, max_length=4, halt_prob=halt_prob) for seed in range(draws)]
    neighbours = (adj != 0).double()
    uniform = neighbours / neighbours.sum(1, keepdim=True).clamp(min=1)
    for column, step in [("load", adj), ("count", (1 - halt_prob) * uniform)]:
        samples = torch.stack([dense(table, column, num_nodes, 4) for table in tables])
        wanted = torch.stack([torch.linalg.matrix_power(step, k) for k in range(5)])
        error = (samples.mean(0) - wanted).abs()
        assert (error <= 5 * samples.std(0) / draws**0.5 + 1e-6).all()  # five standard errors


def test_steps_are_uniform_over_neighbours_and_halt_with_the_given_probability():
    hub, walks_each = 7, 20000
    edges = torch.tensor([[0] * hub, list(range(1, hub + 1))])
    for seed in range(3):
        table = sample_walks(edges, hub + 1, num_walks=walks_each, max_length=1, halt_prob=0.2, generator=seeded(seed))
        hits = dense(table, "count", hub + 1, 1)[1, 0, 1:] * walks_each
        observed = torch.cat([hits, walks_each - hits.sum()[None]]).numpy()  # the last: halted
        expected = np.array([0.8 / hub] * hub + [0.2]) * walks_each
        assert ((observed - expected) ** 2 / expected).sum() < chi2.ppf(0.999, hub)


def test_walkers_of_one_start_and_steps_of_one_walk_are_independent():
    # Two steps on the complete directed graph with loops: every (first, second) pair equally likely.
    row, col = torch.cartesian_prod(torch.arange(3), torch.arange(3)).t()
    draws = 1500
    edges = torch.stack([row, col]).repeat(1, draws) + 3 * torch.arange(draws).repeat_interleave(9)
    table = sample_walks(edges, 3 * draws, num_walks=1, max_length=2, generator=seeded(0))
    visits = torch.zeros(3, 3 * draws, dtype=torch.int64)  # where the walk of each start is
    visits[table.length, table.index[0]] = table.index[1] % 3
    visits = visits.view(3, draws, 3).numpy()
    pairs, starts = np.zeros((3, 3)), np.zeros((3, 3))
    np.add.at(pairs, (visits[1, :, 0], visits[2, :, 0]), 1)
    np.add.at(starts, (visits[1, :, 0], visits[1, :, 1]), 1)
    for observed in (pairs, starts):
        assert ((observed - draws / 9) ** 2 / (draws / 9)).sum() < chi2.ppf(0.9999, 8)


@pytest.mark.parametrize("data", GRAPHS.values(), ids=GRAPHS.keys())
def test_entries_are_sorted_and_unique_and_every_start_is_there(data):
    table = draw(data)
    key = ((table.index[0] * data.num_nodes + table.index[1]) * 4 + table.length).tolist()
    assert key == sorted(set(key))
    zero = table.length == 0
    assert table.index[:, zero].tolist() == [list(range(data.num_nodes))] * 2
    assert (table.load[zero] == 1).all()
    assert (table.count[zero] == 1).all()
    assert table.index.dtype == table.length.dtype == torch.int64
    assert table.load.dtype == table.count.dtype == (torch.float64 if "edge_weight" in data else torch.float32)


def test_counts_are_whole_visits_and_no_walk_outlives_its_length():
    table = draw(GRAPHS["two_parts"], num_walks=7, max_length=5)
    visits = table.count * 7
    zero = table.length == 0
    torch.testing.assert_close(visits, visits.round())
    alive = dense(table, "count", 6, 5)[1:].sum(2)  # [K, N]
    assert (alive.diff(dim=0) <= 1e-6).all()
    assert (alive <= 1 + 1e-6).all()
    assert table.length.max() <= 5
    assert (visits[~zero] >= 1 - 1e-6).all()


@pytest.mark.parametrize("shards", [[[0, 1], [2, 3, 4]], [[4], [0, 2], [1, 3]]])
def test_shards_equal_the_whole_bit_for_bit(shards):
    data = GRAPHS["weighted"]
    whole = draw(data)
    for start in shards:
        part = draw(data, start=torch.tensor(start))
        mine = torch.isin(whole.index[0], torch.tensor(start))
        assert same(part, walks.Walks(whole.index[:, mine], whole.length[mine], whole.load[mine], whole.count[mine]))
    assert same(draw(data, start=torch.tensor([3, 1, 1], dtype=torch.int32)), draw(data, start=torch.tensor([1, 3])))
    nothing = draw(data, start=torch.tensor([], dtype=torch.long))
    assert nothing.index.shape == (2, 0)


@pytest.mark.parametrize("walkers", [1, 9, 17])
def test_chunking_does_not_matter(monkeypatch, walkers):
    data = GRAPHS["weighted"]
    whole = draw(data)
    monkeypatch.setattr(walks, "_WALKERS_PER_BLOCK", {"cpu": walkers, "cuda": walkers})
    assert same(draw(data), whole)


def test_order_of_edges_does_not_matter():
    data = GRAPHS["weighted"]
    order = torch.randperm(data.num_edges)
    mixed = Data(
        edge_index=data.edge_index[:, order].int(), edge_weight=data.edge_weight[order], num_nodes=data.num_nodes
    )
    assert same(draw(mixed), draw(data))


def test_equal_edges_add_up_and_count_as_one_neighbour():
    once = Data(edge_index=torch.tensor([[0, 0, 1], [1, 2, 0]]), num_nodes=3)
    once.edge_weight = torch.tensor([0.75, 0.5, 1.0])
    twice = Data(edge_index=torch.tensor([[0, 0, 1, 0], [1, 2, 0, 1]]), num_nodes=3)
    twice.edge_weight = torch.tensor([0.25, 0.5, 1.0, 0.5])
    assert same(draw(once), draw(twice))
    unweighted = sample_walks(twice.edge_index, 3, num_walks=8, max_length=3, generator=seeded(0))
    doubled = sample_walks(
        once.edge_index, 3, edge_weight=torch.tensor([2.0, 1, 1]), num_walks=8, max_length=3, generator=seeded(0)
    )
    assert same(unweighted, doubled)


def test_generator_decides_the_walks():
    data, generator = GRAPHS["two_parts"], seeded(3)
    settings = {"num_walks": 8, "max_length": 3}
    first, second = (sample_walks(data.edge_index, 6, generator=generator, **settings) for _ in range(2))
    assert not same(first, second)
    assert same(sample_walks(data.edge_index, 6, generator=seeded(3), **settings), first)
    torch.manual_seed(5)
    default = sample_walks(data.edge_index, 6, **settings)
    assert not same(sample_walks(data.edge_index, 6, **settings), default)
    torch.manual_seed(5)
    assert same(sample_walks(data.edge_index, 6, **settings), default)
    state = torch.get_rng_state()
    sample_walks(data.edge_index, 6, generator=seeded(0), **settings)
    assert torch.equal(torch.get_rng_state(), state)  # a generator of one's own leaves the default alone


def test_two_tables_are_independent():
    data, draws = GRAPHS["star"], 1000
    transform = AddRandomWalks(num_walks=2, max_length=2, halt_prob=0.3)
    left, right = [], []
    for graph in transform([data] * draws):
        for samples, name in ((left, "walk"), (right, "walk_key")):
            out = torch.zeros(3, 5, 5, dtype=torch.float64)
            out[graph[f"{name}_length"].long(), graph[f"{name}_index"][0].long(), graph[f"{name}_index"][1].long()] = (
                graph[f"{name}_load"].double()
            )
            samples.append(out.flatten())
    left, right = torch.stack(left), torch.stack(right)
    moving = (left.std(0) > 0) & (right.std(0) > 0)
    left, right = left[:, moving] - left[:, moving].mean(0), right[:, moving] - right[:, moving].mean(0)
    correlation = (left.t() @ right) / draws / (left.std(0)[:, None] * right.std(0))
    assert moving.sum() > 20
    assert correlation.abs().max() < 5 / draws**0.5
    own = (left.t() @ left) / draws / (left.std(0)[:, None] * left.std(0))
    assert own.fill_diagonal_(0).abs().max() > 0.2  # the test would see dependence


def test_isolated_and_single_and_no_nodes():
    table = draw(GRAPHS["isolated"])
    assert table.index[:, table.index[0] == 1].tolist() == [[1], [1]]
    table = draw(GRAPHS["single"])
    assert (table.index.tolist(), table.length.tolist(), table.load.tolist()) == ([[0], [0]], [0], [1.0])
    table = sample_walks(torch.empty(2, 0, dtype=torch.long), 0, num_walks=2, max_length=2)
    assert table.index.shape == (2, 0)
    assert table.load.shape == (0,)
    table = draw(GRAPHS["path"], max_length=0)
    assert table.index.tolist() == [[0, 1, 2, 3]] * 2


def test_weights_are_not_modified_and_loads_are_the_product_of_the_walk():
    data = ONE_WAY_WEIGHTED
    before = data.edge_weight.clone()
    table = draw(data, num_walks=5, halt_prob=0.0)
    assert torch.equal(data.edge_weight, before)
    line = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
    line.edge_weight = torch.tensor([0.5, -2.0, 3.0], dtype=torch.float64)
    table = draw(line, num_walks=3, halt_prob=0.0)  # one neighbour each: nothing is random
    torch.testing.assert_close(dense(table, "load", 4, 3)[:, 0].diagonal(), torch.tensor([1, 0.5, -1, -3]).double())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"edge_index": torch.zeros(3, 2, dtype=torch.long)}, ValueError, r"shape \[2, E\] \(got \[3, 2\]\)"),
        ({"edge_index": torch.zeros(2, 2)}, TypeError, r"must hold integers.*got torch.float32"),
        ({"edge_index": torch.zeros(2, 2, dtype=torch.bool)}, TypeError, r"must hold integers.*got torch.bool"),
        ({"edge_index": [[0], [1]]}, TypeError, r"SparseTensor \(got list\)"),
        ({"edge_index": torch.tensor([[0], [4]])}, ValueError, "contains node 4, but nodes are 0 to 3"),
        ({"edge_index": torch.tensor([[-1], [2]])}, ValueError, "contains node -1"),
        ({"num_nodes": -1}, ValueError, "must not be negative"),
        ({"edge_weight": torch.ones(6, dtype=torch.long)}, TypeError, r"floating point \(got torch.int64\)"),
        ({"edge_weight": torch.ones(5)}, ValueError, r"one number per edge, \[6\] \(got \[5\]\)"),
        ({"edge_weight": torch.tensor([1, 1, torch.nan, 1, 1, 1])}, ValueError, "NaN or infinity"),
        ({"num_walks": 0}, ValueError, r"at least 1 \(got 0\)"),
        ({"max_length": -1}, ValueError, r"'max_length' must be at least 0: it counts hops \(got -1\)"),
        ({"halt_prob": -0.1}, ValueError, r"per-step probability in \[0, 1\) \(got -0.1\)"),
        ({"halt_prob": 1.0}, ValueError, r"per-step probability in \[0, 1\) \(got 1.0\)"),
        ({"halt_prob": float("nan")}, ValueError, "per-step probability"),
        ({"scheme": "levy"}, ValueError, r"one of iid.*got 'levy'"),
        ({"start": torch.tensor([0.0])}, ValueError, r"1-D integer tensor \(got torch.float32"),
        ({"start": torch.tensor([[0]])}, ValueError, "1-D integer tensor"),
        ({"start": torch.tensor([4])}, ValueError, r"nodes 0 to 3 \(got 4 to 4\)"),
        ({"start": torch.tensor([-1])}, ValueError, "nodes 0 to 3"),
    ],
)
def test_bad_arguments_are_refused(change, error, message):
    arguments = {"edge_index": GRAPHS["path"].edge_index, "num_nodes": 4, "num_walks": 2, "max_length": 2, **change}
    edge_index, num_nodes = arguments.pop("edge_index"), arguments.pop("num_nodes")
    with pytest.raises(error, match=message):
        sample_walks(edge_index, num_nodes, **arguments)


@pytest.mark.parametrize("name", ["star", "path", "weighted", "one_way", "isolated"])
@pytest.mark.parametrize("halt_prob", [0.0, 0.3])
def test_walks_that_follow_transitions_have_the_exact_means(name, halt_prob):
    data, draws = GRAPHS[name], 300
    weight = torch.rand(data.num_edges, generator=seeded(1), dtype=torch.float64) * 3 + 0.1
    num_nodes, adj = data.num_nodes, dense_adjacency(data)
    tables = [
        draw(data, seed, num_walks=32, max_length=3, halt_prob=halt_prob, transition=weight) for seed in range(draws)
    ]
    step = torch.zeros(num_nodes, num_nodes, dtype=torch.float64).index_put_(tuple(data.edge_index), weight, True)
    step = step / step.sum(1, keepdim=True).where(step.sum(1, keepdim=True) > 0, 1)
    for column, matrix in [("load", adj), ("count", (1 - halt_prob) * step)]:
        samples = torch.stack([dense(table, column, num_nodes, 3) for table in tables])
        wanted = torch.stack([torch.linalg.matrix_power(matrix, k) for k in range(4)])
        error = (samples.mean(0) - wanted).abs()
        assert (error <= 5 * samples.std(0) / draws**0.5 + 1e-6).all()


def test_transitions_do_not_depend_on_edge_order_shards_or_scale():
    data = GRAPHS["star"]
    weight = torch.arange(1.0, data.num_edges + 1)
    order = torch.randperm(data.num_edges, generator=seeded(2))
    whole, settings = draw(data, transition=weight), {"num_walks": 5, "max_length": 3, "halt_prob": 0.3}
    moved = sample_walks(data.edge_index[:, order], 5, generator=seeded(0), transition=4 * weight[order], **settings)
    part = draw(data, transition=weight, start=torch.tensor([1, 3]))
    plain = sample_walks(data.edge_index, 5, generator=seeded(0), transition=weight, **settings)
    assert torch.equal(moved.index, plain.index)
    assert torch.equal(moved.count, plain.count)
    mine = (whole.index[0] == 1) | (whole.index[0] == 3)
    assert torch.equal(whole.index[:, mine], part.index)
    assert torch.equal(whole.count[mine], part.count)


def test_an_edge_of_transition_zero_is_never_taken():
    edges = torch.tensor([[0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]])
    table = sample_walks(
        edges, 4, num_walks=200, max_length=3, transition=torch.tensor([1.0, 0, 0, 1, 1, 1]), generator=seeded(0)
    )
    assert set(table.index[1, (table.index[0] == 0)].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("transition", "words"),
    [
        (torch.ones(3), r"one floating-point number per edge, \[2\]"),
        (torch.tensor([1.0, -1.0]), "must be finite and ≥ 0"),
        (torch.tensor([1.0, 0.0]), "is 0 on all edges of node 1"),
    ],
)
def test_bad_transitions_are_refused(transition, words):
    with pytest.raises(ValueError, match=words):
        sample_walks(torch.tensor([[0, 1], [1, 0]]), 2, num_walks=1, max_length=1, transition=transition)
