"""Dense blocks of a block-diagonal matrix, one block for each graph of a batch, stacked in groups of similar size."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyg_topomask import plan as plans
from pyg_topomask.checks import readable
from pyg_topomask.ops.memo import kept_property, once_per_batch, outside
from pyg_topomask.ops.segment import SizeGroups, size_groups

Triples = tuple[Tensor, Tensor, Tensor]
"""Rows, columns and entries of a sparse matrix."""

# Multiply-adds of products of blocks that take as long as placing an entry of a learned factor, and its gradient.
_PER_ENTRY = 64


class BlockLayout:
    """Positions of the entries of all graphs' blocks in one flat array.

    A block has as many rows and columns as the largest graph of its group. Entries beyond the graph are zero.

    Args:
        groups: The batch's graphs; blocks are in the order of these groups.
        device: Device of the batch.
    """

    def __init__(self, groups: SizeGroups, device: torch.device) -> None:
        self.groups, self.device = groups, device
        self._tables: dict[tuple[bool, ...], Tensor] = {}
        self.lengths = [g * n * n for g, n in groups.shapes]
        """Number of entries of each group's blocks."""

    @torch.inference_mode(False)
    def table(self, shared: Sequence[bool] = ()) -> Tensor:
        """First node, nodes, first entry and width of the block of each graph, int64, in the order of the groups.

        Args:
            shared: Whether the graphs of each group have one block; no group if empty.
        """
        key = tuple(shared) or (False,) * len(self.groups.shapes)
        if key not in self._tables:
            first, rows, start = [0, *accumulate(self.groups.num_nodes)], [], 0
            for graphs, (_, width), one in zip(self.groups.graphs, self.groups.shapes, key):
                for graph in graphs:
                    rows.append([first[graph], self.groups.num_nodes[graph], start, width])
                    start += 0 if one else width**2
                start += width**2 if one else 0
            self._tables[key] = outside(lambda: torch.tensor(rows, dtype=torch.int64, device="cpu").view(-1, 4))
        return self._tables[key]

    @kept_property
    def column(self) -> Tensor:
        """Position of each node within the rows of its graph's block, shape ``[N]``."""
        return torch.arange(len(self._by_node), device=self.device) - self._by_node[:, 0]

    @kept_property
    def block(self) -> Tensor:
        """Index of the first entry of each node's block, shape ``[N]``."""
        return self._by_node[:, 2].clone()

    @kept_property
    def row_start(self) -> Tensor:
        """Index of the first entry of each node's row, shape ``[N]``."""
        return self.block + self.column * self._by_node[:, 3]

    @kept_property
    def _by_node(self) -> Tensor:
        """The row of `table` of each node, ``[N, 4]``."""
        table = self.table()
        table = table[table[:, 0].argsort()]
        return table.repeat_interleave(table[:, 1], dim=0).to(self.device, non_blocking=True)

    def split(self, flat: Tensor) -> list[Tensor]:
        """The blocks ``[g, n, n]`` or ``[g, H, n, n]`` of each group, from all entries ``[*]`` or ``[*, H]``."""
        return [
            part.view(g, n, n) if flat.dim() == 1 else part.view(g, n, n, -1).permute(0, 3, 1, 2)
            for (g, n), part in zip(self.groups.shapes, flat.split(self.lengths))
        ]

    def cut(self, blocks: list[Tensor]) -> list[Tensor]:
        """Block ``[n, n]`` or ``[H, n, n]`` of each graph that has nodes, in the order of the batch."""
        sizes, found = self.groups.num_nodes, {}
        for graphs, block in zip(self.groups.graphs, blocks):
            for graph, own in zip(graphs, block.expand(len(graphs), *block.shape[1:])):
                found[graph] = own[..., : sizes[graph], : sizes[graph]]
        return [found[graph] for graph in sorted(found)]

    def stack(self, blocks: list[Tensor]) -> list[Tensor]:
        """The inverse of `cut`."""
        block_of = dict(zip(filter(self.groups.num_nodes.__getitem__, range(len(self.groups.num_nodes))), blocks))
        return [
            torch.stack([pad(block_of[graph], (0, width - block_of[graph].size(-1)) * 2) for graph in graphs])
            for graphs, (_, width) in zip(self.groups.graphs, self.groups.shapes)
        ]

    def share(self, kernel: Callable[[int], Tensor]) -> list[Tensor]:
        """Blocks of equal graphs, from the block ``[n, n]`` or ``[H, n, n]`` of ``n`` nodes, which begins with those of
        fewer; ``g`` is 1 in groups without padding.
        """
        blocks = []
        for (_, width), inside in zip(self.groups.shapes, self.groups.inside):
            block = kernel(width)[None]
            blocks.append(block if inside is None else block * (inside if block.dim() == 3 else inside[:, None]))
        return blocks


@once_per_batch
def block_layout(batch: Tensor) -> BlockLayout:
    """Layout of a batch vector that `check_batch` accepts, computed once per batch."""
    layout = BlockLayout(size_groups(batch), batch.device)
    if plans.planned():
        layout.table()  # a plan has no sizes on the host, by which to find it later
    return layout


def layout_of(batch: Tensor | None, x: Tensor) -> BlockLayout:
    """Layout of the graphs of ``batch``, or of one graph if it is :obj:`None`, with a node for each row of ``x``."""
    return one_graph_layout(x.size(0), x.device) if batch is None else block_layout(batch)


@lru_cache(maxsize=128)
def one_graph_layout(num_nodes: int, device: torch.device) -> BlockLayout:
    """Layout of one graph. Repeated calls return the same object, so that results remembered for it are found."""
    return BlockLayout(size_groups(num_nodes), device)


def fill_blocks(layout: BlockLayout, row: Tensor, col: Tensor, value: Tensor) -> list[Tensor]:
    """Dense blocks of a sparse matrix, with equal entries added up; differentiable in ``value``.

    Args:
        layout: Layout of the batch.
        row, col: Nodes of each entry, shape ``[nnz]``.
        value: Entries, shape ``[nnz]``, or ``[nnz, H]`` for one matrix per head.

    Returns:
        For each group of ``g`` graphs of ``n`` nodes, ``[g, n, n]`` or ``[g, H, n, n]``.

    Raises:
        ValueError: If an entry connects two graphs (checked on CPU).
    """
    check_within_graphs(layout, row, col)
    position = layout.row_start.index_select(0, row) + layout.column.index_select(0, col)
    return layout.split(value.new_zeros(sum(layout.lengths), *value.shape[1:]).index_add(0, position, value))


def check_within_graphs(layout: BlockLayout, row: Tensor, col: Tensor) -> None:
    """Refuse mask entries that connect two graphs (on CPU). Raises ValueError."""
    if not readable(row):
        return
    crosses = layout.block.index_select(0, row) != layout.block.index_select(0, col)
    if bool(crosses.any()):
        bad = int(crosses.nonzero()[0])
        raise ValueError(
            f"the mask joins nodes {int(row[bad])} and {int(col[bad])} of different graphs; is 'batch' the "
            "batch vector of the graph that the mask was built from?"
        )


def identity_columns(layout: BlockLayout, dtype: torch.dtype) -> Tensor:
    """The identity matrices of all graphs stacked vertically, shape ``[N, n]``, where the largest graph has ``n``
    nodes.

    The product of a block-diagonal mask and these columns contains all of its blocks (`column_blocks`).
    """
    width = layout.groups.width
    return (layout.column[:, None] == torch.arange(width, device=layout.column.device)).to(dtype)


def column_blocks(layout: BlockLayout, columns: Tensor) -> list[Tensor]:
    """Transposed blocks of a mask from its product with `identity_columns`.

    Args:
        layout: Layout of the batch.
        columns: The product, shape ``[N, n]`` or ``[N, H, n]``.

    Returns:
        For each group of ``g`` graphs of ``n`` nodes, ``[g, n, n]`` or ``[g, H, n, n]``.
    """
    return [part[..., : part.size(1)].movedim(1, -1) for part in layout.groups.split(columns)]


def product_blocks(layout: BlockLayout, left: Triples | None, right: Triples | None) -> list[Tensor]:
    r"""Dense blocks of :math:`(\Phi_1 \Phi_2^\top)^\top` for sparse factors, one of which may be the identity.

    Args:
        layout: Layout of the batch.
        left, right: Rows, columns and entries of the factors, as in `fill_blocks`; the identity if :obj:`None`.

    Returns:
        As `fill_blocks`.
    """
    if left is None:
        row, col, value = right if right is not None else _identity(layout)
        return fill_blocks(layout, row, col, value)
    row, col, value = left
    if right is None:
        return fill_blocks(layout, col, row, value)
    first = fill_blocks(layout, row, col, value)
    is_same = all(a is b for a, b in zip(left, right))
    second = first if is_same else fill_blocks(layout, *right)
    return multiply_blocks(second, [block.mT for block in first])


def product_work(sizes: list[int], num_entries: int) -> float:
    """Multiply-adds of `product_blocks`; each entry of the factors takes as long as some of them."""
    return float(sum(n**3 for n in sizes) + _PER_ENTRY * num_entries)


def multiply_blocks(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    """Products of blocks ``[g, n, n]`` or ``[g, H, n, n]``; blocks without heads are used for every head."""
    lifted = []
    for a, b in zip(left, right):
        dim, dtype = max(a.dim(), b.dim()), torch.promote_types(a.dtype, b.dtype)
        lifted.append([x.to(dtype) if x.dim() == dim else x.to(dtype)[:, None] for x in (a, b)])
    # Polynomials lie head by head: their products do, too, and nothing is copied.
    return [a @ b if a.dim() == 3 else (a.transpose(0, 1) @ b.transpose(0, 1)).transpose(0, 1) for a, b in lifted]


def _identity(layout: BlockLayout) -> Triples:
    node = torch.arange(layout.row_start.numel(), device=layout.row_start.device)
    return node, node, torch.ones(node.numel(), device=node.device)


def group_rows(x: Tensor, groups: SizeGroups) -> list[Tensor]:
    """Rows of ``x`` ``[N]`` or ``[N, H]`` by group of equal graphs: ``[g, n]`` or ``[g, H, n]`` each."""
    return groups.split(x) if x.dim() == 1 else [part.mT for part in groups.split(x)]


def cut_blocks(blocks: list[Tensor], batch: Tensor, layout: BlockLayout) -> list[Tensor]:
    """Blocks ``[g, n, n]`` or ``[g, H, n, n]`` with zeros between the graphs of ``batch`` that share a block.

    Raises:
        ValueError: If a graph of ``batch`` reaches into two blocks.
    """
    joins, cuts = _borders(batch, layout.block)
    if joins:
        raise ValueError("the mask joins nodes of different graphs; give it the 'batch' that attention has")
    if not cuts:
        return blocks
    same = [graph[:, :, None] == graph[:, None, :] for graph in group_rows(batch, layout.groups)]
    return [block * (s if block.dim() == 3 else s[:, None]) for block, s in zip(blocks, same)]


@once_per_batch
def _borders(batch: Tensor, block: Tensor) -> tuple[bool, bool]:
    """Whether a block ends within a graph of ``batch``, and whether a graph ends within a block."""
    leaves_graph, leaves_block = batch.diff() != 0, block.diff() != 0
    return bool((leaves_block & ~leaves_graph).any()), bool((leaves_graph & ~leaves_block).any())
