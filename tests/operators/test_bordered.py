"""Masks with a class token; the first node of each test graph stands for the token."""

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.utils import subgraph

from pyg_topomask import nn, operators, ops, transforms
from pyg_topomask.limits import limits
from pyg_topomask.nn.graph_attributes import batch_of
from pyg_topomask.ops.attention.masked import masked_linear_attention_reference, masked_softmax_attention_reference
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.ops.sparse import Combination
from pyg_topomask.testing import GRAPHS, OperatorCase, dense_adjacency, empty_graph

SERIES = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def real_nodes(data):
    """Whether each node is not the first one of its graph."""
    batch = batch_of(data)
    return torch.cat([torch.zeros(min(1, batch.numel()), dtype=torch.bool), batch[1:] == batch[:-1]])


def inner_graph(data):
    """Number of nodes that are no tokens, their edges, the weights of these, and their dense adjacency."""
    real = real_nodes(data)
    weight = data.get("edge_weight", torch.ones(data.num_edges)).double()
    edges, weight = subgraph(real, data.edge_index, weight, True, num_nodes=data.num_nodes)
    return int(real.sum()), edges, weight, dense_adjacency(data)[real][:, real]


def heat(nodes, edges, weight, f):
    """Approximate: the token's row does not share the error."""
    return operators.HeatOperator(
        torch.cat([edges, edges.flip(0)], 1), nodes, 0.5 * f[0], torch.cat([weight] * 2), tol=1e-12
    )


def heat_matrix(adjacency, f):
    adjacency = adjacency + adjacency.t()
    return torch.matrix_exp(-0.5 * f[0] * (adjacency.sum(1).diag() - adjacency))


# Masks of the other nodes, from their graph and numbers; and their matrices.
INNER = {
    "series": (lambda n, edges, w, f: operators.PowerSeriesOperator(edges, n, f, w), SERIES),
    "heads": (
        lambda n, edges, w, f: operators.PowerSeriesOperator(edges, n, f, w),
        torch.stack([SERIES, SERIES.flip(0)]),
    ),
    "pairs": (lambda n, edges, w, f: operators.SparseOperator(edges, f[1] * w, n), SERIES * torch.tensor([0, 1, 0])),
    "heat": (heat, SERIES),
}


class TestBorderedOperator(OperatorCase):
    equivariant = False  # the token is the first node

    @pytest.fixture(autouse=True, params=INNER)
    def _case(self, request):
        self.name, (self.make, self.numbers) = request.param, INNER[request.param]

    def build(self, data, numbers=None):
        nodes, edges, weight, _ = inner_graph(data)
        inner = self.make(nodes, edges, weight, self.numbers if numbers is None else numbers)
        return operators.BorderedOperator(inner, batch_of(data)[real_nodes(data)], data.num_nodes - nodes)

    def parameters(self, data):
        return {"numbers": self.numbers}

    def reference(self, data):
        real, batch, adjacency = real_nodes(data), batch_of(data), inner_graph(data)[3]
        inner = [sum(a * adjacency.matrix_power(k) for k, a in enumerate(f)) for f in self.numbers.view(-1, 3)]
        if self.name == "heat":
            inner = [heat_matrix(adjacency, self.numbers)]
        out = (batch[:, None] == batch).double().repeat(len(inner), 1, 1)
        out[:, real[:, None] & real] = torch.stack(inner).flatten(1)
        return out if self.numbers.dim() == 2 else out[0]


def batch_with(*names):
    return Batch.from_data_list([empty_graph() if name == "empty" else GRAPHS[name].clone() for name in names])


def series_of(*names):
    batch = batch_with(*names)
    return operators.BorderedOperator(
        operators.PowerSeriesOperator(batch.edge_index, batch.num_nodes, SERIES), batch.batch, len(names)
    )


def shared(*of_graph):
    """Equal graphs that share a block, beside graphs without nodes."""
    inner = operators.GridHeatOperator((2, 3), torch.tensor(0.5).double(), num_graphs=3)
    return operators.BorderedOperator(inner, torch.tensor(of_graph).repeat_interleave(6), 5)


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
@pytest.mark.parametrize(
    "op",
    [
        series_of("path", "star"),
        series_of("path", "empty", "star", "single", "empty"),
        series_of("empty", "empty"),
        *(shared(*graphs) for graphs in ((0, 1, 3), (0, 2, 4), (1, 2, 3))),
    ],
)
def test_attention_with_tokens_is_the_definition_on_every_path(op, kernel):
    sizes = torch.bincount(op.batch, minlength=op.num_graphs) + 1
    q, k, v = (torch.rand(op.num_nodes, 2, 3, dtype=torch.float64) for _ in range(3))
    reference = masked_linear_attention_reference if kernel == "linear" else masked_softmax_attention_reference
    attend = ops.masked_linear_attention if kernel == "linear" else ops.masked_softmax_attention
    wanted = reference(q, k, v, op.to_dense(), bound=op.bound.to_dense())
    for path in ("factored", "blocks", "auto")[kernel == "softmax" :]:
        found = attend(q, k, v, op, torch.repeat_interleave(sizes), path)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("names", [("path", "empty", "star", "single", "empty"), ("empty",)])
def test_coefficients_of_pairs_are_kept(names):
    """Attention under a GRF mask evaluates the entries row by row, also behind a class token."""
    batch = Batch.from_data_list(list(map(transforms.AddRandomWalks(4, 2, seed=0), batch_with(*names).to_data_list())))
    mask = nn.GRFMask(2, max_length=2).double()
    with torch.no_grad():
        mask.modulation.copy_(torch.tensor([[1.0, -0.5, 0.25], [0.5, 0.0, 1.0]]))
    op = operators.BorderedOperator(mask(batch), batch.batch, len(names))
    assert op.support.kept
    for form in (op, op.bound):
        pattern, entries = form.support.pairs(None)
        assert isinstance(entries, Combination)
        dense = torch.zeros_like(form.to_dense())
        dense[:, pattern.row.long(), pattern.col.long()] = entries.values.t()
        torch.testing.assert_close(dense, form.to_dense())


@pytest.mark.parametrize("one_left", [True, False])
def test_shared_blocks_with_rows_and_columns_of_each_graph(one_left):
    inner = operators.GridHeatOperator((2, 3), torch.tensor([0.5, 2.0], dtype=torch.float64), num_graphs=3)
    op = operators.BorderedOperator(8 * inner, torch.arange(3).repeat_interleave(6))
    layout = block_layout(torch.arange(3).repeat_interleave(7))
    assert [block.size(0) for block in op.dense_blocks.make(layout)] == [1]
    left, right = torch.rand(2, 21, 2, dtype=torch.float64)
    scaled = operators.DiagonalScaledOperator(op, left[:, 0] if one_left else left, right)
    (blocks,), dense = scaled.dense_blocks.make(layout), scaled.to_dense()
    for graph, block in enumerate(blocks):
        own = slice(7 * graph, 7 * graph + 7)
        torch.testing.assert_close(block.mT, dense[:, own, own], rtol=1e-9, atol=1e-9)


def test_what_is_refused():
    op = operators.DenseOperator(torch.eye(3))
    with pytest.raises(ValueError, match=r"'batch' must have shape \[3\]"):
        operators.BorderedOperator(op, torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"'num_graphs' must be at least 2, the graphs of 'batch' \(got 1\)"):
        operators.BorderedOperator(op, torch.tensor([0, 0, 1]), 1)
    series = operators.PowerSeriesOperator(torch.zeros(2, 0, dtype=torch.long), 3, SERIES)
    bordered = operators.BorderedOperator(series, torch.zeros(3).long())
    with pytest.raises(ValueError, match="not those of the mask with one more node each"):
        bordered.dense_blocks.make(block_layout(torch.tensor([0, 0, 1, 1])))


def test_many_pairs_are_not_listed():
    index = torch.tensor([[0, 1], [1, 0]])
    op = operators.BorderedOperator(operators.SparseOperator(index, torch.ones(2), 2), torch.zeros(2).long())
    assert op.support.count() == op.support.pairs(None)[0].nnz == 7
    q = torch.rand(3, 1, 2)
    message = r"path 'pairwise' cannot serve.*BorderedOperator has none.*path='auto'"
    with limits.override(pairs_at_once=1), pytest.raises(ValueError, match=message):
        ops.masked_linear_attention(q, q, q, op, path="pairwise")
