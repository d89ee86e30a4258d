import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import ATTENTION, GPSLayer, KMIPAttention, MaskedAttention
from pyg_topomask.ops import topk_edge_index
from pyg_topomask.testing import GRAPHS, AttentionCase


class TestKMIP(AttentionCase):
    def build(self):
        return ATTENTION["KMIP"](self.channels, heads=2, k=3)


class TestKMIPTorch(AttentionCase):
    def build(self):
        return KMIPAttention(self.channels, k=2, backend="torch", checkpoint=True)


class TestKMIPOwnWidths(AttentionCase):
    def build(self):
        widths = {"kq_dim": 5, "val_dim": self.channels // 2}
        return KMIPAttention(self.channels, heads=2, k=3, head_agg="none", bias=False, **widths)


def test_is_the_formula():
    attn = KMIPAttention(6, heads=2, k=2, kq_dim=4, val_dim=5).double()
    x = torch.randn(7, 6, dtype=torch.float64)
    q, k, v = (x @ attn.qkv.weight.t() + attn.qkv.bias).split([8, 8, 10], dim=1)
    heads = []
    for h in range(2):
        score = q[:, 4 * h : 4 * h + 4] @ k[:, 4 * h : 4 * h + 4].t() / 2
        kept = score >= score.topk(2)[0][:, -1:]
        heads.append(score.masked_fill(~kept, -torch.inf).softmax(1) @ v[:, 5 * h : 5 * h + 5])
    wanted = torch.cat(heads, 1) @ attn.out.weight.t() + attn.out.bias
    torch.testing.assert_close(attn(x), wanted)


def test_with_all_keys_it_is_softmax_attention():
    full = MaskedAttention(8, heads=2, kernel="softmax")
    attn = KMIPAttention(8, heads=2, k=100)
    attn.load_state_dict(full.state_dict())
    batch = Batch.from_data_list(list(GRAPHS.values()))
    x = torch.randn(batch.num_nodes, 8)
    torch.testing.assert_close(attn(x, batch.batch), full(x, batch.batch), rtol=1e-6, atol=1e-6)


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


def test_dropout_acts_on_the_weights_in_training_only():
    x, attn = torch.randn(50, 8), KMIPAttention(8, k=4, dropout=0.5)
    assert not torch.equal(attn(x), attn(x))
    attn.eval()
    assert torch.equal(attn(x), attn(x))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpointing_changes_no_gradient(dropout):
    x = torch.randn(40, 8, requires_grad=True)
    plain, saving = (KMIPAttention(8, heads=2, k=4, dropout=dropout, checkpoint=flag) for flag in (False, True))
    saving.load_state_dict(plain.state_dict())
    grads = []
    for attn in (plain, saving):
        torch.manual_seed(1)
        grads.append(torch.autograd.grad(attn(x).square().sum(), [x, *attn.parameters()]))
    torch.testing.assert_close(grads[0], grads[1])


def test_scores_are_float32_under_autocast():
    x, attn = torch.randn(60, 8), KMIPAttention(8, heads=2, k=60)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attn(x)
        assert out.dtype == torch.bfloat16
    assert (out.float() - attn(x)).norm() < 0.03 * attn(x).norm()


def test_batch_without_nodes():
    x = torch.zeros(0, 8, requires_grad=True)
    attn = KMIPAttention(8, heads=2, k=3)
    for batch in (None, torch.zeros(0, dtype=torch.long)):
        out = attn(x, batch)
        assert out.shape == (0, 8)
        out.sum().backward()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_compiled_is_the_same(checkpoint):
    torch.manual_seed(0)
    attn = KMIPAttention(24, heads=3, k=5, checkpoint=checkpoint)
    x, batch = torch.randn(171, 24), torch.tensor([0] * 3 + [2] * 37 + [5] + [6] * 130)
    wanted = attn(x, batch)
    compiled = torch.compile(attn, backend="eager")  # what may go wrong is the tracing, which all back ends share
    for _ in range(3):
        torch.testing.assert_close(compiled(x, batch), wanted)


def test_in_a_gps_layer():
    batch = Batch.from_data_list([GRAPHS["star"], GRAPHS["path"]])
    layer = GPSLayer(8, attn=KMIPAttention(8, heads=2, k=2))
    x = torch.randn(9, 8, requires_grad=True)
    layer(x, batch.edge_index, batch.batch).sum().backward()
    assert x.grad.isfinite().all()


def test_reset_draws_anew():
    for head_agg in ("linear", "none"):
        attn = KMIPAttention(8, head_agg=head_agg)
        before = attn.qkv.weight.clone()
        attn.reset_parameters()
        assert not torch.equal(attn.qkv.weight, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 3}, r"divisible by 'heads' \(got 8 and 3\)"),
        ({"heads": 0}, "'heads' must be at least 1"),
        ({"k": 0}, r"'k' must be at least 1 \(got 0\)"),
        ({"kq_dim": 0}, r"'kq_dim' must be at least 1"),
        ({"dropout": 1.0}, r"in \[0, 1\) \(got 1.0\)"),
        ({"head_agg": "sum"}, r"one of linear, none \(got 'sum'\)"),
        ({"head_agg": "none", "val_dim": 3}, r"got 3, 1 and 8"),
        ({"backend": "gpu"}, r"one of auto, .*\(got 'gpu'\)"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        KMIPAttention(8, **arguments)
