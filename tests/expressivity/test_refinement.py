import random

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose

from pyg_topomask.expressivity import distinguishes
from pyg_topomask.testing import GRAPHS, empty_graph
from tests.expressivity.graphs import complete, csl, cycles, definition, graph, random_graph, relabelled, switched

RWSE, LAPPE = AddRandomWalkPE(8), AddLaplacianEigenvectorPE(4)
ENCODINGS = {"none": None, "rwse": RWSE, "lappe": LAPPE, "both": Compose([RWSE, LAPPE])}


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


@pytest.mark.parametrize(
    ("first", "second", "kind", "message"),
    [
        (HeteroData(), cycles(3), TypeError, "HeteroData.*to_homogeneous"),
        (cycles(3), Batch.from_data_list([cycles(3), cycles(3)]), TypeError, "to_data_list"),
        (Data(num_nodes=2), cycles(3), ValueError, "no 'edge_index'"),
        (graph(2, [(0, 5)]), cycles(3), ValueError, "contains node 5"),
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


def test_equal_node_features_give_one_wl():
    networkx = pytest.importorskip("networkx")
    rng = random.Random(9)
    for _ in range(100):
        n = rng.randrange(2, 9)
        both = [random_graph(rng, n), random_graph(rng, n)]
        drawn = [networkx.empty_graph(n) for _ in both]
        for own in drawn:
            networkx.set_node_attributes(own, 1, "kind")  # the hash of graphs without attributes warns of its past
        for own, data in zip(drawn, both):
            own.add_edges_from(data.edge_index.t().tolist())
        hashes = [networkx.weisfeiler_lehman_graph_hash(own, iterations=n, node_attr="kind") for own in drawn]
        assert distinguishes(*both) == (hashes[0] != hashes[1])
