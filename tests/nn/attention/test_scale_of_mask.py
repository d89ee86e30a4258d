"""The scale of the mask, and features far from one: neither makes an output or a gradient infinite."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx

from pyg_topomask.nn import GRFMask, MaskedAttention
from pyg_topomask.nn.attention.masked import KERNELS
from pyg_topomask.transforms import AddRandomWalks

CASES = [
    (kernel, path)
    for kernel in KERNELS
    for path in ("auto", "factored", "pairwise", "blocks", "dense")
    if (kernel, path) != ("softmax", "factored")
]


@pytest.fixture(scope="module")
def graph():
    grid = from_networkx(nx.grid_2d_graph(8, 8))
    return AddRandomWalks(8, 4, seed=1)(Data(edge_index=grid.edge_index, num_nodes=64))


def attend(graph, f, x, kernel, path, normalizer="bound"):
    """Output, and gradients to x and f."""
    torch.manual_seed(0)
    attn = MaskedAttention(8, 2, kernel, GRFMask(2), path, normalizer=normalizer).to(x.dtype)
    with torch.no_grad():
        attn.mask.modulation.copy_(torch.tensor(f).expand(2, 5))
    x = x.clone().requires_grad_()
    out = attn(x, None, graph)
    return out.detach(), *torch.autograd.grad(out.sum(), [x, attn.mask.modulation])


@pytest.mark.parametrize("f", [(1, -1, 0, 0, 0), (1, 1, 0.3, 1e-6, 0)])
@pytest.mark.parametrize(("kernel", "path"), CASES)
def test_the_scale_of_the_mask_changes_nothing(graph, kernel, path, f):
    for size in (1e-3, 30.0, 100.0, 1e4, 1e15):
        x = size * torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
        out, grad_x, grad_f = attend(graph, f, x, kernel, path)
        assert out.isfinite().all()
        assert grad_x.isfinite().all()
        assert grad_f.isfinite().all()
        for scale in (2.0**-50, 2.0**50):  # powers of two: only what comes close to underflow is rounded
            same, same_x, scaled_f = attend(graph, [scale * number for number in f], x, kernel, path)
            torch.testing.assert_close(same, out, rtol=1e-5, atol=1e-6 * float(out.abs().max()))
            torch.testing.assert_close(same_x, grad_x, rtol=1e-4, atol=1e-5 * float(grad_x.abs().max()))
            assert scaled_f[grad_f.double().abs() / scale < 1e37].isfinite().all()  # others exceed float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("f", [(1e6, 1e6, 3e5, 1, 0), (1e6, -1e6, 3e5, 1, 0)])
@pytest.mark.parametrize("path", ["factored", "blocks"])
def test_gradients_at_a_large_f_are_finite(graph, path, f, dtype):
    for kernel in ("exp", "softmax_rf"):
        for normalizer in ("bound", "signed"):
            for size in (30, 50, 100):
                x = size * torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
                results = attend(graph, f, x.to(dtype), kernel, path, normalizer)
                assert all(result.isfinite().all() for result in results)
