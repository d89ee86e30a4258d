import pytest
import torch

from pyg_topomask.expressivity.expected_walks import with_expected_walks
from pyg_topomask.nn import GRFMask, RWGNKMask
from pyg_topomask.testing import GRAPHS, dense_adjacency


def powers(matrix, max_length):
    return [torch.linalg.matrix_power(matrix, k) for k in range(max_length + 1)]


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_grf_mask_is_its_power_series(name, independent):
    data = GRAPHS[name]
    mask = GRFMask(heads=2, max_length=3, independent=independent).double()
    torch.nn.init.normal_(mask.modulation)
    adj = dense_adjacency(data)
    root = torch.where(adj.sum(1) > 0, adj.sum(1), 1).sqrt()
    weights = adj / root[:, None] / root
    for head, found in enumerate(mask(with_expected_walks(data, 3, 0.4)).to_dense()):
        phi = sum(f * power for f, power in zip(mask.modulation[head], powers(weights, 3)))
        torch.testing.assert_close(found, phi @ phi.t(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_gkat_mask_is_that_of_exact_visits(name):
    data, mask = GRAPHS[name], RWGNKMask(decay=0.5, alpha=0.5, max_length=3).double()
    adj = (dense_adjacency(data) > 0).double()
    step = 0.9 * adj / adj.sum(1, keepdim=True).clamp(min=1)
    visits = sum(0.5**k * power for k, power in enumerate(powers(step, 3)))
    visits = visits / visits.norm(dim=1, keepdim=True) ** 0.5
    found = mask(with_expected_walks(data, 3, 0.1)).to_dense()
    torch.testing.assert_close(found, visits @ visits.t(), rtol=1e-12, atol=1e-12)
