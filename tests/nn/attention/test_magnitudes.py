"""The edges of the supported range: features and equal values of 1e4, mask weights of 1e-6 and 1e6."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import from_networkx

from pyg_topomask.nn import ATTENTION, GRFMask, MaskedAttention
from pyg_topomask.nn.attention.masked import KERNELS
from pyg_topomask.ops.attention.choice import PATHS
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

CASES = [
    *(
        (kernel, path, torch.float32)
        for kernel in KERNELS
        for path in PATHS
        if (kernel, path) != ("softmax", "factored")
    ),
    *((kernel, "auto", dtype) for kernel in KERNELS for dtype in (torch.bfloat16, torch.float16)),
]
EVERY = [
    *((name, {}) for name in ATTENTION),
    *((name, {"kernel": kernel}) for name in ("GRF", "GKAT", "Linear") for kernel in KERNELS),
    ("Exphormer", {"num_virtual": 2}),
]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_every_attention_has_finite_gradients(name, settings, equal):
    attn, walks = ATTENTION[name](8, heads=2, **settings), AddRandomWalks(num_walks=4, seed=0)
    edges = AddExpanderEdges(degree=2, num_virtual=settings.get("num_virtual", 0), seed=0)
    data = Batch.from_data_list([edges(walks(GRAPHS[graph].clone())) for graph in ("path", "star", "two_parts")])
    x = 1e4 * (torch.ones if equal else torch.randn)(data.num_nodes, 8)
    out = attn(x.requires_grad_(), data.batch, data)
    assert out.isfinite().all()
    inputs = [x, *(p for p in attn.parameters() if p.requires_grad)]
    for loss in (out.sum(), out.square().sum()):
        grads = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
        assert all(grad.isfinite().all() for grad in grads if grad is not None)


@pytest.fixture(scope="module")
def graph():
    grid = from_networkx(nx.grid_2d_graph(8, 8))
    return AddRandomWalks(8, 4, seed=1)(Data(edge_index=grid.edge_index, num_nodes=64))


def attend(graph, f, x, kernel, path, normalizer="bound"):
    """Output, and gradients to x and f."""
    torch.manual_seed(0)
    attn = MaskedAttention(8, 2, kernel, GRFMask(2), path, normalizer=normalizer).to(x.dtype)
    attn.mask.float()
    with torch.no_grad():
        attn.mask.modulation.copy_(f.expand(2, 5))
    x = x.clone().requires_grad_()
    out = attn(x, None, graph)
    return out.detach(), *torch.autograd.grad(out.sum(), [x, attn.mask.modulation])


@pytest.mark.parametrize("f", [(1, -1, 0, 0, 0), (1, 1, 0.3, 1e-6, 0)])
@pytest.mark.parametrize(("kernel", "path", "dtype"), CASES)
def test_the_scale_of_the_mask_changes_nothing(graph, kernel, path, dtype, f):
    f = torch.tensor(f)
    for size in (1e-2, 3.0, 1e4):
        x = (size * torch.randn(64, 8, generator=torch.Generator().manual_seed(3)).clamp(-1, 1)).to(dtype)
        wanted = attend(graph, f, x, kernel, path)
        for scale in (2.0**-10, 2.0**10):  # weights of 1e-6 and 1e6; powers of two add no rounding
            *found, grad_f = attend(graph, scale * f, x, kernel, path)
            for a, b in zip((*found, scale * grad_f), wanted):
                assert a.isfinite().all()
                if kernel != "softmax_rf" or size < 10:  # random features of long queries underflow
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))
            if dtype == torch.float32:
                signed = attend(graph, scale * f, x, kernel, path, "signed")
                assert all(result.isfinite().all() for result in signed)
