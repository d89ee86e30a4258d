"""What every mask operator must pass."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from pyg_topomask.operators import MaskOperator
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing.graphs import GRAPHS, permute


class OperatorCase:
    """Checks of one operator in float64; a subclass says how to build it and what its matrix is.

    .. code-block:: python

        class TestPowerSeriesOperator(OperatorCase):
            def build(self, data):
                return PowerSeriesOperator(data.edge_index, data.num_nodes, ALPHA)

            def reference(self, data):
                return sum(a * torch.linalg.matrix_power(dense_adjacency(data), k) for k, a in enumerate(ALPHA))

    `reference` is written from the definition and shares no code with the operator. Both hooks get a ``Data`` or a
    ``Batch`` of them, and must be functions of the graph. An operator that needs another kind of graph sets `graphs`.
    """

    tol: ClassVar[dict[str, Any]] = {"rtol": 1e-10, "atol": 1e-12}
    """Tolerances of comparisons in float64."""
    graphs: ClassVar[dict[str, Data]] = GRAPHS
    """Graphs to check on."""
    batch: ClassVar[tuple[str, ...]] = ("path", "isolated", "star")
    """Names of the graphs that are batched."""
    moved: ClassVar[str] = "star"
    """Name of the graph that is relabelled."""

    def build(self, data: Data) -> MaskOperator:
        """The operator under test."""
        raise NotImplementedError

    def reference(self, data: Data) -> Tensor:
        """Its matrix, ``[N, N]`` or ``[H, N, N]``, from the definition."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _seed(self) -> None:
        torch.manual_seed(0)

    def test_matmul_and_adjoint(self) -> None:
        for data in self.graphs.values():
            op, dense = self.build(data), self.reference(data)
            x = _input(op, 3)
            torch.testing.assert_close(op @ x, _product(dense, x), **self.tol)
            torch.testing.assert_close(op.T @ x, _product(dense.mT, x), **self.tol)  # one_way catches a missing T
            torch.testing.assert_close(op.T.T @ x, _product(dense, x), **self.tol)

    def test_dense_form_and_sizes(self) -> None:
        for data in self.graphs.values():
            op, dense = self.build(data), self.reference(data)
            assert op.num_nodes == data.num_nodes
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

    def test_input_is_not_modified(self) -> None:
        op = self.build(self.graphs[self.moved])
        x = _input(op, 2)
        before = x.clone()
        op @ x
        assert torch.equal(x, before)

    def test_gradcheck(self) -> None:
        op = self.build(self.graphs["path"] if "path" in self.graphs else next(iter(self.graphs.values())))
        x = _input(op, 2).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: op @ x, (x,))
        assert torch.autograd.gradcheck(lambda x: op.T @ x, (x,))

    def test_graphs_in_a_batch_do_not_mix(self) -> None:
        parts = [self.graphs[name] for name in self.batch]
        batch = Batch.from_data_list(parts)
        dense = self.build(batch).to_dense()
        same_graph = batch.batch[:, None] == batch.batch
        assert (dense[..., ~same_graph] == 0).all()  # exactly zero, not merely small
        for number, data in enumerate(parts):
            mine = batch.batch == number
            torch.testing.assert_close(dense[..., mine, :][..., mine], self.build(data).to_dense(), **self.tol)

    def test_permutation_equivariance(self) -> None:
        data = self.graphs[self.moved]
        perm = torch.randperm(data.num_nodes)
        op, moved = self.build(data), self.build(permute(data, perm))
        x = _input(op, 2)
        torch.testing.assert_close(moved @ x[perm], (op @ x)[perm], **self.tol)

    def test_scaled_and_summed(self) -> None:
        for data in self.graphs.values():
            op, dense = self.build(data), self.reference(data)
            x, scale = _input(op, 2), torch.tensor(-0.7, dtype=torch.float64)
            wanted = _product(dense, x)
            torch.testing.assert_close((2.5 * op) @ x, 2.5 * wanted, **self.tol)
            torch.testing.assert_close((op * 2.5) @ x, 2.5 * wanted, **self.tol)
            torch.testing.assert_close((scale * op).T @ x, scale * _product(dense.mT, x), **self.tol)
            torch.testing.assert_close((op + op.T) @ x, wanted + _product(dense.mT, x), **self.tol)
            torch.testing.assert_close((op + scale * op) @ x, 0.3 * wanted, **self.tol)

    def test_support_and_work(self) -> None:
        for data in self.graphs.values():
            op, dense = self.build(data), self.reference(data)
            assert isinstance(op.work, int)
            assert op.work >= 0
            if op.num_pairs is None:
                continue
            pattern, value = op.pairs()
            assert op.num_pairs >= pattern.nnz
            listed = torch.zeros(op.heads or 1, op.num_nodes, op.num_nodes, dtype=torch.float64)
            value = (value if value.dim() == 2 else value[:, None]).expand(-1, op.heads or 1).double()
            for entry, (i, j) in enumerate(zip(pattern.row.tolist(), pattern.col.tolist())):
                listed[:, i, j] += value[entry]
            torch.testing.assert_close(listed, dense.expand_as(listed), **self.tol)

    def test_blocks_are_those_of_the_matrix(self) -> None:
        batched = Batch.from_data_list([self.graphs[name] for name in self.batch])
        cases = [(data, torch.zeros(data.num_nodes, dtype=torch.long)) for data in self.graphs.values()]
        for data, batch in [*cases, (batched, batched.batch)]:
            op, dense = self.build(data), self.reference(data)
            if not op.has_blocks:
                continue
            layout = block_layout(batch)
            for graphs, blocks in zip(layout.groups.graphs, op.blocks(layout)):
                for graph, block in zip(graphs, blocks):
                    mine = (batch == graph).nonzero().squeeze(1)
                    wanted = dense[..., mine, :][..., :, mine].mT
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


def _product(dense: Tensor, x: Tensor) -> Tensor:
    return dense @ x if dense.dim() == 2 else torch.einsum("hij,jhc->ihc", dense, x)
