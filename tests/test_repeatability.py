"""On CPU, calls with one seed give the same bits, also on two threads and at sizes where torch uses both.

Bit equality holds on any machine: what is compared comes from the same operations on the same numbers, and no
operation of the library adds in an order that depends on which thread comes first.
"""

import networkx
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph, from_networkx

from pyg_topomask.nn import (
    ATTENTION,
    EDGE_ENCODERS,
    HEADS,
    MASK,
    NODE_ENCODERS,
    POSITIONAL_ENCODERS,
    ExphormerAttention,
    GKATConv,
    GRFMask,
    MaskedAttention,
    PrimalAttention,
    SANAttention,
    auxiliary_loss,
)
from pyg_topomask.nn.encoder import GraphormerDegrees, MLPNodeEncoder
from pyg_topomask.nn.encoder.features import AST_SIZES, ATOM_SIZES, BOND_SIZES
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.head.edge import DECODINGS
from pyg_topomask.nn.norm import NORMS, apply_norm, build_norm
from pyg_topomask.nn.pool import POOLS
from pyg_topomask.run.model.convs import CONVS, ConvSettings
from pyg_topomask.testing import examples, prepared
from pyg_topomask.transforms import that_add

CALLS, CHANNELS, NUM_HEADS = 20, 32, 2
SIZES = (1000, 30, 30, 60)
"""One graph of a thousand nodes, and some of equal and of other sizes: beyond 32,768 numbers torch takes threads."""


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class NoRacingSums(TorchDispatchMode):
    """Refuses the one operation of torch that adds float32 numbers in any order: sums at an index that repeats.

    It is the gradient of ``x[index]``; those of ``index_select`` and ``gather`` add in order. Twenty calls that happen
    to agree would hide it.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        accumulates = "index_put" in func.name() and len(args) > 3 and args[3]
        index = [part for part in args[1] if part is not None] if accumulates else []
        if index and not any(part.dtype == torch.bool for part in index):  # a mask names each place once
            place = torch.stack(torch.broadcast_tensors(*index)).flatten(1)
            assert place.unique(dim=1).size(1) == place.size(1), f"{func} adds in any order"
        return func(*args, **(kwargs or {}))


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


def plain_graphs(sizes) -> list[Data]:
    """Graphs with hubs."""
    torch.manual_seed(0)
    return [Data(edge_index=barabasi_albert_graph(n, 4), num_nodes=n) for n in sizes]


def prepare(sizes) -> Batch:
    """Graphs with hubs, which carry what attentions read."""
    required = [attribute for attention in ATTENTION.values() for attribute in attention.requirements()]
    transform = that_add(required, seed=0)
    return Batch.from_data_list([transform(graph) for graph in plain_graphs(sizes)])


@pytest.fixture(scope="module")
def batch() -> Batch:
    return prepare(SIZES)


ATTENTIONS = {
    **{name: lambda cls=cls: cls(CHANNELS, NUM_HEADS) for name, cls in ATTENTION.items()},
    "GKATConv": lambda: GKATConv(CHANNELS, 8, NUM_HEADS, dropout=0.1),
    "Primal": lambda: PrimalAttention(CHANNELS, NUM_HEADS),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_repeats(batch, name):
    x = draw(batch.num_nodes, CHANNELS)
    assert_repeats(ATTENTIONS[name], lambda attn, x: attn(x, batch.batch, batch), x)


MASKS = examples(MASK, (32, 32)) | {"grf per head": lambda: GRFMask(NUM_HEADS)}
"""Every mask; those of walks are tried on every path, and the others, which have fast products, on a large grid."""
WALKED = [name for name in MASKS if "walk_index" in MASKS[name]().requires]


def long_walks(mask, path) -> Batch:
    """A thousand nodes with 69,000 walk entries; for the dense path 320 nodes, whose 102,400 pairs suffice."""
    graphs = plain_graphs([32] * (10 if path == "dense" else 32))
    return Batch.from_data_list(prepared(mask, graphs, num_walks=64, halt_prob=0.1))


@pytest.mark.parametrize("path", ["factored", "pairwise", "blocks", "dense"])
@pytest.mark.parametrize("mask", WALKED)
def test_mask_repeats_on_every_path(mask, path):
    graph = long_walks(MASKS[mask](), path)
    attention = lambda: MaskedAttention(CHANNELS, NUM_HEADS, "elu1", MASKS[mask](), path)  # noqa: E731
    assert_repeats(attention, lambda attn, x: attn(x, graph.batch, graph), draw(graph.num_nodes, CHANNELS))


@pytest.fixture(scope="module")
def large_grid() -> Batch:
    """One grid of 1,024 nodes with what the masks read."""
    graph = from_networkx(networkx.grid_2d_graph(32, 32))
    required = [attribute for mask in MASK.values() for attribute in mask.requirements()]
    return Batch.from_data_list([that_add(required, seed=0)(graph)])


@pytest.mark.parametrize("mask", [name for name in MASKS if name not in WALKED])
def test_fast_mask_repeats(large_grid, mask):
    attention = lambda: MaskedAttention(8, NUM_HEADS, "elu1", MASKS[mask](), "factored")  # noqa: E731
    assert_repeats(attention, lambda attn, x: attn(x, large_grid.batch, large_grid), draw(1024, 8))


@pytest.mark.parametrize("path", ["pairwise", "blocks", "dense"])
def test_masked_softmax_repeats_on_every_path(path):
    graph = long_walks(GRFMask(), path)
    attention = lambda: MaskedAttention(CHANNELS, NUM_HEADS, "softmax", GRFMask(), path)  # noqa: E731
    assert_repeats(attention, lambda attn, x: attn(x, graph.batch, graph), draw(graph.num_nodes, CHANNELS))


ENCODERS = {
    "Atom": (NODE_ENCODERS, {}, ATOM_SIZES),
    "ASTNode": (NODE_ENCODERS, {}, AST_SIZES[:2]),
    "PPANode": (NODE_ENCODERS, {}, 1),
    "TypeDictNode": (NODE_ENCODERS, {"num_types": 28}, (28,)),
    "VOCNode": (NODE_ENCODERS, {}, 14),
    "COCONode": (NODE_ENCODERS, {}, 14),
    "LinearNode": (NODE_ENCODERS, {"in_channels": 3}, 3),
    "Bond": (EDGE_ENCODERS, {}, BOND_SIZES),
    "ASTEdge": (EDGE_ENCODERS, {}, (2, 2)),
    "PPAEdge": (EDGE_ENCODERS, {}, 7),
    "TypeDictEdge": (EDGE_ENCODERS, {"num_types": 4}, (4,)),
    "VOCEdge": (EDGE_ENCODERS, {}, 2),
    "COCOEdge": (EDGE_ENCODERS, {}, 2),
    "LinearEdge": (EDGE_ENCODERS, {"in_channels": 3}, 3),
    "DummyEdge": (EDGE_ENCODERS, {}, 1),
    "LapPE": (POSITIONAL_ENCODERS, {"max_freqs": 4, "raw_norm": "batch_norm"}, 1),
    "SignNet": (POSITIONAL_ENCODERS, {"max_freqs": 4, "layers": 2, "phi_hidden_dim": 16}, 1),
    "RWSE": (POSITIONAL_ENCODERS, {"in_channels": 8, "raw_norm": "batch_norm"}, 1),
    "HKdiagSE": (POSITIONAL_ENCODERS, {"in_channels": 8, "model": "MLP"}, 1),
    "ElstaticSE": (POSITIONAL_ENCODERS, {"in_channels": 8}, 1),
    "EquivStableLapPE": (POSITIONAL_ENCODERS, {"max_freqs": 4}, 1),
    "GraphormerBias": (POSITIONAL_ENCODERS, {"num_spatial_types": 4, "num_edge_types": 3}, 1),
    "RRWP": (POSITIONAL_ENCODERS, {"in_channels": 8}, 1),
    "GraphormerDegrees": ({"GraphormerDegrees": GraphormerDegrees}, {}, 1),
    "MLPNode": ({"MLPNode": MLPNodeEncoder}, {"in_channels": 3, "layers": 2}, 3),
}
"""Name -> where it stands, arguments, and columns of the features: so many numbers, or categories of such sizes."""


def encoded(columns) -> Batch:
    """Graphs that carry what encoders read; distances are those of a thousandth of the largest graph's pairs."""

    def features(rows: int) -> Tensor:
        if isinstance(columns, int):
            return torch.randn(rows, columns)
        return torch.stack([torch.randint(size, (rows,)) for size in columns], dim=1)

    torch.manual_seed(0)
    graphs = []
    for n in SIZES:
        edge_index = barabasi_albert_graph(n, 4)
        graph = Data(x=features(n), edge_index=edge_index, edge_attr=features(edge_index.size(1)))
        graph.node_depth = torch.randint(AST_SIZES[2], (n,))
        graph.random_walk_diagonal, graph.heat_diagonal, graph.electrostatic = torch.rand(3, n, 8).unbind()
        graph.laplacian_vectors, graph.laplacian_values = torch.randn(2, n, 4).unbind()
        graph.shortest_path_in_degree, graph.shortest_path_out_degree = torch.randint(80, (2, n)).unbind()
        graph.pair_shortest_path = torch.randint(5, (40 * n,))
        graph.pair_shortest_path_types = torch.randint(-1, 3, (40 * n, 4))
        graph.pair_relative_walk = torch.rand(40 * n, 8)
        graphs.append(graph)
    return Batch.from_data_list(graphs)


def test_every_encoder_is_covered():
    assert set(ENCODERS) >= {*NODE_ENCODERS, *EDGE_ENCODERS, *POSITIONAL_ENCODERS}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_repeats(name):
    table, arguments, columns = ENCODERS[name]
    graph = encoded(columns)
    assert_repeats(lambda: table[name](CHANNELS, **arguments), lambda encoder: encoder(graph))


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
    settings = ConvSettings(CHANNELS, NUM_HEADS, edges=edges, stable=stable)
    extra = ["edge_attr"] * edges + ["pe"] * stable
    shapes = {"edge_attr": (batch.num_edges, CHANNELS), "pe": (batch.num_nodes, 4)}
    call = lambda conv, x, *given: conv(x, batch.edge_index, **dict(zip(extra, given)))  # noqa: E731
    inputs = [draw(batch.num_nodes, CHANNELS), *(draw(*shapes[name]) for name in extra)]
    assert_repeats(lambda: CONVS[name].build(settings), call, *inputs)


@pytest.mark.parametrize("cls", [ExphormerAttention, SANAttention])
def test_attention_that_reads_edges_repeats(batch, cls):
    def call(attn, x, edge_attr):
        graph = batch.clone()
        graph.edge_attr = edge_attr
        return attn(x, batch.batch, graph)

    inputs = draw(batch.num_nodes, CHANNELS), draw(batch.num_edges, CHANNELS)
    assert_repeats(lambda: cls(CHANNELS, NUM_HEADS, edge_dim=CHANNELS), call, *inputs)


def test_graph_token_repeats(batch):
    small = prepare([60] * 18)
    bias = draw(18 * 60 * 60, NUM_HEADS)
    call = lambda token, x, bias: token.insert(x, small, 18, bias)[::2]  # noqa: E731
    assert_repeats(lambda: GraphToken(CHANNELS, NUM_HEADS), call, draw(small.num_nodes, CHANNELS), bias)


@pytest.mark.parametrize("name", NORMS)
def test_norm_repeats(batch, name):
    x = draw(batch.num_nodes, CHANNELS)
    assert_repeats(lambda: build_norm(name, CHANNELS), lambda norm, x: apply_norm(norm, x, batch.batch), x)
