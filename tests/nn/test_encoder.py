import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask import nn, testing, transforms
from pyg_topomask.nn.encoder.base import NormalizedEncoder
from pyg_topomask.nn.encoder.features import ATOM_SIZES, BOND_SIZES, MLPNodeEncoder
from pyg_topomask.nn.encoder.laplacian import LapPE, SignNet
from pyg_topomask.nn.encoder.pair_bias import GraphormerBias, GraphormerDegrees
from tests.nn.encoder_cases import CASES, EDGES, POSITIONAL, K, encodable

BIASES = ("GraphormerBias", "RRWP")


def graphs(**columns):
    names = ("path", "single", "star", "isolated", "two_parts")
    return [encodable(data, **columns) for data in (*(testing.GRAPHS[name] for name in names), testing.empty_graph())]


def test_every_encoder_is_tried():
    every = {*nn.NODE_ENCODERS.values(), *nn.EDGE_ENCODERS.values(), *nn.POSITIONAL_ENCODERS.values()}
    assert {cls for cls, _, _ in CASES.values()} >= every


@pytest.mark.parametrize("name", CASES)
def test_batch_equals_singles_and_gradients_reach_every_parameter(name):
    cls, options, columns = CASES[name]
    encoder, parts = cls(8, **options), graphs(**columns)
    batch = Batch.from_data_list(parts)
    out = encoder(batch)
    (out * torch.randn_like(out)).sum().backward()
    for key, parameter in encoder.named_parameters():
        assert parameter.grad.isfinite().all(), key
        assert (parameter.grad != 0).any() or (key.endswith("bias") and not key.startswith("last")), key
    encoder.eval()
    before = batch.clone()
    out = encoder(batch)
    for key in encoder.requires:
        torch.testing.assert_close(batch[key], before[key], equal_nan=True)  # inputs stay as they are
    counts = [part.num_edges if name in EDGES else part.num_nodes ** (2 if name in BIASES else 1) for part in parts]
    assert out.shape == (sum(counts), encoder.channels)
    torch.testing.assert_close(out, torch.cat([encoder(part) for part in parts]), rtol=1e-4, atol=1e-5)
    assert encoder.train()(parts[1]).isfinite().all()  # one node: no statistics
    assert encoder.double()(batch).dtype == torch.float64  # transforms store float32


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*EDGES, *BIASES)])
def test_relabelling(name):
    cls, options, columns = CASES[name]
    encoder, graph = cls(8, **options).double().eval(), encodable(testing.GRAPHS["two_parts"], **columns)
    perm = torch.tensor([2, 5, 0, 3, 1, 4])
    torch.testing.assert_close(encoder(testing.permute(graph, perm)), encoder(graph)[perm])


@pytest.mark.parametrize("name", POSITIONAL)
def test_missing_attributes_name_the_transform(name):
    cls, options, _ = CASES[name]
    encoder, graph = cls(8, **options), encodable(testing.GRAPHS["path"])
    for attribute in encoder.requires:
        bare = graph.clone()
        del bare[attribute]
        with pytest.raises(ValueError, match=f"needs '{attribute}' on the graph; add the transform Add") as error:
            encoder(bare)
        assert any(f"transform {transform}" in str(error.value) for transform in transforms.__all__)
    with pytest.raises(TypeError, match=r"must be a Data or Batch \(got a tensor"):
        encoder(torch.ones(3))


@pytest.mark.parametrize("model", ["MLP", "DeepSet"])
@pytest.mark.parametrize("training", [True, False])
def test_signnet_depends_on_no_sign(model, training):
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
    graph = encodable(testing.GRAPHS["star"])
    net = SignNet(4, max_freqs=K, layers=3, post_layers=1, phi_hidden_dim=6).eval()
    adj = torch.zeros(5, 5)
    adj[graph.edge_index[1], graph.edge_index[0]] = 1

    def phi(v):
        x = v[:, None]
        for number, mlp in enumerate(net.phi):
            x = net.norms[number - 1](x) if number else x
            x = x + adj @ x
            first, last = mlp.lins
            x = last(mlp.norms[0](first(x).relu()))
        return x

    parts = [phi(v) + phi(-v) for v in graph.laplacian_vectors.t()]
    torch.testing.assert_close(net(graph), net.rho.lins[0](torch.cat(parts, dim=1)))


def test_lappe_flips_each_graphs_signs_in_training_alone():
    graph, encoder = encodable(testing.GRAPHS["star"]), LapPE(8, max_freqs=K, layers=1)
    batch = Batch.from_data_list([graph] * 40)
    rows = encoder(batch).view(40, 5, 8)
    assert len({tuple(row.flatten().tolist()) for row in rows}) > 10  # of 2^5 signs
    vectors, wanted = graph.laplacian_vectors, []
    for number in range(2**K):
        graph.laplacian_vectors = vectors * torch.tensor([1.0 if number >> f & 1 else -1.0 for f in range(K)])
        wanted.append(encoder.eval()(graph))
    distance = (rows[:, None] - torch.stack(wanted)[None]).abs().amax((2, 3)).amin(1)
    assert (distance < 1e-5).all()
    assert torch.equal(encoder(batch), encoder(batch))


@pytest.mark.parametrize("model", ["DeepSet", "Transformer"])
def test_lappe_sums_over_the_eigenvectors_that_are_there(model):
    graph = encodable(testing.GRAPHS["path"])  # 4 of 5 eigenvectors
    wide, narrow = (LapPE(8, max_freqs=count, model=model).eval() for count in (K, 4))
    narrow.load_state_dict(wide.state_dict())
    out = wide(graph)
    graph.laplacian_vectors, graph.laplacian_values = graph.laplacian_vectors[:, :4], graph.laplacian_values[:, :4]
    torch.testing.assert_close(narrow(graph), out)
    if model == "DeepSet":
        pairs = torch.stack([graph.laplacian_vectors, graph.laplacian_values], dim=2)
        torch.testing.assert_close(out, sum(wide.phi(pairs[:, f]) for f in range(4)))


def test_graphormer_bias_is_the_formula():
    graph, bias = encodable(testing.GRAPHS["star"]), GraphormerBias(2, num_spatial_types=4, num_edge_types=3)
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
    graph, encoder = encodable(testing.GRAPHS["path"], nodes=ATOM_SIZES), nn.NODE_ENCODERS["Atom"](8)
    tables = encoder.table.weight.split(ATOM_SIZES)
    torch.testing.assert_close(encoder(graph), sum(table[graph.x[:, c]] for c, table in enumerate(tables)))
    for value in (-1, 5):
        graph.x[2, 1] = value
        with pytest.raises(ValueError, match="column 1 holds"):
            encoder(graph)
    graph.x = graph.x[:, :3]
    with pytest.raises(ValueError, match=r"takes 9 integer columns in 'x' \(got \[4, 3\], torch.int64\)"):
        encoder(graph)
    edges = nn.EDGE_ENCODERS["TypeDictEdge"](8, num_types=4)
    graph.edge_attr = torch.randint(4, (6, 1))
    wanted = edges(graph)
    graph.edge_attr = graph.edge_attr.flatten()  # as ZINC stores them
    assert torch.equal(edges(graph), wanted)


def test_sizes_are_those_of_ogb():
    features = pytest.importorskip("ogb.utils.features")
    assert list(ATOM_SIZES) == features.get_atom_feature_dims()
    assert list(BOND_SIZES) == features.get_bond_feature_dims()


def test_composition_of_any_number_and_a_norm():
    batch = Batch.from_data_list(graphs(nodes=ATOM_SIZES))
    parts = [LapPE(4, max_freqs=K), nn.POSITIONAL_ENCODERS["RWSE"](3, 4), nn.POSITIONAL_ENCODERS["HKdiagSE"](2, 4)]
    encoder = nn.ComposedNodeEncoder(16, nn.NODE_ENCODERS["Atom"], parts, added=[GraphormerDegrees]).eval()
    wanted = [encoder.base(batch) + encoder.added[0](batch), *(part(batch) for part in parts)]
    assert torch.equal(encoder(batch), torch.cat(wanted, dim=1))
    assert {"x", "laplacian_vectors", "random_walk_diagonal", "heat_diagonal"} < set(encoder.requires)
    assert nn.ComposedNodeEncoder(4, None, [LapPE(4, max_freqs=K)])(batch).shape == (batch.num_nodes, 4)
    for base, width in ((nn.NODE_ENCODERS["Atom"], 4), (None, 5), (nn.NODE_ENCODERS["Atom"], 3)):
        with pytest.raises(ValueError, match=r"widths \[4\] leave"):
            nn.ComposedNodeEncoder(width, base, [LapPE(4)])
    normed = NormalizedEncoder(encoder)
    torch.testing.assert_close(normed(batch).mean(0), torch.zeros(16), rtol=0, atol=1e-5)
    assert (normed.channels, normed.requires) == (16, encoder.requires)


def test_layers_ahead_of_message_passing_take_an_encoder():
    graph = encodable(testing.GRAPHS["path"])
    base = nn.NODE_ENCODERS["LinearNode"](6, graph.x.size(1))
    encoder, plain = (MLPNodeEncoder(8, 6, layers=2, base=one).eval() for one in (base, None))
    assert encoder.requires == base.requires
    plain.load_state_dict({name: x for name, x in encoder.state_dict().items() if not name.startswith("base.")})
    embedded = Data(x=base(graph), edge_index=graph.edge_index)
    torch.testing.assert_close(encoder(graph), plain(embedded))


def test_input_dropout_zeroes_features_in_training_only():
    encoder = nn.NODE_ENCODERS["LinearNode"](4, 50, dropout=0.5)
    graph = Data(x=torch.ones(3, 50))
    torch.testing.assert_close(encoder.eval()(graph), encoder.linear(graph.x))
    assert not torch.equal(encoder.train()(graph), encoder(graph))
