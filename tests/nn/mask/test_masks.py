"""Mask modules against their definitions, their ranges, and what they refuse."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import from_networkx, to_undirected

from pyg_topomask import nn, operators, ops, testing, transforms
from tests.distances import dense_distances
from tests.matrices import normalised_adjacency, power_series
from tests.transforms.encoding_cases import grid


@pytest.mark.parametrize("kind", ["combinatorial", "normalized", "random_walk", "adjacency"])
@pytest.mark.parametrize("name", ["weighted", "isolated"])
def test_heat_is_the_operator_at_the_times_of_the_heads(name, kind):
    mask, data = nn.HeatMask(heads=2, time=0.7, laplacian=kind, tol=1e-10).double(), testing.GRAPHS[name]
    with torch.no_grad():
        mask.raw_time[1] += 1
    assert torch.allclose(mask.time[0], torch.tensor(0.7).double())
    weight = data.get("edge_weight")
    wanted = operators.HeatOperator(data.edge_index, data.num_nodes, mask.time, weight, kind, tol=1e-10)
    torch.testing.assert_close(mask(data).to_dense(), wanted.to_dense())


@pytest.mark.parametrize("cls", [nn.HeatMask, nn.GridHeatMask])
def test_the_time_stays_in_its_range(cls):
    mask = cls(time=2.0, max_time=5.0)
    for raw, time in ((-200.0, 0.0), (0.0, 2.5), (200.0, 5.0)):
        mask.raw_time.data.fill_(raw)
        assert mask.time == time
    for time in (0.0, -1.0, 5.0, math.nan):
        with pytest.raises(ValueError, match="'time' must be above 0 and below 'max_time'"):
            cls(time=time, max_time=5.0)


def test_grid_heat_of_unequal_grids_is_the_exponential():
    parts = [transforms.AddGridShape()(grid(*shape)) for shape in ((2, 3), (3, 2), (3, 2), (4, 2))]
    mask = nn.GridHeatMask(heads=2, time=0.6).double()
    dense = mask(Batch.from_data_list(parts)).to_dense()
    heats = (operators.HeatOperator(part.edge_index, part.num_nodes, 0.6, tol=1e-12).to_dense() for part in parts)
    torch.testing.assert_close(dense, torch.block_diag(*heats).expand(2, -1, -1), check_dtype=False)


@pytest.mark.parametrize("function", ["offset", "distance"])
def test_toeplitz_is_a_function_of_the_offset(function):
    mask = nn.ToeplitzMask((3, 4), heads=2, function=function).double()
    torch.nn.init.normal_(mask.weight)
    parts = [transforms.AddGridShape()(grid(*shape)) for shape in ((3, 4), (2, 3), (2, 3))]
    dense = mask(Batch.from_data_list(parts)).to_dense()
    start = 0
    for shape in ((3, 4), (2, 3), (2, 3)):
        place = [np.unravel_index(i, shape) for i in range(math.prod(shape))]
        for i, p in enumerate(place):
            for j, q in enumerate(place):
                a, b = int(p[0] - q[0]), int(p[1] - q[1])
                weight = mask.weight[:, abs(a) + abs(b)] if function == "distance" else mask.weight[:, a + 2, b + 3]
                assert torch.equal(dense[:, start + i, start + j], weight)
        start += len(place)
    assert dense.count_nonzero() == 2 * (12**2 + 2 * 6**2)


TREES = {
    "tree": from_networkx(nx.random_labeled_tree(12, seed=0)),
    "forest": from_networkx(nx.disjoint_union(nx.path_graph(3), nx.star_graph(4))),
    **{name: testing.GRAPHS[name] for name in ("path", "star", "single", "isolated")},
}


@pytest.mark.parametrize("name", TREES)
def test_masks_of_trees_are_functions_of_the_distance(name):
    data = transforms.AddTreeOrder()(TREES[name].clone())
    distance = dense_distances(data.edge_index, data.num_nodes)
    tree = nn.TreeMask(heads=2, max_hops=4).double()
    torch.nn.init.normal_(tree.values)
    values = torch.cat([tree.values, torch.zeros(2, 1)], 1)
    torch.testing.assert_close(tree(data).to_dense(), values[:, distance.clamp(max=5).long()])
    for a in (-0.4, 0.3):
        forest = nn.ForestMask(heads=2, a=a, b=0.2).double()
        wanted = torch.where(distance.isfinite(), (a * distance.nan_to_num(posinf=0) + 0.2).exp(), 0)
        torch.testing.assert_close(forest(data).to_dense(), wanted.expand(2, -1, -1), rtol=1e-6, atol=0)


def test_layers_share_what_depends_on_the_trees_alone():
    batch = Batch.from_data_list([transforms.AddTreeOrder()(data.clone()) for data in TREES.values()])
    assert nn.TreeMask()(batch).parent is nn.ForestMask(heads=3)(batch).parent


def test_lengths_of_edges_reach_the_forest():
    data = TREES["tree"].clone()
    key = data.edge_index.amin(0) * 12 + data.edge_index.amax(0)
    data.far = torch.rand(144, generator=torch.Generator().manual_seed(0))[key]  # equal in both directions
    made = transforms.AddTreeOrder(length="far")(data)
    wanted = torch.exp(-0.5 * dense_distances(made.edge_index, 12, made.far))
    torch.testing.assert_close(nn.ForestMask().double()(made).to_dense(), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("name", ["weighted", "one_way", "isolated"])
def test_power_series_of_the_normalised_adjacency(name, symmetric):
    data, f = testing.GRAPHS[name], torch.tensor([[1.2, 0.5, -0.3, 0.25], [0.5, 0.1, 0.2, 0.0]], dtype=torch.float64)
    mask = nn.PowerSeriesMask(heads=2, max_length=3, symmetric=symmetric).double()
    mask.modulation.data.copy_(f)
    for found, coeffs in ((mask(data), f), (mask(data).bound, f.abs())):
        phi = power_series(normalised_adjacency(data), coeffs)
        wanted = phi @ phi.mT if symmetric else phi
        torch.testing.assert_close(found.to_dense(), wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "attribute"),
    [
        (nn.PowerSeriesMask, "edge_weight"),
        (lambda: nn.PowerSeriesMask(symmetric=False), "edge_weight"),
        (nn.HeatMask, "edge_weight"),
        (lambda: nn.ForestMask(heads=2), "tree_length"),
    ],
)
def test_learned_weights_and_lengths_of_edges_have_a_gradient(build, attribute):
    mask, edges = build().double(), torch.tensor([[0, 0, 1, 3], [1, 2, 2, 4]])
    graph = transforms.AddTreeOrder()(Data(edge_index=torch.cat([edges, edges.flip(0)], 1), num_nodes=6))
    num, x = (4, 6)[attribute == "tree_length"], torch.randn(6, 2, dtype=torch.float64)
    numbers = torch.rand(num, dtype=torch.float64, requires_grad=True)

    def product(numbers):
        graph[attribute] = torch.cat([numbers, numbers]) if attribute == "edge_weight" else numbers
        return mask(graph) @ x

    with torch.no_grad():
        product(numbers)
    assert torch.autograd.gradcheck(product, (numbers,))
    graph[attribute] = graph[attribute].detach().requires_grad_()
    first, second = (torch.autograd.grad((mask(graph) @ x).sum(), graph[attribute])[0] for _ in range(2))
    torch.testing.assert_close(first, second)
    assert first.abs().sum() > 0


def test_learned_weights_of_zero_have_a_finite_gradient():
    graph = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    graph.edge_weight = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    (nn.PowerSeriesMask()(graph) @ torch.ones(3, 1)).sum().backward()
    assert graph.edge_weight.grad.isfinite().all()


@pytest.mark.slow
def test_masks_of_positions_are_compiled_as_one_graph():
    mask = nn.LowRankMask()
    graphs = [Data(x=torch.ones(n, 1), position=torch.arange(float(n))) for n in (4, 5)]
    compiled = torch.compile(lambda graph: mask(graph).left, backend="eager", fullgraph=True, dynamic=True)
    for graph in graphs:
        torch.testing.assert_close(compiled(graph), mask(graph).left)


def test_power_series_starts_where_graph_random_features_start():
    assert torch.equal(nn.PowerSeriesMask(max_length=3).modulation, nn.GRFMask(max_length=3).modulation)
    alpha = [1.0, 0.5, 0.25]
    mask = nn.PowerSeriesMask(max_length=3, coeffs=alpha)
    f = mask.modulation.detach().double().numpy()
    np.testing.assert_allclose(np.convolve(f, f)[:4], [*alpha, 0], atol=1e-6)
    assert nn.PowerSeriesMask(max_length=3, symmetric=False, coeffs=alpha).modulation.tolist() == [*alpha, 0]


def test_deconvolution():
    alpha = torch.tensor([[1.0, 0.5, 0.25, -0.2], [2.0, 0.0, 0.3, 0.1]], dtype=torch.float64, requires_grad=True)
    for row, wanted in zip(ops.deconvolve(alpha).detach(), alpha.detach()):
        np.testing.assert_allclose(np.convolve(row, row)[:4], wanted, atol=1e-14)
    assert torch.autograd.gradcheck(ops.deconvolve, (alpha,))


@pytest.mark.parametrize("encoding", ["sinusoidal", "stochastic"])
def test_low_rank_approaches_the_exponential_of_the_waves(encoding):
    data = Batch.from_data_list([transforms.AddPositions()(Data(num_nodes=n)) for n in (5, 7)])
    mask = nn.LowRankMask(heads=2, encoding=encoding, num_waves=3, num_features=2**14, max_period=9.0).double()
    torch.manual_seed(0)
    with torch.no_grad():
        mask.amplitude.add_(0.1 * torch.rand_like(mask.amplitude))
        mask.phase.add_(torch.rand_like(mask.phase))
    gap = (data.position[:, None] - data.position).double()
    turns = gap[..., None] * mask.frequency[:, None, None]  # [H, N, N, K]
    wanted = mask.amplitude.square()[:, None, None] * (2 * math.pi * turns + mask.phase[:, None, None]).cos()
    wanted = wanted.sum(-1).exp() * (data.batch[:, None] == data.batch)
    dense = mask(data).to_dense()
    if encoding == "sinusoidal":
        torch.testing.assert_close(dense, wanted, rtol=0.2, atol=1e-12)
        return
    logits = []
    for seed in range(400):  # in expectation: the factors of the logits, averaged over the Gaussian matrix
        other = nn.LowRankMask(
            heads=2, encoding=encoding, num_waves=3, num_features=1, max_period=9.0, seed=seed
        ).double()
        logits.append(other.mixing @ other.mixing.t())
    torch.testing.assert_close(torch.stack(logits).mean(0), torch.eye(6).double(), rtol=0, atol=0.2)
    assert (dense >= 0).all()
    assert not torch.allclose(dense, wanted, rtol=0.2)


@torch.no_grad()
def test_filtered_noise_has_the_correlation_of_its_filters_in_expectation():
    """At 5 standard errors over 600 seeds; and the mask has the exponential of the logits of its own noise."""
    data = transforms.AddPositions()(Data(num_nodes=6))
    data.position = data.position * 2 - 3  # gaps, and numbers below zero
    taps = torch.randn(2, 2, 4, dtype=torch.float64)  # both filters of two heads
    gap = (data.position - data.position[:, None]).long()  # from i to j
    wanted = torch.zeros(2, 6, 6, dtype=torch.float64)
    for t, s in itertools.product(range(4), range(4)):
        wanted += (taps[0, :, t] * taps[1, :, s])[:, None, None] * (s - t == gap)
    logits = []
    for seed in range(600):
        mask = nn.LowRankMask(
            2, "convolutional", num_waves=4, num_features=2**14 if seed == 0 else 1, seed=seed
        ).double()
        mask.left.copy_(taps[0] / 4)
        mask.right.copy_(taps[1] / 4)
        left, right = (mask._filtered(data.position, part) for part in (mask.left, mask.right))
        logits.append(left @ right.mT)
        if seed == 0:
            torch.testing.assert_close(mask(data).to_dense(), logits[0].exp(), rtol=0.2, atol=0)
    mean, error = torch.stack(logits).mean(0), torch.stack(logits).std(0) / 600**0.5
    assert ((mean - wanted / 16).abs() <= 5 * error + 1e-12).all()
    assert (wanted.abs().sum(0) == 0).any()  # positions further apart than the filters are long


def test_degree_is_a_sine_of_learned_numbers_of_both_degrees():
    mask, batch = (
        nn.DegreeMask(heads=2, max_degree=3).double(),
        Batch.from_data_list([testing.GRAPHS["star"], testing.GRAPHS["one_way"]]),
    )
    torch.nn.init.normal_(mask.logit)
    count = [min(int((batch.edge_index[0] == node).sum()), 3) for node in range(batch.num_nodes)]
    z = 1 / (1 + (-mask.logit[:, count]).exp())
    wanted = torch.sin(torch.pi / 4 * (z[:, :, None] + z[:, None])) * (batch.batch[:, None] == batch.batch)
    torch.testing.assert_close(mask(batch).to_dense(), wanted)
    assert {0, 1, 3} <= set(count)


def test_causal_is_a_triangle_in_every_graph():
    batch = Batch.from_data_list([testing.GRAPHS["path"], testing.GRAPHS["star"]])
    wanted = torch.block_diag(torch.ones(4, 4).tril(), torch.ones(5, 5).tril())
    assert torch.equal(nn.CausalMask()(batch).to_dense(), wanted)
    assert torch.equal(nn.CausalMask(reverse=True)(batch).to_dense(), wanted.t())
    assert torch.equal(nn.CausalMask()(testing.GRAPHS["path"]).to_dense(), wanted[:4, :4])


@pytest.mark.parametrize("encoding", ["sinusoidal", "stochastic"])
def test_low_rank_knows_positions_of_any_size(encoding):
    """Such as times in seconds since 1970, which float32 cannot tell apart."""
    mask = nn.LowRankMask(heads=2, encoding=encoding)
    data = Data(position=1_700_000_000 + torch.arange(6), num_nodes=6)
    found, gradient = mask(data).to_dense(), torch.autograd.grad(mask(data).to_dense().sum(), mask.frequency)[0]
    wide = mask.double()
    torch.testing.assert_close(found.double(), wide(data).to_dense(), rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(wide(data).to_dense().sum(), wide.frequency)[0]
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))


@pytest.mark.parametrize("path", ["auto", "blocks"])
@pytest.mark.parametrize("build", [nn.CausalMask, lambda: nn.LowRankMask(num_waves=2, num_features=4), nn.HeatMask])
def test_a_batch_that_only_attention_is_given(build, path):
    num_nodes = 700
    attn = nn.MaskedAttention(8, mask=build(), kernel="elu1", path=path).double().eval()
    line = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    single = transforms.AddPositions()(Data(edge_index=to_undirected(line), num_nodes=num_nodes))
    whole = Batch.from_data_list([single, single])
    alone = Data(edge_index=whole.edge_index, position=whole.position, num_nodes=2 * num_nodes)
    x = torch.randn(2 * num_nodes, 8, dtype=torch.float64)
    torch.testing.assert_close(attn(x, whole.batch, alone), attn(x, whole.batch, whole), rtol=0, atol=0)
    assert "batch" not in alone


@pytest.mark.parametrize("cls", [nn.HeatMask, nn.PowerSeriesMask])
def test_edge_weights_may_have_a_second_axis_of_one_and_stand_in_a_sparse_matrix(cls):
    data, mask = testing.GRAPHS["weighted"].clone(), cls()
    data.edge_weight = data.edge_weight.float()
    wanted = mask(data).to_dense()
    sparse = ToSparseTensor("edge_weight")(data.clone())
    assert "edge_index" not in sparse
    torch.testing.assert_close(mask(sparse).to_dense(), wanted)
    data.edge_weight = data.edge_weight[:, None]
    assert torch.equal(mask(data).to_dense(), wanted)
    del data.edge_weight
    assert not torch.allclose(mask(data).to_dense(), wanted, atol=1e-3)  # the weights count


EXTREMES = {
    "hop": (lambda: nn.HopMask(2, 2), "values", [88.0, 1e4, -1e4]),
    "rwgnk": (lambda: nn.RWGNKMask(2, learnable=True), "decay", [1e6, 1e30]),
    "forest": (lambda: nn.ForestMask(2), "log_rate", [100.0, 1e4, -1e4]),
    "weights": (lambda: nn.MixtureMask([None, nn.HopMask()], 2), "log_weights", [100.0, 1e4, -100.0]),
    "part": (lambda: nn.MixtureMask([nn.HopMask(), None], 2), "masks.0.values", [-45.0, -100.0, 100.0]),
}


@pytest.mark.parametrize("path", ["auto", "dense", "blocks"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_parameters_give_finite_outputs_and_gradients(name, path):
    build, parameter, numbers = EXTREMES[name]
    for number, kernel in itertools.product(numbers, ("relu", "softmax")):
        attn = nn.MaskedAttention(8, 2, kernel, build(), path=path)
        (graph,) = testing.prepared(attn, [testing.GRAPHS["star"]])
        attn.mask.get_parameter(parameter).data.fill_(number)
        out = attn(torch.randn(5, 8), graph=graph)
        out.square().sum().backward()
        assert out.isfinite().all(), (number, kernel)
        assert all(p.grad is None or p.grad.isfinite().all() for p in attn.parameters()), (number, kernel)


def test_pairs_of_fewer_hops_are_said_once(monkeypatch):
    mask, star = nn.HopMask(max_hops=8), Data(edge_index=torch.tensor([[0, 1, 0, 2], [1, 0, 2, 0]]), num_nodes=3)
    graphs = [transforms.AddHops(max_hops=hops)(testing.GRAPHS["path"].clone()) for hops in (8, 2)]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "isin", lambda some, seen, isin=torch.isin: isin(some, seen) if len(some) < 99 else 1 / 0)
        # No nodes are farther apart, which is checked by reading few pairs.
        mask(Batch.from_data_list([transforms.AddHops()(star), graphs[0], *[transforms.AddHops()(star)] * 99]))
    with pytest.warns(UserWarning, match="'max_hops' = 8, but .* pairs of at most 2 hops, .* the same") as caught:
        list(map(mask, [graphs[1]] * 2))
    assert len(caught) == 1
