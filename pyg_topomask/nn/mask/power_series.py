"""Power series of the adjacency matrix, computed exactly."""

from collections.abc import Sequence

from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import count_nodes
from pyg_topomask.nn.mask.base import Mask, initial_modulation
from pyg_topomask.nn.mask.structure import read_normalized_edges
from pyg_topomask.operators import MaskOperator, PowerSeriesOperator, ProductOperator
from pyg_topomask.ops.csr import relation_of
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.products.polynomial import deconvolve


class PowerSeriesMask(Mask):
    r"""Learnable power series :math:`M = \sum_k \alpha_k W^k` of :math:`W = D^{-1/2} A D^{-1/2}`, without sampling.

    It is the exact form of :class:`~pyg_topomask.nn.GRFMask`, with the same parameter: with the modulation function
    ``f``, :math:`\Phi = \sum_\ell f_\ell W^\ell` and :math:`M = \Phi \Phi^\top`, so :math:`\alpha = f * f` if ``W`` is
    symmetric. Its bounding mask is that of ``|f|``, so that attention under graph random features converges to
    attention under this mask as the number of walks grows. ``f`` starts as :math:`2^{-\ell} / \ell!`, the mask
    :math:`\exp(W)`; learning may turn entries negative. Learned edge weights, ``edge_weight``, get a gradient as well.

    Reference: Reid et al. 2024, arXiv:2410.03462, Eq. 4 and Remark 3.1. Cost of a product: ``2 max_length`` sparse
    products; see :class:`~pyg_topomask.operators.PowerSeriesOperator`.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        max_length: Largest power ``K`` in :math:`\Phi`. 4 by default, as in :class:`~pyg_topomask.nn.GRFMask`.
        symmetric: Use :math:`\Phi \Phi^\top`. Otherwise :math:`M = \Phi`, the series with :math:`\alpha = f`.
        coeffs: Initial :math:`\alpha_0, \alpha_1, \ldots`, at most ``max_length + 1`` of them; the others are 0. With
            ``symmetric``, ``f`` starts as their deconvolution (:func:`~pyg_topomask.ops.deconvolve`), whose series has
            further terms beyond ``max_length``. The default is described above.
        edge_type: Number of the relation whose edges form ``A``, in the attribute ``edge_type [E]`` that
            ``HeteroData.to_homogeneous()`` adds, or several, such as a relation and its reverse; all edges if
            :obj:`None`.

    Shapes:
        - the parameter ``modulation``, ``f``: ``[max_length + 1]``, or ``[H, max_length + 1]``

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is out of range, or the coefficients are too many or have no deconvolution.
    """

    card = Card(
        formula="Σ αₖWᵏ with α = f ∗ f",
        learns="f at 0 … `max_length` hops",
        cost="2 `max_length` (E + N)",
        when="the exact form of grf: small graphs, no noise",
        reach="hops",
        examples=({}, {"symmetric": False, "max_length": 3}),
    )
    config_keys = keys_of("heads")

    def __init__(
        self,
        heads: int = 1,
        max_length: int = 4,
        symmetric: bool = True,
        coeffs: Sequence[float] | None = None,
        edge_type: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__(heads)
        self.symmetric, self.relation = symmetric, relation_of(edge_type)
        self.requires = ("edge_type",) if self.relation else ()
        self.max_length = check_integer("max_length", max_length, 0)
        start = initial_modulation("coeffs", "exp" if coeffs is None else coeffs, self.max_length)
        self.modulation = self.learned(deconvolve(start) if symmetric and coeffs is not None else start)

    def forward(self, graph: Data) -> MaskOperator:
        """The mask of a graph or batch.

        Raises:
            ValueError: If the graph has neither ``edge_index`` nor ``adj_t``, or the weights of a node add up to a
                negative number.
        """
        (modulation,) = at_least_float32(self.modulation)
        edge_index, weight = read_normalized_edges(self, graph, modulation.dtype, self.relation)
        phi = PowerSeriesOperator(edge_index, count_nodes(graph), modulation, weight)
        return ProductOperator(phi) if self.symmetric else phi
