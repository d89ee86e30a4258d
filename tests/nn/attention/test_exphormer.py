import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.nn import ExphormerAttention, GPSStack
from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddExpanderEdges


def expanded(data, **settings):
    return AddExpanderEdges(**{"degree": 1, "seed": 0, **settings})(data.clone())


def test_starts_as_dot_product_attention_to_the_neighbours():
    attn = ExphormerAttention(4, num_virtual=0, expander=False).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    q, k, v = attn.qkv(x).split(4, 1)
    hub = (q[0] @ k[1:].t() / 2).softmax(0) @ v[1:]
    wanted = attn.out(torch.cat([hub[None], v[:1].expand(4, -1)]))
    torch.testing.assert_close(attn(x, None, GRAPHS["star"]), wanted)


def test_a_node_without_edges_has_the_output_of_zero():
    attn, data = ExphormerAttention(8, num_virtual=0), expanded(GRAPHS["single"])
    assert torch.equal(attn(torch.randn(1, 8), None, data)[0], attn.out.bias)
    attn, parts = ExphormerAttention(8), [expanded(data) for data in (empty_graph(), GRAPHS["path"], empty_graph())]
    batch = Batch.from_data_list(parts)
    _, carry = attn(torch.randn(4, 8), batch.batch, batch, carry=attn.initial_carry(3))
    assert torch.equal(carry[[0, 2], 0], attn.out.bias.expand(2, -1))  # virtual nodes of graphs without nodes


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


def test_requires_and_size():
    assert ExphormerAttention(8).requires == ("expander_index", "expander_size")
    assert ExphormerAttention(8, expander=False).requires == ()
    assert ExphormerAttention(8).edge_type.shape == (4, 8)
    assert ExphormerAttention(8, num_virtual=0, expander=False).edge_type.shape == (1, 8)
    assert ExphormerAttention(8).double().initial_carry(3).dtype == torch.float64


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
