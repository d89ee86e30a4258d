"""Reading a module's inputs from a graph, with messages that say what to add."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.utils import unbatch_edge_index

from pyg_topomask import plan as plans
from pyg_topomask.checks import holds, readable, warn_once
from pyg_topomask.nn.norm import accepts
from pyg_topomask.ops.csr import edge_tensors, is_sparse, stored_edges
from pyg_topomask.ops.memo import once_per_batch
from pyg_topomask.ops.native.loader import is_transformed
from pyg_topomask.ops.segment import segments
from pyg_topomask.transforms.base import apply_all
from pyg_topomask.transforms.finding import text_of
from pyg_topomask.typing import Adj

OF_EDGES = ("edge_weight", "edge_type")
"""Arguments of convolutions that belong to the graph as well: walks and masks read them there."""

OF_TOKENS = ("tokenless_batch", "tokenless_edges", "token_graphs")
"""Attributes of a graph with tokens: batch and edges of the graph without them, and the number of tokens."""

_MOST_ENDS = 2**23  # ends of edges that are compared with a stored table; more would take hundreds of MiB

EDGE_MASK = "explained_edges"
"""Attribute with the weights that an explainer gives to the edges."""


class PlannedGraph(dict[str, Any]):
    """What a plan knows of a graph, read as from a ``Data``.

    Args:
        values: The attributes.
        num_nodes: ``N``.
    """

    def __init__(self, values: Mapping[str, Any], num_nodes: int) -> None:
        super().__init__(values)
        self.num_nodes = num_nodes

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"a plan keeps no {name!r} of its graph: name it in 'requires' of what reads it")

    def __missing__(self, name: str) -> Any:
        raise ValueError(
            f"the plan keeps no {name!r}: it is of another module, or 'requires' of what reads it does not name it"
        )

    def to_dict(self) -> dict[str, Any]:
        """The attributes."""
        return dict(self)


def count_nodes(graph: Any) -> int:
    """Number of nodes; a number that differs between batches stays a size in compiled code."""
    return graph.num_nodes if isinstance(graph, PlannedGraph) else int(graph.num_nodes)


def batch_of(graph: Data, *others: Tensor) -> Tensor:
    """Graph of each node, ``[N]``, on the device of the graph; of ``others``, if it has no tensor."""
    batch, values = graph.get("batch"), (*graph.to_dict().values(), *others)
    device = next((value.device for value in values if isinstance(value, Tensor)), None)
    return torch.zeros(count_nodes(graph), dtype=torch.int64, device=device) if batch is None else batch


def check_homogeneous(graph: Any) -> None:
    """Refuse a ``HeteroData``, and a tensor in the place of a graph. Raises TypeError."""
    if isinstance(graph, Tensor):
        raise TypeError(
            f"'graph' must be a Data or Batch (got a tensor of shape {list(graph.shape)}); its edges are read from it, "
            "as in attn(x, graph=data)"
        )
    if isinstance(graph, HeteroData):
        raise TypeError(
            "attentions, masks and models take a homogeneous graph (got HeteroData): call to_homogeneous(), and give "
            "each relation a mask of its own by edge_type="
        )


def check_planned(graph: Any) -> None:
    """Refuse a padded batch in a run without its plan, which would count dummy graphs. Raises ValueError."""
    if not plans.planned() and graph is not None and graph.get("real_graphs") is not None:
        raise ValueError("the batch is padded by Buckets: run it with its plan, model(…, plan=batch.plan)")


def requirements_of(*parts: Module | None) -> tuple[str, ...]:
    """Attributes that these modules need on a graph, without repetition; a module without ``requires`` needs none."""
    names = (name for part in parts for name in getattr(part, "requires", ()))
    return tuple(dict.fromkeys(names))


def one_line(value: Any) -> str:
    """The ``repr`` of a value in one line."""
    return " ".join(repr(value).split())


def stated_num_nodes(graph: Data) -> int | None:
    """Number of nodes of a graph; :obj:`None` if PyG would guess it from the edges, which leave out isolated nodes.

    It is also :obj:`None` while a model is compiled, because PyG's lookup cannot be traced.
    """
    if torch.compiler.is_compiling():
        return None
    stated = any(graph.get(name) is not None for name in ("num_nodes", "x", "pos", "batch"))
    return int(graph.num_nodes) if stated else None


def check_rows(graph: Data, num_rows: int) -> None:
    """Refuse a graph that states another number of nodes than ``x`` has rows. Raises ValueError."""
    if stated_num_nodes(graph) not in (None, num_rows):
        raise ValueError(
            f"the graph has {graph.num_nodes} nodes, but 'x' has {num_rows} rows; if its attributes 'x', 'pos' or "
            "'batch' are not of its nodes, set graph.num_nodes"
        )


def transform_text(reader: Module) -> str:
    """The transform that adds what a module requires, with the module's settings; empty if none is known."""
    return text_of(requirements_of(reader), getattr(reader, "transform_settings", {}))


def read_attributes(reader: Module, graph: Any, remedy: str = "") -> list[Tensor]:
    """The attributes of a graph that the module ``reader`` requires, in order.

    Args:
        reader: A module with ``requires``.
        graph: The graph or batch.
        remedy: What to add if one is missing; by default, the transform that adds it.

    Raises:
        TypeError: If ``graph`` is not a homogeneous graph.
        ValueError: If there is no graph, or an attribute is missing; the message says what to add.
    """
    name, names = type(reader).__name__, requirements_of(reader)
    if isinstance(graph, PlannedGraph):  # it was checked when the plan was made
        _refuse_edge_mask(reader, graph, "a plan, which was made before")
        return [graph[attribute] for attribute in names]
    if graph is None:
        text = transform_text(reader)
        prepared = f", after the transform {text}" if text else ""
        raise ValueError(f"{name} needs the graph: give it a Data or Batch{prepared}, as in attn(x, graph=data)")
    check_homogeneous(graph)
    if not isinstance(graph, Data):
        raise TypeError(f"{name} takes a Data or Batch (got {type(graph).__name__})")
    missing = [attribute for attribute in names if graph.get(attribute) is None]
    if missing:
        text = transform_text(reader)
        stale = " (a data set that was processed before it had this pre_transform needs force_reload=True once)"
        remedy = remedy or (f"the transform {text}{stale}" if text else "them to the data")
        raise ValueError(f"{name} needs {', '.join(map(repr, missing))} on the graph; add {remedy}")
    if names:
        _refuse_edge_mask(reader, graph, f"{names[0]!r}, which was made from the edges before")
    return [graph[attribute] for attribute in names]


def read_edges(reader: Module, graph: Any) -> Tensor:
    """The edges of a graph, shape ``[2, E]``, from its ``edge_index`` or ``adj_t``.

    Raises:
        TypeError: If ``graph`` is not a homogeneous graph.
        ValueError: If there is no graph, or it has neither attribute.
    """
    read_attributes(reader, graph)
    _refuse_edge_mask(reader, graph, "the edges without a weight for each")
    adj = stored_edges(graph)
    if adj is None:
        raise ValueError(f"{type(reader).__name__} needs the graph's edges, 'edge_index' or 'adj_t'")
    return edge_tensors(adj)[0]


def _refuse_edge_mask(reader: Module, graph: Data, what: str) -> None:
    if graph.get(EDGE_MASK) is not None:
        raise ValueError(
            f"{type(reader).__name__} reads {what}, so an explainer's mask of edges has no gradient there. Use "
            "AttentionExplainer, or PowerSeriesMask without a plan, or leave the attention out by attn.probe.explain = "
            "False"
        )


def read_edge_attr(graph: Data, edge_dim: int, num_edges: int, dtype: torch.dtype) -> Tensor:
    """The edge features of a graph, shape ``[E, edge_dim]``; the graph may store width 1 as ``[E]``.

    Raises:
        ValueError: If the graph has none, or they have another shape.
    """
    edge_attr = graph.get("edge_attr")
    if edge_attr is None:
        raise ValueError(f"edge_dim={edge_dim}, but the graph has no 'edge_attr'")
    edge_attr = edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr
    if edge_attr.shape != (num_edges, edge_dim):
        raise ValueError(
            f"'edge_attr' must have shape [{num_edges}, {edge_dim}], edges × 'edge_dim' (got {list(edge_attr.shape)})"
        )
    return edge_attr.to(dtype)


def with_attributes(graph: Any, **attributes: Any) -> Any:
    """A graph with further or other attributes; the given one is not changed."""
    if isinstance(graph, PlannedGraph):
        nodes = attributes.pop("num_nodes", graph.num_nodes)
        return PlannedGraph({**graph, **attributes}, nodes)
    changed = Data()  # torch.compile can trace neither copy(graph) nor arguments of Data
    for name in graph.keys():  # noqa: SIM118
        changed[name] = graph[name]
    for name, value in attributes.items():
        changed[name] = value
    return changed


def weight_of_edges(graph: Data | None, edge_index: Adj, dtype: torch.dtype) -> Tensor | None:
    """The graph's ``edge_weight`` for convolutions along ``edge_index``, shape ``[E]``; :obj:`None` without weights.

    It is also :obj:`None` if ``edge_index`` is a sparse ``adj_t``, whose values convolutions read themselves.

    Raises:
        ValueError: If there is not one weight for each edge.
    """
    weight = None if graph is None or is_sparse(edge_index) else graph.get("edge_weight")
    if weight is None:
        return None
    if weight.numel() != edge_index.size(1):
        raise ValueError(
            f"graph.edge_weight has {weight.numel()} weights, but 'edge_index' has {edge_index.size(1)} edges: give "
            "the model the graph's own edges, or their weights by edge_weight="
        )
    return weight.view(-1).to(dtype)


def with_weight(conv: Module, given: Mapping[str, Any], weight: Tensor | None, edge_index: Adj) -> dict[str, Any]:
    """Arguments of a convolution with the edges' weights; a warning, once, if it does not take them.

    Raises:
        TypeError: If it has several relations and is not given the relations of the edges.
    """
    typed = getattr(conv, "num_relations", 1) > 1 and accepts(conv, "edge_type") and not is_sparse(edge_index)
    if typed and given.get("edge_type") is None:
        raise TypeError(f"{type(conv).__name__} needs 'edge_type', the relation of each edge: call with edge_type=")
    if weight is not None and accepts(conv, "edge_weight"):
        return {**given, "edge_weight": weight}
    if weight is not None and not torch.compiler.is_compiling():
        name = type(conv).__name__
        warn_once(
            f"{name} without edge_weight",
            f"{name} takes no 'edge_weight': the weights of the graph's edges act on walks and masks alone",
        )
    return dict(given)


def graph_of(
    edge_index: Adj,
    num_nodes: int,
    batch: Tensor | None,
    transform: Callable[[Data], Data] | None,
    conv_kwargs: Mapping[str, Any],
) -> Data:
    """The graph of a model that is called without one: its edges, and what ``transform`` adds to each graph.

    The edges have the `OF_EDGES` among the arguments of the convolutions.
    """
    of_edges = {name: conv_kwargs[name] for name in OF_EDGES if conv_kwargs.get(name) is not None}
    edges = edge_index
    if transform is not None or is_sparse(edge_index):
        edges, weight = edge_tensors(edge_index)
        of_edges |= {} if weight is None else {"edge_weight": weight}
    if transform is None:
        return with_attributes(Data(), edge_index=edges, num_nodes=num_nodes, **of_edges)
    batch = edges.new_zeros(num_nodes) if batch is None else batch
    sizes = [end - begin for begin, end in pairwise(segments(batch).ptr)] or [0]
    order = batch[edges[0]].argsort(stable=True)
    parts = unbatch_edge_index(edges[:, order], batch, len(sizes))
    graphs = [Data(edge_index=part, num_nodes=size) for part, size in zip(parts, sizes)]
    for name, value in of_edges.items():
        for graph, own in zip(graphs, value[order].split([part.size(1) for part in parts])):
            graph[name] = own
    return Batch.from_data_list(apply_all([transform], graphs))


def check_table(reader: Module, graph: Data, size: int | Tensor, what: str, *pairs: Tensor) -> None:
    """Refuse a table that was drawn for a graph of another size, such as the full graph of a sampled subgraph.

    Warn, once, if few neighbours in ``pairs``, the index of the table and perhaps the hops of each pair, are joined by
    edges, as after a change of the nodes' order. Nothing on CUDA waits for this.

    Raises:
        ValueError: If the sizes differ. On CUDA, a device-side assertion fails instead, without synchronisation.
    """
    if plans.reading():
        return
    size, ptr = size if isinstance(size, Tensor) else torch.tensor(size, device="cpu"), graph.get("ptr")
    total = size.sum()
    same = total == graph.num_nodes  # Batch.subgraph leaves ptr as it was
    if size.dim() == 1 and ptr is not None:
        same = (same & (size == ptr.diff())).all()
    if readable(same) and bool(same):
        edges = graph.get("edge_index")
        if pairs and _can_compare(edges) and _has_other_neighbours(*pairs, edges, count_nodes(graph)):
            warn_once(
                f"{type(reader).__name__}: other neighbours",
                f"few neighbours in the {what} on this graph are joined by its edges: did its nodes get another order "
                f"since, as by subgraph(), or its edges change? Add {transform_text(reader)} after that",
            )
        return
    remedy = transform_text(reader) if readable(same) else "the transform"
    message = (
        f"the {what} on this graph were drawn for {{}} nodes, but it has {graph.num_nodes}: samplers and subgraph() "
        f"copy them unchanged. Add {remedy} after sampling"
    )
    if not holds(same, message.format("another number of")):
        raise ValueError(message.format(int(total)))


def _can_compare(edges: Any) -> bool:
    """Whether ``edge_index`` can be compared with a table, without a wait for CUDA and in little memory."""
    plain = isinstance(edges, Tensor) and not is_sparse(edges) and not is_transformed()
    return plain and readable(edges) and edges.numel() <= _MOST_ENDS


@once_per_batch
def _has_other_neighbours(*given: Any) -> bool:
    """Whether few of 16 pairs of neighbours in a table are joined by edges of the graph, in either direction.

    Args:
        *given: The table's index, ``[2, P]``; perhaps the hops of its pairs, ``[P]``; ``edge_index``; number of nodes.
    """
    *tables, num_nodes = given
    index, *hops, edge_index = (table.numpy() for table in tables)
    every = index.shape[1] // 4096 + 1
    pairs = index[:, ::every]
    pairs = pairs[:, hops[0][::every] == 1 if hops else pairs[0] != pairs[1]]
    pairs = pairs[:, :: pairs.shape[1] // 16 + 1]
    ends = (x.astype(np.int64, copy=False) for x in (pairs, edge_index))
    pair, edge = (np.minimum(*x) * num_nodes + np.maximum(*x) for x in ends)
    return bool(4 * np.isin(pair, edge[np.isin(edge, pair)]).sum() < len(pair))
