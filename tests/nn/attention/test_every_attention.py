from contextlib import suppress
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint as checkpointed
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import Compose

from pyg_topomask import nn
from pyg_topomask.nn.attention import masked
from pyg_topomask.testing import GRAPHS, examples, prepared
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks, AddTreeOrder
from tests.nn.attention.projected_case import ProjectedCase
from tests.nn.attention.references import REFERENCES, VARIANTS

MADE = (
    examples(nn.ATTENTION)
    | VARIANTS
    | {
        "GRF, one head": lambda channels, heads: nn.GRFAttention(channels),
        "GRF, asymmetric": partial(nn.GRFAttention, independent=False, symmetric=False),
        "GRF, softmax": partial(nn.GRFAttention, kernel="softmax"),
        "GRF, random features": partial(nn.GRFAttention, kernel="softmax_rf", num_features=16),
    }
)


# Edges that are there twice, in one direction only, and from a node to itself.
ODD = Data(x=torch.zeros(4, 4).double(), edge_index=torch.tensor([[0, 0, 1, 2, 2], [1, 1, 0, 2, 2]]), num_nodes=4)


class TestEveryAttention(ProjectedCase):
    names = ("path", "isolated", "single", "star", "two_parts", "one_way")

    @pytest.fixture(autouse=True, params=MADE)
    def _attention(self, request):
        self.made = MADE[request.param]
        self.equivariant = self.build().card.reach != "order"

    def build(self):
        return _jitter(self.made(self.channels, heads=2))

    def _graphs(self):
        return [*super()._graphs(), self.prepare(ODD.clone())]

    def prepare(self, data):
        data = super().prepare(data)
        data.edge_attr = torch.sin(torch.arange(3.0 * data.num_edges)).view(-1, 3)
        return data

    def reference(self, attn, x, batch, carry):
        return REFERENCES[type(attn)](attn, x, batch, carry)


def _jitter(attn):
    """Move the numbers of a mask and learned vectors off their fixed start, so that two modules differ in them."""
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.mul_(1 + 0.2 * torch.rand_like(parameter))
    return attn


def test_heads_one_by_one_give_what_all_at_once_give(monkeypatch):
    """Many features take less memory so; values and gradients stay."""
    walk = AddRandomWalks(independent=False, seed=0)
    graph = Batch.from_data_list([walk(data.clone()) for data in list(GRAPHS.values())[:6]])
    attention = nn.GKATAttention(8, heads=2, num_features=6).double()
    x = torch.randn(graph.num_nodes, 8, dtype=torch.float64, requires_grad=True)
    found = []
    for limit in (2**22, 0):
        monkeypatch.setattr(masked, "_MANY_FEATURES", limit)
        out = attention(x, None, graph)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *attention.parameters()])])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "build",
    [
        partial(nn.FullAttention, 4, 2),
        lambda: nn.MaskedAttention(4, 2, "softmax", nn.CausalMask()),
        lambda: nn.MaskedAttention(4, 2, mask=nn.HopMask(2, 2), path="blocks"),
        partial(nn.GRFAttention, 4, 2, kernel="softmax"),
        partial(nn.GRFAttention, 4, 2, path="blocks"),
        partial(nn.GKATAttention, 4, 2, learnable=True, path="pairwise"),
    ],
)
def test_nested_transforms_leave_nothing_with_the_batch(build):
    """What is known of a batch is first asked for within two levels of torch.func, and then by a plain call."""
    attn = build().double()
    batch = Batch.from_data_list(prepared(attn, [GRAPHS["path"], GRAPHS["star"]]))
    x = torch.randn(batch.num_nodes, 4, dtype=torch.float64)
    gradient = torch.func.grad(lambda x: attn(x, graph=batch).square().sum())
    with suppress(RuntimeError):  # torch's own softmax attention has no second derivative
        torch.func.grad(lambda x: gradient(x).square().sum())(x)
    torch.testing.assert_close(attn(x, graph=batch), attn(x, graph=batch.clone()))
    new, leaf = torch.func.grad(lambda x: attn(x, graph=batch.clone()).square().sum()), x.clone().requires_grad_()
    torch.testing.assert_close(new(x), torch.autograd.grad(attn(leaf, graph=batch).square().sum(), leaf)[0])


def test_a_backward_pass_after_a_redraw_has_the_projection_of_its_forward_pass(monkeypatch):
    found, x = [], torch.randn(2, 5, 8, dtype=torch.float64)
    for limit in (2**22, 0):
        monkeypatch.setattr(masked, "_MANY_FEATURES", limit)
        torch.manual_seed(0)
        attn = nn.PerformerAttention(8, heads=2, num_features=6).double()
        loss = attn(x[0]).square().sum()
        attn.redraw(torch.Generator().manual_seed(1))
        loss = loss + attn(x[1]).square().sum()
        found.append(torch.autograd.grad(loss, list(attn.parameters())))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


EVERYWHERE = {
    **{name: lambda attention=attention: attention(8, heads=2) for name, attention in nn.ATTENTION.items()},
    **{
        f"mask {name}": lambda name=name: nn.MaskedAttention(8, mask=nn.MASK[name]())
        for name in ("forest", "heat", "tree")
    },
    **{
        f"path {path}": lambda path=path: nn.MaskedAttention(8, 2, "elu1", nn.GRFMask(), path=path)
        for path in ("factored", "pairwise", "blocks", "dense")
    },
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_inputs_on_the_cpu_are_computed_there_whatever_the_default_device_is(name):
    prepare = Compose([AddRandomWalks(seed=0), AddExpanderEdges(seed=0), AddTreeOrder()])
    attn, x = EVERYWHERE[name](), torch.randn(9, 8, requires_grad=True)
    found = []
    for device in ("cpu", "meta"):
        graphs = [prepare(GRAPHS[one].clone()) for one in ("star", "path")]
        batch = Batch.from_data_list(graphs)
        with torch.device(device):
            out = attn(x[: batch.num_nodes], batch.batch, batch)
            found.append([out, *torch.autograd.grad(out.square().sum(), x)])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_all_graphs_of_different_kinds_and_all_features_negative():
    """A row whose relu features are all zero attends to nothing: the output is the bias, the gradients are finite."""
    data = AddRandomWalks(seed=0)(GRAPHS["star"].clone())
    attn = nn.GRFAttention(8, heads=2)
    with torch.no_grad():
        attn.qkv.bias[:8] = -1e3
    x = torch.randn(5, 8, requires_grad=True)
    out = attn(x, None, data)
    assert torch.equal(out, attn.out.bias.expand(5, -1))
    out.sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attn.parameters())


def test_dense_nodes_with_a_carry_and_weights():
    attn, x = nn.ExphormerAttention(8, num_virtual=2), torch.randn(5, 8)
    data = AddExpanderEdges(1, seed=0)(GRAPHS["star"].clone())
    wanted, found = (
        attn(nodes, None, data, carry=attn.initial_carry(1), return_attention_weights=True) for nodes in (x, x[None])
    )
    torch.testing.assert_close(found, ((wanted[0][0][None], wanted[0][1]), wanted[1]), rtol=0, atol=0)


def test_a_huge_k_takes_the_memory_of_the_largest_graph():
    x = torch.randn(90, 8)
    out, (pairs, _) = nn.KMIPAttention(8, k=10**12)(x, return_attention_weights=True)
    assert out.isfinite().all()
    assert pairs.size(1) == 90**2


def test_checkpoints_repeat_dropout():
    x = torch.randn(40, 8, requires_grad=True)
    plain, saving = (nn.KMIPAttention(8, heads=2, k=4, dropout=0.5, checkpoint=flag) for flag in (False, True))
    saving.load_state_dict(plain.state_dict())
    grads = []
    for call in (plain, saving, lambda x: checkpointed(saving, x, use_reentrant=False)):
        torch.manual_seed(1)
        (grad,) = torch.autograd.grad(call(x).square().sum(), x)
        grads.append(grad)
    torch.testing.assert_close(grads[1], grads[0])
    torch.testing.assert_close(grads[2], grads[0])
