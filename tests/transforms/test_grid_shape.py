"""Shapes of grids, and the positions of sequences."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddGridShape, AddPositions
from tests.transforms.encoding_cases import grid


@pytest.mark.parametrize("shape", [(7,), (2, 2), (3, 4), (4, 3), (2, 2, 2), (5, 2, 3), (1,)])
def test_the_shape_is_found(shape):
    data = grid(*shape)
    assert AddGridShape()(data.clone()).grid_shape.tolist() == [list(shape)]
    assert AddGridShape(shape)(data.clone()).grid_shape.tolist() == [list(shape)]
    one_way = data.clone()
    one_way.edge_index = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    assert AddGridShape()(one_way).grid_shape.tolist() == [list(shape)]
    loops = data.clone()
    loops.edge_index = torch.cat([data.edge_index, data.edge_index[:, :2], torch.zeros(2, 1, dtype=torch.long)], 1)
    assert AddGridShape()(loops).grid_shape.tolist() == [list(shape)]


def test_axes_of_one_node_must_be_given_and_a_graph_without_nodes_has_one_axis():
    assert AddGridShape((1, 4, 1))(grid(4)).grid_shape.tolist() == [[1, 4, 1]]
    empty = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=0)
    assert AddGridShape()(empty).grid_shape.tolist() == [[0]]


def test_positions_are_numbers_of_nodes():
    assert AddPositions()(GRAPHS["path"].clone()).position.tolist() == [0, 1, 2, 3]
    batch = Batch.from_data_list([AddPositions()(GRAPHS[name].clone()) for name in ("single", "path")])
    assert batch.position.tolist() == [0, 0, 1, 2, 3]
    elsewhere = torch.empty(2, 0, dtype=torch.long, device="meta")
    for given in ({"x": torch.ones(3, 1, device="meta")}, {"edge_index": elsewhere, "num_nodes": 3}):
        assert AddPositions()(Data(**given)).position.device.type == "meta"
    with pytest.raises(ValueError, match="before batching"):
        AddPositions()(batch)
