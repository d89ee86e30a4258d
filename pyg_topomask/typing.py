"""Type aliases, and the legend of the shape letters used in every comment and docstring.

| letter | size |
|---|---|
| ``N`` | nodes, over the whole batch |
| ``B`` | graphs in the batch |
| ``E`` | edges (directed entries of ``edge_index``) |
| ``H`` | heads |
| ``D`` | channels of one head's values |
| ``C`` | channels of a node, ``H * D`` where heads are concatenated |
| ``R`` | features of one head's queries and keys, after the feature map |
| ``K`` | hops: length of the longest walk |
| ``P`` | node pairs in the support of a mask |
| ``nnz`` | stored entries of a sparse table |
"""

from typing import Any, TypeAlias

from torch import Tensor

Adj: TypeAlias = Any
"""``edge_index`` of shape ``[2, E]``, or the transposed adjacency (PyG's ``adj_t``) as a sparse tensor of torch or a
``torch_sparse.SparseTensor``. It is ``Any`` because ``torch_sparse`` is optional."""

SparseEntries: TypeAlias = tuple[Tensor, Tensor]
"""``(index [2, nnz], value [nnz] or [nnz, H])``: the entries of one sparse matrix, or of one per head."""


class PerformanceWarning(UserWarning):
    """The result is exact but was computed in a slow way, for example with a dense ``N × N`` array."""
