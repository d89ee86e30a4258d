"""The mask of sequences in which a node sees only earlier nodes."""

from torch_geometric.data import Data

from pyg_topomask.nn.card import Card
from pyg_topomask.nn.graph_attributes import batch_of
from pyg_topomask.nn.mask.base import Mask
from pyg_topomask.operators import CausalOperator


class CausalMask(Mask):
    """Each node sees itself and the earlier nodes of its graph, in the order of the nodes. Nothing is learned.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Section 3. Cost of a product: linear in the nodes; see
    :class:`~pyg_topomask.operators.CausalOperator`.

    Args:
        reverse: See later nodes instead of earlier ones.
    """

    card = Card(
        formula="1 if j ≤ i, in the order of the nodes",
        learns="none",
        cost="N",
        when="sequences in which the future is not known",
        reach="order",
        graphs="sequences",
        examples=({}, {"reverse": True}),
    )

    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        self.reverse = reverse

    def forward(self, graph: Data) -> CausalOperator:
        """The mask of a graph or batch. Raises ValueError and TypeError if there is none."""
        self.read(graph)
        return CausalOperator(batch_of(graph), self.reverse)
