"""Masks with a node per graph that reads all nodes and is read by all of them."""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask import plan as plans
from pyg_topomask.limits import limits
from pyg_topomask.operators.base import MaskOperator
from pyg_topomask.ops.attention.mask import DenseBlocks, Entries, Rows, Support, evaluate, row_errors
from pyg_topomask.ops.blocks import BlockLayout, block_layout
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.segment import check_batch, segments
from pyg_topomask.ops.sparse import Combination, Pattern


class BorderedOperator(MaskOperator):
    r"""A mask with one more node in front of each graph, whose row and column are ones, as for a graph token.

    .. math:: M' = \begin{pmatrix} 1 & \mathbf{1}^\top \\ \mathbf{1} & M \end{pmatrix}

    Cost of ``op @ x`` for ``x`` of shape ``[N + B, C]``: that of the mask plus :math:`O(N C)`.

    Args:
        operator: The mask :math:`M` of the ``N`` nodes.
        batch: Graph of each of these nodes, int64, sorted, shape ``[N]``.
        num_graphs: Number of graphs ``B``. Give it if the last graphs may be empty; if :obj:`None`, it is taken from
            ``batch``.

    Raises:
        ValueError: If ``batch`` is of other nodes or not sorted, or has more than ``num_graphs`` graphs.
    """

    def __init__(self, operator: MaskOperator, batch: Tensor, num_graphs: int | None = None) -> None:
        check_batch(batch, operator.num_nodes)
        present = segments(batch).num_graphs
        num_graphs = present if num_graphs is None else num_graphs
        if not plans.reading() and num_graphs < present:
            raise ValueError(f"'num_graphs' must be at least {present}, the graphs of 'batch' (got {num_graphs})")
        self.operator, self.batch, self.num_graphs = operator, batch, num_graphs
        self.num_nodes, self.heads = operator.num_nodes + num_graphs, operator.heads
        self.dtype, self.device = operator.dtype, operator.device
        self.num_multiply_adds = operator.num_multiply_adds + self.num_nodes + operator.num_nodes
        self.node, self.token, _ = with_tokens(batch, num_graphs)

    def _like(self, operator: MaskOperator) -> "BorderedOperator":
        return self if operator is self.operator else BorderedOperator(operator, self.batch, self.num_graphs)

    @property
    def T(self) -> "BorderedOperator":
        return self._like(self.operator.T)

    @property
    def bound(self) -> "BorderedOperator":
        return self._like(self.operator.bound)

    @property
    def eps(self) -> float:
        return self.operator.eps

    @property
    def error(self) -> float | Tensor:
        error = row_errors(self.operator)
        return 0.0 if error is None else error.new_zeros(self.num_nodes, error.size(1)).index_copy(0, self.node, error)

    @property
    def support(self) -> Support | None:
        inner = self.operator.support
        if inner is None or inner.count() > limits.pairs_at_once:  # the product does not need them
            return None
        return Support(
            lambda rows: self._list_pairs(inner, rows),
            lambda: inner.count() + self.num_nodes + self.operator.num_nodes,
            lambda: self._by_row(inner),
            inner.kept,
        )

    def _by_row(self, inner: Support) -> Tensor:
        of_tokens = torch.bincount(self.batch, minlength=self.num_graphs) + 1
        found = torch.empty(self.num_nodes, dtype=torch.int64, device=self.device)
        return found.index_copy(0, self.node, inner.by_row().long() + 1).index_copy(0, self.token, of_tokens)

    def _list_pairs(self, of_nodes: Support, rows: Rows | None) -> tuple[Pattern, Entries]:
        if rows is not None:
            pattern, entries = self._list_pairs(of_nodes, None)
            part, chosen = pattern.rows(*rows)
            return part, evaluate(entries)[chosen]
        inner, entries = of_nodes.pairs(None)
        pattern, order = _bordered_pattern(inner.row, inner.col, inner.order, self.batch, self.num_graphs)
        if isinstance(entries, Combination):
            coeffs, weights = entries
            one = weights.new_ones(*weights.shape[:-1], 1)
            return pattern, Combination(_bordered_coeffs(coeffs, order), torch.cat([weights, one], dim=-1))
        border = entries.new_ones(order.numel() - entries.size(0), *entries.shape[1:])
        return pattern, torch.cat([entries, border]).index_select(0, order)

    @property
    def dense_blocks(self) -> DenseBlocks | None:
        blocks = self.operator.dense_blocks
        return blocks and DenseBlocks(lambda layout: self._make_blocks(layout, blocks), blocks.work)

    def _make_blocks(self, layout: BlockLayout, of_nodes: DenseBlocks) -> list[Tensor]:
        inner = block_layout(self.batch)
        sizes = [n + 1 for n in inner.groups.num_nodes]
        sizes += [1] * (self.num_graphs - len(sizes))
        if sizes != layout.groups.num_nodes:
            raise ValueError("the graphs of 'batch' are not those of the mask with one more node each")
        blocks = of_nodes.make(inner)
        if layout.groups.slot is None and layout.groups.graphs == inner.groups.graphs:
            return [pad(block, (1, 0, 1, 0), value=1.0) for block in blocks]
        lead = [] if self.heads is None else [self.heads]
        empty, pieces = torch.ones(*lead, 0, 0, dtype=self.dtype, device=self.device), iter(inner.cut(blocks))
        return layout.stack([pad(next(pieces) if n > 1 else empty, (1, 0, 1, 0), value=1.0) for n in sizes])

    def _matmul(self, x: Tensor) -> Tensor:
        nodes, tokens = x.index_select(0, self.node), x.index_select(0, self.token)
        of_nodes = self.operator.product(nodes) + tokens.index_select(0, self.batch)
        of_tokens = tokens.index_add(0, self.batch, nodes)
        return torch.empty_like(x).index_copy(0, self.node, of_nodes).index_copy(0, self.token, of_tokens)


@once_per_batch
def _bordered_pattern(
    row: Tensor, col: Tensor, order: Tensor | None, batch: Tensor, num_graphs: int
) -> tuple[Pattern, Tensor]:
    """Pattern with the pairs of tokens, and the place of each of its entries among those of nodes, then of tokens."""
    node, token, _ = with_tokens(batch, num_graphs)
    row, col = (node[x.long() if order is None else order[x.long()]] for x in (row, col))
    own = token[batch]
    rows, cols = torch.cat([row, node, own, token]), torch.cat([col, own, node, token])
    total = node.numel() + num_graphs
    order = (rows * total + cols).argsort(stable=True)
    return Pattern(rows[order], cols[order], total, total), order


@once_per_batch
def _bordered_coeffs(coeffs: Tensor, order: Tensor) -> Tensor:
    """Coefficients of all pairs, with one more column for the ones of the border, from those of nodes ``[P, Q]``."""
    border = torch.zeros(coeffs.size(1) + 1, order.numel() - coeffs.size(0), dtype=coeffs.dtype, device=coeffs.device)
    border[-1] = 1
    # Compiled attention reads one coefficient of all pairs after the other.
    return torch.cat([pad(coeffs.t(), (0, 0, 0, 1)), border], dim=1).index_select(1, order).t()


@partial(once_per_batch, traced=True)
def with_tokens(batch: Tensor, num_graphs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Positions if each graph of a batch vector has a token in front of its nodes.

    Args:
        batch: Graph of each node, int64, sorted, shape ``[N]``.
        num_graphs: Number of graphs ``B``.

    Returns:
        The position of each node ``[N]`` and of each token ``[B]``, and the graph of all of them ``[N + B]``.
    """
    graphs = torch.arange(num_graphs, device=batch.device)
    node = torch.arange(batch.numel(), device=batch.device) + batch + 1
    token = torch.searchsorted(batch, graphs) + graphs
    wider = torch.empty(node.numel() + num_graphs, dtype=torch.int64, device=batch.device)
    return node, token, wider.index_copy(0, node, batch).index_copy(0, token, graphs)
