"""Kernels, patterns, graphs and tensors that the tests of attention on pairs share."""

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.ops.attention import compiled_pairs
from pyg_topomask.ops.attention.pair_kernels import PairKernel
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.transforms import AddRandomWalks

KERNELS = {
    "linear": PairKernel("linear", False),
    "linear_signed": PairKernel("linear", True),
    "features_signed": PairKernel("linear", False, signed_features=True),
    "both_signed": PairKernel("linear", True, signed_features=True),
    "softmax": PairKernel("softmax", False),
    "softmax_signed": PairKernel("softmax", True),
    "additive": PairKernel("additive", False, negative_slope=0.2),
    "additive_signed": PairKernel("additive", True, negative_slope=0.2),
}
compiled = pytest.mark.skipif(isinstance(compiled_pairs.load(), str), reason="needs a C++ compiler")


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()


def random_pattern(num_nodes, share, order=None):
    dense = torch.rand(num_nodes, num_nodes) < share
    dense[1] = False  # a row without pairs
    row, col = dense.nonzero().t()
    return Pattern(row, col, num_nodes, num_nodes, order)


def inputs(pattern, heads, width, channels, entries="heads", own_bound=False):
    """Entries, bounds, q, k and v with gradients; q, k and v are parts of one array, as those of a layer are."""
    q, k, v = numbers(pattern.num_cols, heads, 2 * width + channels).split([width, width, channels], dim=-1)
    if entries == "shared":
        entry = numbers(pattern.nnz)
    else:
        entry = numbers(pattern.nnz, heads) if entries == "pairs" else numbers(heads, pattern.nnz).t()
    bound = entry if own_bound else (entry.detach().abs() + 0.1).requires_grad_()
    return entry, bound, q, k, v


def with_sides(kernel, tensors):
    """Parts of additive scores, one number of each query and key, in place of these; tensors of other kernels."""
    entry, bound, q, k, v = tensors
    return [entry, bound, q[..., :1], k[..., :1], v] if kernel.name == "additive" else list(tensors)


def gradients(sums, tensors):
    weight = torch.randn(sums.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(sums)
    wanted = list(dict.fromkeys(tensors))
    grads = torch.autograd.grad(sums, wanted, weight, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(wanted, grads)]


def one_graph_in_segments():
    """So many pairs hang together that their rows are cut into segments, which share keys."""
    pattern = random_pattern(800, 0.5)
    assert pattern.nnz > 2**18
    return pattern


def graphs_on_their_own():
    """Each graph is a segment; the graph in the middle has no pairs."""
    blocks = [torch.rand(70, 70) < share for share in (0.9, 0.9, 0.9, 0.0, 0.9, 0.9, 0.9)]
    return Pattern(*torch.block_diag(*blocks).nonzero().t(), 490, 490)


def ring(num_nodes, max_length=3, **settings):
    """A ring with walks and random features."""
    node = torch.arange(num_nodes)
    edges = torch.stack([node, (node + 1) % num_nodes])
    edges = torch.cat([edges, edges.flip(0)], 1)
    data = Data(x=torch.randn(num_nodes, 4), edge_index=edges, num_nodes=num_nodes)
    return AddRandomWalks(max_length=max_length, seed=0, **settings)(data)
