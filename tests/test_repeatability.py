"""On CPU, calls with one seed give the same bits, also on two threads and at sizes where torch uses both.

Bit equality holds on any machine: what is compared comes from the same operations on the same numbers, and no
operation of the library adds in an order that depends on which thread comes first.
"""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph

from pyg_topomask.nn import ATTENTION, HEADS, GKATConv, auxiliary_loss
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.head.edge import DECODINGS
from pyg_topomask.nn.norm import NORMS, apply_norm, build_norm
from pyg_topomask.nn.pool import POOLS
from pyg_topomask.run.graphgps.convs import CONVS
from pyg_topomask.testing import examples, prepared
from tests.nn.encoder_cases import CASES, encodable
from tests.threads import NoRacingSums

CALLS, CHANNELS, NUM_HEADS = 3, 32, 2
SIZES = (1000, 30, 30, 60)
"""One graph of a thousand nodes, and some of equal and of other sizes: beyond 32,768 numbers torch takes threads."""


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def values_and_gradients(build, call, inputs) -> list[Tensor]:
    """Outputs of a module that is drawn afresh, and the gradients of its parameters and inputs."""
    torch.manual_seed(0)
    module = build()
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = call(module, *inputs)
    out = list(out) if isinstance(out, tuple) else [out]
    loss = sum((part * torch.linspace(-1, 1, part.numel()).view_as(part)).sum() for part in out)
    sources = [*module.parameters(), *inputs]
    gradients = torch.autograd.grad(loss + auxiliary_loss(module), sources, allow_unused=True)
    return [*out, *(gradient for gradient in gradients if gradient is not None)]


def assert_repeats(build, call, *inputs):
    with NoRacingSums():
        first = values_and_gradients(build, call, inputs)
    assert len(first) > 1  # there are gradients
    for number in range(1, CALLS):
        for mine, other in zip(values_and_gradients(build, call, inputs), first):
            assert torch.equal(mine, other), f"call {number} differs by {float((mine - other).abs().max())}"


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def graphs_of(sizes) -> list[Data]:
    """Graphs with hubs."""
    torch.manual_seed(0)
    return [Data(edge_index=barabasi_albert_graph(n, 4), num_nodes=n) for n in sizes]


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Batch.from_data_list(graphs_of(SIZES))


ATTENTIONS = examples(ATTENTION) | {"GKATConv": lambda channels, heads: GKATConv(channels, 8, heads, dropout=0.1)}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_repeats(name):
    build = lambda: ATTENTIONS[name](CHANNELS, heads=NUM_HEADS)  # noqa: E731
    graph = Batch.from_data_list(prepared(build(), graphs_of(SIZES), num_walks=16))
    assert_repeats(build, lambda attn, x: attn(x, graph.batch, graph), draw(graph.num_nodes, CHANNELS))


SLOW = pytest.param("LapPE-Transformer", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [SLOW, *(name for name in CASES if name not in SLOW.values)])
def test_encoder_repeats(name):
    cls, options, columns = CASES[name]
    parts = [encodable(data, num_pairs=40 * data.num_nodes, **columns) for data in graphs_of(SIZES)]
    graph = Batch.from_data_list(parts)
    assert_repeats(lambda: cls(CHANNELS, **options), lambda encoder: encoder(graph))


HEAD_CASES = [
    *(("graph", {"pool": pool, "layers": 2}) for pool in POOLS),
    ("node", {"layers": 2}),
    *((name, {}) for name in ("san_graph", "mlp_graph", "ogb_code_graph")),
    *(("edge", {"decoding": decoding, "layers": 2}) for decoding in DECODINGS),
]


def test_every_head_is_covered():
    assert {HEADS[name] for name, _ in HEAD_CASES} == set(HEADS.values())


@pytest.mark.parametrize(("name", "arguments"), HEAD_CASES)
def test_head_repeats(batch, name, arguments):
    graph = batch.clone()
    graph.edge_label_index = torch.randint(batch.num_nodes, (2, 5_000))
    head = lambda: HEADS[name](CHANNELS, 1, **arguments)  # noqa: E731
    assert_repeats(head, lambda head, x: head(x, graph), draw(batch.num_nodes, CHANNELS))


CONV_CASES = [
    (name, edges, stable)
    for name, entry in CONVS.items()
    for edges in ([True] if entry.needs_edges else [False, True] if entry.takes_edges else [False])
    for stable in ([False, True] if entry.takes_pe else [False])
]


@pytest.mark.parametrize(("name", "edges", "stable"), CONV_CASES)
def test_convolution_repeats(batch, name, edges, stable):
    settings = {"act": lambda: "relu", "dropout": 0.0, "stable": stable, "last": False, "alone": False}
    settings |= {"channels": CHANNELS, "heads": NUM_HEADS, "edge_dim": CHANNELS if edges else None, "num_types": 2}
    types = {"edge_type": torch.arange(batch.num_edges) % 2} if CONVS[name].takes_types else {}
    extra = ["edge_attr"] * edges + ["pe"] * stable
    shapes = {"edge_attr": (batch.num_edges, CHANNELS), "pe": (batch.num_nodes, 4)}
    call = lambda conv, x, *given: conv(x, batch.edge_index, **dict(zip(extra, given)), **types)  # noqa: E731
    inputs = [draw(batch.num_nodes, CHANNELS), *(draw(*shapes[name]) for name in extra)]
    assert_repeats(lambda: CONVS[name].build(**settings), call, *inputs)


def test_graph_token_repeats():
    small, bias = Batch.from_data_list(graphs_of([60] * 18)), draw(18 * 60 * 60, NUM_HEADS)
    call = lambda token, x, bias: token.insert(x, small, 18, bias)[::2]  # noqa: E731
    assert_repeats(lambda: GraphToken(CHANNELS, NUM_HEADS), call, draw(small.num_nodes, CHANNELS), bias)


@pytest.mark.parametrize("name", NORMS)
def test_norm_repeats(batch, name):
    x = draw(batch.num_nodes, CHANNELS)
    assert_repeats(lambda: build_norm(name, CHANNELS), lambda norm, x: apply_norm(norm, x, batch.batch), x)
