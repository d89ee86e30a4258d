import pytest
import torch
from torch.utils.checkpoint import checkpoint as checkpointed
from torch_geometric.data import Batch

from pyg_topomask.nn import KMIPAttention
from pyg_topomask.ops import topk_edge_index
from pyg_topomask.testing import GRAPHS


def test_returned_index_names_nodes_of_the_own_graph():
    batch = Batch.from_data_list([GRAPHS["star"], GRAPHS["single"], GRAPHS["path"]])
    attn = KMIPAttention(8, heads=2, k=3)
    x = torch.randn(batch.num_nodes, 8)
    out, index = attn(x, batch.batch, return_index=True)
    assert torch.equal(out, attn(x, batch.batch))
    assert index.shape == (batch.num_nodes, 2, 3)
    row, col = topk_edge_index(index)
    assert torch.equal(batch.batch[row], batch.batch[col])
    assert (index[5] == torch.tensor([5, -1, -1])).all()  # the graph of one node


def test_a_huge_k_takes_the_memory_of_the_largest_graph():
    x = torch.randn(90, 8)
    assert KMIPAttention(8, k=10**12)(x).isfinite().all()
    _, index = KMIPAttention(8, k=200)(x, return_index=True)
    assert index.shape == (90, 1, 200)
    assert (index[..., 90:] == -1).all()
    assert (index[..., :90] >= 0).all()


def test_checkpoints_repeat_dropout():
    x = torch.randn(40, 8, requires_grad=True)
    plain, saving = (KMIPAttention(8, heads=2, k=4, dropout=0.5, checkpoint=flag) for flag in (False, True))
    saving.load_state_dict(plain.state_dict())
    grads = []
    for call in (plain, saving, lambda x: checkpointed(saving, x, use_reentrant=False)):
        torch.manual_seed(1)
        (grad,) = torch.autograd.grad(call(x).square().sum(), x)
        grads.append(grad)
    torch.testing.assert_close(grads[1], grads[0])
    torch.testing.assert_close(grads[2], grads[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, r"'k' must be at least 1 \(got 0\)"),
        ({"kq_dim": 0}, r"'kq_dim' must be at least 1"),
        ({"head_agg": "sum"}, r"one of linear, none \(got 'sum'\)"),
        ({"head_agg": "none", "val_dim": 3}, r"got 3, 1 and 8"),
        ({"backend": "gpu"}, r"one of auto, .*\(got 'gpu'\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        KMIPAttention(8, **arguments)
