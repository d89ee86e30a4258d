import random

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, Compose

from pyg_topomask.expressivity import distinguishes, pairs
from pyg_topomask.testing import GRAPHS, empty_graph
from tests.expressivity.graphs import csl, cycles, definition, graph, random_graph, relabelled, switched

RWSE, LAPPE = AddRandomWalkPE(8), AddLaplacianEigenvectorPE(4)
ENCODINGS = {"none": None, "rwse": RWSE, "lappe": LAPPE, "both": Compose([RWSE, LAPPE])}
WHEEL = graph(8, [(i, (i + 1) % 8) for i in range(8)] + [(0, 3), (0, 5), (2, 6)])


@pytest.mark.parametrize(
    "options",
    [{}, {"directed": True}, {"labels": 2}, {"labels": 2, "edge_labels": 2}, {"loops": True, "edge_labels": 2}, None],
    ids=["plain", "directed", "labels", "edge_labels", "loops", "switched"],
)
def test_verdict_is_that_of_the_definition(options):
    rng, verdicts = random.Random(7), []
    for trial in range(80):
        if options is None:
            first = rng.choice([cycles(6), cycles(3, 5), csl(9, 2), WHEEL, WHEEL])
            second = switched(first, rng)
        else:
            n = rng.randrange(0, 7)
            first = random_graph(rng, n, **options)
            second = relabelled(random_graph(rng, n, **options) if trial % 2 else first, rng)
        rounds = rng.randrange(0, 4)
        assert distinguishes(first, second, rounds=rounds) == definition(first, second, rounds)
        verdicts.append(definition(first, second, first.num_nodes))
        assert distinguishes(first, second) == verdicts[-1]
        assert not distinguishes(first, relabelled(first, rng))
    assert 3 < sum(verdicts) < 77


@pytest.mark.parametrize(
    ("first", "second"), [(cycles(6), cycles(3, 3)), (csl(41, 2), csl(41, 3))], ids=["hexagon", "csl41"]
)
def test_regular_graphs_need_encodings(first, second):
    assert not distinguishes(first, second)
    for transform in (RWSE, LAPPE, AddLaplacianEigenvectorPE(4, attr_name=None), AddLaplacianEigenvectorPE(4, "pe")):
        assert distinguishes(first, second, transform)
    assert not distinguishes(first, second, AddRandomWalkPE(1))  # no walk returns in one step


@pytest.mark.parametrize("name", ENCODINGS)
def test_relabelled_copies_are_never_told_apart(name):
    weighted = GRAPHS["weighted"].clone()
    weighted.edge_weight = weighted.edge_weight.float()  # PyG's random-walk encoding takes no float64 weights
    rng, special = random.Random(3), [cycles(8), cycles(3, 3, 3), csl(12, 3), graph(5, []), csl(300, 7), random_graph]
    special += [graph(9, [(0, i) for i in range(1, 9)]), *(GRAPHS | {"weighted": weighted}).values()]
    for trial in range(60):
        data = special[trial] if trial < len(special) else random_graph
        if data is random_graph:
            data = random_graph(rng, rng.randrange(1, 14), trial % 4 == 1, trial % 3, trial % 2, trial % 5 == 0)
        assert not distinguishes(data, relabelled(data, rng), ENCODINGS[name]), trial


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
    assert distinguishes(data, graph(n, edges[:-1]))


def ring(*kinds):
    return graph(4, [(i, (i + 1) % 4) for i in range(4)], edge_attr=torch.tensor(kinds).repeat(2).view(-1, 1))


def nodes(*values, dtype=torch.float64):
    return graph(len(values), [], x=torch.tensor(values, dtype=dtype).view(-1, 1))


NONE, ONE, TWO = graph(0, []), graph(1, []), graph(2, [])


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        (graph(3, [(0, 1), (0, 2)], directed=True), graph(3, [(1, 0), (2, 0)], directed=True), True),
        (graph(2, [(0, 1)]), graph(2, [(0, 1), (0, 1)]), True),  # edges that are there twice
        (graph(2, [(0, 1)]), graph(2, [(0, 0), (1, 1)], directed=True), True),
        (ring(0.0, 1.0, 0.0, 1.0), ring(0.0, 0.0, 1.0, 1.0), True),
        (ring(0.0, 0.5, 0.0, 0.5), ring(0.5, 0.0, 0.5, 0.0), False),
        (nodes(0.5), nodes(0.501), True),
        (nodes(1_000_000, dtype=torch.long), nodes(1_000_001, dtype=torch.long), True),  # whole numbers are exact
        (nodes(1_000_000), nodes(1_000_001), True),
        (NONE, NONE, False),
        (empty_graph(), empty_graph(), False),
        (ONE, graph(1, [(0, 0)], directed=True), True),
        *((nodes(c - 1e-9, c + 1e-9, c), nodes(c + 3e-9, c - 3e-9, c), False) for c in (0.0, 0.5, 0.123455, 1e-5)),
    ],
)
def test_what_counts(first, second, wanted):
    assert distinguishes(first, second) == wanted


def test_tiny_graphs_with_encodings():
    for transform in ENCODINGS.values():
        assert distinguishes(NONE, ONE, transform)
        assert distinguishes(ONE, TWO, transform)


def test_rounds():
    first = graph(7, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 6)])
    second = graph(7, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (1, 6)])
    assert [distinguishes(first, second, rounds=rounds) for rounds in (None, 0, 1, 2)] == [True, False, False, True]


@pytest.mark.parametrize(
    ("first", "second", "kind", "message"),
    [
        (HeteroData(), cycles(3), TypeError, "HeteroData.*to_homogeneous"),
        (cycles(3), Batch.from_data_list([cycles(3), cycles(3)]), TypeError, "to_data_list"),
        (Data(num_nodes=2), cycles(3), ValueError, "no edges; it needs 'edge_index'"),
        (graph(2, [(0, 5)]), cycles(3), ValueError, "contains node 5"),
        (nodes(1.0), ONE, ValueError, "'x' is on some of the graphs only"),
        (nodes(1.0), graph(1, [], x=torch.ones(1, 2)), ValueError, r"columns.*\[1, 2\]"),
        (nodes(float("nan")), ONE, ValueError, "'x'"),
        (graph(2, [], x=torch.ones(3, 1)), graph(2, [], x=torch.ones(3, 1)), ValueError, "'x' must have one row"),
    ],
)
def test_refused_inputs(first, second, kind, message):
    with pytest.raises(kind, match=message):
        distinguishes(first, second)


def test_negative_rounds_are_refused():
    with pytest.raises(ValueError, match=r"'rounds' must.*got -1"):
        distinguishes(cycles(3), cycles(3), rounds=-1)


def test_pairs_counts_and_classes():
    dataset = [cycles(6), cycles(3, 3), relabelled(cycles(6), random.Random(0)), csl(11, 2), csl(11, 3), csl(11, 4)]
    report = pairs(dataset, RWSE)  # 11 nodes with skips 3 and 4 are one graph: multiply by 4
    assert (report.num_pairs, report.apart_without, report.apart_with) == (15, 9, 13)
    assert report.classes_without == [[0, 1, 2], [3, 4, 5]]
    assert report.classes_with == [[0, 2], [4, 5]]
    assert pairs(dataset).apart_with == report.apart_without
    assert pairs([]).num_pairs == 0


def test_pairs_agree_with_the_pairwise_test():
    rng = random.Random(4)
    dataset = [random_graph(rng, rng.randrange(3, 6)) for _ in range(20)] + [cycles(6), cycles(3, 3), cycles(6)]
    report = pairs(dataset, LAPPE)
    verdicts = [(distinguishes(a, b), distinguishes(a, b, LAPPE)) for i, a in enumerate(dataset) for b in dataset[:i]]
    assert [report.apart_without, report.apart_with] == [sum(column) for column in zip(*verdicts)]
