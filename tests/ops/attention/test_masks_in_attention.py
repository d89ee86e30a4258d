"""Every operator of the library as the mask of an attention: signed parameters, every path, both precisions."""

import networkx as nx
import pytest
import torch
from torch_geometric.utils import from_networkx

from pyg_topomask.nn import GRFMask
from pyg_topomask.operators import (
    BlockDiagonalOperator,
    CausalOperator,
    ForestExpOperator,
    GridHeatOperator,
    HeadStackOperator,
    HeatOperator,
    HypercubeHeatOperator,
    KroneckerOperator,
    LowRankOperator,
    PaddingOperator,
    PowerSeriesOperator,
    SparseOperator,
    ToeplitzOperator,
    TreeDistanceOperator,
    entrywise_product,
)
from pyg_topomask.ops import masked_additive_attention, masked_linear_attention
from pyg_topomask.ops.attention.masked_linear import masked_linear_attention_reference
from pyg_topomask.transforms import AddRandomWalks

N = 64
BATCH = torch.arange(N) // 32  # two graphs
GRID = from_networkx(nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 8)))
EDGES = torch.cat([GRID.edge_index, GRID.edge_index + 32], dim=1)
PARENT = torch.cat([torch.arange(-1, 31).div(2, rounding_mode="floor"), torch.arange(31, 63)])
PARENT[0], PARENT[32] = -1, -1


def corrected(dtype):
    graph = AddRandomWalks(4, 3, seed=0, diagonal="corrected")(from_networkx(nx.random_regular_graph(7, N, seed=0)))
    mask = GRFMask(max_length=3, diagonal="corrected").to(dtype)
    mask.modulation.data.copy_(torch.tensor([0.0, 1, -0.5, 0.2]))  # without the walks' starts
    return mask(graph)


def numbers(*shape, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


MASKS = {
    "causal": lambda t: CausalOperator(BATCH),
    "padding": lambda t: PaddingOperator(torch.arange(N) % 5 > 0, BATCH),
    "toeplitz": lambda t: ToeplitzOperator(numbers(7, 15, dtype=t), (4, 8), 2),
    "toeplitz_by_fft": lambda t: ToeplitzOperator(numbers(2, 2 * N - 1, dtype=t), (N,)),
    "steep_toeplitz": lambda t: ToeplitzOperator((-0.4 * (torch.arange(2 * N - 1) - N).abs()).to(t).exp(), (N,)),
    "forest": lambda t: ForestExpOperator(PARENT, torch.ones(N, dtype=t), -0.3, 0.1),
    "tree_histogram": lambda t: TreeDistanceOperator(PARENT, numbers(5, dtype=t), "histogram"),
    "tree_centroid": lambda t: TreeDistanceOperator(PARENT, numbers(2, 40, dtype=t), "centroid"),
    "heat": lambda t: HeatOperator(EDGES, N, torch.tensor(0.7, dtype=t)),
    "random_walk_heat": lambda t: HeatOperator(EDGES, N, torch.tensor([0.3, 2.0], dtype=t), None, "random_walk"),
    "adjacency_heat": lambda t: HeatOperator(EDGES, N, torch.tensor(0.5, dtype=t), None, "adjacency"),
    "grid_heat": lambda t: GridHeatOperator((4, 8), torch.tensor([0.4, 1.0], dtype=t), 2),
    "hypercube_heat": lambda t: HypercubeHeatOperator(5, torch.tensor(0.4, dtype=t), 2),
    "series": lambda t: PowerSeriesOperator(EDGES, N, numbers(2, 4, dtype=t), torch.full((EDGES.size(1),), 0.3).to(t)),
    "low_rank": lambda t: LowRankOperator(numbers(N, 3, dtype=t), numbers(N, 3, dtype=t).flip(0), BATCH),
    "sparse": lambda t: SparseOperator(EDGES, numbers(EDGES.size(1), 2, dtype=t), N),
    "product": lambda t: entrywise_product(SparseOperator(EDGES, numbers(208, dtype=t), N), MASKS["sparse"](t)),
    "kronecker": lambda t: KroneckerOperator(
        ToeplitzOperator(numbers(15, dtype=t), (8,)), HeatOperator(EDGES[:, :0], 8, torch.tensor(1.0, dtype=t))
    ),
    "stack": lambda t: HeadStackOperator([MASKS["heat"](t), -0.5 * MASKS["forest"](t) + MASKS["low_rank"](t)]),
    "blocks": lambda t: BlockDiagonalOperator(
        [ToeplitzOperator(numbers(63, dtype=t), (32,)), -1.0 * GridHeatOperator((4, 8), torch.tensor(0.4, dtype=t))]
    ),
    "corrected_diagonal": corrected,
}


@pytest.mark.parametrize("features", ["random", "equal", "own"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MASKS)
def test_outputs_are_bounded_and_every_path_is_the_definition(name, dtype, features):
    torch.manual_seed(0)
    op = MASKS[name](dtype)
    heads = op.heads or 2
    if features == "own":  # only the diagonal of the mask counts
        q = k = torch.eye(N, dtype=dtype)[:, None].expand(-1, heads, -1)
    else:
        q, k = (torch.ones(N, heads, 4) if features == "equal" else torch.randn(N, heads, 4).relu() for _ in range(2))
    q, k, v = q.to(dtype), k.to(dtype), torch.randn(N, heads, 3, dtype=dtype)
    limit = v.abs().amax(0)
    matrix, bound = op.to_dense().double(), op.bound.to_dense().double()
    wanted = masked_linear_attention_reference(q.double(), k.double(), v.double(), matrix, None, bound)
    size = (bound * torch.einsum("ihr,jhr->hij", q.double(), k.double())).sum(-1).t()
    clear = size > 1e-3 * size.max()  # well above what the errors of products amount to
    paths = ["factored", "dense", *(["pairwise"] if op.num_pairs is not None else [])]
    for path in [*paths, *(["blocks"] if op.has_blocks else [])]:
        out = masked_linear_attention(q, k, v, op, None, path)
        assert (out.abs() <= (1 + 1e-4) * limit).all(), path
        assert ((out - wanted)[clear].abs() <= 1e-2).all(), path


def test_blocks_of_a_low_rank_mask_are_those_of_its_own_graphs():
    q, v = torch.rand(N, 1, 3), torch.randn(N, 1, 2)
    factors = [torch.rand(N, 2) for _ in range(2)]
    op = LowRankOperator(*factors, BATCH)
    wanted = masked_linear_attention(q, q, v, op, BATCH, "factored")
    for batch in (BATCH, None):  # the mask tells graphs apart, with attention's batch or without
        torch.testing.assert_close(masked_linear_attention(q, q, v, op, batch, "blocks"), wanted)
    with pytest.raises(ValueError, match="joins nodes of different graphs"):
        masked_linear_attention(q, q, v, LowRankOperator(*factors), BATCH, "blocks")


@pytest.mark.parametrize("size", [256, 1_000])
def test_additive_attention_takes_blocks_where_a_mask_has_no_pairs(size):
    mask = ToeplitzOperator(torch.rand(2 * size - 1), (size,))
    receiver, sender, v = torch.rand(size, 2), torch.rand(size, 2), torch.rand(size, 2, 3)
    found, wanted = (masked_additive_attention(receiver, sender, v, mask, path=path) for path in ("auto", "blocks"))
    torch.testing.assert_close(found, wanted)


def test_additive_attention_refuses_a_mask_without_pairs_or_blocks():
    receiver, sender, v = torch.zeros(3, 1), torch.zeros(3, 1), torch.ones(3, 1, 2)
    with pytest.raises(ValueError, match="'mask' must have a sparse support or blocks"):
        masked_additive_attention(receiver, sender, v, torch.ones(3, 3))
