import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import ExphormerAttention, GPSStack
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddExpanderEdges


def expanded(data, **settings):
    return AddExpanderEdges(**{"degree": 1, "seed": 0, **settings})(data.clone())


def test_a_stack_passes_the_carry_on():
    """One layer sees two hops of a path at most; through virtual nodes two layers see all of it."""
    data = Data(edge_index=torch.tensor([[*range(39)], [*range(1, 40)]]), num_nodes=40)

    def reach(num_virtual):
        attn, x = lambda _: ExphormerAttention(8, 2, num_virtual, expander=False), torch.randn(40, 8)
        stack = GPSStack(8, 2, attn=attn, norm=None)
        (grad,) = torch.autograd.grad(stack(x.requires_grad_(), data.edge_index, None, data)[20].sum(), x)
        return grad.abs().sum(1).nonzero().flatten().tolist()

    assert reach(0) == [18, 19, 20]
    assert reach(1) == [*range(40)]


def test_dense_nodes_with_a_carry_and_weights():
    attn, data, x = ExphormerAttention(8, num_virtual=2), expanded(GRAPHS["star"]), torch.randn(5, 8)
    wanted, found = (
        attn(nodes, None, data, carry=attn.initial_carry(1), return_attention_weights=True) for nodes in (x, x[None])
    )
    torch.testing.assert_close(found, ((wanted[0][0][None], wanted[0][1]), wanted[1]), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_virtual": -1}, r"'num_virtual' must be at least 0 \(got -1\)"),
        ({"edge_dim": 3, "graph_edges": False}, "edge_dim=3 needs graph edges"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ExphormerAttention(8, **arguments)


def test_bad_carries_and_other_virtual_nodes_are_refused():
    attn, data, x = ExphormerAttention(8, num_virtual=2), expanded(GRAPHS["star"]), torch.randn(5, 8)
    for shape in ((1, 1, 8), (0, 2, 8), (2, 8)):
        with pytest.raises(ValueError, match=r"'carry' must have shape \[1, 2, 8\].*initial_carry"):
            attn(x, None, data, carry=torch.zeros(shape))
    with pytest.raises(ValueError, match=r"num_virtual=2, but AddExpanderEdges was given another"):
        attn(x, None, expanded(GRAPHS["star"], num_virtual=1))
    attn(x, None, expanded(GRAPHS["star"], num_virtual=2))
