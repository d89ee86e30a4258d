"""Masks of shortest-path distances."""

import pytest
import torch

from pyg_topomask import nn, operators, testing, transforms
from pyg_topomask.ops.hops import hop_pairs
from tests.distances import dense_distances


class TestHopOperator(testing.OperatorCase):
    values = torch.tensor([0.5, 1.0, -0.25, 0.75], dtype=torch.float64)

    def build(self, data, values=None):
        index, length = hop_pairs(data.edge_index, data.num_nodes, 3)
        return operators.HopOperator(index, length, self.values if values is None else values, data.num_nodes)

    def reference(self, data):
        hops = dense_distances(data.edge_index, data.num_nodes)
        return torch.where(hops <= 3, self.values[..., hops.clamp(max=3).long()], 0.0)

    def parameters(self, data):
        return {"values": self.values}


class TestHopOperatorPerHead(TestHopOperator):
    values = torch.tensor([[0.5, 1.0, 0.25, 0.75], [1.0, -1.0, 0.5, 2.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("index", "length", "message"),
    [
        ([[0, 1], [1, 0]], [1], "'length' must be \\[2\\], one for each pair"),
        ([[0, 0], [1, 1]], [1, 1], "lists 1 pairs more than once"),
        ([[0, 1], [1, 0]], [1, 4], "'length' must be 0 to 3 \\(got 1 to 4\\); give HopMask and AddHops"),
        ([[0, 3], [1, 0]], [1, 1], "'index' contains node 3"),
    ],
)
def test_tables_that_do_not_fit(index, length, message):
    with pytest.raises(ValueError, match=message):
        operators.HopOperator(torch.tensor(index), torch.tensor(length), torch.ones(4), 3)


@pytest.mark.parametrize("positive", [True, False])
def test_a_mask_starts_at_the_inverse_of_the_number_of_nodes_on_the_way(positive):
    data, mask = transforms.AddHops(2)(testing.GRAPHS["path"].clone()), nn.HopMask(2, 2, positive).double()
    hops = dense_distances(data.edge_index, 4).expand(2, -1, -1)
    start = torch.where(hops <= 2, 1 / (1 + hops), 0)
    torch.testing.assert_close(mask(data).to_dense(), start, rtol=1e-6, atol=0)
    mask.values.data.neg_()
    turned = torch.where(hops <= 2, 1 + hops, 0) if positive else -start
    torch.testing.assert_close(mask(data).to_dense(), turned, rtol=1e-6, atol=0)
