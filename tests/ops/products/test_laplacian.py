import networkx as nx
import pytest
import torch
from torch_geometric.utils import from_networkx

from pyg_topomask.ops.products.laplacian import LAPLACIANS, heat_generator
from tests import matrices

GRAPHS = {
    "star": nx.star_graph(30),
    "path": nx.path_graph(30),
    "regular": nx.random_regular_graph(4, 30, seed=0),
    "parts": nx.disjoint_union_all([nx.star_graph(9), nx.path_graph(7), nx.empty_graph(2), nx.complete_graph(5)]),
    "one node": nx.empty_graph(1),
}


def dense(graph, laplacian):
    """The symmetric matrix with the eigenvalues of the generator."""
    adj = torch.from_numpy(nx.to_numpy_array(graph))
    return matrices.heat_generator(adj, "normalized" if laplacian == "random_walk" else laplacian)


def graph_root(graph):
    return torch.tensor([max(degree, 1) for _, degree in graph.degree()], dtype=torch.float64).sqrt()


@pytest.mark.parametrize("laplacian", LAPLACIANS)
@pytest.mark.parametrize("name", GRAPHS)
def test_intervals_hold_the_eigenvalues_of_each_component(name, laplacian):
    graph = GRAPHS[name]
    edge_index, matrix = from_networkx(graph).edge_index, dense(graph, laplacian)
    got = heat_generator(edge_index.view(2, -1).long(), graph.number_of_nodes(), None, laplacian)
    low, high, reached, condition = torch.from_numpy(got.bounds)[:, got.interval]
    scaled = torch.zeros_like(matrix)
    scaled[got.pattern.row.long(), got.pattern.col.long()] = got.value
    half, centre = (high - low) / 2, (high + low) / 2
    point = half == 0  # a component of one node
    wanted = (matrix - torch.diag(centre)) / torch.where(point, 1, half)[:, None] - torch.diag(point.double())
    torch.testing.assert_close(scaled, wanted)
    for nodes in nx.connected_components(graph):
        index = torch.tensor(sorted(nodes))
        values = torch.linalg.eigvalsh(matrix[index][:, index])
        i = index[0]
        assert low[i] - 1e-9 <= values[0] <= reached[i] + 1e-9
        assert values[-1] <= high[i] + 1e-9
        if laplacian == "random_walk":  # of its symmetric twin
            root = graph_root(graph)[index]
            torch.testing.assert_close(got.root[index], root)
            assert root.max() / root.min() <= condition[i] <= 2 * root.max() / root.min()
        if laplacian == "adjacency":  # close enough that the tolerance loses few digits
            assert reached[i] - low[i] <= 0.02 * -low[i]


@pytest.mark.parametrize(
    ("edges", "weight", "message"),
    [
        ([[0, 1], [1, 2]], None, "edges 0 → 1 and 1 → 0 weigh 1 and 0; use .*to_undirected"),
        ([[0, 1], [1, 0]], [1.0, 2.0], "weigh 1 and 2"),
        ([[0, 1], [1, 0]], [-1.0, -1.0], "at least 0"),
    ],
)
def test_what_the_error_is_not_known_for_is_refused(edges, weight, message):
    with pytest.raises(ValueError, match=message):
        heat_generator(torch.tensor(edges), 3, None if weight is None else torch.tensor(weight), "combinatorial")
