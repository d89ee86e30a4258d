"""What attention under a mask reads of a graph: the sums of the mask's rows over each colour."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.linalg import matrix_power
from torch_geometric.data import Data

from pyg_topomask.expressivity.refinement import Array
from pyg_topomask.operators import MaskOperator
from pyg_topomask.ops.csr import drop_zeros, sym_normalize, to_csr
from pyg_topomask.transforms import AddRandomWalks

Mask = Callable[[Data], MaskOperator | Tensor]
"""Function from a graph to its mask, an operator or a matrix ``[N, N]`` or ``[H, N, N]``."""

_DEFAULT = AddRandomWalks()


def entries_of(mask: Mask, data: Data, steps: Sequence[object]) -> Array:
    """The mask of a graph and its bounding mask, which attention divides by, ``[2 H, N, N]``, float64.

    A mask module that needs tables of walks gets their expectation, with the settings of the ``AddRandomWalks`` among
    the ``steps`` of the transform, or its defaults.

    Raises:
        TypeError: If it is neither an operator nor a tensor of real numbers.
        ValueError: If it has another shape, or holds NaN or infinity.
    """
    num_nodes = int(data.num_nodes or 0)
    data = _with_expected_walks(data, mask, steps)
    with torch.no_grad():
        found = mask(data)
        if not isinstance(found, MaskOperator | Tensor):
            raise TypeError(f"'mask' must return a MaskOperator or a tensor (got {type(found).__name__})")
        both = (found, found.abs() if isinstance(found, Tensor) else found.bound)
        dense = [matrix.to_dense() for matrix in both]
    if dense[0].is_complex():
        raise TypeError(f"'mask' must be real (got {dense[0].dtype})")
    if dense[0].dim() not in (2, 3) or dense[0].shape[-2:] != (num_nodes, num_nodes):
        raise ValueError(f"'mask' must be [N, N] or [H, N, N] with N = {num_nodes} (got {[*dense[0].shape]})")
    values = torch.cat([matrix if matrix.dim() == 3 else matrix[None] for matrix in dense]).cpu().double()
    if not bool(values.isfinite().all()):
        raise ValueError("'mask' holds NaN or infinity")
    return values.numpy()


def _with_expected_walks(data: Data, mask: object, steps: Sequence[object]) -> Data:
    """The graph with the tables of walks that a mask module needs, for infinitely many walks."""
    requires: tuple[str, ...] = getattr(mask, "requires", ())
    tables = [key.rpartition("_")[0] for key in requires if key.endswith(("_load", "_count"))]
    for name in [key.removesuffix("_size") for key in requires if key.endswith("_size")]:
        if name not in tables:
            continue
        walks = next((step for step in steps if isinstance(step, AddRandomWalks) and step.name == name), _DEFAULT)
        expected = _expected_walks(data, walks, getattr(mask, "max_length", walks.max_length))
        own = [table for table in tables if f"{table}_".startswith(f"{name}_")]
        columns = {f"{table}_{part}": column for table in own for part, column in expected.items()}
        data = data.clone().update(columns | {f"{name}_size": data.num_nodes})
    return data


def _expected_walks(data: Data, walks: AddRandomWalks, longest: int) -> dict[str, Tensor]:
    """The columns of a table for infinitely many walks, in ``O(N² K)`` memory."""
    if walks.lengths is not None or walks.transition is not None or not walks.importance or walks.edge_type is not None:
        raise ValueError(
            "the expectation of walks is known for AddRandomWalks without 'lengths', 'transition', 'importance' and "
            "'edge_type'; give a function of the graph that returns the matrix as 'mask'"
        )
    num_nodes, weight = int(data.num_nodes or 0), data.get("edge_weight")
    weight = torch.ones(data.num_edges) if weight is None else weight
    csr = drop_zeros(to_csr(data.edge_index, num_nodes, weight.double()))
    zeros = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency = zeros.index_put((csr.row, csr.col), sym_normalize(csr).weight)
    step = zeros.index_put((csr.row, csr.col), (1 - walks.halt_prob) / csr.degree.double()[csr.row])
    powers = range(min(longest, walks.max_length) + 1)
    load, count = (torch.stack([matrix_power(x, k) for k in powers], dim=-1) for x in (adjacency, step))
    start, visited, length = found = count.nonzero(as_tuple=True)
    return {"index": torch.stack([start, visited]), "length": length, "load": load[found], "count": count[found]}
