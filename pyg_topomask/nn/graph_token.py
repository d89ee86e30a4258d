"""One extra node per graph that attends to all others, and from which the graph can be predicted."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.init import normal_
from torch_geometric.data import Data

from pyg_topomask.nn.graph_attributes import OF_TOKENS, PlannedGraph, with_attributes
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.operators import BorderedOperator
from pyg_topomask.operators.bordered import with_tokens
from pyg_topomask.ops.attention.full_softmax import all_pairs
from pyg_topomask.ops.attention.mask import AttentionMask
from pyg_topomask.ops.segment import batch_of_rows

_BATCH, _EDGES, _COUNT = OF_TOKENS


class GraphToken(Resettable):
    r"""Puts a learned node without edges in front of each graph's nodes: a graph token.

    Every attention treats it like any other node. A mask has ones in its row and column
    (:class:`~pyg_topomask.operators.BorderedOperator`), and a bias of node pairs has one learned number per head for
    all pairs that contain it. Message passing does not reach it. (GraphGPS inserts the nodes without renumbering
    ``edge_index``, so that its edges join wrong nodes.)

    Reference: Ying et al., *Do Transformers Really Perform Badly for Graph Representation?* (Graphormer), NeurIPS 2021,
    arXiv:2106.05234, Section 3.2; Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021, arXiv:2010.11929,
    Section 3.1.

    Args:
        channels: Width ``C`` of the nodes.
        heads: Heads ``H`` of the attention's bias; :obj:`None` if it has none.
    """

    def __init__(self, channels: int, heads: int | None = None) -> None:
        super().__init__()
        self.node = Parameter(torch.empty(1, channels))
        self.pair = None if heads is None else Parameter(torch.empty(1, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters again."""
        for vector in self.parameters():
            normal_(vector, std=0.02)

    def insert(
        self, x: Tensor, graph: Data, num_graphs: int, bias: Tensor | None = None
    ) -> tuple[Tensor, Data, Tensor | None, Tensor, Tensor]:
        """Insert the tokens among the nodes and the biases.

        Args:
            x: Nodes, shape ``[N, C]``.
            graph: The ``Data`` or ``Batch``; it is not changed.
            num_graphs: Number of graphs ``B``.
            bias: Bias of each pair, shape ``[P, H]``, or :obj:`None`.

        Returns:
            The ``N + B`` nodes and tokens ``[N + B, C]``; a copy of the graph with their ``edge_index`` and ``batch``;
            the bias of their pairs, or :obj:`None`; the position of each node among them, ``[N]``; and that of each
            token, ``[B]``.
        """
        batch = batch_of_rows(graph.get("batch"), x).long()
        node, token, wider_batch = with_tokens(batch, num_graphs)
        total = wider_batch.numel()
        out = self.node.to(x.dtype).expand(total, -1).index_copy(0, node, x)
        tokenless = {_BATCH: batch, _EDGES: graph.edge_index, _COUNT: num_graphs}
        edges = node[graph.edge_index]
        wider = with_attributes(graph, batch=wider_batch, edge_index=edges, num_nodes=total, **tokenless)
        if bias is not None and self.pair is not None:
            query, key = all_pairs(wider_batch)
            real = torch.ones(total, dtype=torch.bool, device=x.device).index_fill(0, token, False)
            of_nodes = (real[query] & real[key]).nonzero().squeeze(1)
            bias = self.pair.to(bias.dtype).expand(query.numel(), -1).index_copy(0, of_nodes, bias)
        return out, wider, bias, node, token


def among_tokens(rows: Tensor, position: Tensor, total: int) -> Tensor:
    """Rows of the nodes at their ``position`` s among ``total`` nodes and tokens; zeros for the tokens."""
    return rows.new_zeros(total, *rows.shape[1:]).index_copy(0, position, rows)


def mask_of_graph(mask: Module, graph: Data | None) -> AttentionMask:
    """The operator that a mask module builds from a graph; with tokens, that of the graph without them, bordered."""
    if not isinstance(graph, Data | PlannedGraph) or _BATCH not in graph:
        return mask(graph)
    batch = graph[_BATCH]
    tokenless = with_attributes(graph, batch=batch, edge_index=graph[_EDGES], num_nodes=batch.numel())
    return BorderedOperator(mask(tokenless), batch, graph[_COUNT])


def check_tokens(layers: Iterable[Any], predicts: bool, bias: str | None = None) -> None:
    """Refuse layers that are wrong on graphs with tokens.

    Args:
        layers: The layers.
        predicts: Whether the prediction is read from the tokens.
        bias: Name of the bias of node pairs that `GraphToken` extends; none if :obj:`None`.

    Raises:
        ValueError: If no attention could tell a token that predicts about its graph, or an attention reads tables that
            number the nodes without tokens, or another bias.
    """
    attentions = [attn for layer in layers for attn in layer.attentions]
    if predicts and not attentions:
        raise ValueError("a graph token has no edges, and no layer has attention: it would see nothing of its graph")
    for attn in attentions:
        if not getattr(attn, "accepts_tokens", not getattr(attn, "requires", ())):
            tables = ", ".join(map(repr, attn.requires or ["edge_index"]))
            raise ValueError(
                f"{type(attn).__name__} reads {tables}, which are for the nodes without graph tokens; pool by 'mean' "
                "instead"
            )
        name = getattr(attn, "attn_bias", None)
        if isinstance(name, str) and name != bias:
            raise ValueError(
                f"{type(attn).__name__} reads the bias {name!r}, which lacks the pairs of graph tokens; use "
                "GPSNetwork(bias_encoder=…, graph_token=GraphToken(channels, heads)) with attn_bias='attn_bias', or "
                "pool by 'mean' instead"
            )
