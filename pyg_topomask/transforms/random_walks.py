"""Random walks, sampled once before training or again in each epoch."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.ops.csr import drop_zeros, edges_of_relation, relation_of, sym_normalize, to_csr
from pyg_topomask.ops.hashing import draw_seeds, hash_graphs
from pyg_topomask.ops.walks import compiled
from pyg_topomask.ops.walks.sample import Walks, corrected_diagonal, start_stream, walk_tables
from pyg_topomask.ops.walks.settings import Lengths, WalkSettings, diagonal_of, table_name, walk_settings
from pyg_topomask.ops.walks.transition import check_transition, step_table
from pyg_topomask.ops.walks.walkers import WalkGraph, walk_graph
from pyg_topomask.transforms.graph_input import check_name, num_nodes_of
from pyg_topomask.transforms.joined import JoinedEdges, JoinedTransform, join_edges, split_table


class AddRandomWalks(JoinedTransform):
    r"""Add the random walks of every node to a graph, for graph random features and random-walk kernels.

    The load uses the symmetrically normalised adjacency :math:`W = D^{-1/2} A D^{-1/2}` of ``edge_weight``, so that a
    mask is a power series in a matrix of norm at most 1. Walkers do not use edges of weight 0.

    Adds to the ``Data``, following PyG's collation rules (a batch of graphs with walks is a graph with walks):

    - ``walk_index`` ``[2, nnz]``, int32: start and visited node, sorted by (start, visited, length)
    - ``walk_length`` ``[nnz]``, int8 (int16 from 128 hops): number of hops
    - ``walk_load``, ``walk_count`` ``[nnz]``, float: importance-weighted and plain mean number of visits
    - ``walk_key_index``, …: the second table, if ``diagonal="independent"``
    - ``walk_table1_index``, ``walk_table1_key_index``, …, and so on: further independent tables, if ``num_tables > 1``
    - ``walk_diagonal`` ``[N, (K + 1)(K + 2) / 2]``, float: coefficients of the mask's diagonal in products of ``f``, if
      ``diagonal="corrected"``
    - ``walk_size``: the number of nodes that the walks were sampled for. PyG's samplers and ``subgraph`` copy tables
      unchanged, so masks compare this number with the graph. Add the transform after sampling.

    Reference: Reid et al. 2024, arXiv:2410.03462, Section 3; Choromanski et al., ICML 2022, arXiv:2107.07999,
    Section 4.2.

    Args:
        num_walks: Walks from each node. The default, 16, gives about 20 entries per row of the mask on sparse graphs.
        max_length: Longest walk in hops; stopping there causes no bias. 4 by default: with the default ``halt_prob``,
            one walk in 32 would be longer.
        halt_prob: Probability of halting before each step, in ``[0, 1)``. 0.5 by default, as in several experiments of
            Reid et al.; then a walk makes one hop on average, so tables are short.
        scheme: How the walkers of one start depend on each other: ``"iid"`` (independent), ``"antithetic"`` or
            ``"repelling"``. The latter two have a smaller variance, see `pyg_topomask.ops.sample_walks`.
        independent: Sample a second table for the keys. Without it, the diagonal of the estimated mask is too large by
            the variance of its features.
        seed: The walks depend only on (seed, epoch, graph), for any number of loader workers. With :obj:`None`, every
            call draws from torch's default generator.
        name: Prefix of the attributes, so that one graph can have walks of two settings. It does not end in ``_key`` or
            ``_table1``, as the names of further tables do.
        transition: Name of an edge attribute ``[E]``, ≥ 0. Among the edges of a node, the probability of a step is
            proportional to it, as in dynamic GKAT (:func:`~pyg_topomask.nn.redraw_walks` sets it). Steps are uniform by
            default, and on a graph without the attribute, as in the first epoch of dynamic GKAT; a graph that has one
            of nearly that name is refused.
        diagonal: ``"independent"`` is ``independent=True``. ``"corrected"`` samples one table, with coefficients of the
            diagonal that omit products of coupled walkers, so that the diagonal is unbiased (repelling walkers then
            form two blocks). ``"shared"`` is ``independent=False``. With :obj:`None`, ``independent`` decides.
        importance: Whether loads are weighted. If false, each visit has load 1 (Eq. 21 of Reid et al., an ablation).
        num_tables: Number of independent sets of walks, so that layers or heads can have their own, as in the paper's
            experiments; the masks choose by ``table=``. One set by default, because memory and time grow with it.
        lengths: Distribution of the length of a walk, in place of ``halt_prob``: the probabilities of 0, 1, …
            ``max_length`` hops, which add up to 1, or ``"uniform"``: all are equally likely. A load is then divided by
            the probability of at least so many hops (Choromanski et al., *GRFs++*, 2025, arXiv:2510.07716).
        edge_type: Number of the relation whose edges are walked on, in the attribute ``edge_type [E]`` that
            ``HeteroData.to_homogeneous()`` adds, or several, such as a relation and its reverse; all edges if
            :obj:`None`. Give each relation a ``name`` of its own.

    Raises:
        ValueError: If a setting or the graph is out of range, or ``transition`` is given to repelling walkers or is
            nearly the name of an attribute.
        TypeError: If the graph is a ``HeteroData``, its edges are not integers, or a count or seed is not an integer.
    """

    adds = (
        *(f"{{name}}_{part}" for part in ("index", "length", "load", "count", "diagonal", "size")),
        "{name}_key_*",
        "{name}_table*",
    )

    def __init__(
        self,
        num_walks: int = 16,
        max_length: int = 4,
        halt_prob: float = 0.5,
        scheme: str = "iid",
        independent: bool = True,
        seed: int | None = None,
        name: str = "walk",
        transition: str | None = None,
        diagonal: str | None = None,
        importance: bool = True,
        num_tables: int = 1,
        lengths: Lengths = None,
        edge_type: int | Sequence[int] | None = None,
    ) -> None:
        seed = None if seed is None else check_integer("seed", seed)
        check_name(name)
        if re.search(r"_(key|table\d+)$", name):
            raise ValueError(f"'name' must not end in '_key' or '_table1', as further tables do (got {name!r})")
        relation_of(edge_type)
        self.num_walks, self.max_length, self.halt_prob = num_walks, max_length, halt_prob
        self.scheme, self.lengths = scheme, lengths
        self.independent, self.seed, self.name = independent, seed, name
        self.transition, self.diagonal, self.importance = transition, diagonal, importance
        self.num_tables, self.edge_type = check_integer("num_tables", num_tables, 1), edge_type
        self.num_walks, self.max_length = self.settings[:2]  # checked
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # shared with persistent workers

    @property
    def settings(self) -> WalkSettings:
        """The checked settings of the walkers. Raises TypeError and ValueError."""
        corrected = self._diagonal == "corrected"
        size = (self.num_walks + 1) // 2 if self.scheme == "repelling" and corrected else None
        halt_prob = 0.0 if self.lengths is not None and self.halt_prob == 0.5 else self.halt_prob  # 0.5 by default
        halting = halt_prob, self.scheme, size, self.lengths, self.importance, self.transition is not None
        walkers = walk_settings(self.num_walks, self.max_length, *halting)
        if walkers.max_length >= 2**15:
            raise ValueError(f"'max_length' must be below {2**15}, for 16-bit tables (got {self.max_length})")
        if corrected and walkers.num_blocks == 1:
            raise ValueError(
                f"diagonal='corrected' needs walkers of a start that are independent of each other (got num_walks="
                f"{self.num_walks} and scheme={self.scheme!r}); use more walks, or diagonal='independent'"
            )
        return walkers

    @property
    def _diagonal(self) -> str:
        return diagonal_of(self.independent, self.diagonal)

    def set_epoch(self, epoch: int) -> None:
        """Make new draws from now on. Call it before each epoch; persistent loader workers see the change as well."""
        self._epoch.fill_(epoch)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._epoch.share_memory_()  # the memory of a copy is not shared yet

    def of_group(self, graphs: Sequence[Data]) -> list[dict[str, Any]]:
        relation, settings = relation_of(self.edge_type), self.settings
        graphs = [with_relation(graph, relation) for graph in graphs]
        joined = join_edges(graphs)
        ptr, draws = joined.ptr, draw_seeds(len(graphs)) if self.seed is None else (self.seed, int(self._epoch))
        weight = None if self.transition is None else _transitions(graphs, self.transition, joined.edge_index.device)
        prepared = compiled.normalized_graph(*joined, draws, settings) if weight is None else None
        graph, stream = prepared or _normalized_graph(joined, draws, settings, weight)
        nodes = torch.arange(stream.numel(), device=stream.device)
        columns, added = self.columns(graph, nodes, stream, joined), []
        for position, (given, size) in enumerate(zip(graphs, ptr.diff().tolist())):
            own: dict[str, Any] = {key: values[position] for key, values in columns.items()}
            added.append(dict.fromkeys(self._earlier(given)) | own | {f"{self.name}_size": size})
        return added

    def columns(self, graph: WalkGraph, nodes: Tensor, stream: Tensor, joined: JoinedEdges) -> dict[str, list[Tensor]]:
        """The attributes of each graph for walks from consecutive nodes, in all tables.

        Args:
            graph: The disjoint union of the graphs.
            nodes: Nodes to start from, shape ``[S]``.
            stream: Hash of each start (`pyg_topomask.ops.walks.sample.start_stream`), shape ``[S]``.
            joined: The graphs' ranges of nodes; if there is one graph, only their number is used.
        """
        per_set = 2 if self._diagonal == "independent" else 1
        corrected, num_tables = self._diagonal == "corrected", per_set * self.num_tables
        tables = walk_tables(graph, nodes, stream, num_tables, self.settings, own=corrected)
        columns: dict[str, list[Tensor]] = {}
        for number in range(self.num_tables):
            part = tables[number * per_set : (number + 1) * per_set]
            columns |= self._set_of_walks(part, table_name(self.name, number), joined)
        return columns

    def _earlier(self, graph: Data) -> list[str]:
        """Attributes of earlier walks, which would be mistaken for parts of these walks if they stayed."""
        pattern = re.compile(rf"{self.name}(_table\d+)?(_key)?_(index|length|load|count|diagonal)")
        return [key for key in graph.to_dict() if pattern.fullmatch(key)]

    def _set_of_walks(self, tables: list[Walks], name: str, joined: JoinedEdges) -> dict[str, list[Tensor]]:
        """The attributes of each graph with that prefix, from the tables of the queries and, if apart, the keys."""
        ptr, columns = joined.ptr, dict[str, list[Tensor]]()
        for prefix, walks in zip((name, f"{name}_key"), tables):
            length = walks.length.to(torch.int8 if self.max_length < 128 else torch.int16)
            found = split_table(joined, walks.index, length, walks.load, walks.count)
            columns |= {f"{prefix}_{part}": rows for part, rows in zip(("index", "length", "load", "count"), found)}
        if self._diagonal == "corrected":
            diagonal = corrected_diagonal(tables[0], self.settings)
            sizes = ptr.diff().tolist() if ptr.numel() > 2 else [diagonal.size(0)]
            columns[f"{name}_diagonal"] = [part.clone() for part in diagonal.split(sizes)]
        return columns


def with_relation(graph: Data, relation: tuple[int, ...]) -> Data:
    """The graph with the edges of a relation alone, if there is one. Raises TypeError and ValueError."""
    if not relation:
        return graph
    num_nodes = num_nodes_of(graph)
    if not isinstance(graph.get("edge_type"), Tensor) or graph.edge_index is None:
        raise ValueError("the graph needs 'edge_index' and 'edge_type', as from HeteroData.to_homogeneous()")
    chosen: Data = graph.edge_subgraph(edges_of_relation(graph.edge_type, relation, graph.edge_index.size(1)))
    chosen.num_nodes = num_nodes
    return chosen


def _normalized_graph(
    joined: JoinedEdges, draws: Tensor | tuple[int, int], settings: WalkSettings, transition: Tensor | None
) -> tuple[WalkGraph, Tensor]:
    """`compiled.normalized_graph` in plain torch, with steps that may follow the edges' ``transition``; weights are
    normalised in float64 and rounded to torch's default dtype.
    """
    edge_index, weight, ptr = joined
    csr = to_csr(edge_index, int(ptr[-1]), weight)
    csr = sym_normalize(drop_zeros(csr._replace(weight=csr.weight.double())))
    csr = csr._replace(weight=csr.weight.to(torch.get_default_dtype()))
    seeds = draws if isinstance(draws, Tensor) else hash_graphs(csr, ptr, *draws)
    steps = None if transition is None else step_table(csr, edge_index, transition)
    graph_of_node = torch.repeat_interleave(ptr.diff())
    local = torch.arange(csr.num_nodes, device=ptr.device) - ptr[graph_of_node]
    return walk_graph(csr, settings, steps), start_stream(local, seeds.to(ptr.device)[graph_of_node])


def _transitions(graphs: Sequence[Data], name: str, device: torch.device) -> Tensor | None:
    """The edge attribute that steps follow, ``[E]``, on a device; one on graphs without it, None if all are.

    Raises:
        ValueError: If it is not one floating-point number per edge, or a graph lacks it but has nearly that name.
    """
    for graph in graphs:
        known = (key for key, x in graph.to_dict().items() if getattr(x, "shape", ()) == (graph.num_edges,))
        near = [] if name in graph else get_close_matches(name, known, 1, 0.8)
        if near:
            raise ValueError(f"the graph has no {name!r} for 'transition': did you mean {near[0]!r}?")
    if not any(name in graph for graph in graphs):
        return None
    given = [graph[name] if name in graph else torch.ones(graph.num_edges) for graph in graphs]
    for graph, transition in zip(graphs, given):
        check_transition(transition, graph.num_edges)
    return torch.cat([transition.to(device) for transition in given])
