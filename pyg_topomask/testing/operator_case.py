"""Checks that every mask operator must pass."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch_geometric.data import Batch, Data

from pyg_topomask.operators import MaskOperator
from pyg_topomask.ops import masked_linear_attention
from pyg_topomask.ops.attention.mask import evaluate
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import checks
from pyg_topomask.testing.graphs import GRAPHS, without_nodes
from pyg_topomask.transforms.relabel import permute


class OperatorCase:
    """Checks of one operator in float64; a subclass defines how to build it, and its matrix.

    .. code-block:: python

        class TestPowerSeriesOperator(OperatorCase):
            def build(self, data):
                return PowerSeriesOperator(data.edge_index, data.num_nodes, ALPHA)

            def reference(self, data):
                return sum(a * torch.linalg.matrix_power(dense_adjacency(data), k) for k, a in enumerate(ALPHA))

    `reference` computes the matrix from its definition and shares no code with the operator. The argument of both
    methods is a ``Data`` or a ``Batch``, and their results must depend only on the graph. One of `GRAPHS`,
    ``"weighted"``, has ``edge_weight`` ``[E]``: either both methods use it, or none. An operator that needs other
    graphs sets `graphs`.
    """

    tol: ClassVar[dict[str, Any]] = {"rtol": 1e-10, "atol": 1e-12}
    """Tolerances of comparisons in float64."""
    graphs: ClassVar[dict[str, Data]] = GRAPHS
    """Graphs for the checks, by name."""
    batch: ClassVar[tuple[str, ...]] = ("path", "isolated", "star")
    """Names of the graphs that are batched in the checks of batches."""
    moved: ClassVar[str] = "star"
    """Name of the graph that is relabelled in the check of equivariance."""
    equivariant: ClassVar[bool] = True
    """Whether relabelling nodes permutes the mask; set it to :obj:`False` for a mask of an order or a grid."""

    def build(self, data: Data, **parameters: Tensor) -> MaskOperator:
        """The operator under test; values in ``parameters`` replace its own parameters of the same name."""
        raise NotImplementedError

    def reference(self, data: Data) -> Tensor:
        """Matrix of the operator from its definition, ``[N, N]`` or ``[H, N, N]``."""
        raise NotImplementedError

    def parameters(self, data: Data) -> dict[str, Tensor]:
        """Floating-point arguments of the operator, by name, in float64; their gradients are checked."""
        return {}

    @pytest.fixture(autouse=True)
    def _seed(self) -> None:
        torch.manual_seed(0)

    def _cases(self) -> Iterator[tuple[MaskOperator, Tensor]]:
        """The operator and its matrix, for each graph."""
        for data in self.graphs.values():
            yield self.build(data), self.reference(data)

    def test_matmul_and_adjoint(self) -> None:
        for op, dense in self._cases():
            x = _input(op, 3)
            before = x.clone()
            torch.testing.assert_close(op @ x, _product(dense, x), **self.tol)
            torch.testing.assert_close(op.T @ x, _product(dense.mT, x), **self.tol)  # one_way catches a missing T
            torch.testing.assert_close(op.T.T @ x, _product(dense, x), **self.tol)
            assert torch.equal(x, before)

    def test_dense_form_and_sizes(self) -> None:
        for op, dense in self._cases():
            assert op.num_nodes == dense.size(-1)
            assert op.heads == (dense.size(0) if dense.dim() == 3 else None)
            torch.testing.assert_close(op.to_dense().double(), dense, **self.tol)
            torch.testing.assert_close(op.T.to_dense().double(), dense.mT, **self.tol)

    def test_input_of_any_trailing_shape(self) -> None:
        op, dense = self.build(self.graphs[self.moved]), self.reference(self.graphs[self.moved])
        x = _input(op, 6)
        wanted = _product(dense, x)
        torch.testing.assert_close(op @ x.unflatten(-1, (2, 3)), wanted.unflatten(-1, (2, 3)), **self.tol)
        torch.testing.assert_close(op @ x[..., 0], wanted[..., 0], **self.tol)
        torch.testing.assert_close(op @ x[..., ::2], wanted[..., ::2], **self.tol)  # not contiguous
        assert (op @ x[..., :0]).shape == x[..., :0].shape

    def test_gradcheck(self) -> None:
        op = self.build(self.graphs["path"] if "path" in self.graphs else next(iter(self.graphs.values())))
        x = _input(op, 2).requires_grad_()
        for mask in (op, op.T, op.bound):
            assert torch.autograd.gradcheck(mask.__matmul__, (x,))
        assert (op.bound @ x.detach()).requires_grad == (op @ x.detach()).requires_grad  # of its parameters

    def test_gradcheck_in_parameters(self) -> None:
        data = self.graphs[self.moved]
        parameters = {name: value.clone().requires_grad_() for name, value in self.parameters(data).items()}
        if not parameters:
            pytest.skip("the operator has no parameters")
        x = _input(self.build(data), 2)
        layout = block_layout(torch.zeros(data.num_nodes, dtype=torch.long))

        def run(*values: Tensor) -> list[Tensor]:
            op = self.build(data, **dict(zip(parameters, values)))
            products = [op @ x, op.T @ x, op.bound @ x]
            products += [evaluate(op.support.pairs(None)[1])] if op.support else []
            return products + (op.dense_blocks.make(layout) if op.dense_blocks else [])

        assert torch.autograd.gradcheck(run, tuple(parameters.values()))

    def _product_of(self, data: Data, channels: int, dtype: torch.dtype) -> tuple[Callable[..., Tensor], list[Tensor]]:
        """A function that builds the operator and multiplies, and its inputs: ``x`` and the parameters."""
        op, names = self.build(data), list(self.parameters(data))

        def run(x: Tensor, *values: Tensor) -> Tensor:
            return (self.build(data, **dict(zip(names, values))) if names else op) @ x

        return run, [x.to(dtype) for x in (_input(op, channels), *self.parameters(data).values())]

    def test_forward_mode_transforms_and_autocast(self) -> None:
        data = self.graphs[self.moved]
        checks.check_forward_mode(*self._product_of(data, 3, torch.float64))
        checks.check_reverse_mode(*self._product_of(data, 3, torch.float64))
        for channels in (1, 32):
            checks.check_backward_in_autocast(*self._product_of(data, channels, torch.float32))

    def test_repeats_on_two_threads(self) -> None:
        batch = Batch.from_data_list([self.graphs[self.moved]] * 100)
        checks.check_threads(*self._product_of(batch, 16, torch.float32))

    def test_no_nodes(self) -> None:
        op = self.build(without_nodes(self.graphs[self.moved]))
        x = _input(op, 3).requires_grad_()
        for mask in (op, op.T, op.bound, 1.5 * op, op + op, (op + op).bound, 1.5 * op.T):
            (mask @ x).sum().backward()
            assert (mask @ x).shape == x.shape
            assert mask.to_dense().shape == (*([] if op.heads is None else [op.heads]), 0, 0)
            q, v = (torch.ones(0, op.heads or 2, width, dtype=torch.float64) for width in (2, 3))
            assert masked_linear_attention(q, q, v, mask).shape == v.shape

    def test_input_on_the_meta_device_is_not_read(self) -> None:
        op = self.build(self.graphs[self.moved])
        x = _input(op, 3).to("meta")
        try:
            out = op @ x
        except (RuntimeError, NotImplementedError, ValueError):
            return
        assert out.is_meta
        assert out.shape == x.shape

    def test_narrow_inputs_are_summed_in_float32(self) -> None:
        for op, dense in self._cases():
            x = _input(op, 3)
            for dtype, tol in ((torch.float32, 1e-4), (torch.bfloat16, 2**-7)):
                got, wanted = op @ x.to(dtype), _product(dense, x.to(dtype).double())
                assert got.dtype == dtype
                scale = _product(dense.abs(), x.abs()).amax() if x.numel() else 1.0
                assert ((got.double() - wanted).abs() <= tol * wanted.abs() + 1e-5 * scale).all()

    def test_graphs_in_a_batch_do_not_mix(self) -> None:
        parts = [self.graphs[name] for name in self.batch]
        batch = Batch.from_data_list(parts)
        dense = self.build(batch).to_dense()
        same_graph = batch.batch[:, None] == batch.batch
        assert (dense[..., ~same_graph] == 0).all()  # exactly zero, not merely small
        for number, data in enumerate(parts):
            own = batch.batch == number
            torch.testing.assert_close(dense[..., own, :][..., own], self.build(data).to_dense(), **self.tol)

    def test_permutation_equivariance(self) -> None:
        if not self.equivariant:
            pytest.skip("the mask belongs to an order or a grid of its nodes")
        data = self.graphs[self.moved]
        perm = torch.randperm(data.num_nodes)
        op, moved = self.build(data), self.build(permute(data, perm))
        x = _input(op, 2)
        torch.testing.assert_close(moved @ x[perm], (op @ x)[perm], **self.tol)

    def test_scaled_and_summed(self) -> None:
        for op, dense in self._cases():
            x, scale = _input(op, 2), torch.tensor(-0.7, dtype=torch.float64)
            wanted = _product(dense, x)
            torch.testing.assert_close((2.5 * op) @ x, 2.5 * wanted, **self.tol)
            torch.testing.assert_close((op * 2.5) @ x, 2.5 * wanted, **self.tol)
            torch.testing.assert_close((scale * op).T @ x, scale * _product(dense.mT, x), **self.tol)
            torch.testing.assert_close((op + op.T) @ x, wanted + _product(dense.mT, x), **self.tol)
            torch.testing.assert_close((op + scale * op) @ x, 0.3 * wanted, **self.tol)

    def test_bound_is_at_least_the_absolute_mask(self) -> None:
        for op, dense in self._cases():
            bound = op.bound
            assert (bound.num_nodes, bound.heads) == (op.num_nodes, op.heads)
            assert bound.bound is bound
            matrix = bound.to_dense().double()
            assert (matrix >= dense.abs() - _errors(op) - 1e-12 * dense.abs().max()).all()
            torch.testing.assert_close(op.T.bound.to_dense().double(), matrix.mT, **self.tol)
            torch.testing.assert_close(bound.T.to_dense().double(), matrix.mT, **self.tol)

    def test_precision_is_stated(self) -> None:
        for op, dense in self._cases():
            assert torch.finfo(torch.float64).eps <= op.eps <= torch.finfo(torch.float32).eps
            assert (_errors(op) >= 0).all()
            x = _input(op, 1)
            wanted, norm = _product(dense, x), x.norm(dim=0, keepdim=True)
            rows = torch.as_tensor(op.error, dtype=torch.float64)
            rows = (rows.reshape(-1, 1) if rows.dim() < 2 else rows).unsqueeze(-1) if op.heads else rows.reshape(-1, 1)
            assert ((op @ x - wanted).abs() <= rows * norm + 1e-10 * wanted.abs() + 1e-12).all()
            torch.testing.assert_close(_errors(op.T).amax(), _errors(op).amax())

    def test_pairs_of_all_and_of_some_rows_are_those_of_the_matrix(self) -> None:
        """Also those of the bounding mask, which has the same pairs in the same order."""
        for op, dense in self._cases():
            assert isinstance(op.num_multiply_adds, int)
            assert op.num_multiply_adds >= 0
            bound, half = op.bound, op.num_nodes // 2
            assert (bound.support is None) == (op.support is None)
            for rows in (None, (0, half), (half, op.num_nodes)):
                if op.support is None or bound.support is None or (rows and rows[0] == rows[1]):
                    continue
                pattern, of_bound = (support.pairs(rows)[0] for support in (op.support, bound.support))
                assert torch.equal(pattern.row, of_bound.row)
                assert torch.equal(pattern.col, of_bound.col)
                some = slice(*rows) if rows else slice(None)
                assert (pattern.rowptr.diff() <= op.support.by_row()[some]).all() or rows is None
                for mask, matrix in ((op, dense), (op.T, dense.mT), (bound, bound.to_dense().double())):
                    listed = _listed(mask, rows)
                    torch.testing.assert_close(listed, matrix[..., some, :].expand_as(listed), **self.tol)
            assert op.support is None or op.support.count() >= op.support.pairs(None)[0].nnz

    def test_blocks_are_those_of_the_matrix(self) -> None:
        batched = Batch.from_data_list([self.graphs[name] for name in self.batch])
        cases = [(data, torch.zeros(data.num_nodes, dtype=torch.long)) for data in self.graphs.values()]
        for data, batch in [*cases, (batched, batched.batch)]:
            op, layout = self.build(data), block_layout(batch)
            bound = op.bound
            assert (bound.dense_blocks is None) == (op.dense_blocks is None)
            matrix = self.reference(data)
            for mask, dense in ((op, matrix), (op.T, matrix.mT), (bound, bound.to_dense().double())):
                made = mask.dense_blocks.make(layout) if mask.dense_blocks else []
                for graphs, blocks in zip(layout.groups.graphs, made):
                    for graph, block in zip(graphs, blocks.expand(len(graphs), *blocks.shape[1:])):
                        own = (batch == graph).nonzero().squeeze(1)
                        wanted = pad(dense[..., own, :][..., :, own].mT, (0, block.size(-1) - own.numel()) * 2)
                        torch.testing.assert_close(block.double().expand_as(wanted), wanted, **self.tol)

    def test_wrong_shapes_are_refused(self) -> None:
        op = self.build(self.graphs[self.moved])
        lead = (op.num_nodes + 1,) if op.heads is None else (op.num_nodes + 1, op.heads)
        with pytest.raises(ValueError, match=f"mask of {op.num_nodes} nodes"):
            op @ torch.ones(*lead, 2, dtype=torch.float64)
        if op.heads is not None:
            with pytest.raises(ValueError, match=f"{op.heads} heads"):
                op @ torch.ones(op.num_nodes, op.heads + 1, 2, dtype=torch.float64)
            with pytest.raises(ValueError, match=r"\[N, H, \*\]"):
                op @ torch.ones(op.num_nodes, dtype=torch.float64)


def _input(op: MaskOperator, channels: int) -> Tensor:
    lead = (op.num_nodes,) if op.heads is None else (op.num_nodes, op.heads)
    return torch.randn(*lead, channels, dtype=torch.float64)


def _errors(op: MaskOperator) -> Tensor:
    """Absolute errors of the entries, shape ``[1, 1]``, ``[N, 1]`` or ``[H, N, 1]``."""
    error = torch.as_tensor(op.error, dtype=torch.float64)
    return error.reshape(-1, 1) if error.dim() < 2 else error.t()[..., None]


def _listed(op: MaskOperator, rows: tuple[int, int] | None = None) -> Tensor:
    """Matrix ``[H or 1, N, N]`` in float64 from the pairs of an operator, or those of some rows."""
    assert op.support is not None
    pattern, entries = op.support.pairs(rows)
    value = evaluate(entries)
    value = (value if value.dim() == 2 else value[:, None]).expand(-1, op.heads or 1).double()
    order = range(op.num_nodes) if pattern.order is None else pattern.order.tolist()
    matrix = torch.zeros(op.heads or 1, pattern.num_rows, op.num_nodes, dtype=torch.float64)
    for entry, (i, j) in enumerate(zip(pattern.row.tolist(), pattern.col.tolist())):
        matrix[:, order[i], order[j]] += value[entry].detach()
    return matrix


def _product(dense: Tensor, x: Tensor) -> Tensor:
    return dense @ x if dense.dim() == 2 else torch.einsum("hij,jhc->ihc", dense, x)
