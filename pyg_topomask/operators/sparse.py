"""A mask that is given by its entries."""

from torch import Tensor

from pyg_topomask.operators.sparse_factor import SparseFactorOperator, read_factor


class SparseOperator(SparseFactorOperator):
    """Mask stored by its non-zero entries.

    Cost of ``op @ x`` for ``x`` of shape ``[N, C]``: :math:`O(\\mathrm{nnz}\\, C)`.

    Args:
        index: Row and column of each entry, shape ``[2, nnz]``; equal entries add up.
        value: Entries, shape ``[nnz]``, or ``[nnz, H]`` for one mask per head.
        num_nodes: ``N``.

    Raises:
        ValueError: If shapes disagree or an index is out of range.
        TypeError: If the index does not hold integers, or the values are not floating point.
    """

    def __init__(self, index: Tensor, value: Tensor, num_nodes: int) -> None:
        super().__init__(read_factor((index, value), num_nodes, "index"), None, num_nodes)
