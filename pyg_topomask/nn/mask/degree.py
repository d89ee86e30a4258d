"""The mask of degrees: a pair of nodes is weighted by their degrees alone."""

from math import pi

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import degree

from pyg_topomask.checks import check_integer
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.graph_attributes import batch_of, count_nodes, read_edges
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.operators.low_rank import LowRankOperator
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.numerics import at_least_float32


class DegreeMask(Mask):
    r"""Centrality degree encoding, :math:`M_{ij} = \sin\big(\tfrac{\pi}{4} (z(d_i) + z(d_j))\big)`.

    :math:`d_i` is the number of edges from node ``i``, and :math:`z(d) = \mathrm{sigmoid}(\ell_d)` in (0, 1) is learned
    for each degree and head. By the addition theorem, the matrix has rank 2. It does not know where nodes are in the
    graph: combine it with another mask, ``MaskedAttention(mask=[DegreeMask(), HopMask()])``.

    Reference: Chen et al. (2024), as Appendix B of *Linear Transformer Topological Masking with Graph Random Features*,
    arXiv:2410.03462, describes it. Cost of a product: :math:`O(N)`, and counting the edges once per batch.

    Args:
        heads: Masks, one per head; 1 is one mask that all heads of an attention share.
        max_degree: Degree from which on all share one number; 32, above those of molecules and images.

    Shapes:
        - parameter ``logit``: :math:`\ell`, ``[max_degree + 1]``, or ``[H, max_degree + 1]`` for several heads. It
          starts at zero, so that the mask starts as a constant.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If ``heads`` is below 1 or ``max_degree`` below 0.
    """

    card = Card(
        formula="sin(π/4 (z(dᵢ) + z(dⱼ))), a function of the degrees",
        learns="z at degrees 0 … `max_degree`",
        cost="N",
        when="degrees should matter, beside a mask of the graph",
        reach="far",
        examples=({}, {"max_degree": 1}),
    )
    config_keys = keys_of("heads")

    def __init__(self, heads: int = 1, max_degree: int = 32) -> None:
        super().__init__(heads)
        self.max_degree = check_integer("max_degree", max_degree, 0)
        self.logit = self.learned(torch.zeros(self.max_degree + 1, device="cpu"))

    def forward(self, graph: Data) -> LowRankOperator:
        """The mask of a graph or batch. Raises ValueError if it has no edges to count."""
        (logit,) = at_least_float32(self.logit)
        indicator = _indicator(read_edges(self, graph), count_nodes(graph), self.max_degree).to(logit.dtype)
        z = logit.sigmoid().view(-1, self.max_degree + 1) @ indicator  # its gradient adds in a fixed order
        angle = pi / 4 * z.view(*logit.shape[:-1], indicator.size(1))
        sine, cosine = angle.sin(), angle.cos()
        left, right = torch.stack([sine, cosine], dim=-1), torch.stack([cosine, sine], dim=-1)
        return LowRankOperator(left, right, batch_of(graph))


@once_per_batch
def _indicator(edge_index: Tensor, num_nodes: int, largest: int) -> Tensor:
    """Whether a node has this number of edges from it, or ``largest`` and more, float32, ``[largest + 1, N]``."""
    count = degree(edge_index[0].long(), num_nodes, torch.int64).clamp(max=largest)
    return (count == torch.arange(largest + 1, device=count.device)[:, None]).float()
