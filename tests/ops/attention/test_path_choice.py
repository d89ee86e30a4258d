"""Which path attention under a mask takes by itself."""

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import erdos_renyi_graph

from pyg_topomask.nn import GRFMask, RWGNKMask
from pyg_topomask.operators import CausalOperator, ConstantOperator, DenseOperator, OnesOperator, PowerSeriesOperator
from pyg_topomask.ops import masked_linear_attention, masked_softmax_attention
from pyg_topomask.ops.attention import linear_blocks, path_choice
from pyg_topomask.ops.attention.path_choice import BLOCK_ENTRIES, choose_linear_path, choose_softmax_path
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks
from tests.ops.attention.pair_cases import compiled, ring

K = 3


def complete(num_nodes: int) -> Data:
    edges = (1 - torch.eye(num_nodes)).nonzero().t()
    return AddRandomWalks(16, K, seed=0)(Data(edge_index=edges, num_nodes=num_nodes))


def test_equal_graphs_full_of_walks_go_by_blocks_without_compiled_code_and_others_do_not(monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    equal = Batch.from_data_list([complete(20)] * 32)
    mask, q = GRFMask(max_length=K)(equal), torch.rand(640, 2, 4)
    assert choose_linear_path(mask, 4, 3, equal.batch) == "blocks"
    masked_softmax_attention(q, q, q, mask, equal.batch)
    assert "pairs" not in mask.walks.__dict__
    unequal = Batch.from_data_list([complete(size) for size in range(12, 28)] * 2)  # one more call for every size
    sparse = Batch.from_data_list([ring(64)] * 32)
    for batch in (unequal, sparse):
        assert choose_linear_path(GRFMask(max_length=K)(batch), 16, 16, batch.batch) == "pairwise"
    large = Batch.from_data_list([ring(300), ring(4)])
    assert choose_linear_path(GRFMask(max_length=K)(large), 16, 16, large.batch) == "pairwise"


@compiled
def test_compiled_code_takes_pairs_of_full_graphs_if_the_mask_keeps_them():
    walk = AddRandomWalks(16, K, 0.0, independent=False, seed=0)
    batch = Batch.from_data_list([walk(complete(20))] * 32)
    kernel, learned = (RWGNKMask(max_length=K, learnable=learnable)(batch) for learnable in (False, True))
    for width in (4, 16, 64):
        assert choose_linear_path(kernel, width, 8, batch.batch) == "pairwise"
        assert choose_softmax_path(kernel, width, 8, batch.batch) == "pairwise"
        assert choose_linear_path(learned, width, 8, batch.batch) == "blocks"
    assert choose_softmax_path(learned, 1, 8, batch.batch) == "blocks"
    assert choose_softmax_path(kernel, 200, 200, batch.batch) == "blocks"  # too wide for compiled code
    assert choose_softmax_path(CausalOperator(batch.batch), 4, 8, batch.batch) == "blocks"
    assert choose_softmax_path(ConstantOperator(CausalOperator(batch.batch)), 4, 8, batch.batch) == "blocks"


@compiled
def test_large_graphs_of_one_size_go_by_compiled_blocks():
    walk = AddRandomWalks(8, 3, 0.0, independent=False, seed=0)
    sizes = {"equal": [70] * 16, "unequal": list(range(62, 78)), "few": [70] * 8}
    for name, some in sizes.items():
        batch = Batch.from_data_list([walk(complete(size)) for size in some])
        mask = RWGNKMask(max_length=3)(batch)
        assert choose_linear_path(mask, 16, 8, batch.batch) == ("blocks" if name == "equal" else "pairwise")
        assert choose_softmax_path(mask, 16, 8, batch.batch) == "pairwise"
        if name == "equal":
            learned, layout = RWGNKMask(max_length=3, learnable=True)(batch), block_layout(batch.batch)
            torch.testing.assert_close(mask.blocks(layout), learned.blocks(layout))


@compiled
def test_constant_masks_with_hubs_go_by_compiled_blocks_without_a_list_of_pairs(monkeypatch):
    walk = AddRandomWalks(16, 3, 0.0, independent=False, seed=0)
    nodes = torch.arange(300)
    hubs = torch.stack([nodes, nodes % 2])[:, 2:]
    two_hubs = Data(edge_index=torch.cat([hubs, hubs.flip(0)], 1), num_nodes=300)
    graphs = [[walk(graph), walk(ring(301))] for graph in (two_hubs, ring(300))]
    full, sparse = (RWGNKMask(max_length=3)(Batch.from_data_list(both)) for both in graphs)
    batch = Batch.from_data_list(graphs[0]).batch
    entries = 300**2 + 301**2
    assert full.num_multiply_adds * BLOCK_ENTRIES < entries
    assert choose_linear_path(full, 16, 16, batch) == "blocks"
    assert choose_linear_path(sparse, 16, 16, batch) == "pairwise"
    assert choose_linear_path(full, 2, 1, batch) != "blocks"  # blocks have more entries than factors have numbers
    q, k, v = (torch.rand(601, 2, 16) for _ in range(3))
    by_blocks, by_factors = (masked_linear_attention(q, k, v, full, batch, path) for path in ("auto", "factored"))
    torch.testing.assert_close(by_blocks, by_factors)
    monkeypatch.setattr(path_choice, "_MOST_COMPILED_BLOCK_ENTRIES", entries - 1)
    assert choose_linear_path(full, 16, 16, batch) != "blocks"


def test_sparse_walks_go_pairwise_and_a_hub_goes_factored():
    data = ring(300)
    mask = GRFMask(max_length=K)(data)
    assert choose_linear_path(mask, 16, 16) == "pairwise"
    leaves = torch.arange(1, 1201)
    hub = GRAPHS["star"].clone()
    hub.x, hub.num_nodes = None, 1201
    hub.edge_index = torch.cat([torch.stack([leaves * 0, leaves]), torch.stack([leaves, leaves * 0])], 1)
    mask = GRFMask(max_length=K)(AddRandomWalks(max_length=K, seed=0)(hub))
    assert choose_linear_path(mask, 4, 4) == "factored"
    assert choose_linear_path(mask, 256, 256) == "factored"  # pairs would be faster, but there are too many of them
    assert "pairs" not in mask.walks.__dict__  # the support of 1.4 million pairs was not formed to decide
    q, k, v = (torch.rand(1201, 1, 4) for _ in range(3))
    out = masked_linear_attention(q, k, v, mask)
    assert torch.equal(out, masked_linear_attention(q, k, v, mask, path="factored"))
    assert choose_linear_path(DenseOperator(torch.ones(3, 3)), 4, 4) == "dense"
    assert choose_linear_path(OnesOperator(torch.zeros(3, dtype=torch.long)), 4, 4) == "factored"


def test_short_sequences_go_by_blocks_and_long_ones_by_factors(monkeypatch):
    """Factors form R (D + 1) numbers for each node, blocks one for each node of the sequence."""
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    batch = torch.arange(32).repeat_interleave(64)
    assert choose_linear_path(CausalOperator(batch), 16, 16, batch) == "blocks"
    assert choose_linear_path(CausalOperator(batch), 4, 4, batch) == "factored"
    assert choose_linear_path(CausalOperator(torch.zeros(2048).long()), 16, 16, torch.zeros(2048).long()) == "factored"
    monkeypatch.setenv("TOPOMASK_NATIVE", "1")
    if linear_blocks.refuses(batch.device) is None:
        assert choose_linear_path(CausalOperator(batch), 4, 4, batch) == "blocks"
    edge_index = torch.stack([torch.arange(2047), torch.arange(1, 2048)])[:, batch.diff() == 0]
    series = PowerSeriesOperator(edge_index, 2048, torch.ones(3))  # its blocks take a product with 64 columns
    assert choose_linear_path(series, 4, 4, batch) == "factored"
    many = torch.arange(32 * 64).repeat_interleave(64)  # so many that their blocks take too much memory
    assert choose_linear_path(CausalOperator(many), 16, 16, many) == "factored"


def test_many_features_go_by_pairs_and_few_by_factors(monkeypatch):
    monkeypatch.setattr(path_choice, "_MOST_COMPILED_BLOCK_ENTRIES", 0)  # blocks would be faster than both
    graph = Data(edge_index=erdos_renyi_graph(1500, 4 / 1499), num_nodes=1500)
    mask = RWGNKMask(max_length=3)(AddRandomWalks(50, 3, 0.0, independent=False, seed=0)(graph))
    assert mask.num_pairs > 9 * mask.num_multiply_adds  # counting multiply-adds alike would take factors from here on
    # On a graph of Cora's size with such a mask pairs took 0.4 times as long as factors, and 13 times as long.
    assert choose_linear_path(mask, 256, 8) == "pairwise"
    assert choose_linear_path(mask, 4, 8) == "factored"
