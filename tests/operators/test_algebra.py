import pytest
import torch

from pyg_topomask.nn.mask.structure import batch_of
from pyg_topomask.operators import (
    BlockDiagonalOperator,
    CausalOperator,
    DenseOperator,
    DiagonalScaledOperator,
    GridHeatOperator,
    HeadStackOperator,
    HeatOperator,
    KroneckerOperator,
    OnesOperator,
    ProductOperator,
    ScaledOperator,
    SparseFactorOperator,
    SumOperator,
    ToeplitzOperator,
)
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import OperatorCase, dense_adjacency


def factor(data, power=1):
    """The adjacency as a sparse factor, with a value per edge that is a function of its ends."""
    i, j = data.edge_index
    return data.edge_index, (data.x[i, 0] * data.x[j, 1] + power).double()


def factor_dense(data, power=1):
    out = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    for i, j in data.edge_index.t().tolist():
        out[i, j] += data.x[i, 0] * data.x[j, 1] + power
    return out


def ones_dense(data):
    batch = batch_of(data).tolist()
    return torch.tensor([[float(a == b) for b in batch] for a in batch], dtype=torch.float64)


class TestOnesOperator(OperatorCase):
    def build(self, data):
        return OnesOperator(batch_of(data))

    def reference(self, data):
        return ones_dense(data)


class TestDenseOperator(OperatorCase):
    def build(self, data):
        return DenseOperator(dense_adjacency(data))

    def reference(self, data):
        return dense_adjacency(data)


class TestDenseOperatorPerHead(OperatorCase):
    def build(self, data):
        return DenseOperator(torch.stack([dense_adjacency(data), factor_dense(data)]))

    def reference(self, data):
        return torch.stack([dense_adjacency(data), factor_dense(data)])


class TestSparseFactorOperator(OperatorCase):
    def build(self, data):
        return SparseFactorOperator(factor(data), factor(data, 2), data.num_nodes)

    def reference(self, data):
        return factor_dense(data) @ factor_dense(data, 2).t()


class TestLeftFactorAlone(OperatorCase):
    def build(self, data):
        return SparseFactorOperator(factor(data), None, data.num_nodes)

    def reference(self, data):
        return factor_dense(data)


class TestRightFactorAlone(OperatorCase):
    def build(self, data):
        return SparseFactorOperator(None, factor(data), data.num_nodes)

    def reference(self, data):
        return factor_dense(data).t()


class TestSparseFactorPerHead(OperatorCase):
    """One factor per head, the other shared, and every entry given in two halves."""

    def build(self, data):
        index, value = factor(data)
        left = (torch.cat([index, index], 1), torch.cat([0.25 * value, 0.75 * value])[:, None] * torch.tensor([1.0, 2]))
        return SparseFactorOperator(left, factor(data, 2), data.num_nodes)

    def reference(self, data):
        shared = factor_dense(data) @ factor_dense(data, 2).t()
        return torch.stack([shared, 2 * shared])


class TestScaledOperator(OperatorCase):
    def build(self, data):
        return torch.tensor([-1.5], dtype=torch.float64) * SparseFactorOperator(factor(data), None, data.num_nodes)

    def reference(self, data):
        return -1.5 * factor_dense(data)


def test_a_mask_without_diagonals_is_as_precise_as_the_mask():
    op = DenseOperator(torch.ones(2, 2))
    assert DiagonalScaledOperator(op).eps == op.eps


class TestSumOperator(OperatorCase):
    def build(self, data):
        return SparseFactorOperator(factor(data), None, data.num_nodes) + OnesOperator(batch_of(data))

    def reference(self, data):
        return factor_dense(data) + ones_dense(data)


class TestSumWithSharedMask(OperatorCase):
    """A mask per head plus one for all heads."""

    def build(self, data):
        return TestDenseOperatorPerHead.build(self, data) + OnesOperator(batch_of(data))

    def reference(self, data):
        return TestDenseOperatorPerHead.reference(self, data) + ones_dense(data)


class TestHeadStackOperator(OperatorCase):
    def build(self, data):
        return HeadStackOperator([OnesOperator(batch_of(data)), DenseOperator(factor_dense(data))])

    def reference(self, data):
        return torch.stack([ones_dense(data), factor_dense(data)])


class TestHeadStackWithBlocks(OperatorCase):
    def build(self, data):
        features = factor(data), factor(data, 2)
        return HeadStackOperator(
            [SparseFactorOperator(*features, data.num_nodes), SparseFactorOperator(*features[::-1], data.num_nodes)]
        )

    def reference(self, data):
        return torch.stack([factor_dense(data) @ factor_dense(data, 2).T, factor_dense(data, 2) @ factor_dense(data).T])


class TestBlockDiagonalOperator(OperatorCase):
    def build(self, data):
        parts = [data] if data.get("batch") is None else data.to_data_list()
        return BlockDiagonalOperator(
            [SparseFactorOperator(factor(part), factor(part, 2), part.num_nodes) for part in parts]
        )

    def reference(self, data):
        return factor_dense(data) @ factor_dense(data, 2).t()


class TestBlockDiagonalOfHeads(OperatorCase):
    """Masks with heads of their own and shared ones in turn, each of a whole graph."""

    def build(self, data):
        parts = [data] if data.get("batch") is None else data.to_data_list()
        shared = [SparseFactorOperator(factor(part), None, part.num_nodes) for part in parts]
        ones = [torch.ones(op.num_nodes, 2, dtype=torch.float64) for op in shared]
        own = [DiagonalScaledOperator(op, one, one) for op, one in zip(shared, ones)]
        return BlockDiagonalOperator([op[i % 2] for i, op in enumerate(zip(own, shared))])

    def reference(self, data):
        return factor_dense(data).expand(2, -1, -1)


def test_blocks_that_all_graphs_share_beside_others():
    batch = torch.arange(4).repeat_interleave(6)
    shared = [GridHeatOperator((2, 3), time, 2) for time in (0.3, 1.0)]
    joined = BlockDiagonalOperator(shared)
    for op in (joined, HeadStackOperator([GridHeatOperator((2, 3), 0.5, 4), joined])):
        (blocks,) = op.dense_blocks.make(block_layout(batch))
        dense = op.to_dense()
        for graph in range(4):
            own = batch == graph
            torch.testing.assert_close(blocks[graph], dense[..., own, :][..., own].mT)


def test_blocks_of_a_batch_that_is_finer_or_coarser_than_the_parts():
    parts = [DenseOperator(torch.randn(n, n).double()) for n in (2, 3, 1, 2)]
    parts = [SparseFactorOperator((op.matrix.nonzero().t(), op.matrix.flatten()), None, op.num_nodes) for op in parts]
    op = BlockDiagonalOperator([BlockDiagonalOperator(parts[:2]), *parts[2:]])
    dense = op.to_dense()
    for batch in ([0, 0, 1, 1, 1, 4, 5, 5], [0] * 8, [1, 1, 1, 1, 1, 1, 2, 2], [0] * 5 + [2] * 3):
        batch = torch.tensor(batch)
        layout = block_layout(batch)
        for graphs, blocks in zip(layout.groups.graphs, op.dense_blocks.make(layout)):
            for graph, block in zip(graphs, blocks):
                own = batch == graph
                torch.testing.assert_close(block, dense[own][:, own].t())
    with pytest.raises(ValueError, match="different graphs"):
        op.dense_blocks.make(block_layout(torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])))


class TestProductOperator(OperatorCase):
    def build(self, data):
        left, right = (SparseFactorOperator(factor(data, p), None, data.num_nodes) for p in (1, 2))
        return ProductOperator(left, right.T)

    def reference(self, data):
        return factor_dense(data) @ factor_dense(data, 2).t()


class TestProductWithSharedMask(OperatorCase):
    """A factor per head and one for all heads."""

    def build(self, data):
        left = SparseFactorOperator(factor(data), None, data.num_nodes)
        scale = torch.tensor([1.0, -2.0], dtype=torch.float64).expand(data.num_nodes, -1)
        return ProductOperator(left, DiagonalScaledOperator(left.T, scale, torch.ones(data.num_nodes).double()))

    def reference(self, data):
        dense = factor_dense(data) @ factor_dense(data).t()
        return torch.stack([dense, -2 * dense])


class TestKroneckerOperator(OperatorCase):
    """The other factor is the identity: the matrix of a graph, node by node; see below for real products."""

    def build(self, data):
        one = DenseOperator(torch.ones(1, 1, dtype=torch.float64))
        return KroneckerOperator(SparseFactorOperator(factor(data), None, data.num_nodes), one)

    def reference(self, data):
        return factor_dense(data)


@pytest.mark.parametrize(("left_heads", "right_heads"), [(None, None), (2, None), (None, 2), (2, 2)])
def test_kronecker_product(left_heads, right_heads):
    def matrix(n, heads):
        return torch.randn(n, n, dtype=torch.float64) if heads is None else torch.randn(heads, n, n).double()

    a, b = matrix(3, left_heads), matrix(4, right_heads)
    op = KroneckerOperator(DenseOperator(a), DenseOperator(b))
    if op.heads is None:
        wanted = torch.kron(a, b)
    else:
        wanted = torch.stack([torch.kron(*(m if m.dim() == 2 else m[h] for m in (a, b))) for h in range(2)])
    torch.testing.assert_close(op.to_dense().double(), wanted)
    torch.testing.assert_close(op.T.to_dense().double(), wanted.mT)
    assert op.num_nodes == 12
    assert op.num_multiply_adds == 9 * 4 + 16 * 3


def test_every_float_argument_has_a_gradient():
    index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 2]])
    x = torch.randn(3, 2, dtype=torch.float64)
    value, other, scale = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (4, 4, 1))
    matrix = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    def run(value, other, scale, matrix):
        op = scale * SparseFactorOperator((index, value), (index, other), 3) + DenseOperator(matrix)
        return op @ x, op.T @ x, op.to_dense()

    assert torch.autograd.gradcheck(run, (value, other, scale, matrix))

    def entries(value, other):
        return SparseFactorOperator((index, value), (index, other), 3).support.pairs(None)[1]

    assert torch.autograd.gradcheck(entries, (value, other))
    assert torch.autograd.gradcheck(lambda s: (s.squeeze() * DenseOperator(matrix.detach())) @ x, (scale,))


def test_support_of_a_product_is_exact_or_a_bound():
    index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    value = torch.ones(3)
    op = SparseFactorOperator((index, value), (index, value), 4)
    assert op.support.count() == 5  # {0, 1}² and (2, 2)
    assert op.num_multiply_adds == 6
    hub = torch.stack([torch.arange(500), torch.zeros(500, dtype=torch.long)])
    op = SparseFactorOperator((hub, torch.ones(500)), (hub, torch.ones(500)), 500)
    assert op.support.count() == 500**2
    assert not {"_joined", "_constant_pairs"} & op.__dict__.keys()  # the bound was not found by listing the pairs
    assert SparseFactorOperator(None, None, 4).support.count() == 4
    torch.testing.assert_close(SparseFactorOperator(None, None, 4).to_dense(), torch.eye(4))


def test_a_mask_scaled_by_a_number_of_either_sign_has_its_bound():
    positive = 0.3 * ONES
    assert positive.bound is positive
    torch.testing.assert_close((-0.3 * ONES).bound.to_dense(), positive.to_dense())


def test_a_sparse_mask_keeps_its_support_when_scaled_or_transposed():
    index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    op = SparseFactorOperator((index, torch.ones(3)), None, 4)
    assert [mask.support.count() for mask in (op, op.T, 2 * op)] == [3, 3, 3]
    assert OnesOperator(torch.zeros(3, dtype=torch.long)).support is None


def test_repr_names_sizes():
    assert repr(DenseOperator(torch.ones(2, 3, 3))) == "DenseOperator(num_nodes=3, heads=2)"
    assert repr(OnesOperator(torch.tensor([0, 0]))) == "OnesOperator(num_nodes=2)"


ONES = DenseOperator(torch.ones(3, 3))
EDGE = torch.tensor([[0], [1]])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: DenseOperator(torch.ones(2, 3)), ValueError, r"\[N, N\] or \[H, N, N\] \(got \[2, 3\]\)"),
        (lambda: DenseOperator(torch.ones(3, 3).long()), TypeError, r"floating point \(got torch.int64\)"),
        (lambda: OnesOperator(torch.tensor([1, 0])), ValueError, "must be sorted"),
        (lambda: OnesOperator(torch.tensor([0.0])), TypeError, "integer graph"),
        (lambda: ONES + DenseOperator(torch.ones(4, 4)), ValueError, r"share their nodes \(got \[3, 4\]\)"),
        (
            lambda: DenseOperator(torch.ones(2, 3, 3)) + DenseOperator(torch.ones(4, 3, 3)),
            ValueError,
            r"numbers of heads cannot be combined \(got \[2, 4\]\)",
        ),
        (lambda: torch.ones(2) * ONES, ValueError, r"scaled by one number \(got a tensor of shape \[2\]\)"),
        (lambda: ONES * "two", TypeError, "multiply sequence"),
        (lambda: ONES + 1, TypeError, "unsupported operand"),
        (lambda: HeadStackOperator([]), ValueError, "at least one mask"),
        (lambda: HeadStackOperator([DenseOperator(torch.ones(2, 3, 3))]), ValueError, "each without heads"),
        (lambda: HeadStackOperator([ONES, DenseOperator(torch.ones(4, 4))]), ValueError, "share their nodes"),
        (lambda: BlockDiagonalOperator([]), ValueError, "at least one block"),
        (lambda: ProductOperator(ONES, DenseOperator(torch.ones(4, 4))), ValueError, "share their nodes"),
        (lambda: ProductOperator(ONES, HeatOperator(EDGE[:, :0], 3, 1.0)), ValueError, "must be exact"),
        (
            lambda: SparseFactorOperator((EDGE, torch.ones(2)), None, 3),
            ValueError,
            r"'left' must be.*\[2, 1\] and \[2\]",
        ),
        (lambda: SparseFactorOperator(None, (EDGE[0], torch.ones(1)), 3), ValueError, r"'right' must be"),
        (lambda: SparseFactorOperator((EDGE.float(), torch.ones(1)), None, 3), TypeError, "integer index"),
        (lambda: SparseFactorOperator((EDGE, torch.ones(1).long()), None, 3), TypeError, "floating-point values"),
        (
            lambda: SparseFactorOperator((EDGE, torch.ones(1)), None, 1),
            ValueError,
            "indices 0 to 1, but nodes are 0 to 0",
        ),
        (
            lambda: SparseFactorOperator((EDGE, torch.ones(1, 2)), (EDGE, torch.ones(1, 3)), 3),
            ValueError,
            "numbers of heads",
        ),
    ],
)
def test_bad_arguments_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_scaled_and_sum_are_what_the_signs_build():
    assert isinstance(2 * ONES, ScaledOperator)
    assert isinstance(ONES + ONES, SumOperator)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype):
    index = torch.tensor([[0, 1, 1], [1, 0, 1]])
    operator = SparseFactorOperator((index, torch.ones(3)), None, 2)
    got = operator @ torch.ones(2, 3, dtype=dtype)
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), torch.tensor([[1.0] * 3, [2.0] * 3]))
    with torch.autocast("cpu", torch.bfloat16):
        assert (operator @ torch.ones(2, 3)).dtype == torch.float32


@pytest.mark.parametrize("x", [torch.ones(2, dtype=torch.long), [1.0, 2.0]])
def test_what_is_no_floating_tensor_is_refused(x):
    with pytest.raises(TypeError, match="floating-point tensor"):
        DenseOperator(torch.eye(2)) @ x


def test_difference_of_masks():
    a, b = (DenseOperator(torch.rand(3, 3, dtype=torch.float64)) for _ in range(2))
    torch.testing.assert_close((a - b).to_dense(), a.matrix - b.matrix)
    torch.testing.assert_close((-a).to_dense(), -a.matrix)


@pytest.mark.parametrize(
    ("combine", "path"),
    [*((ProductOperator, path) for path in ("auto", "dense", "blocks", "factored")), (SumOperator, "auto")],
)
def test_masks_of_different_dtypes(combine, path):
    torch.manual_seed(0)
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    causal, other = CausalOperator(batch), ToeplitzOperator(torch.rand(5).double(), [3], 2)
    mask = combine(causal, other)
    assert mask.dtype == torch.float64
    wanted = combine(DenseOperator(causal.to_dense().double()), DenseOperator(other.to_dense())).to_dense()
    torch.testing.assert_close(mask.to_dense(), wanted, rtol=0, atol=1e-15)
    q = torch.rand(6, 1, 4).double()
    out = masked_linear_attention(q, q, q, mask, batch, path=path)
    weights = wanted * (batch[:, None] == batch) * (q[:, 0] @ q[:, 0].T)
    torch.testing.assert_close(out[:, 0], weights @ q[:, 0] / weights.sum(1, keepdim=True), rtol=1e-12, atol=1e-12)
