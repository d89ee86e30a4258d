import torch

from pyg_topomask.nn import ExphormerAttention
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddExpanderEdges


def test_dense_nodes_with_a_carry_and_weights():
    attn, x = ExphormerAttention(8, num_virtual=2), torch.randn(5, 8)
    data = AddExpanderEdges(1, seed=0)(GRAPHS["star"].clone())
    wanted, found = (
        attn(nodes, None, data, carry=attn.initial_carry(1), return_attention_weights=True) for nodes in (x, x[None])
    )
    torch.testing.assert_close(found, ((wanted[0][0][None], wanted[0][1]), wanted[1]), rtol=0, atol=0)
