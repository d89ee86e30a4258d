"""Masks with a class token; the first node of each test graph stands for the token."""

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import subgraph

from pyg_topomask.nn import GRFMask
from pyg_topomask.nn.mask.structure import batch_of
from pyg_topomask.operators import (
    BorderedOperator,
    DenseOperator,
    DiagonalScaledOperator,
    GridHeatOperator,
    HeatOperator,
    PowerSeriesOperator,
    SparseOperator,
)
from pyg_topomask.ops import masked_linear_attention, masked_softmax_attention
from pyg_topomask.ops.attention.masked_linear import masked_linear_attention_reference
from pyg_topomask.ops.attention.path_choice import choose_linear_path
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import GRAPHS, OperatorCase, dense_adjacency, empty_graph
from pyg_topomask.transforms import AddRandomWalks

SERIES = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def real_nodes(data):
    """Whether each node is not the first one of its graph."""
    batch = batch_of(data)
    return torch.cat([torch.zeros(min(1, batch.numel()), dtype=torch.bool), batch[1:] == batch[:-1]])


class TestBorderedOperator(OperatorCase):
    equivariant = False  # the token is the first node
    series = SERIES

    def build(self, data, coeffs=None):
        real, batch = real_nodes(data), batch_of(data)
        edges, weight = subgraph(real, data.edge_index, data.get("edge_weight"), True, num_nodes=data.num_nodes)
        weight = None if weight is None else weight.double()
        inner = PowerSeriesOperator(edges, int(real.sum()), self.series if coeffs is None else coeffs, weight)
        return BorderedOperator(inner, batch[real], int((~real).sum()))

    def reference(self, data):
        real, batch = real_nodes(data), batch_of(data)
        adjacency = dense_adjacency(data)[real][:, real]
        inner = [sum(a * adjacency.matrix_power(k) for k, a in enumerate(f)) for f in self.series.view(-1, 3)]
        both = real[:, None] & real
        out = (batch[:, None] == batch).double().repeat(len(inner), 1, 1)
        out[:, both] = torch.stack(inner).flatten(1)
        return out if self.series.dim() == 2 else out[0]

    def parameters(self, data):
        return {"coeffs": self.series}


class TestBorderedOperatorPerHead(TestBorderedOperator):
    series = torch.stack([SERIES, SERIES.flip(0)])


class TestBorderedPairs(TestBorderedOperator):
    """A mask with a sparse support, which also lists its pairs row by row."""

    series = torch.tensor([0.0, -0.5, 0.0], dtype=torch.float64)

    def build(self, data, coeffs=None):
        real, batch = real_nodes(data), batch_of(data)
        edges, weight = subgraph(real, data.edge_index, data.get("edge_weight"), True, num_nodes=data.num_nodes)
        weight = torch.ones(edges.size(1)) if weight is None else weight
        factor = (self.series if coeffs is None else coeffs)[1]
        inner = SparseOperator(edges, factor * weight.double(), int(real.sum()))
        return BorderedOperator(inner, batch[real], int((~real).sum()))


class TestBorderedApproximation(OperatorCase):
    """A mask whose products have an error, which the token's row does not share."""

    equivariant = False

    def build(self, data):
        real, batch = real_nodes(data), batch_of(data)
        edges = subgraph(real, data.edge_index, None, True, num_nodes=data.num_nodes)[0]
        edges = torch.cat([edges, edges.flip(0)], dim=1)
        inner = HeatOperator(edges, int(real.sum()), torch.tensor(0.5, dtype=torch.float64), tol=1e-12)
        return BorderedOperator(inner, batch[real], int((~real).sum()))

    def reference(self, data):
        real, batch = real_nodes(data), batch_of(data)
        edges = subgraph(real, data.edge_index, None, True, num_nodes=data.num_nodes)[0]
        adjacency = torch.zeros(int(real.sum()), int(real.sum()), dtype=torch.float64)
        for i, j in edges.t().tolist():
            adjacency[i, j] += 1
            adjacency[j, i] += 1
        out = (batch[:, None] == batch).double()
        out[real[:, None] & real] = torch.matrix_exp(-0.5 * (adjacency.sum(1).diag() - adjacency)).flatten()
        return out


@pytest.mark.parametrize("names", [("path", "star"), ("path", "empty", "star", "single", "empty"), ("empty", "empty")])
@pytest.mark.parametrize("kernel", ["linear", "softmax"])
def test_attention_with_tokens_is_the_definition_on_every_path(names, kernel):
    batch = Batch.from_data_list([empty_graph() if name == "empty" else GRAPHS[name] for name in names])
    inner = PowerSeriesOperator(batch.edge_index, batch.num_nodes, SERIES)
    op = BorderedOperator(inner, batch.batch, len(names))
    sizes = batch.ptr.diff() + 1
    wider, n = torch.repeat_interleave(sizes), op.num_nodes
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(n, 2, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    matrix, bound = op.to_dense(), op.bound.to_dense()
    if kernel == "linear":
        wanted = masked_linear_attention_reference(q, k, v, matrix, None, bound)
        outs = [masked_linear_attention(q, k, v, op, wider, path) for path in ("factored", "blocks", "auto")]
    else:
        weight = (torch.einsum("ihr,jhr->hij", q, k) * 3**-0.5).exp()
        wanted = torch.einsum("hij,jhd->ihd", matrix * weight, v) / (bound * weight).sum(-1).t()[..., None]
        outs = [masked_softmax_attention(q, k, v, op, wider, path) for path in ("blocks", "auto")]
    for out in outs:
        torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("names", [("path", "star"), ("path", "empty", "star", "single", "empty"), ("empty",)])
def test_coefficients_of_pairs_are_kept(names):
    """Attention under a GRF mask evaluates the entries row by row, also behind a class token."""
    op = bordered_grf(names)
    assert op.keeps_pairs
    pattern, value = op.pairs()
    for mask in (op, op.bound):
        found, combined = mask.combined_pairs()
        torch.testing.assert_close((found.row, found.col), (pattern.row, pattern.col))
        torch.testing.assert_close(combined.values, mask.pairs()[1])
    dense = torch.zeros_like(op.to_dense())
    dense[:, pattern.row.long(), pattern.col.long()] = value.t()
    torch.testing.assert_close(dense, op.to_dense())
    assert choose_linear_path(op, 32, 8) == "pairwise"


@pytest.mark.parametrize(("scale", "same"), [(1.0, True), (1e-30, True), (1e4, False), (1e15, False)])
def test_rows_are_scaled_only_where_they_are_large(scale, same):
    op = bordered_grf(("path", "star"), scale)
    wide = torch.repeat_interleave(torch.bincount(op.batch) + 1)
    assert (op.rescaled is op) is same
    q, k, v = (torch.rand(op.num_nodes, 2, 3, dtype=torch.float64) for _ in range(3))
    wanted = masked_linear_attention_reference(q, k, v, op.to_dense(), bound=op.bound.to_dense())
    for path in ("factored", "pairwise", "blocks"):
        torch.testing.assert_close(masked_linear_attention(q, k, v, op, wide, path), wanted, rtol=1e-9, atol=1e-9)


def bordered_grf(names, scale=1.0):
    graphs = [empty_graph() if name == "empty" else GRAPHS[name].clone() for name in names]
    batch = Batch.from_data_list([AddRandomWalks(4, 2, seed=0)(graph) for graph in graphs])
    mask = GRFMask(2, max_length=2).double()
    with torch.no_grad():
        mask.modulation.copy_(scale * torch.tensor([[1.0, -0.5, 0.25], [0.5, 0.0, 1.0]]))
    return BorderedOperator(mask(batch), batch.batch, len(names))


@pytest.mark.parametrize("of_graph", [(0, 1, 3), (0, 2, 4), (1, 2, 3)])
def test_equal_graphs_share_a_block_beside_graphs_without_nodes(of_graph):
    batch = torch.tensor(of_graph).repeat_interleave(6)
    op = BorderedOperator(GridHeatOperator((2, 3), torch.tensor(0.5, dtype=torch.float64), num_graphs=3), batch, 5)
    wide = torch.repeat_interleave(torch.bincount(batch, minlength=5) + 1)
    q, k, v = (torch.rand(op.num_nodes, 2, 3, dtype=torch.float64) for _ in range(3))
    wanted = masked_linear_attention_reference(q, k, v, op.to_dense())
    for path in ("factored", "blocks", "auto"):
        torch.testing.assert_close(masked_linear_attention(q, k, v, op, wide, path), wanted, rtol=1e-9, atol=1e-9)


SAME = torch.rand(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).repeat(3, 1)


@pytest.mark.parametrize(
    ("left", "num_blocks"),
    [
        (SAME, 1),
        (SAME[:, 0], 1),
        (SAME.clone().requires_grad_(), 3),  # the gradient of each graph is its own
        (torch.arange(42, dtype=torch.float64).view(21, 2), 3),
    ],
)
def test_equal_graphs_share_a_block_if_their_rows_are_scaled_alike(left, num_blocks):
    inner = GridHeatOperator((2, 3), torch.tensor([0.5, 2.0], dtype=torch.float64), num_graphs=3)
    op = BorderedOperator(8 * inner, torch.arange(3).repeat_interleave(6))
    layout = block_layout(torch.arange(3).repeat_interleave(7))
    assert [block.size(0) for block in op.rescaled.blocks(layout)] == [1]
    scaled = DiagonalScaledOperator(op, left, SAME)
    (blocks,), dense = scaled.blocks(layout), scaled.to_dense()
    assert blocks.size(0) == num_blocks
    for graph, block in enumerate(blocks.expand(3, -1, -1, -1)):
        own = slice(7 * graph, 7 * graph + 7)
        torch.testing.assert_close(block.mT, dense[:, own, own], rtol=1e-9, atol=1e-9)


def test_what_is_refused():
    op = DenseOperator(torch.eye(3))
    with pytest.raises(ValueError, match=r"'batch' must have shape \[3\]"):
        BorderedOperator(op, torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"'num_graphs' must be at least 2, the graphs of 'batch' \(got 1\)"):
        BorderedOperator(op, torch.tensor([0, 0, 1]), 1)
    bordered = BorderedOperator(
        PowerSeriesOperator(torch.zeros(2, 0, dtype=torch.long), 3, SERIES), torch.zeros(3).long()
    )
    with pytest.raises(ValueError, match="not those of the mask with one more node each"):
        bordered.blocks(block_layout(torch.tensor([0, 0, 1, 1])))


def test_many_pairs_are_not_listed(monkeypatch):
    index = torch.tensor([[0, 1], [1, 0]])
    op = BorderedOperator(SparseOperator(index, torch.ones(2), 2), torch.zeros(2).long())
    assert op.num_pairs == op.pairs()[0].nnz == 7
    monkeypatch.setattr("pyg_topomask.operators.bordered._MOST_PAIRS", 1)
    assert op.num_pairs is None
    with pytest.raises(ValueError, match="path 'pairwise' needs a sparse support; BorderedOperator has none"):
        op.pairs()
