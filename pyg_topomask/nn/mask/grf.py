"""Masks estimated by graph random features."""

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import check_table, count_nodes
from pyg_topomask.nn.mask.base import Mask, initial_modulation
from pyg_topomask.nn.mask.structure import warn_of_walks
from pyg_topomask.operators import GRFOperator, HeadStackOperator, MaskOperator, ProductOperator
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.numerics import absolute, at_least_float32
from pyg_topomask.ops.walks.merge import num_monomials
from pyg_topomask.ops.walks.product import walk_product
from pyg_topomask.ops.walks.settings import diagonal_of, table_name

_PARTS = ("index", "length", "load")


class GRFMask(Mask):
    r"""Learnable power series of the adjacency, :math:`M = \sum_k \alpha_k W^k`, estimated from random walks.

    With the modulation function ``f``, :math:`\Phi = \sum_\ell f_\ell W^\ell` is estimated by the walks of each node
    and :math:`\hat M = \Phi_1 \Phi_2^\top`, so :math:`\alpha = f * f`. The estimate is unbiased off the diagonal, and
    on the diagonal where queries and keys have independent walks. By default, learning may turn entries negative.

    Reference: Reid et al. 2024, arXiv:2410.03462, Sections 3.2 and 3.3; without `symmetric` or with `key_modulation`,
    Appendix D; with `stitch`, Choromanski et al., *GRFs++*, 2025, arXiv:2510.07716. Cost of a product: the non-zeros of
    :math:`\Phi_1` and :math:`\Phi_2`, at most ``num_walks * max_length + 1`` in a row.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        max_length: Longest walk ``K`` that ``f`` covers, in hops. 4 by default, because a pair has
            ``(K + 1)(K + 2) / 2`` coefficients, and the default ``initial`` is below 1/3000 for longer walks.
        symmetric: Use :math:`\Phi_1 \Phi_2^\top`. Otherwise :math:`\hat M = \Phi_1`, a weighted sum over the visited
            nodes. Its :math:`\alpha` is ``f``, and ``W`` need not be symmetric.
        independent: Queries and keys have walks of their own (the default of ``AddRandomWalks``).
        name: Prefix of the walk attributes on the graph.
        diagonal: ``"independent"``, as ``independent=True``; ``"corrected"``: one table, whose products of walks with
            themselves are left out of the diagonal, which makes it unbiased as well; ``"shared"``, as
            ``independent=False``. :obj:`None` leaves it to ``independent``. It must be that of ``AddRandomWalks``.
        table: Number of the walks that the mask uses, below ``num_tables`` of ``AddRandomWalks``, or one number for
            each head. ``lambda layer: GRFAttention(64, 4, table=layer)`` gives each layer of a model its own walks, and
            ``table=range(4)`` each head. A mask with different walks per head has no pairs, so ``path="pairwise"``
            needs one number.
        initial: Initial ``f``. ``"exp"``: :math:`2^{-\ell} / \ell!`, the mask :math:`\exp(W)`, in which far nodes
            count little. ``"geometric"``: :math:`2^{-\ell}`, the mask :math:`(I - W / 2)^{-2}`, which reaches further.
            ``"far"``: all are equal and ``stitch`` is 3 by default: the mask reaches 2.7 hops on average on Peptides,
            where that of ``"exp"`` reaches 0.7. Walks should then repel each other and not halt, as in
            ``transform_settings``.
            Otherwise :math:`f_0, f_1, \ldots`, at most ``max_length + 1`` numbers; the others are 0.
            :func:`~pyg_topomask.ops.deconvolve` gives them for :math:`\alpha`.
        positive: Use the absolute values of the parameters, so that no entry is ever negative.
        stitch: Number ``l`` of independent estimates whose product is the mask, :math:`\hat M = \prod_i \Phi_1^{(i)}
            \Phi_2^{(i)\top}`: it reaches ``2 l K`` hops by walks of ``K``, and α is the ``2 l``-fold convolution of
            ``f``. It takes ``l`` tables of walks for each ``table``, and has no pairs. 1 by default, and 3 for the
            ``initial`` ``"far"``.
        key_modulation: Learn a second function :math:`f^{(2)}` for :math:`\Phi_2`, so that :math:`\alpha = f^{(1)} *
            f^{(2)}` can be any series, such as one with a negative :math:`\alpha_0`. It starts as the first one. There
            is one function by default, because a pair has ``(K + 1)**2`` coefficients with two.

    Shapes:
        - the parameters ``modulation`` and, if there is one, ``key_modulation``: ``[max_length + 1]``, or
          ``[H, max_length + 1]``

    Raises:
        TypeError: If a size or count is no integer.
        ValueError: If a size is out of range, ``table`` does not have one number per head, ``initial`` is unknown or
            too long, a mask that is not ``symmetric`` is given a ``key_modulation``, or a mask with ``stitch`` above 1
            is not ``symmetric`` with independent walks.
    """

    card = Card(
        formula="Φ₁Φ₂ᵀ, an estimate of Σ αₖWᵏ by random walks",
        learns="f at 0 … `max_length` hops",
        cost="non-zeros of Φ₁ and Φ₂",
        when="large graphs, short range: the cost does not grow with the degrees",
        reach="hops",
        examples=({}, {"key_modulation": True}, {"diagonal": "corrected"}, {"symmetric": False}, {"stitch": 2}),
    )
    config_keys = keys_of(
        *("heads", "max_length", "symmetric", "independent", "diagonal", "key_modulation"), table="topomask.num_tables"
    )

    def __init__(
        self,
        heads: int = 1,
        max_length: int = 4,
        symmetric: bool = True,
        independent: bool = True,
        name: str = "walk",
        diagonal: str | None = None,
        table: int | Sequence[int] = 0,
        initial: str | Sequence[float] = "exp",
        positive: bool = False,
        stitch: int | None = None,
        key_modulation: bool = False,
    ) -> None:
        super().__init__(heads)
        far = isinstance(initial, str) and initial == "far"
        stitch = (3 if far else 1) if stitch is None else stitch
        max_length = check_integer("max_length", max_length, 0)
        self.max_length, self.symmetric = max_length, symmetric
        self.diagonal, self.name, self.tables = diagonal_of(independent, diagonal), name, _numbers(table)
        if len(self.tables) not in (1, self.heads):
            raise ValueError(f"'table' must be one number, or one for each of the {heads} heads (got {table!r})")
        self.stitch = check_integer("stitch", stitch, 1)
        self.two_tables = symmetric and self.diagonal == "independent"
        self.corrects = symmetric and self.diagonal == "corrected"
        names = (part for number in dict.fromkeys(self.tables) for part in _stitched(name, number, stitch))
        diagonal = self.diagonal if symmetric else "shared"
        self.requires = (*(part for prefix in names for part in _attributes(prefix, diagonal)), f"{name}_size")
        self.transform_settings = {
            "max_length": max_length,
            "name": name,
            "diagonal": None if self.diagonal == "independent" else self.diagonal,
            "num_tables": (max(self.tables) + 1) * stitch,
        } | ({"halt_prob": 0.0, "scheme": "repelling"} if far else {})
        if stitch > 1 and not self.two_tables:
            raise ValueError(f"'stitch' = {stitch} needs 'symmetric' and 'independent' walks of queries and keys")
        if key_modulation and not symmetric:
            raise ValueError(
                "'key_modulation' is a function of the keys' walks, but with symmetric=False they have none"
            )
        self.positive, start = positive, initial_modulation("initial", initial, max_length)
        self.modulation = self.learned(start)
        self.key_modulation = self.learned(start) if key_modulation else None

    @property
    def functions(self) -> tuple[Tensor, ...]:
        """The modulation function of the queries and, if they have one of their own, of the keys."""
        keys = () if self.key_modulation is None else (self.key_modulation,)
        functions = at_least_float32(self.modulation, *keys)
        return tuple(map(absolute, functions)) if self.positive else functions

    def forward(self, graph: Data) -> MaskOperator:
        """The mask of a graph or batch that carries walks.

        Raises:
            ValueError: If walks are missing, of another graph, or longer than ``max_length``.
        """
        index, length, *_, size = self.read(graph)
        check_table(self, graph, size, "walks", index, length)
        functions = self.functions
        if len(self.tables) == 1:
            return self._product(graph, self.tables[0], *functions)
        return HeadStackOperator([self._product(graph, *head) for head in zip(self.tables, *functions)])

    def _product(self, graph: Data, table: int, *functions: Tensor) -> MaskOperator:
        """The product of the estimates by the walks of a table."""
        names = _stitched(self.name, table, self.stitch)
        estimates: list[MaskOperator] = [self._estimate(graph, name, *functions) for name in names]
        return reduce(ProductOperator, estimates)

    def _estimate(self, graph: Data, name: str, *functions: Tensor) -> GRFOperator:
        """The mask that the walks of that name estimate."""
        num_nodes = count_nodes(graph)
        first = [graph[f"{name}_{part}"] for part in _PARTS]
        second = first if self.symmetric else [None, None, None]
        if self.two_tables:
            second = [graph[f"{name}_key_{part}"] for part in _PARTS]
        coeffs = self._diagonal(graph[f"{name}_diagonal"]) if self.corrects else None
        walks = walk_product(*first, *second, num_nodes, self.max_length, functions[0].dtype, coeffs)
        warn_of_walks(self, graph, name)
        return GRFOperator(walks, *functions)

    def _diagonal(self, coeffs: Tensor) -> Tensor:
        """Stored coefficients of the diagonal, refused where walks may be longer than the mask covers."""
        given = coeffs.size(1)
        if given == 0:
            raise ValueError("the stored diagonal has no coefficients: draw the walks again")
        if given > num_monomials(self.max_length):
            raise ValueError(
                f"the stored diagonal has {given} coefficients for a node, but 'max_length' = {self.max_length} makes "
                f"{num_monomials(self.max_length)}. Give the mask and the transform the same 'max_length'"
            )
        return _padded(coeffs, num_monomials(self.max_length))


def _numbers(table: int | Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(table) if isinstance(table, Iterable) else (table,)
    return tuple(check_integer("table", number, 0) for number in numbers)


def _stitched(name: str, table: int, stitch: int) -> list[str]:
    """Prefixes of the walks of one mask."""
    return [table_name(name, table * stitch + number) for number in range(stitch)]


def _attributes(name: str, diagonal: str) -> list[str]:
    """The attributes of one set of walks."""
    tables = [name, f"{name}_key"] if diagonal == "independent" else [name]
    walks = [f"{table}_{part}" for table in tables for part in _PARTS]
    return walks + ([f"{name}_diagonal"] if diagonal == "corrected" else [])


@once_per_batch
def _padded(coeffs: Tensor, size: int) -> Tensor:
    """Coefficients padded with zeros to the mask's ``size`` products, ``[N, size]``; longer walks come last."""
    return torch.cat([coeffs, coeffs.new_zeros(coeffs.size(0), size - coeffs.size(1))], dim=1)
