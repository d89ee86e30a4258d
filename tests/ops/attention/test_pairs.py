"""Pairs that are too many to be listed at once: the same numbers from parts of the rows, in bounded memory."""

import subprocess
import sys

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.nn import GKATConv, GRFMask, MaskedAttention, RWGNKMask
from pyg_topomask.ops.attention import pair_kernels, pairs
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.typing import PerformanceWarning

MASKS = {
    "grf": lambda: GRFMask(),
    "grf_signed_heads": lambda: GRFMask(2),
    "grf_unsymmetric": lambda: GRFMask(symmetric=False),
    "rwgnk": lambda: RWGNKMask(),
    "rwgnk_learned": lambda: RWGNKMask(2, learnable=True),
}


def star(num_nodes: int) -> Data:
    leaves = torch.arange(1, num_nodes)
    edges = torch.stack([torch.zeros_like(leaves), leaves])
    return Data(edge_index=torch.cat([edges, edges.flip(0)], 1), num_nodes=num_nodes)


def stars() -> Batch:
    return Batch.from_data_list([AddRandomWalks(4, 4, seed=0)(star(n)) for n in (12, 1, 7)])


def limit(monkeypatch, pairs_at_once: int, weights: int = 2**24):
    monkeypatch.setattr(pairs, "_PAIRS_AT_ONCE", pairs_at_once)
    monkeypatch.setattr(pairs, "_WEIGHTS_KEPT", weights)
    monkeypatch.setattr(pairs, "_PAIRS_PER_NUMBER", 0)
    monkeypatch.setattr("pyg_topomask.ops.attention.masked_linear.PAIRS_PER_NUMBER", 0)


def values_and_gradients(module, batch, width):
    x = torch.randn(batch.num_nodes, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x.requires_grad_()
    out = module(x, batch.batch, batch)
    return out, torch.autograd.grad(out.square().sum(), [x, *module.parameters()])


def build(mask: str, kernel: str):
    torch.manual_seed(0)
    if kernel == "additive":
        module = GKATConv(8, 4, 2, path="pairwise")
        module.mask = MASKS[mask]()
    else:
        module = MaskedAttention(8, 2, kernel, MASKS[mask](), "pairwise")
    if mask == "grf_signed_heads":
        with torch.no_grad():
            module.mask.modulation[0, 1] = -0.3
    return module.double()


@pytest.mark.parametrize("kernel", ["elu1", "softmax", "additive"])
@pytest.mark.parametrize("mask", MASKS)
def test_parts_of_the_rows_give_the_same(monkeypatch, mask, kernel):
    batch, module = stars(), build(mask, kernel)
    wanted = values_and_gradients(module, batch, 8)
    limit(monkeypatch, 40)
    with pytest.warns(PerformanceWarning, match=r"has up to \d+ pairs of nodes.*in \d+ parts"):
        found = values_and_gradients(module, batch, 8)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_pairs_that_32_bits_cannot_count_are_listed_in_parts(monkeypatch):
    batch, module = stars(), build("rwgnk_learned", "softmax")
    wanted = values_and_gradients(module, batch, 8)
    monkeypatch.setattr(pairs, "MOST_ENTRIES", 40)  # instead of 2^31 - 1
    with pytest.warns(PerformanceWarning, match="pairs of nodes"):
        found = values_and_gradients(module, batch, 8)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", ["elu1", "softmax", "additive"])
def test_heads_computed_again_give_the_same(monkeypatch, kernel):
    batch, module = stars(), build("rwgnk_learned", kernel)
    wanted = values_and_gradients(module, batch, 8)
    limit(monkeypatch, 10**6, weights=0)
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")  # compiled code always computes them again
    calls = []
    monkeypatch.setattr(
        pair_kernels, "checkpoint", lambda *args, **kwargs: calls.append(args) or checkpoint(*args, **kwargs)
    )
    checkpoint = torch.utils.checkpoint.checkpoint
    torch.testing.assert_close(values_and_gradients(module, batch, 8), wanted, rtol=1e-10, atol=1e-10)
    assert len(calls) == 2


def test_dropout_is_the_same_in_both_passes(monkeypatch):
    graph = AddRandomWalks(4, 4, seed=0)(star(6))
    limit(monkeypatch, 8)
    torch.manual_seed(0)
    module = GKATConv(2, 2, dropout=0.5, path="pairwise").double()
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)

    def attend(x):
        torch.manual_seed(1)
        return module(x, None, graph)

    with pytest.warns(PerformanceWarning):
        attend(x)
    assert torch.autograd.gradcheck(attend, (x,))


def test_the_figure_is_told_once(monkeypatch):
    batch, module = stars(), build("rwgnk", "softmax")
    limit(monkeypatch, 40)
    with pytest.warns(PerformanceWarning):
        values_and_gradients(module, batch, 8)
    values_and_gradients(module, batch, 8)  # the suite makes an error of the warning


def test_a_hub_does_not_fill_the_memory():
    """A star of 4,000 nodes has 16 million pairs, which took 870 MiB at once; a part at a time they take 250."""
    code = """
import resource, torch, warnings
from torch_geometric.data import Data
from pyg_topomask.nn import GKATConv
from pyg_topomask.transforms import AddRandomWalks
warnings.simplefilter("ignore")
torch.set_num_threads(1)
leaves = torch.arange(1, 4000)
edges = torch.stack([torch.zeros_like(leaves), leaves])
graph = Data(edge_index=torch.cat([edges, edges.flip(0)], 1), num_nodes=4000)
graph = AddRandomWalks(8, 2, 0.0, independent=False, seed=0)(graph)
conv, x = GKATConv(8, 8, max_length=2), torch.randn(4000, 8, requires_grad=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
conv(x, None, graph).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 500
