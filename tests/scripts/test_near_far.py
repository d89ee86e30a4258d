"""Near against far: targets are what they say, and every row is a model of them."""

import torch
from torch_geometric.utils import to_dense_adj


def test_targets_are_near_shares_minus_far_ones(script):
    graphs = script.graphs_of(3)
    targets = torch.cat([graph.y for graph in graphs])
    torch.testing.assert_close(targets.std(), torch.tensor(1.0))
    graph, far = graphs[0], graphs[0].x @ graphs[0].x.mean(0)
    reach = torch.linalg.matrix_power(torch.eye(96) + to_dense_adj(graph.edge_index, max_num_nodes=96)[0], 4)
    near = (reach > 0).float().fill_diagonal_(0)
    own = near * (graph.x @ graph.x.t())
    wanted = own.sum(1) / near.sum(1) - far
    torch.testing.assert_close(graph.y[:, 0] / graph.y.std(), wanted / wanted.std(), rtol=1e-4, atol=1e-4)


def test_rows_are_models_whose_parameters_all_learn(script):
    for method in script.METHODS:
        model = script.model_of(method)
        prepare = script.transforms.that_add(model.requires, seed=0, max_hops=script.HOPS, **script.WALKS)
        batch = prepare(script.graphs_of(2))[0]
        model(batch.x, batch.edge_index, graph=batch).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters()), method
