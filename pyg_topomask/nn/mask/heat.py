"""Heat kernels of general graphs, and what all masks of diffusion have."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import log

import torch
from scipy.special import expit
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_choice
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import count_nodes
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.nn.mask.structure import read_weighted_edges
from pyg_topomask.operators import HeatOperator
from pyg_topomask.operators.heat import check_tolerance
from pyg_topomask.ops.numerics import at_least_float32
from pyg_topomask.ops.products.laplacian import LAPLACIANS


class DiffusionMask(Mask):
    r"""Base of the masks with a diffusion time :math:`\lambda = \lambda_{\max}\, \sigma(\theta)`, learned per head.

    The time stays in :math:`(0, \lambda_{\max})`, so that training can neither make it negative nor the cost of a
    product, which grows with the time, arbitrarily large.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        time: Initial time.
        max_time: Upper end of the range.

    Raises:
        TypeError: If ``heads`` is not an integer.
        ValueError: If ``heads`` is not positive, or ``time`` is not in the range.
    """

    config_keys = keys_of("heads")

    def __init__(self, heads: int, time: float, max_time: float) -> None:
        super().__init__(heads)
        if not 0 < time < max_time < float("inf"):
            raise ValueError(f"'time' must be above 0 and below 'max_time' (got {time} and {max_time})")
        self.max_time = max_time
        self.raw_time = self.learned(torch.tensor(log(time / (max_time - time)), dtype=torch.float64, device="cpu"))

    @property
    def time(self) -> Tensor:
        """Diffusion time, a scalar or ``[H]``."""
        (raw,) = at_least_float32(self.raw_time)
        return self.max_time * raw.sigmoid()


class HeatMask(DiffusionMask):
    r"""Heat kernel :math:`M = \exp(-\lambda T)` of an undirected graph: how much of ``j`` diffuses to ``i`` in the time
    :math:`\lambda`, which is learned per head and stays in :math:`(0, \lambda_{\max})`.

    Edges have the weights ``edge_weight``, or 1 on a graph without them. The product with the mask is a Chebyshev
    series with a stated error; see :class:`~pyg_topomask.operators.HeatOperator`. After a long time the heat is spread
    over the whole connected graph, so that attention is hardly masked.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 4, Eq. 4 and Theorem 4.1.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        time: Initial time. With the default, 1, most of the heat is within two hops.
        max_time: Upper end of the range. 32 by default: the degree of the series, and with it the cost, grows with the
            time.
        laplacian: :math:`T`: ``"normalized"``, :math:`D^{-1/2} (D - A) D^{-1/2}`, whose cost does not grow with the
            degrees, hence the default; ``"combinatorial"``, :math:`D - A`; ``"random_walk"``,
            :math:`(D - A) D^{-1}`; ``"adjacency"``, :math:`-A`, which is refused once
            :math:`\exp(\lambda \lambda_{\max}(A))` exceeds the range of numbers, so give it a small ``max_time``.
        tol: Error of products, relative to the norms of mask and input. The default, 1e-5, is small beside the rounding
            errors of a training step.

    Raises:
        TypeError: If ``heads`` is not an integer.
        ValueError: If a setting is out of range or unknown.
    """

    card = Card(
        formula="exp(−λL)",
        learns="time λ in (0, `max_time`)",
        cost="degree of the series × (E + 2N)",
        when="a range that is learned, beyond a few hops; undirected graphs",
        reach="far",
        examples=({"time": 3.0}, {"laplacian": "random_walk"}),
    )

    def __init__(
        self,
        heads: int = 1,
        time: float = 1.0,
        max_time: float = 32.0,
        laplacian: str = "normalized",
        tol: float = 1e-5,
    ) -> None:
        super().__init__(heads, time, max_time)
        check_choice("laplacian", laplacian, LAPLACIANS)
        check_tolerance(tol)
        self.laplacian, self.tol = laplacian, tol
        self._raw: float | None = None  # largest entry of `raw_time`, if the host knows it

    @property
    def longest(self) -> float:
        """Upper bound on all times. On CUDA, the host waits for it outside of `times_read_together`."""
        if plans.planned():  # a plan serves whatever time is learned
            return self.max_time * (1 + 1e-6)
        raw = float(self.raw_time.detach().max()) if self._raw is None else self._raw
        return self.max_time * float(expit(raw)) * (1 + 1e-6)  # the device rounds to float32

    def forward(self, graph: Data) -> HeatOperator:
        """The mask of a graph or batch.

        Raises:
            ValueError: If the graph has neither ``edge_index`` nor ``adj_t``, is not undirected, or has a negative
                weight.
        """
        edge_index, weight = read_weighted_edges(self, graph)
        return HeatOperator(edge_index, count_nodes(graph), self.time, weight, self.laplacian, self.tol, self.longest)


@contextmanager
def times_read_together(model: Module) -> Iterator[None]:
    """Meanwhile, the heat masks of a model know their times on CUDA: the host waits once, not in each layer."""
    masks = [mask for mask in model.modules() if isinstance(mask, HeatMask) and mask.raw_time.is_cuda]
    if masks:
        raw = torch.cat([mask.raw_time.detach().view(-1) for mask in masks]).cpu()
        for mask, own in zip(masks, raw.split([mask.heads for mask in masks])):
            mask._raw = float(own.max())
    try:
        yield
    finally:
        for mask in masks:
            mask._raw = None
