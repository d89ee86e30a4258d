import re

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.nn import ComposedNodeEncoder
from pyg_topomask.nn.encoder import (
    EDGE_ENCODERS,
    NODE_ENCODERS,
    POSITIONAL_ENCODERS,
    ElstaticSE,
    EquivStableLapPE,
    GraphormerBias,
    GraphormerDegrees,
    HKdiagSE,
    LapPE,
    MLPNodeEncoder,
    NormalizedEncoder,
    RelativeWalkBias,
    SignNet,
)
from pyg_topomask.nn.encoder.features import AST_SIZES, ATOM_SIZES, BOND_SIZES
from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddElectrostaticEncoding

K = 5  # eigenvectors: more than the smallest graphs have
NODES = {
    "Atom": ({}, ATOM_SIZES),
    "ASTNode": ({}, AST_SIZES[:2]),
    "PPANode": ({}, None),
    "TypeDictNode": ({"num_types": 28}, (28,)),
    "VOCNode": ({}, 14),
    "COCONode": ({}, 14),
    "LinearNode": ({"in_channels": 3}, 3),
}
EDGES = {
    "Bond": ({}, BOND_SIZES),
    "ASTEdge": ({}, (2, 2)),
    "PPAEdge": ({}, 7),
    "TypeDictEdge": ({"num_types": 4}, (4,)),
    "VOCEdge": ({}, 2),
    "COCOEdge": ({}, 2),
    "LinearEdge": ({"in_channels": 1}, 1),
    "DummyEdge": ({}, None),
}
POSITIONAL = {
    "LapPE": {"max_freqs": K, "raw_norm": "batch_norm", "post_layers": 2},
    "LapPE-Transformer": {"max_freqs": K, "model": "Transformer"},
    "SignNet": {"max_freqs": K, "layers": 3, "phi_hidden_dim": 6},
    "SignNet-DeepSet": {
        "max_freqs": K,
        "model": "DeepSet",
        "layers": 2,
        "post_layers": 3,
        "phi_hidden_dim": 6,
        "phi_out_dim": 5,
    },
    "RWSE": {"in_channels": 4, "raw_norm": "batch_norm"},
    "HKdiagSE": {"in_channels": 4, "model": "MLP", "layers": 3},
    "ElstaticSE": {},
    "EquivStableLapPE": {"max_freqs": K},
    "GraphormerBias": {"num_spatial_types": 4, "num_edge_types": 3},
    "RRWP": {"in_channels": 4},
}
PAIRS = ("GraphormerBias", "RRWP")
TRANSFORMS = {
    "LapPE": "AddLaplacianEncoding",
    "SignNet": "AddLaplacianEncoding",
    "EquivStableLapPE": "AddLaplacianEncoding",
    "RWSE": "AddRandomWalkEncoding",
    "HKdiagSE": "AddHeatDiagonalEncoding",
    "ElstaticSE": "AddElectrostaticEncoding",
    "GraphormerBias": "AddShortestPathBias",
    "RRWP": "AddRelativeWalkEncoding",
}


def features(rows, sizes, generator):
    if isinstance(sizes, int):
        return torch.randn(rows, sizes, generator=generator)
    columns = [torch.randint(size, (rows, 1), generator=generator) for size in sizes or (1,)]
    return torch.cat(columns, dim=1)


def prepared(data, nodes=3, edges=1):
    """A graph with everything that any encoder reads."""
    generator = torch.Generator().manual_seed(data.num_nodes)
    n, e = data.num_nodes, data.num_edges
    vectors = torch.full((n, K), torch.nan)
    values = torch.full((n, K), torch.nan)
    if n > 0:
        adj = torch.zeros(n, n)
        adj[data.edge_index[0], data.edge_index[1]] = 1
        adj = torch.maximum(adj, adj.t())
        w, u = torch.linalg.eigh(torch.diag(adj.sum(1)) - adj)
        vectors[:, : min(n, K)], values[:, : min(n, K)] = u[:, :K], w[:K].expand(n, -1)
    types = torch.randint(-1, 3, (n * n, 4), generator=generator).to(torch.int16)
    return Data(
        x=features(n, nodes, generator),
        edge_attr=features(e, edges, generator),
        edge_index=data.edge_index,
        num_nodes=n,
        node_depth=torch.randint(30, (n, 1), generator=generator),
        laplacian_vectors=vectors,
        laplacian_values=values,
        random_walk_diagonal=torch.rand(n, 4, generator=generator),
        heat_diagonal=torch.rand(n, 4, generator=generator),
        electrostatic=torch.rand(n, 8, generator=generator),
        pair_shortest_path=torch.randint(5, (n * n,), generator=generator).to(torch.int16),
        pair_shortest_path_types=types,
        shortest_path_in_degree=torch.randint(80, (n,), generator=generator),
        shortest_path_out_degree=torch.randint(80, (n,), generator=generator),
        pair_relative_walk=torch.rand(n * n, 4, generator=generator),
    )


def graphs(**kwargs):
    names = ("path", "single", "star", "isolated", "two_parts")
    return [prepared(GRAPHS[name], **kwargs) for name in names] + [prepared(empty_graph(), **kwargs)]


CASES = [
    *((NODE_ENCODERS[name], options, {"nodes": sizes}, "num_nodes") for name, (options, sizes) in NODES.items()),
    *((EDGE_ENCODERS[name], options, {"edges": sizes}, "num_edges") for name, (options, sizes) in EDGES.items()),
    *(
        (POSITIONAL_ENCODERS[name.split("-")[0]], options, {}, "pairs" if name in PAIRS else "num_nodes")
        for name, options in POSITIONAL.items()
    ),
    (GraphormerDegrees, {}, {}, "num_nodes"),
    (MLPNodeEncoder, {"in_channels": 3, "layers": 2}, {}, "num_nodes"),
]
IDS = [*NODES, *EDGES, *POSITIONAL, "GraphormerDegrees", "MLPNode"]


def test_every_encoder_is_tried():
    assert set(NODES) == set(NODE_ENCODERS)
    assert set(EDGES) == set(EDGE_ENCODERS)
    assert {name.split("-")[0] for name in POSITIONAL} == set(POSITIONAL_ENCODERS)


@pytest.mark.parametrize(("cls", "options", "data", "rows"), CASES, ids=IDS)
def test_batch_equals_singles_and_gradients_reach_every_parameter(cls, options, data, rows):
    torch.manual_seed(0)
    encoder, parts = cls(8, **options), graphs(**data)
    batch = Batch.from_data_list(parts)
    encoder.train()
    weights = torch.randn_like(encoder(batch))
    (encoder(batch) * weights).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any() or (name.endswith("bias") and not name.startswith("last")), name
    encoder.eval()
    before = batch.clone()
    out = encoder(batch)
    for name in (name for name in encoder.requires if isinstance(batch[name], torch.Tensor)):
        torch.testing.assert_close(batch[name], before[name], equal_nan=True)  # inputs stay as they are
    count = sum(part.num_nodes**2 if rows == "pairs" else getattr(part, rows) for part in parts)
    assert out.shape == (count, encoder.channels)
    assert encoder.channels == 8
    torch.testing.assert_close(out, torch.cat([encoder(part) for part in parts]), rtol=1e-4, atol=1e-5)
    single = encoder.train()(parts[1])  # one node: no statistics
    assert single.isfinite().all()
    assert encoder.double()(batch).dtype == torch.float64  # transforms store float32


@pytest.mark.parametrize(
    ("cls", "options", "data"),
    [case[:3] for case in CASES if case[3] == "num_nodes" and case[0] is not GraphormerDegrees],
)
def test_relabelling(cls, options, data):
    encoder, graph = cls(8, **options).double().eval(), prepared(GRAPHS["two_parts"], **data)
    perm = torch.tensor([2, 5, 0, 3, 1, 4])
    moved = graph.clone()
    moved.edge_index = perm.argsort()[graph.edge_index]
    for one in (graph, moved):
        for key, value in one.to_dict().items():
            if torch.is_tensor(value) and value.is_floating_point():
                one[key] = value.double()
    for key in ("x", "node_depth", *(key for key in graph.keys() if "laplacian" in key or "diagonal" in key)):  # noqa: SIM118
        moved[key] = graph[key][perm]
    moved.electrostatic = graph.electrostatic[perm]
    torch.testing.assert_close(encoder(moved), encoder(graph)[perm])


@pytest.mark.parametrize("name", POSITIONAL)
def test_missing_attributes_name_the_transform(name):
    kind = name.split("-")[0]
    encoder, graph = POSITIONAL_ENCODERS[kind](8, **POSITIONAL[name]), prepared(GRAPHS["path"])
    for attribute in encoder.requires:
        bare = graph.clone()
        del bare[attribute]
        with pytest.raises(ValueError, match=f"needs '{attribute}' on the graph; add the transform {TRANSFORMS[kind]}"):
            encoder(bare)
    with pytest.raises(TypeError, match=r"takes a Data or Batch \(got Tensor\)"):
        encoder(torch.ones(3))


@pytest.mark.parametrize(
    ("encoder", "call"),
    [
        (GraphormerBias(2, 4, 3, name="far"), "AddShortestPathBias(num_spatial_types=4, paths=True, name='far')"),
        (GraphormerDegrees(2, name="far"), "AddShortestPathBias(name='far')"),
        (RelativeWalkBias(2, 4, name="rw"), "AddRelativeWalkEncoding(name='rw')"),
        (HKdiagSE(2, 4, name="warm"), "AddHeatDiagonalEncoding(name='warm')"),
        (LapPE(2, 4, name="lap"), "AddLaplacianEncoding(max_freqs=4, name='lap')"),
    ],
)
def test_missing_attributes_of_another_name_name_it(encoder, call):
    with pytest.raises(ValueError, match=f"{re.escape(call)}$"):
        encoder(GRAPHS["path"])


def test_layers_of_features_are_counted():
    with pytest.raises(ValueError, match=r"'layers' must be at least 1 \(got 0\)"):
        MLPNodeEncoder(8, 4, layers=0)


@pytest.mark.parametrize("model", ["MLP", "DeepSet"])
@pytest.mark.parametrize("training", [True, False])
def test_signnet_depends_on_no_sign(model, training):
    torch.manual_seed(0)
    batch = Batch.from_data_list(graphs())
    net = SignNet(8, max_freqs=K, model=model, layers=3, phi_hidden_dim=6).double().train(training)
    batch.laplacian_vectors = batch.laplacian_vectors.double()
    wanted = net(batch)
    signs = 2 * torch.randint(0, 2, (batch.num_graphs, K)) - 1  # of each graph's own
    batch.laplacian_vectors = batch.laplacian_vectors * signs[batch.batch]
    torch.testing.assert_close(net(batch), wanted, rtol=1e-9, atol=1e-9)
    batch.laplacian_vectors = batch.laplacian_vectors.abs()
    assert not torch.allclose(net(batch), wanted)


def test_signnet_is_the_formula():
    torch.manual_seed(0)
    graph = prepared(GRAPHS["star"])
    net = SignNet(4, max_freqs=K, layers=3, post_layers=1, phi_hidden_dim=6).eval()
    adj = torch.zeros(5, 5)
    adj[graph.edge_index[1], graph.edge_index[0]] = 1

    def phi(v):
        x = v[:, None]
        for number, mlp in enumerate(net.phi):
            x = net.norms[number - 1](x) if number else x
            x = x + adj @ x
            x = mlp.last(mlp.norms[0](mlp.hidden[0](x)))
        return x

    parts = [phi(v) + phi(-v) for v in graph.laplacian_vectors.t()]
    torch.testing.assert_close(net(graph), net.rho.last(torch.cat(parts, dim=1)))


def test_lappe_flips_each_graphs_signs_in_training_alone():
    torch.manual_seed(0)
    batch = Batch.from_data_list([prepared(GRAPHS["star"])] * 40)
    encoder = LapPE(8, max_freqs=K, layers=1)
    rows = encoder(batch).view(40, 5, 8)
    assert len({tuple(row.flatten().tolist()) for row in rows}) > 10  # of 2^5 signs
    flipped = prepared(GRAPHS["star"])
    wanted = []
    for number in range(2**K):
        signs = torch.tensor([1.0 if number >> f & 1 else -1.0 for f in range(K)])
        flipped.laplacian_vectors = prepared(GRAPHS["star"]).laplacian_vectors * signs
        wanted.append(encoder.eval()(flipped))
    distance = (rows[:, None] - torch.stack(wanted)[None]).abs().amax((2, 3)).amin(1)
    assert (distance < 1e-5).all()
    assert torch.equal(encoder(batch), encoder(batch))


@pytest.mark.parametrize("model", ["DeepSet", "Transformer"])
def test_lappe_sums_over_the_eigenvectors_that_are_there(model):
    torch.manual_seed(0)
    graph = prepared(GRAPHS["path"])  # 4 of 5 eigenvectors
    wide, narrow = LapPE(8, max_freqs=K, model=model).eval(), LapPE(8, max_freqs=4, model=model).eval()
    narrow.load_state_dict(wide.state_dict())
    out = wide(graph)
    graph.laplacian_vectors, graph.laplacian_values = graph.laplacian_vectors[:, :4], graph.laplacian_values[:, :4]
    torch.testing.assert_close(narrow(graph), out)
    if model == "DeepSet":
        pairs = torch.stack([graph.laplacian_vectors, graph.laplacian_values], dim=2)
        torch.testing.assert_close(out, sum(wide.phi(pairs[:, f]) for f in range(4)))


def test_widths_of_graphgps():
    lap = LapPE(16, max_freqs=K, layers=3)
    assert [m.weight.shape for m in lap.phi if hasattr(m, "weight")] == [(32, 2), (32, 32), (16, 32)]
    assert [m.weight.shape for m in LapPE(16, layers=1).phi if hasattr(m, "weight")] == [(16, 2)]
    rw = POSITIONAL_ENCODERS["RWSE"](16, 20, model="mlp", layers=2)
    assert [m.weight.shape for m in rw.encode if hasattr(m, "weight")] == [(32, 20), (16, 32)]
    assert NODE_ENCODERS["ASTNode"](8).table.weight.shape == (98 + 10030 + 21, 8)


def test_equivstable_without_its_map_is_the_eigenvectors():
    graph = prepared(GRAPHS["path"])
    assert torch.equal(EquivStableLapPE(8, max_freqs=K, linear=False)(graph), graph.laplacian_vectors.nan_to_num())
    with pytest.raises(ValueError, match="raw_norm='batch_norm' changes them"):
        EquivStableLapPE(8, raw_norm="batch_norm", linear=False)


def test_graphormer_bias_is_the_formula():
    torch.manual_seed(0)
    graph, bias = prepared(GRAPHS["star"]), GraphormerBias(2, num_spatial_types=4, num_edge_types=3)
    wanted = []
    for distance, types in zip(graph.pair_shortest_path.tolist(), graph.pair_shortest_path_types.tolist()):
        along = sum(bias.edge[c] @ bias.step[t] for t, c in enumerate(types) if c >= 0)
        wanted.append(bias.spatial.weight[distance] + along / max(1, distance))
    torch.testing.assert_close(bias(graph), torch.stack(wanted))
    bare = GraphormerBias(2, num_spatial_types=4)
    assert torch.equal(bare(graph), bare.spatial.weight[graph.pair_shortest_path.long()])
    with pytest.raises(ValueError, match=r"built for num_spatial_types=1, but the graph has 4"):
        GraphormerBias(2, num_spatial_types=1)(graph)
    graph.pair_shortest_path_types[1] = 2
    with pytest.raises(ValueError, match=r"built for num_edge_types=2, but the graph has 2"):
        GraphormerBias(2, num_spatial_types=4, num_edge_types=2)(graph)


def test_categories_are_a_sum_of_vectors_and_are_checked():
    graph = prepared(GRAPHS["path"], nodes=ATOM_SIZES)
    encoder = NODE_ENCODERS["Atom"](8)
    tables = encoder.table.weight.split(ATOM_SIZES)
    torch.testing.assert_close(encoder(graph), sum(table[graph.x[:, c]] for c, table in enumerate(tables)))
    for value in (-1, 5):
        graph.x[2, 1] = value
        with pytest.raises(ValueError, match="column 1 holds"):
            encoder(graph)
    graph.x = graph.x[:, :3]
    with pytest.raises(ValueError, match=r"takes 9 integer columns in 'x' \(got \[4, 3\], torch.int64\)"):
        encoder(graph)


def test_sizes_are_those_of_ogb():
    features = pytest.importorskip("ogb.utils.features")
    assert list(ATOM_SIZES) == features.get_atom_feature_dims()
    assert list(BOND_SIZES) == features.get_bond_feature_dims()


def test_deep_nodes_and_flat_types():
    graph = prepared(GRAPHS["path"], nodes=AST_SIZES[:2], edges=(4,))
    encoder = NODE_ENCODERS["ASTNode"](8)
    graph.node_depth = torch.tensor([20, 21, 500, 3])
    assert torch.equal(encoder(graph), encoder(graph.clone()))
    assert graph.node_depth.tolist() == [20, 21, 500, 3]
    edges = EDGE_ENCODERS["TypeDictEdge"](8, num_types=4)
    wanted = edges(graph)
    graph.edge_attr = graph.edge_attr.flatten()
    assert torch.equal(edges(graph), wanted)


def test_composition_of_any_number():
    batch = Batch.from_data_list(graphs(nodes=ATOM_SIZES))
    parts = [LapPE(4, max_freqs=K), POSITIONAL_ENCODERS["RWSE"](3, 4), POSITIONAL_ENCODERS["HKdiagSE"](2, 4)]
    encoder = ComposedNodeEncoder(16, NODE_ENCODERS["Atom"], parts, added=[GraphormerDegrees]).eval()
    assert encoder.base.channels == encoder.added[0].channels == 7
    wanted = [encoder.base(batch) + encoder.added[0](batch), *(part(batch) for part in parts)]
    assert torch.equal(encoder(batch), torch.cat(wanted, dim=1))
    assert encoder.requires[:1] == ("x",)
    assert {"laplacian_vectors", "random_walk_diagonal", "heat_diagonal"} < set(encoder.requires)
    assert ComposedNodeEncoder(4, None, [LapPE(4, max_freqs=K)])(batch).shape == (batch.num_nodes, 4)
    for base, width in ((NODE_ENCODERS["Atom"], 4), (None, 5), (NODE_ENCODERS["Atom"], 3)):
        with pytest.raises(ValueError, match=r"widths \[4\] leave"):
            ComposedNodeEncoder(width, base, [LapPE(4)])


def test_normalized_encoder():
    batch = Batch.from_data_list(graphs())
    encoder = NormalizedEncoder(NODE_ENCODERS["LinearNode"](8, 3))
    out = encoder(batch)
    torch.testing.assert_close(out.mean(0), torch.zeros(8), rtol=0, atol=1e-5)
    assert (encoder.channels, encoder.requires) == (8, ("x",))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LapPE(8, model="GIN"), "DeepSet or Transformer"),
        (lambda: LapPE(6, model="Transformer"), "divisible by 'heads'"),
        (lambda: LapPE(8, layers=0), "'layers' must be at least 1"),
        (lambda: LapPE(8, raw_norm="BatchNorm"), "'raw_norm' must be 'batch_norm' or None"),
        (lambda: SignNet(8, model="GIN"), "MLP or DeepSet"),
        (lambda: SignNet(8, layers=1), "'layers' ≥ 2"),
        (lambda: POSITIONAL_ENCODERS["RWSE"](8, 4, model="DeepSet"), "Linear or MLP"),
        (lambda: NODE_ENCODERS["TypeDictNode"](8, 0), "at least one in each column"),
        (lambda: LapPE(8)(prepared(GRAPHS["path"])), r"built for max_freqs=10.*\[4, 5\]"),
        (lambda: POSITIONAL_ENCODERS["RWSE"](8, 5)(prepared(GRAPHS["path"])), "built for 5 columns"),
        (lambda: NODE_ENCODERS["LinearNode"](8, 5)(prepared(GRAPHS["path"])), "built for 5 columns in 'x'"),
        (lambda: RelativeWalkBias(2, 5)(prepared(GRAPHS["path"])), "built for 5 columns"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_layers_ahead_of_message_passing_take_an_encoder():
    graph = prepared(GRAPHS["path"])
    base = NODE_ENCODERS["LinearNode"](6, graph.x.size(1))
    encoder = MLPNodeEncoder(8, 6, layers=2, base=base).eval()
    assert encoder.requires == base.requires
    plain = MLPNodeEncoder(8, 6, layers=2).eval()
    plain.load_state_dict({name: x for name, x in encoder.state_dict().items() if not name.startswith("base.")})
    embedded = Data(x=base(graph), edge_index=graph.edge_index)
    torch.testing.assert_close(encoder(graph), plain(embedded))


def test_input_dropout_zeroes_features_in_training_only():
    encoder = NODE_ENCODERS["LinearNode"](4, 50, dropout=0.5)
    graph = Data(x=torch.ones(3, 50))
    torch.testing.assert_close(encoder.eval()(graph), encoder.linear(graph.x))
    assert not torch.equal(encoder.train()(graph), encoder(graph))


def test_electrostatic_encoder_reads_what_its_transform_writes():
    data = AddElectrostaticEncoding()(GRAPHS["path"].clone())
    assert ElstaticSE(4)(data).shape == (4, 4)
