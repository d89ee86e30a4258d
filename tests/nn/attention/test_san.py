import pytest

from pyg_topomask.nn import FullAttention, GPSStack, SANAttention


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
