"""An attention and a mask that are defined outside the package: topomask --import own_module check CONFIG."""

import torch

from pyg_topomask.nn import Attention, Card, Mask, check_input, register_attention, register_mask
from pyg_topomask.operators import OnesOperator, SparseFactorOperator


def graph_of_each_node(num_nodes, device, batch):
    return torch.zeros(num_nodes, dtype=torch.long, device=device) if batch is None else batch


class MeanAttention(Attention):
    """Every node attends equally to all nodes of its graph."""

    card = Card(formula="all nodes, equally", learns="a projection", cost="N", when="as an example", reach="far")
    config_keys = {"heads": "gt.n_heads"}

    def __init__(self, channels, heads=1):
        super().__init__(channels, heads)
        self.out = torch.nn.Linear(channels, channels)

    def forward(self, x, batch=None, graph=None):  # [N, C] -> [N, C]
        batch = check_input(x, self.channels, batch, graph)
        same_graph = OnesOperator(graph_of_each_node(x.size(0), x.device, batch))
        return self.out(same_graph @ x / (same_graph @ torch.ones_like(x[:, :1])))


class DecayMask(Mask):
    """Mask with 1 on the diagonal and ``decay`` between different nodes of a graph.

    Args:
        decay: Weight of other nodes.
    """

    card = Card(formula="1 if i = j, else `decay`", learns="none", cost="N", when="as an example", reach="far")

    def __init__(self, decay: float = 0.5) -> None:
        super().__init__()
        self.decay = decay

    def forward(self, graph):
        same_graph = OnesOperator(graph_of_each_node(graph.num_nodes, graph.edge_index.device, graph.batch))
        identity = SparseFactorOperator(None, None, graph.num_nodes)
        return self.decay * same_graph + (1 - self.decay) * identity


register_attention("OwnMean", MeanAttention)
register_mask("own_decay", DecayMask)
