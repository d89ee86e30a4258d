"""What masks add to the test (GRF, Section 3.5), and what they do not."""

import random

import pytest
import torch

from pyg_topomask import nn, operators, ops, testing
from pyg_topomask.expressivity import distinguishes, pairs
from pyg_topomask.expressivity.mask_rows import entries_of
from pyg_topomask.transforms import AddGridShape, AddPositions, AddRandomWalks, AddTreeOrder
from tests.expressivity.graphs import cycles, graph, random_graph, relabelled
from tests.matrices import normalised_adjacency, power_series

DECALIN = graph(10, [(i, (i + 1) % 10) for i in range(10)] + [(0, 5)])
BICYCLOPENTYL = graph(10, [(s + i, s + (i + 1) % 5) for s in (0, 5) for i in range(5)] + [(0, 5)])
SQUARE = graph(4, [(0, 1), (2, 3), (0, 2), (1, 3)])


def transition(data):
    return testing.dense_adjacency(data) / testing.dense_adjacency(data).sum(1, keepdim=True).clamp(min=1)


def gkat(data, alpha=1.0):
    """The expectation of RWGNK's mask for walks of three hops that halt with probability 1/2."""
    visits = sum(torch.linalg.matrix_power(transition(data) / 2, step) for step in range(4))
    visits = visits / visits.norm(dim=1, keepdim=True) ** alpha
    return visits @ visits.t()


def series(data):
    """An exact power series of the normalised adjacency, with a negative coefficient."""
    return power_series(normalised_adjacency(data), [1.0, -0.7, 0.0, 0.3])


VERDICTS = {
    "RWGNK": (nn.RWGNKMask(alpha=1.0), True),
    "RWGNK as a matrix": (gkat, True),
    "RWGNK as an operator": (lambda data: operators.DenseOperator(gkat(data)), True),
    "RWGNK without norms": (nn.RWGNKMask(alpha=0.0), False),
    "GRF": (nn.GRFMask(heads=2, initial=[1.0, -0.5, 0.3, 0.2, 0.1]), False),
    "GRF with a function of the keys": (nn.GRFMask(key_modulation=True), False),
    "GRF, stitched": (nn.GRFMask(stitch=2), False),
    "power series": (nn.PowerSeriesMask(coeffs=[1.0, -0.7, 0.0, 0.3]), False),
    "power series as a matrix": (series, False),
    "heat": (nn.HeatMask(), False),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_an_exact_power_series_adds_nothing_to_colour_refinement_and_norms_of_rows_do(name):
    mask, apart = VERDICTS[name]
    assert not distinguishes(DECALIN, BICYCLOPENTYL)
    assert distinguishes(DECALIN, BICYCLOPENTYL, mask=mask) == apart
    report = pairs([DECALIN, BICYCLOPENTYL, relabelled(DECALIN, random.Random(0))], mask=mask)
    assert (report.apart_without, report.apart_with) == (0, 2 * apart)
    assert report.classes_with == ([[0, 2]] if apart else [[0, 1, 2]])


def test_attention_does_what_the_verdicts_say():
    x = torch.ones(10, 1, 3, dtype=torch.float64)

    def gap(mask):
        sums = []
        for data in (DECALIN, BICYCLOPENTYL):
            degree = testing.dense_adjacency(data).sum(1)[:, None, None]  # which colour refinement has after a round
            sums.append(ops.masked_linear_attention(x, x, degree, operators.DenseOperator(mask(data))).sum())
        return abs(float(sums[0] - sums[1]))

    assert gap(gkat) > 1e-4
    assert gap(series) < 1e-12
    assert gap(lambda data: gkat(data, 0.0)) < 1e-12


@pytest.mark.parametrize("name", testing.GRAPHS)
def test_a_mask_of_walks_has_the_entries_of_infinitely_many(name):
    """Loads are powers of the normalised weights; walkers step uniformly, and go on with probability 0.6."""
    data, f, steps = testing.GRAPHS[name], [1.0, -0.5, 0.3, 0.2], [AddRandomWalks(halt_prob=0.4)]
    there = (testing.dense_adjacency(data) != 0).double()
    features = power_series(normalised_adjacency(data), f)
    visits = power_series(0.6 * there / there.sum(1, keepdim=True).clamp(min=1), [1, 0.5, 0.25, 0.125])
    visits = visits / visits.norm(dim=1, keepdim=True).sqrt()
    masks = (nn.GRFMask(max_length=3, initial=f), features), (nn.RWGNKMask(decay=0.5, alpha=0.5, max_length=3), visits)
    for mask, wanted in masks:
        found = torch.from_numpy(entries_of(mask.double(), data, steps)[0])
        torch.testing.assert_close(found, wanted @ wanted.t(), rtol=1e-6, atol=1e-6)


def test_sampled_walks_are_refused_since_they_differ_from_call_to_call():
    mask = nn.GRFMask()
    with pytest.raises(ValueError, match=r"'mask' differs between a graph and a relabelled copy.*their expectation"):
        distinguishes(DECALIN, BICYCLOPENTYL, mask=lambda data: mask(AddRandomWalks()(data.clone())))
    first, second = (AddRandomWalks(seed=seed)(data.clone()) for seed, data in enumerate((DECALIN, BICYCLOPENTYL)))
    assert not distinguishes(first, second, mask=mask)  # by the expectation, whatever walks are stored
    assert not distinguishes(first, second, AddRandomWalks(seed=2), mask=mask)


def by_definition(first, second, rounds, mask):
    """The test as it is written down; a node also reads the sums of its row over the colours, rounded."""
    table, graphs = {}, [(data, [0] * data.num_nodes, mask(data).tolist()) for data in (first, second)]
    for done in range(rounds + 1):
        if sorted(graphs[0][1]) != sorted(graphs[1][1]):
            return True
        step = []
        for data, color, matrix in graphs:
            new = []
            for v in range(data.num_nodes):
                edges = sorted((color[u], u == v) for u, w in data.edge_index.t().tolist() if w == v)
                sums = {c: sum(m for m, other in zip(matrix[v], color) if other == c) for c in set(color)}
                read = sorted((c, round(value, 4)) for c, value in sums.items() if abs(value) > 1e-5)
                key = (color[v], tuple(edges), tuple(read))
                new.append(table.setdefault(key, len(table)))
            step.append((data, new, matrix))
        graphs = step
        if done == rounds:
            return False
    raise AssertionError


@pytest.mark.parametrize("directed", [False, True])
def test_verdict_is_that_of_the_definition(directed):
    rng, verdicts = random.Random(4), []
    for trial in range(60):
        n = rng.randrange(0, 6)
        first = random_graph(rng, n, directed, loops=directed)
        second = random_graph(rng, n, directed, loops=directed) if trial % 2 else first
        second, mask, rounds = relabelled(second, rng), (gkat, series, lambda d: gkat(d, 0.5))[trial % 3], trial % 4
        assert distinguishes(first, second, rounds=rounds, mask=mask) == by_definition(first, second, rounds, mask)
        verdicts.append(by_definition(first, second, n, mask))
        assert distinguishes(first, second, mask=mask) == verdicts[-1]
        assert not distinguishes(first, relabelled(first, rng), mask=mask)
    assert 5 < sum(verdicts) < 55


def test_a_row_of_the_mask_is_what_a_node_reads():
    """Nodes 1 and 2 see node 0, or 1 sees 0 and 2 sees 1: equal lists of what is seen, not of who is seen."""
    triangle = [(0, 1), (1, 2), (0, 2)]
    both = graph(3, triangle, sees_index=torch.tensor([[1, 2], [0, 0]]))
    chain = graph(3, triangle, sees_index=torch.tensor([[1, 2], [0, 1]]))
    sees = lambda data: torch.full((3, 3), 0.5).index_put(tuple(data.sees_index), torch.tensor(1.0))  # noqa: E731
    assert not distinguishes(both, chain, rounds=1, mask=sees)
    assert distinguishes(both, chain, rounds=1, mask=lambda data: sees(data).t())


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda data: torch.arange(100.0).view(10, 10), "'mask' differs"),
        (lambda data: torch.ones(3, 3), r"\[N, N\] or \[H, N, N\] with N = 10 \(got \[3, 3\]\)"),
        (lambda data: torch.full((10, 10), torch.nan), "'mask' holds NaN"),
        (lambda data: None, r"a MaskOperator or a tensor \(got NoneType\)"),
        (lambda data: torch.ones(10, 10) * 1j, "'mask' must be real"),
        (nn.GRFMask(diagonal="corrected"), "lacks 'walk_diagonal'|needs 'walk_diagonal'"),
    ],
    ids=["numbering", "shape", "nan", "nothing", "complex", "corrected"],
)
def test_masks_that_cannot_be_compared(mask, message):
    with pytest.raises((TypeError, ValueError), match=message):
        distinguishes(DECALIN, BICYCLOPENTYL, mask=mask)


def test_walks_with_other_rules_have_no_known_expectation():
    with pytest.raises(ValueError, match="without 'lengths', 'transition', 'importance'"):
        distinguishes(DECALIN, BICYCLOPENTYL, AddRandomWalks(importance=False), mask=nn.GRFMask())


@pytest.mark.parametrize(
    ("mask", "transform", "first", "second"),
    [
        (nn.TreeMask(), AddTreeOrder(), cycles(6), cycles(3, 3)),
        (nn.LowRankMask(), AddPositions(), cycles(6), cycles(3, 3)),
        (nn.GridHeatMask(), AddGridShape(), SQUARE, graph(4, [(0, 1), (1, 2), (2, 3)])),
    ],
    ids=["tree", "positions", "grid"],
)
def test_attributes_stored_on_the_graphs_are_part_of_them(mask, transform, first, second):
    first, second = transform(first), transform(second)
    assert distinguishes(first, second, mask=mask)
    assert not distinguishes(first, first.clone(), mask=mask)
    if not isinstance(mask, nn.GridHeatMask):  # a grid has one numbering
        assert not distinguishes(first, relabelled(first, random.Random(0)), mask=mask)


def test_a_transform_prepares_what_the_mask_reads():
    path, star = graph(4, [(0, 1), (1, 2), (2, 3)]), graph(4, [(0, 1), (0, 2), (0, 3)])
    assert not distinguishes(path, relabelled(path, random.Random(0)), AddTreeOrder(), mask=nn.TreeMask())
    with pytest.raises(ValueError, match=r"needs 'tree_index'.* add the transform AddTreeOrder\(\)"):
        distinguishes(path, star, mask=nn.TreeMask())
