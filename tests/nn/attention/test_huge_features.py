"""Features so large that rounding errors alone, multiplied by them, would leave the range of float32."""

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import ATTENTION
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

KERNELS = ("relu", "elu1", "square", "exp", "softmax_rf", "softmax")
# Polynormer's layer norm, which is PyTorch's, has no finite gradient there.
CASES = [
    *((name, {}) for name in ATTENTION if name != "Polynormer"),
    *((name, {"kernel": kernel}) for name in ("GRF", "GKAT", "Linear") for kernel in KERNELS),
    *(("GKAT", {"kernel": "softmax", "path": path}) for path in ("pairwise", "blocks")),
    *(("GRF", {"kernel": "softmax_rf", "path": path}) for path in ("factored", "pairwise", "blocks", "dense")),
    ("Exphormer", {"num_virtual": 2}),
]


@pytest.fixture(scope="module")
def graphs():
    walks = AddRandomWalks(num_walks=4, seed=0)
    return [walks(GRAPHS[name].clone()) for name in ("path", "star", "two_parts")]


@torch.no_grad()
def make_projections_exact(attn):
    """Weights of few digits and no bias: sums of equal features are exact, so nodes do not differ by rounding.

    Some matrix products add in another order in the last rows, which would make equal features unequal.
    """
    for name, parameter in attn.named_parameters():
        parameter.mul_(0 if name.endswith("bias") else 16).round_().div_(16)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_equal_features_of_any_size_have_finite_gradients(name, settings, graphs, batched):
    torch.manual_seed(0)
    attn = ATTENTION[name](8, heads=2, **settings)
    make_projections_exact(attn)
    edges = AddExpanderEdges(degree=2, num_virtual=settings.get("num_virtual", 0), seed=0)
    data = Batch.from_data_list([edges(graph.clone()) for graph in graphs]) if batched else edges(graphs[1].clone())
    x = torch.full((data.num_nodes, 8), 2.0**50, requires_grad=True)
    out = attn(x, data.get("batch"), data)
    assert out.isfinite().all()
    inputs = [x, *(p for p in attn.parameters() if p.requires_grad)]
    for loss in (out.sum(), out.square().sum()):
        grads = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
        assert all(grad.isfinite().all() for grad in grads if grad is not None)
