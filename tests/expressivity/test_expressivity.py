import random

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GCNConv, GINConv, GINEConv
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose

from pyg_topomask.expressivity import distinguishes, laplacian_invariants, pairs
from pyg_topomask.nn import GPSModel, GRFMask, MaskedAttention
from pyg_topomask.operators import DenseOperator
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.testing import GRAPHS, empty_graph, permute
from pyg_topomask.transforms import AddRandomWalks

RWSE, LAPPE = AddRandomWalkPE(8), AddLaplacianEigenvectorPE(4)
ENCODINGS = {"none": None, "rwse": RWSE, "lappe": LAPPE, "both": Compose([RWSE, LAPPE])}


def graph(num_nodes, edges, directed=False, **attributes):
    edges = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
    edges = edges if directed else torch.cat([edges, edges.flip(0)], dim=1)
    return Data(edge_index=edges, num_nodes=num_nodes, **attributes)


def cycles(*sizes):
    edges, start = [], 0
    for size in sizes:
        edges += [(start + i, start + (i + 1) % size) for i in range(size)]
        start += size
    return graph(start, edges)


def csl(num_nodes, skip):
    return graph(num_nodes, [(i, (i + step) % num_nodes) for i in range(num_nodes) for step in (1, skip)])


def complete(num_nodes):
    return graph(num_nodes, [(i, j) for i in range(num_nodes) for j in range(i)])


def relabelled(data, rng):
    """Nodes and edges in another order."""
    moved = permute(data, torch.tensor(rng.sample(range(data.num_nodes), data.num_nodes), dtype=torch.long))
    order = torch.tensor(rng.sample(range(data.num_edges), data.num_edges), dtype=torch.long)
    moved.edge_index = moved.edge_index[:, order]
    for key in {"edge_attr", "edge_weight"} & set(data.to_dict()):
        moved[key] = data[key][order]
    return moved


def random_graph(rng, num_nodes, directed=False, labels=0, edge_labels=0, loops=False):
    prob = rng.choice([0.15, 0.3, 0.5])
    places = [(i, j) for i in range(num_nodes) for j in range(num_nodes) if (i < j or directed or loops) and i != j]
    places += [(i, i) for i in range(num_nodes)] if loops else []
    data = graph(num_nodes, [place for place in places if rng.random() < prob], directed or loops)
    if labels:
        data.x = torch.tensor([[rng.randrange(labels)] for _ in range(num_nodes)], dtype=torch.float64).view(-1, 1)
    if edge_labels:
        kinds = torch.tensor([rng.randrange(edge_labels) for _ in range(data.num_edges)], dtype=torch.float64)
        data.edge_attr = kinds.view(-1, 1) * 0.25
    return data


def switched(data, rng):
    """Edges rewired so that all degrees stay: often equal for colour refinement, and not isomorphic."""
    edges = [tuple(e) for e in data.edge_index.t().tolist() if e[0] < e[1]]
    for _ in range(20):
        (a, b), (c, d) = rng.sample(edges, 2)
        present = {frozenset(e) for e in edges}
        if len({a, b, c, d}) == 4 and not {frozenset((a, c)), frozenset((b, d))} & present:
            edges.remove((a, b))
            edges.remove((c, d))
            edges += [(a, c), (b, d)]
    return graph(data.num_nodes, edges)


def definition(first, second, rounds, mask=None):
    """The test as it is written down, with nested tuples in place of hashes: histograms of each round compared."""

    def read(data):
        n = data.num_nodes
        ones = torch.zeros(n, 1)
        color = [tuple(row) for row in (ones if data.x is None else data.x).tolist()]
        attr = torch.zeros(data.num_edges, 1) if data.edge_attr is None else data.edge_attr
        relation = {(v, u): (0, int(u == v), ()) for v in range(n) for u in range(n)}
        for (u, v), kind in zip(data.edge_index.t().tolist(), attr.tolist()):
            relation[v, u] = (1, int(u == v), tuple(kind))
        if mask is not None:
            entries = mask(data).round(decimals=7).tolist()
            relation = {(v, u): (*kind, entries[v][u]) for (v, u), kind in relation.items()}
        return n, color, relation

    graphs = [read(first), read(second)]
    table = {}
    for done in range(rounds + 1):
        if sorted(graphs[0][1]) != sorted(graphs[1][1]):
            return True
        if done == rounds:
            return False
        step = []
        for n, color, relation in graphs:
            new = []
            for v in range(n):
                seen = (color[v], tuple(sorted((color[u], relation[v, u]) for u in range(n))))
                new.append((table.setdefault(seen, len(table)),))
            step.append((n, new, relation))
        graphs = step
    raise AssertionError


@pytest.mark.parametrize("kind", ["plain", "directed", "labels", "edge_labels", "loops", "switched"])
def test_verdict_is_that_of_the_definition(kind):
    rng, verdicts = random.Random(7), []
    options = {
        "plain": {},
        "directed": {"directed": True},
        "labels": {"labels": 2},
        "edge_labels": {"labels": 2, "edge_labels": 2},
        "loops": {"loops": True, "edge_labels": 2},
        "switched": {},
    }[kind]
    for trial in range(130):
        n = rng.randrange(0, 7)
        if kind == "switched":
            wheel = graph(8, [(i, (i + 1) % 8) for i in range(8)] + [(0, 3), (0, 5), (2, 6)])
            first = rng.choice([cycles(6), cycles(3, 5), csl(9, 2), wheel, wheel])
            second = switched(first, rng)
        else:
            first = random_graph(rng, n, **options)
            second = random_graph(rng, n, **options) if trial % 3 == 1 else relabelled(first, rng)
            if trial % 3 == 2 and second.edge_attr is not None:
                order = rng.sample(range(second.num_edges), second.num_edges)
                second.edge_attr = second.edge_attr[torch.tensor(order, dtype=torch.long)]
        rounds = rng.randrange(0, 4)
        assert distinguishes(first, second, rounds=rounds) == definition(first, second, rounds)
        verdicts.append(definition(first, second, first.num_nodes))
        assert distinguishes(first, second) == verdicts[-1]
    assert 5 < sum(verdicts) < 125


@pytest.mark.parametrize(
    ("first", "second"),
    [(cycles(6), cycles(3, 3)), (csl(41, 2), csl(41, 3)), (csl(11, 2), csl(11, 3))],
    ids=["hexagon", "csl41", "csl11"],
)
def test_regular_graphs_need_encodings(first, second):
    assert not distinguishes(first, second)
    for transform in (RWSE, LAPPE, AddLaplacianEigenvectorPE(4, attr_name=None), AddLaplacianEigenvectorPE(4, "pe")):
        assert distinguishes(first, second, transform)
    assert not distinguishes(first, second, AddRandomWalkPE(1))  # no walk returns in one step


def test_relabelled_copies_are_never_told_apart():
    rng, special = random.Random(3), [cycles(8), cycles(4, 4), complete(6), csl(12, 3), graph(5, []), cycles(3, 3, 3)]
    weighted = GRAPHS["weighted"].clone()
    weighted.edge_weight = weighted.edge_weight.float()  # PyG's random-walk encoding takes no float64 weights
    special += [graph(9, [(0, i) for i in range(1, 9)]), *(GRAPHS | {"weighted": weighted}).values()]
    for trial in range(500):
        if trial < 5 * len(special):
            data = special[trial % len(special)]
        else:
            data = random_graph(rng, rng.randrange(1, 14), trial % 4 == 1, trial % 3, trial % 2, trial % 5 == 0)
        copy = relabelled(data, rng)
        for name, transform in ENCODINGS.items():
            assert not distinguishes(data, copy, transform), (trial, name)


def test_relabelled_copies_of_large_graphs():
    rng = random.Random(5)
    for transform in (RWSE, LAPPE):
        for data in (csl(300, 7), random_graph(rng, 150), cycles(*[5] * 30)):
            assert not distinguishes(data, relabelled(data, rng), transform)


CONVS = {
    "GCN": lambda _: GCNConv(8, 8),
    "GIN": lambda _: GINConv(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))),
    "GINE": lambda _: GINEConv(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())),
}


def model_gap(data1, data2, conv, kernel, norm):
    model = GPSModel(
        data1.x.size(1),
        8,
        4,
        3,
        CONVS[conv],
        lambda _: MaskedAttention(8, heads=2, kernel=kernel),
        edge_dim=1 if conv == "GINE" else None,
        pool="add",
        norm=norm,
    )
    model = model.double().eval()
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
    for trial, (first, second) in enumerate(model_pairs(rng, 500)):
        conv, kernel = list(CONVS)[trial % 3], ("softmax", "relu")[trial % 2]
        gap = model_gap(first, second, conv, kernel, (None, "batch_norm")[trial // 2 % 2])
        told_apart = distinguishes(first, second)
        assert told_apart or gap < 1e-10, (trial, conv, kernel, gap)
        equal, separated = equal + (not told_apart), separated + (gap > 1e-6)
    assert equal > 150
    assert separated > 50  # the models are no constants


def test_with_encodings_a_model_separates_csl_graphs_and_no_relabelled_copy():
    rng = random.Random(2)

    def encoded(data):
        data = RWSE(data)
        data.x = data.random_walk_pe.double()
        data.edge_attr = torch.ones(data.num_edges, 1, dtype=torch.float64)
        return data

    first, second = csl(11, 2), csl(11, 3)
    assert model_gap(encoded(first), encoded(second), "GIN", "softmax", None) > 1e-6
    assert model_gap(encoded(first), encoded(relabelled(first, rng)), "GIN", "softmax", None) < 1e-5


@pytest.mark.parametrize("shape", ["path", "random", "star"])
def test_ten_thousand_nodes(shape):
    n, rng = 10_000, random.Random(0)
    edges = {
        "path": [(i, i + 1) for i in range(n - 1)],
        "random": [(rng.randrange(n), rng.randrange(n)) for _ in range(4 * n)],
        "star": [(0, i) for i in range(1, n)],
    }[shape]
    data = graph(n, edges)
    assert not distinguishes(data, relabelled(data, rng))
    fewer = graph(n, edges[:-1])
    assert distinguishes(data, fewer)


def test_tiny_graphs():
    empty, one, two = graph(0, []), graph(1, []), graph(2, [])
    loop = graph(1, [(0, 0)], directed=True)
    for transform in ENCODINGS.values():
        assert not distinguishes(empty, empty, transform)
        assert not distinguishes(one, one, transform)
        assert distinguishes(empty, one, transform)
        assert distinguishes(one, two, transform)
    assert distinguishes(one, loop)
    assert not distinguishes(empty_graph(), empty_graph())


def test_rounds_limit_what_is_seen():
    first, second = graph(7, [(i, i + 1) for i in range(6)]), graph(7, [(0, 1), (1, 2), (3, 4), (4, 5), (5, 6), (6, 3)])
    assert distinguishes(first, second)
    assert not distinguishes(first, second, rounds=0)
    assert not distinguishes(first, second, rounds=1)
    assert distinguishes(first, second, rounds=2)


def test_direction_and_repeated_edges_count():
    away, towards = graph(3, [(0, 1), (0, 2)], directed=True), graph(3, [(1, 0), (2, 0)], directed=True)
    assert distinguishes(away, towards)
    assert distinguishes(graph(2, [(0, 1)]), graph(2, [(0, 1), (0, 1)]))
    assert distinguishes(graph(2, [(0, 1)]), graph(2, [(0, 0), (1, 1)], directed=True))


def test_edge_features_count():
    def ring(kinds):
        return graph(4, [(i, (i + 1) % 4) for i in range(4)], edge_attr=torch.tensor(kinds).repeat(2).view(-1, 1))

    assert distinguishes(ring([0.0, 1.0, 0.0, 1.0]), ring([0.0, 0.0, 1.0, 1.0]))
    assert not distinguishes(ring([0.0, 0.5, 0.0, 0.5]), ring([0.5, 0.0, 0.5, 0.0]))


@pytest.mark.parametrize("center", [0.0, 0.5, 0.123455, 1e-5, 0.3000049999])
def test_noise_at_a_rounding_boundary_splits_nothing(center):
    noise = torch.tensor([[-1e-9], [1e-9], [0.0]], dtype=torch.float64)
    first, second = graph(3, [], x=center + noise), graph(3, [], x=center - 3 * noise)
    assert not distinguishes(first, second)
    assert distinguishes(first, graph(3, [], x=center + noise + 1e-3))


def test_tolerance_is_the_users():
    first, second = graph(1, [], x=torch.tensor([[0.5]])), graph(1, [], x=torch.tensor([[0.501]]))
    assert distinguishes(first, second)
    assert not distinguishes(first, second, tolerance=0.01)


def test_whole_numbers_are_exact():
    first, second = graph(1, [], x=torch.tensor([[1_000_000]])), graph(1, [], x=torch.tensor([[1_000_001]]))
    assert distinguishes(first, second)
    assert distinguishes(graph(1, [], x=first.x.float()), graph(1, [], x=second.x.float()))


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


@pytest.mark.parametrize(
    ("transform", "name"), [(noise, "'noise'"), (node_numbers, "'x'"), (rewired, "'edge_index'")]
)
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


def test_inputs_and_random_state_stay_as_they_were():
    data, state = csl(11, 2), torch.get_rng_state()
    before = data.clone()
    distinguishes(data, csl(11, 3), Compose([RWSE, LAPPE, lambda graph: LAPPE(graph)]))
    assert list(data.to_dict()) == list(before.to_dict())
    assert torch.equal(data.edge_index, before.edge_index)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("first", "second", "kind", "message"),
    [
        (HeteroData(), cycles(3), TypeError, "HeteroData.*to_homogeneous"),
        (cycles(3), Batch.from_data_list([cycles(3), cycles(3)]), TypeError, "to_data_list"),
        (Data(num_nodes=2), cycles(3), ValueError, "no 'edge_index'"),
        (graph(2, [(0, 5)]), cycles(3), ValueError, "names node 5"),
        (graph(1, [], x=torch.ones(1, 1)), graph(1, []), ValueError, "'x' is on some of the graphs only"),
        (graph(1, [], x=torch.ones(1, 1)), graph(1, [], x=torch.ones(1, 2)), ValueError, r"columns.*\[1, 2\]"),
        (graph(1, [], x=torch.tensor([[float("nan")]])), graph(1, []), ValueError, "'x'"),
        (graph(2, [], x=torch.ones(3, 1)), graph(2, [], x=torch.ones(3, 1)), ValueError, "'x' must have one row"),
    ],
)
def test_refused_inputs(first, second, kind, message):
    with pytest.raises(kind, match=message):
        distinguishes(first, second)


@pytest.mark.parametrize(("option", "value"), [("rounds", -1), ("tolerance", 0.0), ("tolerance", 2.0)])
def test_refused_settings(option, value):
    with pytest.raises(ValueError, match=f"'{option}' must.*got {value}"):
        distinguishes(cycles(3), cycles(3), **{option: value})


def test_pairs_counts_and_classes():
    dataset = [cycles(6), cycles(3, 3), relabelled(cycles(6), random.Random(0)), csl(11, 2), csl(11, 3), csl(11, 4)]
    report = pairs(dataset, RWSE)  # 11 nodes with skips 3 and 4 are one graph: multiply by 4
    assert (report.num_pairs, report.apart_without, report.apart_with) == (15, 9, 13)
    assert (report.isomorphic, report.undecided, report.non_isomorphic) == (2, 0, 13)
    assert report.classes_without == [[0, 1, 2], [3, 4, 5]]
    assert report.classes_with == [[0, 2], [4, 5]]
    plain = pairs(dataset)
    assert (plain.apart_with, plain.isomorphic, plain.undecided) == (report.apart_without, 2, 0)
    assert pairs(dataset, max_nodes=5).undecided == 6
    assert pairs([]).num_pairs == 0


def test_pairs_agree_with_the_pairwise_test_and_with_networkx():
    networkx = pytest.importorskip("networkx")
    rng = random.Random(4)
    dataset = [random_graph(rng, rng.randrange(3, 6)) for _ in range(40)] + [cycles(6), cycles(3, 3), cycles(6)]
    report = pairs(dataset, LAPPE)
    apart = [0, 0, 0]
    for i, first in enumerate(dataset):
        for second in dataset[:i]:
            own = [networkx.empty_graph(data.num_nodes) for data in (first, second)]
            for drawn, data in zip(own, (first, second)):
                drawn.add_edges_from(data.edge_index.t().tolist())
            verdicts = [distinguishes(first, second), distinguishes(first, second, LAPPE), networkx.is_isomorphic(*own)]
            apart = [count + verdict for count, verdict in zip(apart, verdicts)]
    assert [report.apart_without, report.apart_with, report.isomorphic] == apart
    assert report.undecided == 0


def test_equal_node_features_give_one_wl():
    networkx = pytest.importorskip("networkx")
    rng = random.Random(9)
    for _ in range(100):
        n = rng.randrange(2, 9)
        both = [random_graph(rng, n), random_graph(rng, n)]
        drawn = [networkx.empty_graph(n) for _ in both]
        for own, data in zip(drawn, both):
            own.add_edges_from(data.edge_index.t().tolist())
        hashes = [networkx.weisfeiler_lehman_graph_hash(own, iterations=n) for own in drawn]
        assert distinguishes(*both) == (hashes[0] != hashes[1])


def transition(data):
    """P, with a zero row for nodes without a neighbour."""
    adj = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    adj.index_put_(tuple(data.edge_index), torch.ones(data.num_edges, dtype=torch.float64), accumulate=True)
    return adj / adj.sum(1, keepdim=True).clamp(min=1)


def gkat_mask(data, alpha=1.0, length=3):
    """The expectation of GKAT's mask, for walks of fixed length."""
    visits = sum(torch.linalg.matrix_power(transition(data), step) for step in range(length + 1))
    visits = visits / visits.norm(dim=1, keepdim=True) ** alpha
    return visits @ visits.t()


DECALIN = graph(10, [(i, (i + 1) % 10) for i in range(10)] + [(0, 5)])
BICYCLOPENTYL = graph(10, [(s + i, s + (i + 1) % 5) for s in (0, 5) for i in range(5)] + [(0, 5)])


def test_gkat_tells_apart_what_attention_without_a_mask_does_not():
    """Decalin and bicyclopentyl: equal for colour refinement, not for attention under GKAT's exact mask."""
    assert not distinguishes(DECALIN, BICYCLOPENTYL)
    assert distinguishes(DECALIN, BICYCLOPENTYL, mask=gkat_mask)
    assert distinguishes(DECALIN, BICYCLOPENTYL, mask=lambda data: DenseOperator(gkat_mask(data)))
    report = pairs([DECALIN, BICYCLOPENTYL], mask=gkat_mask)
    assert (report.apart_without, report.apart_with) == (0, 1)

    def gap(mask):
        x = torch.ones(10, 1, 3, dtype=torch.float64)
        v = torch.stack([transition(data).ne(0).sum(1).double() for data in (DECALIN, BICYCLOPENTYL)])[:, :, None, None]
        sums = [
            masked_linear_attention(x, x, v[i], DenseOperator(mask(data))).sum()
            for i, data in enumerate((DECALIN, BICYCLOPENTYL))
        ]
        return abs(float(sums[0] - sums[1]))

    assert gap(gkat_mask) > 1e-4  # features are degrees, which colour refinement has after a round
    assert gap(lambda data: transition(data) @ transition(data) + torch.eye(10)) < 1e-12  # a power series


@pytest.mark.parametrize("directed", [False, True])
def test_verdict_with_a_mask_is_that_of_the_definition(directed):
    rng, verdicts = random.Random(4), []
    for trial in range(60):
        n = rng.randrange(0, 6)
        first = random_graph(rng, n, directed, trial % 2, trial % 3 == 0, directed)
        second = random_graph(rng, n, directed, trial % 2, trial % 3 == 0, directed) if trial % 2 else first
        second = relabelled(second, rng)
        mask = (gkat_mask, transition, lambda data: transition(data) - torch.eye(data.num_nodes))[trial % 3]
        rounds = rng.randrange(0, 3)
        assert distinguishes(first, second, rounds=rounds, mask=mask) == definition(first, second, rounds, mask)
        verdicts.append(definition(first, second, n, mask))
        assert distinguishes(first, second, mask=mask) == verdicts[-1]
        assert not distinguishes(first, relabelled(first, rng), mask=mask)
    assert 5 < sum(verdicts) < 55


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda data: GRFMask(1, 3)(AddRandomWalks(4, 3)(data.clone())), "'mask' differs .* sampled walks"),
        (lambda data: torch.arange(100.0).view(10, 10), "'mask' differs"),
        (lambda data: torch.ones(3, 3), r"\[N, N\] or \[H, N, N\] with N = 10 \(got \(3, 3\)\)"),
        (lambda data: torch.full((10, 10), torch.nan), "'mask' holds NaN"),
    ],
    ids=["sampled", "numbering", "shape", "nan"],
)
def test_masks_that_cannot_be_compared(mask, message):
    with pytest.raises(ValueError, match=message):
        distinguishes(DECALIN, BICYCLOPENTYL, mask=mask)


def test_a_mask_beside_graphs_without_edges():
    first, second = graph(3, [], edge_attr=torch.zeros(0, 2)), graph(3, [(0, 1)], edge_attr=torch.ones(2, 2))
    eye = lambda data: torch.eye(data.num_nodes)  # noqa: E731
    assert distinguishes(first, second, mask=eye)
    assert not distinguishes(first, first.clone(), mask=eye)


def test_a_row_of_the_mask_is_what_a_node_sees():
    """Nodes 1 and 2 see node 0, or 1 sees 0 and 2 sees 1: equal lists of what is seen, not of who is seen."""
    triangle = [(0, 1), (1, 2), (0, 2)]
    both = graph(3, triangle, sees_index=torch.tensor([[1, 2], [0, 0]]))
    chain = graph(3, triangle, sees_index=torch.tensor([[1, 2], [0, 1]]))

    def sees(data):
        matrix = torch.full((3, 3), 0.5)
        matrix[data.sees_index[0], data.sees_index[1]] = 1
        return matrix

    assert not distinguishes(both, chain, rounds=1, mask=sees)
    assert distinguishes(both, chain, rounds=1, mask=lambda data: sees(data).t())
