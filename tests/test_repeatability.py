"""On CPU, calls with one seed give the same bits, also on two threads and at sizes where torch uses both.

Bit equality holds on any machine: the compared numbers come from the same operations on the same values, and no
operation of the library adds in an order that depends on which thread is first.
"""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph

from pyg_topomask.nn import (
    ATTENTION,
    GKATConv,
    GRFMask,
    MaskedAttention,
    PrimalAttention,
    RWGNKMask,
    auxiliary_loss,
)
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

CALLS = 20
CHANNELS, NUM_HEADS = 32, 2


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def prepare(sizes: list[int], num_walks: int, halt_prob: float) -> Batch:
    """Graphs with hubs, with all that attentions, encoders and heads read."""
    torch.manual_seed(0)
    graphs = [Data(edge_index=barabasi_albert_graph(n, 4), num_nodes=n) for n in sizes]
    for transform in (AddExpanderEdges(seed=0), AddRandomWalks(num_walks, 4, halt_prob, seed=0)):
        graphs = [transform(graph) for graph in graphs]
    return Batch.from_data_list(graphs)


@pytest.fixture(scope="module")
def batch() -> Batch:
    """One graph of a thousand nodes, and some of equal and of other sizes."""
    return prepare([1000, 30, 30, 60], 16, 0.5)


@pytest.fixture(scope="module")
def many_walks() -> Batch:
    """A thousand nodes and 69,000 walk entries, more than torch leaves to one thread (32,768)."""
    return prepare([32] * 32, 64, 0.1)


class NoRacingSums(TorchDispatchMode):
    """Refuses the operation of torch that adds float32 numbers in any order: sums into an index that repeats.

    It is the gradient of ``x[index]``; those of ``index_select`` and ``gather`` add in order. Calls that merely happen
    to agree would hide it.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "index_put" in func.name() and len(args) > 3 and args[3]:
            place = torch.stack(torch.broadcast_tensors(*(index for index in args[1] if index is not None)))
            assert place.flatten(1).unique(dim=1).size(1) == place[0].numel(), f"{func} adds in any order"
        return func(*args, **(kwargs or {}))


def values_and_gradients(build, call) -> list[Tensor]:
    """Outputs, auxiliary loss, and gradients of all parameters, of a module that is drawn afresh."""
    torch.manual_seed(0)
    module = build()
    out = call(module)
    loss = sum((part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum() for part in out)
    (loss + auxiliary_loss(module)).backward()
    return [*out, *(parameter.grad for parameter in module.parameters() if parameter.grad is not None)]


def assert_repeats(build, call, calls: int = CALLS):
    with NoRacingSums():
        first = values_and_gradients(build, call)
    assert len(first) > 1  # there are gradients
    for number in range(1, calls):
        for mine, other in zip(values_and_gradients(build, call), first):
            assert torch.equal(mine, other), f"call {number} differs by {float((mine - other).abs().max())}"


def attend(batch: Batch):
    """Call of an attention, with the gradient of its input."""
    x = torch.randn(batch.num_nodes, CHANNELS, generator=torch.Generator().manual_seed(0))

    def call(attn):
        attn.input = torch.nn.Parameter(x.clone())
        return [attn(attn.input, batch.batch, batch)]

    return call


@pytest.mark.parametrize("name", [*ATTENTION, "Primal", "GKATConv"])
def test_attention_repeats(batch, name):
    classes = {**ATTENTION, "Primal": PrimalAttention}
    call = attend(batch)
    if name == "GKATConv":
        assert_repeats(lambda: GKATConv(CHANNELS, 8, 2, dropout=0.1), call)
    else:
        assert_repeats(lambda: classes[name](CHANNELS, NUM_HEADS), call)


MASKS = {
    "grf": lambda: GRFMask(),
    "grf_heads": lambda: GRFMask(NUM_HEADS),
    "grf_unsymmetric": lambda: GRFMask(symmetric=False),
    "rwgnk": lambda: RWGNKMask(),
    "rwgnk_learned": lambda: RWGNKMask(NUM_HEADS, learnable=True),
}


def test_every_mask_is_covered():
    assert {type(build()) for build in MASKS.values()} == set(Mask.__subclasses__())


@pytest.mark.parametrize("path", ["factored", "pairwise", "blocks", "dense"])
@pytest.mark.parametrize("mask", MASKS)
def test_mask_repeats_on_every_path(many_walks, mask, path):
    graph = many_walks if path != "dense" else prepare([32] * 10, 64, 0.1)  # 320 × 320 entries are enough for threads
    assert_repeats(lambda: MaskedAttention(CHANNELS, NUM_HEADS, "elu1", MASKS[mask](), path), attend(graph))


@pytest.mark.parametrize("path", ["pairwise", "blocks", "dense"])
def test_masked_softmax_repeats_on_every_path(many_walks, path):
    graph = many_walks if path != "dense" else prepare([32] * 10, 64, 0.1)
    assert_repeats(lambda: MaskedAttention(CHANNELS, NUM_HEADS, "softmax", GRFMask(), path), attend(graph))
