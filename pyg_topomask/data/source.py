"""Any large graph as rows of neighbours, from which parts are read at the cost of the part."""

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.utils.sparse import ptr2index

from pyg_topomask.data.disk import DiskGraph, pointers
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.ops.hashing import GOLDEN, mix, wrap
from pyg_topomask.ops.segment import ragged_ranges
from pyg_topomask.transforms.graph_input import is_table, select_rows, with_edge_index

Graph: TypeAlias = Data | DiskGraph | tuple[FeatureStore, GraphStore]


class MappedData(Data):
    """Arrays of a graph on disk, which is ``disk`` in place of edges. A copy for another process maps them again."""

    def __reduce__(self) -> tuple[Any, ...]:
        names = {_place(array): name for name, array in self.disk.arrays.items()}
        given = self.to_dict()
        there = {key: names[_place(x)] for key, x in given.items() if torch.is_tensor(x) and _place(x) in names}
        return _mapped_again, (there, {key: value for key, value in given.items() if key not in there})


def _place(array: Tensor) -> tuple[Any, ...]:
    return array.data_ptr(), array.shape, array.dtype


def _mapped_again(there: dict[str, str], others: dict[str, Any]) -> MappedData:
    return MappedData(**others, **{key: others["disk"].arrays[name] for key, name in there.items()})


def mapped(graph: DiskGraph) -> MappedData:
    """The arrays of nodes and edges of a graph on disk as a `Data`."""
    arrays = {name: graph.arrays[name] for name in (*graph.of_nodes, *graph.of_edges)}
    return MappedData(num_nodes=graph.num_nodes, num_edges=graph.num_edges, disk=graph, **arrays)


class GraphSource:
    """Rows of neighbours of a graph, and its attributes.

    The edges of a `Data` are sorted once. Those of a `DiskGraph`, and of stores that hold compressed rows, are read
    where they are.

    Args:
        graph: A `Data`, also one of `mapped`; a `DiskGraph`; or a pair of PyG's stores with one type of nodes and of
            edges.

    Attributes:
        indptr, index: The neighbours of node ``i`` over its edges ``i → j`` are ``index[indptr[i] : indptr[i + 1]]``.

    Raises:
        TypeError: If ``graph`` is something else, has several types of edges, or is a store of unknown size.
        ValueError: If an edge names a node that does not exist. Rows that are read where they are, are left unchecked;
            `check_rows` reads them all.
    """

    def __init__(self, graph: Graph) -> None:
        graph = mapped(graph) if isinstance(graph, DiskGraph) else graph
        if isinstance(graph, MappedData):
            graph = (graph, graph.disk)
        graph = with_edge_index(graph) if isinstance(graph, Data) else graph
        pair = graph if isinstance(graph, tuple) else (graph, graph)
        if len(pair) != 2 or not isinstance(pair[0], FeatureStore) or not isinstance(pair[1], GraphStore):
            raise TypeError(f"a graph must be a Data, a DiskGraph, or (feature store, graph store) (got {type(graph)})")
        self.graph, self.features = graph, pair[0]
        has_edges = isinstance(graph, Data) and graph.edge_index is not None  # PyG would also ask a matrix 'adj'
        edges = [EdgeAttr(None, EdgeLayout.COO)] if has_edges else pair[1].get_all_edge_attrs()
        if len(edges) != 1 or (edges[0].size is None and not isinstance(graph, Data)):
            raise TypeError(f"the graph must have one type of edges, and a store must know its size (got {edges})")
        row, col = self.indptr, self.index = pair[1].get_edge_index(edges[0])
        self._order = None
        if edges[0].layout != EdgeLayout.CSR:  # PyG would leave the order of a row to its sort
            col = ptr2index(col) if edges[0].layout == EdgeLayout.CSC else col
            size = int(graph.num_nodes or 0) if isinstance(graph, Data) else edges[0].size[0]
            check_edges(torch.stack([row, col]), size, None)
            order = (row.long() * size + col).argsort(stable=True)
            self.indptr, self.index = pointers(row, size), col[order]
            self._order = order if isinstance(graph, Data) else None

    def __reduce__(self) -> Any:
        # Mapped arrays can't be sent to another process: it opens the folder or the stores itself.
        return super().__reduce__() if isinstance(self.graph, Data) else (GraphSource, (self.graph,))

    @property
    def num_nodes(self) -> int:
        """Number of nodes ``N``."""
        return self.indptr.numel() - 1

    def check_rows(self) -> None:
        """Read all rows once, and refuse those that are not of a graph. Raises ValueError."""
        ends = self.indptr[[0, -1]].tolist()
        if ends != [0, self.index.numel()] or not bool((self.indptr[1:] >= self.indptr[:-1]).all()):
            raise ValueError(f"the rows of the graph must ascend from edge 0 to {self.index.numel()}; make it again")
        check_edges(self.index.view(1, -1).expand(2, -1), self.num_nodes, None, "index")

    def edges_from(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The edges that leave nodes ``[n]``: the position in ``nodes`` and the place in `index` of each, ``[e]``.

        Raises:
            ValueError: If a row begins or ends where there is no edge: the graph is damaged.
        """
        begin, end = self.indptr[nodes], self.indptr[nodes + 1]
        if not bool(((begin >= 0) & (begin <= end) & (end <= self.index.numel())).all()):
            raise ValueError(f"the rows of {self.graph} are damaged; make it again, or find the file by verify()")
        return ragged_ranges(begin, end - begin)

    def draw_neighbors(self, nodes: Tensor, size: int, seed: int) -> Tensor:
        """At most ``size`` neighbours of each node, drawn without replacement by the seed; all of them, ascending."""
        row, place = self.edges_from(nodes)
        order = mix(place * GOLDEN + wrap(seed)).argsort(stable=True)
        order = order[row[order].argsort(stable=True)]
        row, place = row[order], place[order]
        rank = torch.arange(row.numel()) - torch.searchsorted(row, row)
        return self.index[place[rank < size]].long().unique()

    def edges_among(self, nodes: Tensor, group: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The edges between nodes ``[n]``, each once; between nodes of the same ``group [n]`` if it is given.

        Returns:
            ``(edge_index [2, e], place [e])``: positions in ``nodes`` of both ends, and the place in `index`.
        """
        if group is None:
            row, place = self.edges_from(nodes)
            return _ends(nodes, row, self.index[place].long(), place)
        distinct, nodes = nodes.unique(return_inverse=True)  # a hub may be in every group: its row is read once
        (row, found), place = self.edges_among(distinct)
        size = distinct.numel()
        begin = pointers(row, size)
        row, edge = ragged_ranges(begin[nodes], begin.diff()[nodes])
        return _ends(nodes + group * size, row, found[edge] + group[row] * size, place[edge])

    def node_attributes(self, nodes: Tensor) -> dict[str, Any]:
        """The rows of all node attributes but tables for nodes ``[n]``, also lists and arrays of a `Data`."""
        if isinstance(self.features, Data):
            return self._rows(self.features.is_node_attr, nodes)
        found = {}
        for attr in self.features.get_all_tensor_attrs():
            attr = copy.copy(attr)
            attr.index = nodes
            attr.group_name = attr.group_name if attr.is_set("group_name") else None
            found[attr.attr_name] = self.features.get_tensor(attr)
        return found

    def edge_attributes(self, place: Tensor) -> dict[str, Any]:
        """The rows of all edge attributes for the edges at these places of `index`; stores have none."""
        data: Any = self.features
        if not isinstance(self.graph, Data) and not isinstance(data, MappedData):
            return {}
        edge = place if self._order is None else self._order[place]
        return self._rows(data.is_edge_attr, edge)

    def _rows(self, is_cut: Callable[[str], bool], rows: Tensor) -> dict[str, Any]:
        """Rows of attributes of a `Data`, without tables, such as trees, which are those of the whole graph."""
        given: Any = self.features
        return {key: select_rows(x, rows) for key, x in given if is_cut(key) and not is_table(key, x)}

    def subgraph(self, nodes: Tensor) -> Data:
        """The graph between nodes ``[n]``, in their order, with all attributes; the cost is that of their edges.

        The edges of a `Data` keep their order. Attributes of whole graphs are copied, and so are tables of nodes, which
        are still those of the whole graph.
        """
        edge_index, place = self.edges_among(nodes)
        if self._order is not None:
            order = self._order[place].argsort()
            edge_index, place = edge_index[:, order], place[order]
        made: dict[str, Any] = self.node_attributes(nodes) | self.edge_attributes(place)
        if isinstance(self.graph, Data):
            made = {key: made.get(key, value) for key, value in self.graph.to_dict().items()}
        return Data(**(made | {"edge_index": edge_index, "num_nodes": nodes.numel()}))

    def of(self, graph: Data) -> "GraphSource":
        """The same edges, with the attributes of another `Data`."""
        found, graph = copy.copy(self), with_edge_index(graph)
        found.graph, found.features = (graph, graph.disk) if "disk" in graph else graph, graph
        return found


def _ends(nodes: Tensor, row: Tensor, found: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the edges from positions ``row`` to nodes ``found`` that end in ``nodes``, as `edges_among` has them."""
    nodes, position = nodes.sort()
    at = torch.searchsorted(nodes, found).clamp_(max=max(0, nodes.numel() - 1))
    keep = nodes[at] == found
    return torch.stack([row[keep], position[at[keep]]]), place[keep]
