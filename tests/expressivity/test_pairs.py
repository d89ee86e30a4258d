import random

import pytest
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

from pyg_topomask.expressivity import distinguishes, pairs
from tests.expressivity.graphs import csl, cycles, random_graph, relabelled

RWSE, LAPPE = AddRandomWalkPE(8), AddLaplacianEigenvectorPE(4)


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
