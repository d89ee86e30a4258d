import torch
from torch.utils.checkpoint import checkpoint as checkpointed

from pyg_topomask.nn import KMIPAttention


def test_a_huge_k_takes_the_memory_of_the_largest_graph():
    x = torch.randn(90, 8)
    out, (pairs, _) = KMIPAttention(8, k=10**12)(x, return_attention_weights=True)
    assert out.isfinite().all()
    assert pairs.size(1) == 90**2


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
