"""The comparison of masks on molecules: equal sizes, and a target that is what it says."""

import pytest
import torch
from torch_geometric.data import Data


def test_rows_have_equally_many_parameters(scripts):
    script = scripts("moses")
    for method in script.METHODS:
        model = script.model_of(method, script.width_of(method, 1), 1)
        size = sum(parameter.numel() for parameter in model.parameters())
        assert size == pytest.approx(script.PARAMETERS, rel=0.06), method


def test_autocorrelations_are_sums_over_pairs_at_a_distance(scripts):
    """A path of oxygen, carbon, fluorine and nitrogen: each pair counts in both orders."""
    edge = torch.tensor([[0, 1, 2], [1, 2, 3]])
    kinds = torch.eye(13)[[2, 0, 8, 5]]
    data = Data(x=kinds, edge_index=torch.cat([edge, edge.flip(0)], 1), num_nodes=4)
    found = scripts("moses").autocorrelations(data)
    wanted = torch.tensor([1.43 * 0.49, 0.89 * 1.43, 0.89 * 0.49, 0, 0, 0, 0, 0]) * 2
    torch.testing.assert_close(found, wanted)
