import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.nn import FullAttention, GPSStack, SANAttention
from pyg_topomask.testing import GRAPHS
from tests.nn.attention.references import san as definition


def test_edges_that_are_there_twice_one_way_or_from_a_node_to_itself():
    attn, x = SANAttention(8, heads=2, gamma=0.2).double(), torch.randn(5, 8, dtype=torch.float64)
    odd = Data(edge_index=torch.tensor([[0, 0, 1, 2, 2, 3], [1, 1, 0, 2, 2, 1]]), num_nodes=5)
    batch = Batch.from_data_list([odd])
    torch.testing.assert_close(attn(x, batch.batch, batch), definition(attn, x, batch, None))


def test_layers_of_a_stack_share_what_stands_for_absent_edges():
    stack = GPSStack(8, 3, attn=lambda _: SANAttention(8, 2, edge_dim=3), norm=None)
    assert len({id(layer.attn.absent_vector) for layer in stack}) == 1
    names = [name for name, _ in stack.named_parameters() if name.endswith("absent_vector")]
    assert names == ["0.attn.absent_vector"]
    apart = GPSStack(8, 3, attn=lambda _: SANAttention(8, 2))
    assert len({id(layer.attn.absent_vector) for layer in apart}) == 3
    with pytest.raises(TypeError, match=r"tied to each other only \(got a FullAttention\)"):
        SANAttention(8).tie(FullAttention(8))
    with pytest.raises(ValueError, match=r"same 'edge_dim' and 'full_graph'.*got None and True after 3 and True"):
        SANAttention(8).tie(SANAttention(8, edge_dim=3))


@pytest.mark.parametrize("gamma", [0.0, float("inf"), float("nan")])
def test_a_bad_gamma_is_refused(gamma):
    with pytest.raises(ValueError, match=rf"'gamma' must be a positive number \(got {gamma}\)"):
        SANAttention(8, gamma=gamma)


def test_an_edge_between_graphs_is_refused():
    with pytest.raises(ValueError, match="joins nodes 0 and 4 of different graphs"):
        SANAttention(8)(torch.randn(5, 8), torch.tensor([0, 0, 0, 0, 1]), GRAPHS["star"])
