"""The random walks graph-nodes kernel."""

from math import exp

import torch
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_integer
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import check_table, count_nodes
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.structure import warn_of_walks
from pyg_topomask.operators import ConstantOperator, DiagonalScaledOperator, GRFOperator, SparseFactorOperator
from pyg_topomask.operators.sparse_factor import Factor
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.numerics import MOST_LOG, at_least_float32
from pyg_topomask.ops.walks import compiled
from pyg_topomask.ops.walks.merge import WalkTable
from pyg_topomask.ops.walks.pair_table import EntryTable, check_walks, fits_together
from pyg_topomask.ops.walks.product import WalkProduct, walk_product


class RWGNKMask(Mask):
    r"""Similarity of two nodes by where random walks from them go: the random walks graph-nodes kernel.

    .. math:: M_{ij} = \frac{\langle f_i, f_j \rangle}{\|f_i\|_2^\alpha\, \|f_j\|_2^\alpha}, \qquad
        f_i(u) = \sum_\ell \lambda^\ell\, \mathrm{count}_i(u, \ell)

    where :math:`\mathrm{count}_i(u, \ell)` is the share of the walks from ``i`` that are at ``u`` after :math:`\ell`
    hops. With ``alpha=1`` this is the cosine of the frequency vectors, so the diagonal is one. Both factors come from
    one table of walks, which the mask of graph random features can share.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4.2. The authors' experiments have λ = α = 1.
    Cost of a product: the visits that the table stores, at most ``num_walks * max_length + 1`` for a node.

    Args:
        heads: Masks, one per head, if they are ``learnable``; otherwise, all heads of an attention share one mask.
        decay: :math:`\lambda \ge 0`, the factor that each hop multiplies the weight of a visit by. 1 by default, as
            in the paper; at most :math:`e^{40 / K}` for walks of K hops, so that its powers stay finite.
        alpha: :math:`\alpha \ge 0`, exponent of the norms. 1 by default, as in the paper.
        max_length: Longest walk that is stored, in hops. 4 by default, as in ``AddRandomWalks``.
        learnable: Whether ``decay`` and ``alpha`` are parameters; their absolute values are used. They are not by
            default, as in the paper.
        name: Prefix of the walk attributes on the graph.

    Raises:
        TypeError: If a size or count is no integer.
        ValueError: If a size or a number is out of range.
    """

    card = Card(
        formula="⟨fᵢ, fⱼ⟩ / (‖fᵢ‖ ‖fⱼ‖)^α of visits of random walks",
        learns="decay λ and α, if `learnable`",
        cost="non-zeros of the visits",
        when="GKAT; nodes are similar if walks from them meet",
        reach="hops",
        examples=({}, {"learnable": True, "decay": 0.8}),
    )
    config_keys = keys_of("heads", "decay", "alpha", "max_length", "learnable")
    decay: Tensor
    alpha: Tensor

    def __init__(
        self,
        heads: int = 1,
        decay: float = 1.0,
        alpha: float = 1.0,
        max_length: int = 4,
        learnable: bool = False,
        name: str = "walk",
    ) -> None:
        super().__init__(heads)
        self.heads = self.heads if learnable else 1
        max_length = check_integer("max_length", max_length, 0)
        self._most_decay = exp(MOST_LOG / max(max_length, 1))  # its powers are within the range of float32
        for key, value in (("decay", decay), ("alpha", alpha)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"'{key}' must be a finite number ≥ 0 (got {value})")
        if decay > self._most_decay:
            raise ValueError(
                f"'decay' must be at most {self._most_decay:.3g} with max_length={max_length}, so that its powers stay "
                f"finite (got {decay})"
            )
        if learnable and 0 in (decay, alpha):
            raise ValueError(f"learnable 'decay' and 'alpha' must start above 0 (got {decay} and {alpha})")
        self.max_length, self.learnable, self.name = max_length, learnable, name
        self.requires = tuple(f"{name}_{part}" for part in ("index", "length", "count", "size"))
        self.transform_settings = {"max_length": max_length, "halt_prob": 0.0, "independent": False, "name": name}
        self._initial = {"decay": decay, "alpha": alpha}
        for key in self._initial:
            empty = torch.empty(() if self.heads == 1 else self.heads)
            if learnable:
                self.register_parameter(key, Parameter(empty))
            else:
                self.register_buffer(key, empty)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set ``decay`` and ``alpha`` to what the constructor was given."""
        with torch.no_grad():
            for key, value in self._initial.items():
                getattr(self, key).fill_(value)

    def forward(self, graph: Data) -> DiagonalScaledOperator | ConstantOperator:
        """The mask of a graph or batch that carries walks.

        Raises:
            ValueError: If walks are missing, of another graph, or longer than ``max_length``.
        """
        index, length, count, size = self.read(graph)
        check_table(self, graph, size, "walks", index, length)
        decay, alpha = at_least_float32(self.decay, self.alpha)
        table = (index, length, count, count_nodes(graph), self.max_length)
        if not self.learnable:
            kernel = _constant_kernel(*table, *self._numbers(decay, alpha), decay.dtype)
            warn_of_walks(self, graph, self.name, halt=False)
            return kernel
        with torch.autocast(index.device.type, enabled=False):  # sums of counts need float32
            walks, modulation, scale = _walks(*table, decay.abs().clamp(max=self._most_decay), alpha.abs())
        warn_of_walks(self, graph, self.name, halt=False)
        return DiagonalScaledOperator(GRFOperator(walks, modulation), scale, scale)

    def _numbers(self, decay: Tensor, alpha: Tensor) -> tuple[float, float]:
        """The constants; a plan has the kernel that was made of them."""
        if plans.reading():
            return 0.0, 0.0
        read = _number_once if decay.is_cuda else _number
        return min(read(decay), self._most_decay), read(alpha)


def _walks(
    index: Tensor, length: Tensor, count: Tensor, num_nodes: int, max_length: int, decay: Tensor, alpha: Tensor
) -> tuple[WalkProduct, Tensor, Tensor]:
    """The walks, their modulation function ``[K + 1]`` or ``[H, K + 1]``, rows' scales ``[N]`` or ``[N, H]``."""
    lengths = torch.arange(max_length + 1, device=decay.device, dtype=decay.dtype)
    modulation = decay[..., None] ** lengths
    table = (index, length, count)
    walks = walk_product(*table, *table, num_nodes, max_length, modulation.dtype)
    return walks, modulation, _squared_norms(walks.left, modulation) ** (-alpha / 2)


def _number(x: Tensor) -> float:
    """The absolute value of a scalar."""
    return float(x.abs())


_number_once = once_per_batch(_number)  # for CUDA, where reading waits


@once_per_batch
def _constant_kernel(
    index: Tensor,
    length: Tensor,
    count: Tensor,
    num_nodes: int,
    max_length: int,
    decay: float,
    alpha: float,
    dtype: torch.dtype,
) -> ConstantOperator:
    """The kernel for numbers that do not change, computed once for all layers that read the same tensors."""
    table = WalkTable(index, length, count.to(dtype))
    check_walks(table, num_nodes, max_length)
    features = _compiled_features(table, num_nodes, max_length, decay, alpha)
    if features is None:
        numbers = (torch.tensor(x, dtype=dtype, device="cpu") for x in (decay, alpha))
        given = (x.to(index.device, non_blocking=True) for x in numbers)
        walks, modulation, scale = _walks(index, length, count, num_nodes, max_length, *given)
        pattern = walks.left.pattern
        features = Factor(pattern, walks.left.values(modulation) * scale.index_select(0, pattern.row))
    return ConstantOperator(SparseFactorOperator(features, features, num_nodes))


def _compiled_features(table: WalkTable, num_nodes: int, max_length: int, decay: float, alpha: float) -> Factor | None:
    """The factor of the kernel; :obj:`None` if compiled code cannot serve, or refuses the walks."""
    if not fits_together(table) or compiled.refuses(table.load) is not None:
        return None
    factors = [decay**step for step in range(max_length + 1)]
    found = compiled.walk_features(table, num_nodes, factors, -alpha / 2)
    return None if found is None else Factor(*found[0].padded(found[1]))


def _squared_norms(table: EntryTable, modulation: Tensor) -> Tensor:
    """Squared norms of the rows, ``[N]`` or ``[N, H]``; at least 1, since every walk visits its start."""
    squares = table.values(modulation).square()
    zeros = squares.new_zeros(table.pattern.num_rows, *squares.shape[1:])
    return zeros.index_add(0, table.pattern.row, squares)
