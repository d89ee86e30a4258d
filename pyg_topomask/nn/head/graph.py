"""Predictions for graphs."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Linear, Module, Sequential, Unflatten
from torch_geometric.data import Data
from torch_geometric.nn.resolver import activation_resolver

from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.head.mlp import MLPHead
from pyg_topomask.nn.pool import POOLS, count_graphs, pool_nodes
from pyg_topomask.nn.reset import Resettable


class _Pooled(Resettable):
    """Pools the nodes of each graph and maps the result by ``self.predict``.

    Raises:
        ValueError: If ``pool`` is unknown.
    """

    predict: Module

    def __init__(self, pool: str) -> None:
        super().__init__()
        check_choice("pool", pool, POOLS)
        self.pool = pool

    def forward(self, x: Tensor, graph: Data) -> Tensor:
        """``[N, C] → [B, …]``."""
        batch = graph.get("batch")
        return self.predict(pool_nodes(x, batch, count_graphs(graph, batch), self.pool))


class GraphHead(_Pooled):
    """Pooling and an MLP of equal widths.

    Args:
        channels, out_channels, layers, dropout, act, l2_norm: As in `NodeHead`.
        pool: ``"mean"``, ``"add"`` or ``"max"``.

    Raises:
        TypeError: If ``layers`` is not an integer.
        ValueError: If ``layers`` is not positive, ``dropout`` is not in [0, 1], or a name is unknown.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        layers: int = 1,
        dropout: float = 0.0,
        act: str = "relu",
        l2_norm: bool = True,
        pool: str = "mean",
    ) -> None:
        super().__init__(pool)
        self.predict = MLPHead(channels, out_channels, layers, dropout, act, l2_norm)


class MLPGraphHead(_Pooled):
    """Pooling and an MLP of equal widths with dropout before every layer, including the first one.

    Reference: the experiments of *On k-Maximum-Inner-Product Attention and the Expressive Power of GraphGPS*.

    Args:
        channels, out_channels, layers, dropout, act: As in `NodeHead`.
        pool: ``"mean"``, ``"add"`` or ``"max"``.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        layers: int = 2,
        dropout: float = 0.0,
        act: str = "relu",
        pool: str = "mean",
    ) -> None:
        super().__init__(pool)
        self.predict = Sequential(Dropout(dropout), MLPHead(channels, out_channels, layers, dropout, act))


class SANGraphHead(_Pooled):
    """Pooling and an MLP whose widths halve twice, whatever number of layers a config gives, as in GraphGPS.

    Reference: the read-out of Dwivedi et al., *Benchmarking Graph Neural Networks*, JMLR 2023, arXiv:2003.00982.

    Args:
        channels, out_channels, act: As in `NodeHead`.
        pool: ``"mean"``, ``"add"`` or ``"max"``.

    Raises:
        ValueError: If there are fewer than 4 channels.
    """

    def __init__(self, channels: int, out_channels: int, act: str = "relu", pool: str = "mean") -> None:
        super().__init__(pool)
        half, quarter = channels // 2, check_integer("channels", channels, 4) // 4
        parts: list[Module] = [Linear(channels, half), Linear(half, quarter)]
        hidden = [step for part in parts for step in (part, activation_resolver(act))]
        self.predict = Sequential(*hidden, Linear(quarter, out_channels))


class CodeGraphHead(_Pooled):
    """Five words of a function's name for ogbg-code2, with one linear map for each position.

    Reference: Hu et al., *Open Graph Benchmark*, NeurIPS 2020, arXiv:2005.00687, Section 5.3.

    Args:
        channels: Width ``C`` of the nodes.
        out_channels: Size of the vocabulary.
        pool: ``"mean"``, ``"add"`` or ``"max"``.
    """

    def __init__(self, channels: int, out_channels: int, pool: str = "mean") -> None:
        super().__init__(pool)
        self.predict = Sequential(Linear(channels, 5 * out_channels), Unflatten(1, (5, out_channels)))
