"""Predictions for graphs."""

from torch import Tensor
from torch.nn import Linear, Module, Sequential, Unflatten
from torch_geometric.data import Data
from torch_geometric.nn import MLP

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.head.mlp import MLPHead, NodeHead
from pyg_topomask.nn.pool import POOLS, count_graphs, pool_nodes
from pyg_topomask.nn.reset import Resettable


class GraphHead(Resettable):
    """Pools the nodes of each graph and maps the result by a module.

    Args:
        predict: The module, ``[B, C] → [B, …]``.
        pool: ``"mean"``, ``"add"`` or ``"max"``.

    Raises:
        ValueError: If ``pool`` is unknown.
    """

    def __init__(self, predict: Module, pool: str = "mean") -> None:
        super().__init__()
        check_choice("pool", pool, POOLS)
        self.predict, self.pool = predict, pool

    def forward(self, x: Tensor, graph: Data) -> Tensor:
        """``[N, C] → [B, …]``."""
        batch = graph.get("batch")
        return self.predict(pool_nodes(x, batch, count_graphs(graph, batch), self.pool))


def graph_head(
    channels: int, out_channels: int, layers: int = 1, dropout: float = 0.0, act: str = "relu", pool: str = "mean"
) -> GraphHead:
    """Pooling and an MLP of equal widths; all arguments but ``pool`` are those of `NodeHead`."""
    return GraphHead(NodeHead(channels, out_channels, layers, dropout, act), pool)


def mlp_graph_head(
    channels: int, out_channels: int, layers: int = 2, dropout: float = 0.0, act: str = "relu", pool: str = "mean"
) -> GraphHead:
    """Pooling and an MLP of equal widths with dropout before every layer, including the first one.

    Reference: the experiments of *On k-Maximum-Inner-Product Attention and the Expressive Power of GraphGPS*.
    """
    return GraphHead(Sequential(Dropout(dropout), MLPHead(channels, out_channels, layers, dropout, act)), pool)


def san_graph_head(channels: int, out_channels: int, act: str = "relu", pool: str = "mean") -> GraphHead:
    """Pooling and an MLP whose widths halve twice, whatever number of layers a config gives, as in GraphGPS.

    Reference: the read-out of Dwivedi et al., *Benchmarking Graph Neural Networks*, JMLR 2023, arXiv:2003.00982.

    Raises:
        ValueError: If there are fewer than 4 channels.
    """
    widths = [channels, channels // 2, check_integer("channels", channels, 4) // 4, out_channels]
    return GraphHead(MLP(widths, act=act, norm=None), pool)


def code_graph_head(channels: int, out_channels: int, pool: str = "mean") -> GraphHead:
    """Five words of a function's name for ogbg-code2, with one linear map for each position.

    Reference: Hu et al., *Open Graph Benchmark*, NeurIPS 2020, arXiv:2005.00687, Section 5.3.

    Args:
        channels: Width ``C`` of the nodes.
        out_channels: Size of the vocabulary.
        pool: ``"mean"``, ``"add"`` or ``"max"``.
    """
    return GraphHead(Sequential(Linear(channels, 5 * out_channels), Unflatten(1, (5, out_channels))), pool)
