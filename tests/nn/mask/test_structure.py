import pytest
import torch

from pyg_topomask.nn import HeatMask, PowerSeriesMask
from pyg_topomask.testing import GRAPHS


@pytest.mark.parametrize("cls", [HeatMask, PowerSeriesMask])
def test_edge_weights_may_have_a_second_axis_of_one(cls):
    data, mask = GRAPHS["weighted"].clone(), cls()
    data.edge_weight = data.edge_weight.float()
    wanted = mask(data).to_dense()
    data.edge_weight = data.edge_weight[:, None]
    assert torch.equal(mask(data).to_dense(), wanted)
    del data.edge_weight
    assert not torch.allclose(mask(data).to_dense(), wanted, atol=1e-3)  # the weights count
