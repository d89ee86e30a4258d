"""Masks that are made of other masks, against their matrices."""

from itertools import combinations_with_replacement
from types import SimpleNamespace

import pytest
import torch

from pyg_topomask.nn.graph_attributes import batch_of
from pyg_topomask.operators import (
    BlockDiagonalOperator,
    CausalOperator,
    ConstantOperator,
    DenseOperator,
    DiagonalScaledOperator,
    GridHeatOperator,
    HeadStackOperator,
    HeatOperator,
    KroneckerOperator,
    LowRankOperator,
    OnesOperator,
    PaddingOperator,
    PowerSeriesOperator,
    ProductOperator,
    SparseFactorOperator,
    SparseOperator,
    SumOperator,
    ToeplitzOperator,
)
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.attention.masked import masked_linear_attention_reference
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import GRAPHS, OperatorCase, dense_adjacency
from tests.matrices import power_series


def matrix(data, value):
    """One number for each edge; equal edges add up."""
    zeros = value.new_zeros(data.num_nodes, data.num_nodes)
    return zeros.index_put(tuple(data.edge_index), value, accumulate=True)


def same_graph(data):
    batch = batch_of(data)
    return (batch[:, None] == batch).double()


def ones(data):
    return OnesOperator(batch_of(data))


def left(data, value):
    return SparseFactorOperator((data.edge_index, value), None, data.num_nodes)


def both(data, a, b):
    index = data.edge_index
    return SparseFactorOperator((index, a), (index, b), data.num_nodes)


def halves(data, a, b):
    """A factor for each head, whose entries come in two parts, and one that heads share."""
    twice, parts = torch.cat([data.edge_index] * 2, 1), torch.cat([0.25 * a, 0.75 * a])
    return SparseFactorOperator((twice, parts[:, None] * torch.tensor([1.0, 2])), (data.edge_index, b), data.num_nodes)


def of_heads(data, a, b):
    return DenseOperator(torch.stack([matrix(data, a), matrix(data, b)]))


def diagonals(data, s):
    """Scales of nodes, for each head and for all."""
    node = data.x[:, 0].abs() + 0.5
    return s * node, torch.stack([node.sqrt(), -s / node], 1)


def scaled(data, a, s):
    return DiagonalScaledOperator(left(data, a), *diagonals(data, s), batch_of(data))


def scaled_matrix(data, dense, s):
    rows, columns = diagonals(data, s)
    return rows[:, None] * dense * columns.t()[:, None]


def joined(data, a, b):
    """A mask for each graph of a batch: by turns with heads of its own, and for all heads."""
    graph, first = batch_of(data)[data.edge_index[0]], torch.bincount(batch_of(data), minlength=1).cumsum(0).tolist()
    masks = []
    for i, (start, stop) in enumerate(zip([0, *first], first)):
        factors = [(data.edge_index[:, graph == i] - start, x[graph == i]) for x in (a, b)]
        mask = SparseFactorOperator(*factors, stop - start)
        one = torch.ones(stop - start, 2).double()
        masks.append(mask if i % 2 else DiagonalScaledOperator(mask, one, one))
    return BlockDiagonalOperator(masks)


def vectors(data, p):
    return p.s * data.x[:, :2], p.f[:2] * data.x[:, 2:]


def low_rank(data, rows, columns):
    return LowRankOperator(rows, columns, batch_of(data))


def outer(rows, columns):
    return rows @ columns.mT


def rank_heads(data, p):
    rows, columns = vectors(data, p)
    return torch.stack([rows, 2 * columns]), torch.stack([columns, 2 * rows])


def with_double(matrix):
    return torch.stack([matrix, 2 * matrix])


ONE = DenseOperator(torch.ones(1, 1).double())

# Operators of values a, b of edges, a number s and coefficients f; and their matrices, from the matrices A, B of edges
# and G of pairs in a graph.
CASES = {
    "ones": (lambda d, p: ones(d), lambda d, p: p.G),
    "padding": (lambda d, p: PaddingOperator(d.x[:, 0] > 0, batch_of(d)), lambda d, p: p.G * (d.x[:, 0] > 0)),
    "causal": (lambda d, p: CausalOperator(batch_of(d)), lambda d, p: p.G.tril()),
    "dense": (lambda d, p: DenseOperator(matrix(d, p.a)), lambda d, p: p.A),
    "dense_heads": (lambda d, p: of_heads(d, p.a, p.b), lambda d, p: torch.stack([p.A, p.B])),
    "sparse": (lambda d, p: SparseOperator(d.edge_index, p.a, d.num_nodes), lambda d, p: p.A),
    "factors": (lambda d, p: both(d, p.a, p.b), lambda d, p: p.A @ p.B.t()),
    "right": (lambda d, p: SparseFactorOperator(None, (d.edge_index, p.a), d.num_nodes), lambda d, p: p.A.t()),
    "halves": (lambda d, p: halves(d, p.a, p.b), lambda d, p: with_double(p.A @ p.B.t())),
    "series": (
        lambda d, p: PowerSeriesOperator(d.edge_index, d.num_nodes, p.f),
        lambda d, p: power_series(dense_adjacency(d), p.f),
    ),
    "series_heads": (
        lambda d, p: PowerSeriesOperator(d.edge_index, d.num_nodes, torch.stack([p.f, p.f.flip(0)]), p.a),
        lambda d, p: power_series(p.A, torch.stack([p.f, p.f.flip(0)])),
    ),
    "low_rank": (lambda d, p: low_rank(d, *vectors(d, p)), lambda d, p: p.G * outer(*vectors(d, p))),
    "low_rank_heads": (lambda d, p: low_rank(d, *rank_heads(d, p)), lambda d, p: p.G * outer(*rank_heads(d, p))),
    "scaled": (lambda d, p: p.s * left(d, p.a), lambda d, p: p.s * p.A),
    "diagonals": (lambda d, p: scaled(d, p.a, p.s), lambda d, p: scaled_matrix(d, p.A, p.s)),
    "constant": (lambda d, p: ConstantOperator(both(d, p.a.detach(), p.b.detach())), lambda d, p: p.A @ p.B.t()),
    "sum": (lambda d, p: left(d, p.a) + ones(d), lambda d, p: p.A + p.G),
    "sum_shared": (lambda d, p: of_heads(d, p.a, p.b) + ones(d), lambda d, p: torch.stack([p.A, p.B]) + p.G),
    "stack": (
        lambda d, p: HeadStackOperator([ones(d), DenseOperator(matrix(d, p.a))]),
        lambda d, p: torch.stack([p.G, p.A]),
    ),
    "stack_blocks": (
        lambda d, p: HeadStackOperator([both(d, p.a, p.b), both(d, p.b, p.a)]),
        lambda d, p: torch.stack([p.A @ p.B.t(), p.B @ p.A.t()]),
    ),
    "joined": (lambda d, p: joined(d, p.a, p.b), lambda d, p: (p.A @ p.B.t()).expand(2, -1, -1)),
    "product": (lambda d, p: ProductOperator(left(d, p.a), left(d, p.b).T), lambda d, p: p.A @ p.B.t()),
    "product_shared": (
        lambda d, p: ProductOperator(left(d, p.b), scaled(d, p.a, p.s)),
        lambda d, p: p.B @ scaled_matrix(d, p.A, p.s),
    ),
    "kronecker": (lambda d, p: KroneckerOperator(left(d, p.a), ONE), lambda d, p: p.A),
}
TIMES = [
    ("factors", "factors"),
    ("factors", "right"),
    ("sparse", "sparse"),
    ("halves", "factors"),
    ("constant", "causal"),
    ("diagonals", "scaled"),
    ("sum", "stack_blocks"),
    ("dense_heads", "right"),
    ("causal", "ones"),
    ("low_rank_heads", "series"),
    ("product", "stack"),
]
"""Names of masks that are multiplied entry by entry."""


def times(first, second):
    """The entry-wise product of two cases."""
    return (lambda d, p: first[0](d, p) * second[0](d, p)), (lambda d, p: first[1](d, p) * second[1](d, p))


CASES |= {f"{a} * {b}": times(CASES[a], CASES[b]) for a, b in TIMES}
CONSTANT = ("ones", "padding", "causal", "constant", "causal * ones", "constant * causal")
SHARED_GRAPHS = {name: data for name, data in GRAPHS.items() if name != "weighted"}


def numbers(data, sign=-1.0):
    """Values ``a`` and ``b`` of edges, ``s`` and ``f``; those of a batch are those of each graph."""
    ends = [batch_of(data)[data.edge_index[0]], *(data.x[end].sum(1) for end in data.edge_index)]
    signs = torch.where(ends[1] + 0.7 * ends[2] > 0, 1.0, sign)
    a, b = signs * (ends[1].cos().abs() + 0.3), ends[2].sin().abs() + 0.4
    f = torch.tensor([0.8, 0.3 * sign, 0.1, 0.2])
    return {name: x.double() for name, x in zip("absf", (a, b, torch.tensor(1.5 * sign), f))}


class TestMadeOfOthers(OperatorCase):
    graphs = SHARED_GRAPHS

    @pytest.fixture(autouse=True, params=CASES)
    def _case(self, request):
        self.name, (self.make, self.matrix) = request.param, CASES[request.param]
        self.equivariant = "causal" not in self.name

    def build(self, data, **values):
        return self.make(data, SimpleNamespace(**numbers(data) | values))

    def parameters(self, data):
        return numbers(data) if self.name not in CONSTANT else {}

    def reference(self, data):
        own = numbers(data)
        own |= {"A": matrix(data, own["a"]), "B": matrix(data, own["b"]), "G": same_graph(data)}
        return self.matrix(data, SimpleNamespace(**own))

    def test_a_mask_without_negative_parameters_is_its_own_bound(self):
        data = self.graphs["star"]
        positive, negative = (self.build(data, **numbers(data, sign)) for sign in (1.0, -1.0))
        if not any(part in self.name for part in ("diagonals", "shared", "low_rank")):  # which have signs anyway
            assert positive.bound is positive
        bound = negative.bound
        assert bound.bound is bound
        assert isinstance(negative, type(bound))

    def test_the_bound_has_derivative_plus_one_where_a_parameter_is_zero(self):
        """The derivative from the right, where the mask is its own bound: nothing jumps where one starts at 0."""
        data, grads = self.graphs["star"], []
        for first in (0.0, 1e-9):
            values = numbers(data)
            values["a"] = torch.cat([torch.tensor([first]).double(), values["a"][1:]]).requires_grad_()
            total = self.build(data, **values).bound.to_dense().sum()
            if not total.requires_grad:
                return
            grads.append(torch.autograd.grad(total, values["a"])[0])
        torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-6)


def blocks_are_those_of_the_matrix(op, batch):
    dense, layout = op.to_dense(), block_layout(batch)
    for graph, block in zip(batch.unique(), layout.cut(op.dense_blocks.make(layout)), strict=True):
        own = batch == graph
        torch.testing.assert_close(block, dense[..., own, :][..., own].mT)


def test_blocks_that_all_graphs_share_beside_others():
    joined = BlockDiagonalOperator([GridHeatOperator((2, 3), time, 2) for time in (0.3, 1.0)])
    for op in (joined, HeadStackOperator([GridHeatOperator((2, 3), 0.5, 4), joined])):
        blocks_are_those_of_the_matrix(op, torch.arange(4).repeat_interleave(6))


def test_blocks_of_a_batch_that_is_finer_or_coarser_than_the_parts():
    parts = [SparseOperator(torch.ones(n, n).nonzero().t(), torch.randn(n * n).double(), n) for n in (2, 3, 1, 2)]
    op = BlockDiagonalOperator([BlockDiagonalOperator(parts[:2]), *parts[2:]])
    for batch in ([0, 0, 1, 1, 1, 4, 5, 5], [0] * 8, [1, 1, 1, 1, 1, 1, 2, 2], [0] * 5 + [2] * 3):
        blocks_are_those_of_the_matrix(op, torch.tensor(batch))
    with pytest.raises(ValueError, match="different graphs"):
        op.dense_blocks.make(block_layout(torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])))


def test_entrywise_products_of_all_pairs_of_masks():
    for data in (SHARED_GRAPHS["star"], SHARED_GRAPHS["one_way"], SHARED_GRAPHS["isolated"]):
        values = numbers(data) | {"A": matrix(data, numbers(data)["a"]), "B": matrix(data, numbers(data)["b"])}
        values = SimpleNamespace(**values, G=same_graph(data))
        made = [(make(data, values), wanted(data, values)) for make, wanted in CASES.values()]
        for (a, first), (b, second) in combinations_with_replacement(made, 2):
            op, dense = a * b, first * second
            x = torch.randn(data.num_nodes, *(() if op.heads is None else (op.heads,)), 2).double()
            for found, wanted in ((op, dense), (op.T, dense.mT), (op.bound, a.bound.to_dense() * b.bound.to_dense())):
                rows = torch.einsum("...ij,j...c->i...c", wanted.double(), x)
                torch.testing.assert_close(found @ x, rows, rtol=1e-10, atol=1e-12)


def test_work_is_counted_in_multiply_adds_of_a_column():
    data = SHARED_GRAPHS["path"]  # 4 nodes, 6 directed edges
    series = PowerSeriesOperator(data.edge_index, 4, torch.ones(3).double())  # two products, and three terms
    sparse, narrow = SparseOperator(data.edge_index, torch.ones(6).double(), 4), LowRankOperator(*torch.ones(2, 4, 3))
    for op, work in (
        (series, 2 * 6 + 3 * 4),
        (sparse, 6),
        (narrow, 2 * 4 * 3),
        (series + sparse, 24 + 6),
        (ProductOperator(sparse, series), 6 + 24),
        (KroneckerOperator(sparse, narrow), 6 * 4 + 24 * 4),
        (HeadStackOperator([sparse, series]), (6 + 24) // 2),
    ):
        assert op.num_multiply_adds == work, type(op).__name__


def test_entrywise_products_take_the_way_with_the_least_work():
    """Hubs make all pairs of nodes meet; a node with many neighbours has many pairs of columns."""
    size, node = 12, torch.arange(12)
    to_hubs = torch.stack([node.repeat(2), torch.cat([node % 3, (node + 1) % 3])])
    value, heads = torch.randn(2 * size).double(), torch.randn(2 * size, 2).double()
    meeting = SparseFactorOperator((to_hubs, value), (to_hubs, heads), size)
    edges = SparseOperator(torch.stack([torch.zeros(size).long(), node]), value[:size], size)
    ones = OnesOperator(torch.zeros(size).long())
    for a, b, work in ((meeting, meeting, 2 * 4 * size), (edges, edges, size), (ones, ones, size**2)):
        op, wanted = a * b, a.to_dense().double() * b.to_dense()
        assert op.num_multiply_adds == work
        x = torch.randn(size, *(() if op.heads is None else (2,)), 3).double()
        for found, dense in ((op, wanted), (op.T, wanted.mT)):
            torch.testing.assert_close(found @ x, torch.einsum("...ij,j...c->i...c", dense, x))

    def squared(value, heads):
        op = SparseFactorOperator((to_hubs, value), (to_hubs, heads), size)
        return (op * op) @ x

    x = torch.randn(size, 2, 1).double()
    assert torch.autograd.gradcheck(squared, (value.requires_grad_(), heads.requires_grad_()))


def test_the_error_of_a_scaled_mask_without_nodes_is_zero():
    edges = torch.zeros(2, 0, dtype=torch.long)
    assert DiagonalScaledOperator(HeatOperator(edges, 0, 1.0), None, torch.zeros(0)).error == 0


def test_the_error_of_an_entrywise_product_follows_from_those_of_its_factors():
    data = GRAPHS["star"]
    rough, exact = (HeatOperator(data.edge_index, data.num_nodes, 1.3, tol=tol) for tol in (1e-2, 1e-13))
    signed = SparseOperator(data.edge_index, 3 * torch.randn(data.num_edges).double(), data.num_nodes)
    for op, wanted in ((rough * rough, exact * exact), (rough * -2 * signed, exact * -2 * signed)):
        error = (op.to_dense() - wanted.to_dense()).norm(dim=1)
        assert 0 < error.max() <= op.error.max() < 1
        assert (error <= op.error.flatten()).all()


@pytest.mark.parametrize(("left_heads", "right_heads"), [(None, None), (2, None), (None, 2), (2, 2)])
def test_kronecker_product(left_heads, right_heads):
    a, b = (torch.randn(heads or 1, n, n).double() for n, heads in ((3, left_heads), (4, right_heads)))
    op = KroneckerOperator(*(DenseOperator(x if heads else x[0]) for x, heads in ((a, left_heads), (b, right_heads))))
    wanted = torch.stack([torch.kron(a[h % len(a)], b[h % len(b)]) for h in range(op.heads or 1)])
    for found, dense in ((op, wanted), (op.T, wanted.mT)):
        torch.testing.assert_close(found.to_dense().view(wanted.shape), dense)
    assert (op.num_nodes, op.num_multiply_adds) == (12, 9 * 4 + 16 * 3)


@pytest.mark.parametrize(
    ("combine", "path"),
    [*((ProductOperator, path) for path in ("auto", "dense", "blocks", "factored")), (SumOperator, "auto")],
)
def test_masks_of_different_dtypes(combine, path):
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    causal, other = CausalOperator(batch), ToeplitzOperator(torch.rand(5).double(), [3], 2)
    mask = combine(causal, other)
    assert mask.dtype == torch.float64
    wanted = combine(DenseOperator(causal.to_dense().double()), DenseOperator(other.to_dense())).to_dense()
    torch.testing.assert_close(mask.to_dense(), wanted, rtol=0, atol=1e-15)
    q = torch.rand(6, 1, 4).double()
    found = masked_linear_attention(q, q, q, mask, batch, path=path)
    torch.testing.assert_close(found, masked_linear_attention_reference(q, q, q, wanted, batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("path", ["auto", "pairwise", "blocks", "factored", "dense"])
@pytest.mark.parametrize("combine", [lambda a, b: a + b, lambda a, b: a * b])
def test_pairs_of_different_dtypes(combine, path):
    index, value = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 0]]), torch.rand(4) + 0.1
    a, b = (SparseOperator(index, value.to(dtype), 3) for dtype in (torch.float32, torch.float64))
    wanted = combine(a.to_dense().double(), b.to_dense())
    q = torch.rand(3, 1, 4).double()
    for mask in (combine(a, b), combine(b, a)):
        found = masked_linear_attention(q, q, q, mask, path=path)
        torch.testing.assert_close(found, masked_linear_attention_reference(q, q, q, wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale", [2, True])
def test_an_integer_tensor_scales_like_its_number(scale):
    mask = CausalOperator(torch.zeros(3, dtype=torch.long))
    found = torch.tensor(scale) * mask
    assert found.eps == mask.eps
    torch.testing.assert_close(found.bound.to_dense(), (scale * mask).to_dense())
