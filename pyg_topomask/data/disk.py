"""A graph in a folder: compressed rows of edges, and arrays of nodes and edges, mapped into memory.

The folder holds one raw file for each array and ``graph.json``, which describes them. Nothing in it is executed. All
processes of a machine that open the folder share its pages, so that none holds the graph itself.
"""

import hashlib
import itertools
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from pyg_topomask.cache import building
from pyg_topomask.checks import check_choice
from pyg_topomask.ops.csr import check_edges
from pyg_topomask.transforms.graph_input import is_table, with_edge_index

HEADER = "graph.json"
_FORMAT = 1
_NAMES = "int64 int32 int16 int8 uint8 bool float64 float32 float16 bfloat16"
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split()}
ROWS_TOGETHER, _KEYS_TOGETHER = 2**20, 2**25
"""Rows, and edges in about these numbers, that `save_edges` sorts at a time."""


class DiskGraph(FeatureStore, GraphStore):
    """A graph in a folder that `save_graph` or `save_edges` made, as a PyG feature store and graph store.

    Opening reads the header only; arrays are mapped, and `verify` reads them. A copy for another process is the name of
    the folder.

    Args:
        folder: The folder.

    Attributes:
        arrays: The arrays by name: ``indptr [N + 1]`` and ``index [E]`` (the neighbours ``j`` of node ``i`` over its
            edges ``i → j`` are ``index[indptr[i] : indptr[i + 1]]``, ascending), and further ones of nodes or edges.

    Raises:
        FileNotFoundError: If the folder has no header or lacks a file.
        ValueError: If the header is damaged, a file has another size than it says, or the rows do not hold all edges.
    """

    @staticmethod
    def is_at(path: str | Path) -> bool:
        """Whether a folder is a graph on disk."""
        return (Path(path).expanduser() / HEADER).is_file()

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder).expanduser().resolve()
        header = _read_header(self.folder / HEADER)
        self.checksums = {name: array["crc32"] for name, array in header.items() if "crc32" in array}
        self.of_edges = [name for name, array in header.items() if array["level"] == "edge"]
        self.of_nodes = [name for name, array in header.items() if array["level"] == "node"]
        self.arrays = {name: _mapped(self.folder / f"{name}.bin", array) for name, array in header.items()}
        bounds = self.arrays["indptr"][[0, -1]].tolist()
        if bounds != [0, self.num_edges]:
            raise ValueError(
                f"the rows in {self.folder} are from edge {bounds[0]} to {bounds[1]} instead of 0 to "
                f"{self.num_edges}; make the folder again"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskGraph, (self.folder,)

    def verify(self) -> None:
        """Read all arrays once, and compare them with the checksums that were stored when they were written.

        A folder of an earlier version has none for its arrays: `with_arrays` or a new folder adds them.

        Raises:
            ValueError: If an array has changed.
        """
        for name, wanted in self.checksums.items():
            path = self.folder / f"{name}.bin"
            if _checksum_of(path) != wanted:
                raise ValueError(f"{path} is damaged: it has another checksum than when it was written; make it again")

    @property
    def num_nodes(self) -> int:
        """Number of nodes ``N``."""
        return self.arrays["indptr"].numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of edges ``E``; an undirected edge counts twice."""
        return self.arrays["index"].numel()

    def __repr__(self) -> str:
        return f"DiskGraph({str(self.folder)!r}, num_nodes={self.num_nodes}, num_edges={self.num_edges})"

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(group_name=None, attr_name=name) for name in self.of_nodes]

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        return [EdgeAttr(edge_type=None, layout=EdgeLayout.CSR, size=(self.num_nodes, self.num_nodes))]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        found = self.arrays.get(attr.attr_name)
        return found if found is None or attr.index is None else found[attr.index]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        found = self.arrays.get(attr.attr_name)
        return None if found is None else tuple(found.shape)

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        return (self.arrays["indptr"], self.arrays["index"]) if edge_attr.layout == EdgeLayout.CSR else None

    def _refuse(self, *args: Any) -> bool:
        raise TypeError("a DiskGraph is read-only; make another one with save_graph() or save_edges()")

    _put_tensor = _remove_tensor = _put_edge_index = _remove_edge_index = _refuse


def save_graph(folder: str | Path, data: Data) -> DiskGraph:
    """Write a graph to a new folder: its edges in rows, and every tensor with a row for each node or edge.

    Args:
        folder: The folder, which must not exist; it is complete or absent, even if the process is killed.
        data: The graph. Other attributes are left out, and so are tables of nodes, such as ``tree_index``.

    Raises:
        FileExistsError: If the folder exists.
        TypeError: If an array has a dtype that a folder cannot hold.
        ValueError: If an attribute has the name of the edges' files, ``index`` or ``indptr``, or an edge names a node
            that does not exist.
    """
    data, num_nodes = with_edge_index(data), int(data.num_nodes or 0)
    check_edges(data.edge_index, num_nodes, None)
    row, col = data.edge_index
    order = (row.long() * num_nodes + col).argsort(stable=True)
    arrays = {"indptr": (pointers(row, num_nodes), "graph"), "index": (narrow(col[order], num_nodes), "graph")}
    for name, value in data.to_dict().items():
        if isinstance(value, Tensor) and not is_table(name, value):
            if data.is_node_attr(name):
                arrays[name] = value, "node"
            elif data.is_edge_attr(name):
                arrays[name] = value[order], "edge"
    with _new_folder(folder) as temporary:
        header = {name: _write(temporary, name, value, level) for name, (value, level) in arrays.items()}
        _write_header(temporary, header)
    return DiskGraph(folder)


def save_edges(
    folder: str | Path,
    blocks: Iterable[Tensor],
    num_nodes: int,
    arrays: Mapping[str, Tensor | Iterable[Tensor]] | None = None,
    undirected: bool = False,
) -> DiskGraph:
    """Write a graph from a stream of edges that need not fit into memory: at most 2 GB are used.

    Edges are distributed over files of consecutive rows, and each file is sorted. Equal edges are kept once.

    Args:
        folder: The folder, which must not exist.
        blocks: Edges ``[2, n]`` at a time, int64 or int32, in any order; `read_edges` reads them from files.
        num_nodes: Number of nodes ``N``.
        arrays: Arrays ``[N, …]`` of the nodes, by name, each whole or in consecutive pieces.
        undirected: Whether each edge is written in both directions.

    Raises:
        FileExistsError: If the folder exists.
        TypeError: If an array has a dtype that a folder cannot hold, or its pieces differ.
        ValueError: If an edge names a node that does not exist, a block is not of integers ``[2, n]``, an array has
            another number of rows, or its name is not that of a file of its own.
    """
    with _new_folder(folder) as temporary:
        buckets = _Buckets(temporary, num_nodes)
        for block in blocks:
            buckets.add(torch.cat([block, block.flip(0)], 1) if undirected else block)
        with (temporary / "indptr.bin").open("wb") as begins, (temporary / "index.bin").open("wb") as index:
            begins.write(np.zeros(1, np.int64).tobytes())
            num_edges = 0
            for first, stop, keys in buckets.sorted():
                degree = torch.zeros(stop - first, dtype=torch.int64)
                for key in keys:
                    degree += (key // num_nodes - first).bincount(minlength=stop - first)
                    index.write(narrow(key % num_nodes, num_nodes).numpy().tobytes())
                begins.write((num_edges + degree.cumsum(0)).numpy().tobytes())
                num_edges += int(degree.sum())
        index_dtype = "int32" if num_nodes < 2**31 else "int64"
        header: dict[str, dict[str, Any]] = {
            name: {"dtype": dtype, "shape": [size], "level": "graph", "crc32": _checksum_of(temporary / f"{name}.bin")}
            for name, dtype, size in (("indptr", "int64", num_nodes + 1), ("index", index_dtype, num_edges))
        }
        for name, value in (arrays or {}).items():
            header[name] = _write(temporary, name, value, "node", num_nodes)
        _write_header(temporary, header)
    return DiskGraph(folder)


def with_arrays(
    folder: str | Path, graph: DiskGraph, arrays: Mapping[str, Tensor | Iterable[Tensor]], level: str = "node"
) -> DiskGraph:
    """A new folder of the same graph with new arrays of the nodes, or edges; it shares the other files, if it can.

    Arrays are whole or in consecutive pieces, as in `save_edges`. Raises FileExistsError, TypeError and ValueError as
    `save_edges` does, and ValueError if ``level`` is neither ``"node"`` nor ``"edge"``.
    """
    check_choice("level", level, ("node", "edge"))
    num_rows = graph.num_nodes if level == "node" else graph.num_edges
    header = _read_header(graph.folder / HEADER)
    with _new_folder(folder) as temporary:
        for name in header.keys() - arrays.keys():
            _link(graph.folder / f"{name}.bin", temporary / f"{name}.bin")
        header |= {name: _write(temporary, name, value, level, num_rows) for name, value in arrays.items()}
        _write_header(temporary, header)
    return DiskGraph(folder)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)


def read_edges(path: str | Path, edges_together: int = 2**22) -> Iterator[Tensor]:
    """Blocks of edges ``[2, n]`` of a file: an array ``[2, E]`` or ``[E, 2]`` in ``.npy``, or text with two columns.

    Text has one edge in a line, with columns apart by commas or blanks; lines that begin with ``#`` are skipped.

    Raises:
        ValueError: If a file ``.npy`` does not have integers in two dimensions, or a text has no two columns of them.
    """
    path = Path(path).expanduser()
    if path.suffix == ".npy":
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{path} must have integers [2, E] or [E, 2] (got {array.dtype} {list(array.shape)})")
        array = array if array.shape[0] == 2 and array.shape[1] != 2 else array.T
        for begin in range(0, array.shape[1], edges_together):
            yield torch.from_numpy(np.array(array[:, begin : begin + edges_together], np.int64))
        return
    with path.open() as file:
        while lines := list(itertools.islice(file, edges_together)):
            given = [line.replace(",", " ") for line in lines if not line.startswith("#") and line.strip()]
            if given:
                yield torch.from_numpy(np.loadtxt(given, np.int64, usecols=(0, 1), ndmin=2).T.copy())


def node_blocks(num_nodes: int, size: int) -> Iterator[Tensor]:
    """All nodes, ascending, ``size`` at a time. Only one block is in memory, unlike those of a split."""
    return (torch.arange(first, min(first + size, num_nodes)) for first in range(0, num_nodes, size))


class _Buckets:
    """Files of edges as keys ``row · N + column``, each with the edges of consecutive rows."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self.folder, self.num_nodes = folder, num_nodes
        self.firsts = range(0, max(1, num_nodes), ROWS_TOGETHER)

    def add(self, edges: Tensor) -> None:
        """Append edges ``[2, n]`` to the files of their rows."""
        if edges.dim() != 2 or edges.size(0) != 2 or edges.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"edges must be integers [2, n] (got {edges.dtype} {list(edges.shape)}); transpose [n, 2]")
        edges = edges.long()
        if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= self.num_nodes):
            low, high = (int(bound) for bound in edges.aminmax())
            raise ValueError(f"an edge names node {low if low < 0 else high}; nodes are 0 to {self.num_nodes - 1}")
        key = torch.from_numpy(np.sort((edges[0] * self.num_nodes + edges[1]).numpy()))  # ten times as fast as torch's
        begins = torch.searchsorted(key, torch.tensor(self.firsts[1:], dtype=torch.int64) * self.num_nodes)
        for first, part in zip(self.firsts, key.tensor_split(begins)):
            if part.numel():
                with (self.folder / f"edges-{first}.tmp").open("ab") as file:
                    file.write(part.numpy().tobytes())

    def sorted(self) -> Iterator[tuple[int, int, Iterator[Tensor]]]:
        """First row, row after the last, and ascending pieces of distinct keys of each file, which is then deleted."""
        for first in self.firsts:
            path = self.folder / f"edges-{first}.tmp"
            yield first, min(first + self.firsts.step, self.num_nodes), _ascending(path)
            path.unlink(missing_ok=True)


def _ascending(path: Path) -> Iterator[Tensor]:
    """Distinct keys of a file in ascending pieces; hubs may give a file many more keys than others."""
    if not path.exists():
        return
    keys = np.memmap(path, np.int64, "r")
    sample = np.sort(keys[:: max(1, keys.size // 10_000)])
    bounds = [-1, *sample[:: max(1, sample.size * _KEYS_TOGETHER // keys.size)][1:], np.iinfo(np.int64).max]
    for low, high in itertools.pairwise(bounds):
        blocks = (keys[begin : begin + _KEYS_TOGETHER] for begin in range(0, keys.size, _KEYS_TOGETHER))
        found = np.sort(np.concatenate([block[(block >= low) & (block < high)] for block in blocks]))
        yield torch.from_numpy(found).unique_consecutive()


def pointers(row: Tensor, num_rows: int) -> Tensor:
    """Where each row begins in a list of edges that is sorted by rows, ``[num_rows + 1]``."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), row.bincount(minlength=num_rows).cumsum(0)])


def narrow(index: Tensor, num_nodes: int) -> Tensor:
    """Numbers of nodes, as int32 if that suffices."""
    return index.to(torch.int32 if num_nodes < 2**31 else torch.int64)


def _new_folder(folder: str | Path) -> Any:
    folder = Path(folder).expanduser()
    if folder.exists():
        raise FileExistsError(f"{folder} exists; delete it or choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    return building(folder)


def _write(
    folder: Path, name: str, value: Tensor | Iterable[Tensor], level: str, num_rows: int | None = None
) -> dict[str, Any]:
    """Write an array, whole or in pieces, and return its description."""
    if Path(name).name != name or (level != "graph" and name in ("indptr", "index")):
        raise ValueError(f"an array can't be called {name!r}: it names a file, and 'indptr' and 'index' hold the edges")
    pieces = [value] if isinstance(value, Tensor) else value
    rows, kind, checksum = 0, None, 0
    with (folder / f"{name}.bin").open("wb") as file:
        for piece in pieces:
            piece = piece.detach().cpu().contiguous()
            if piece.dtype not in _DTYPES.values():
                raise TypeError(
                    f"'{name}' has dtype {piece.dtype}, which a folder cannot hold: use {', '.join(_DTYPES)}"
                )
            if kind not in (None, (piece.dtype, piece.shape[1:])):
                raise TypeError(f"'{name}' has pieces of {kind} and {(piece.dtype, piece.shape[1:])}")
            rows, kind = rows + piece.size(0), (piece.dtype, piece.shape[1:])
            content = piece.reshape(-1).view(torch.uint8).numpy().tobytes() if piece.numel() else b""
            file.write(content)
            checksum = zlib.crc32(content, checksum)
    if kind is None:
        raise ValueError(f"'{name}' has no pieces")
    if num_rows is not None and rows != num_rows:
        raise ValueError(f"'{name}' must have {num_rows} rows (got {rows})")
    dtype = str(kind[0]).removeprefix("torch.")
    return {"dtype": dtype, "shape": [rows, *kind[1]], "level": level, "crc32": checksum}


def _checksum_of(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while content := file.read(2**24):
            checksum = zlib.crc32(content, checksum)
    return checksum


def _checksum(arrays: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(arrays, sort_keys=True).encode()).hexdigest()


def _write_header(folder: Path, arrays: Mapping[str, Any]) -> None:
    content = {"format": _FORMAT, "arrays": arrays, "sha256": _checksum(arrays)}
    (folder / HEADER).write_text(json.dumps(content, indent=1))


def _read_header(path: Path) -> dict[str, dict[str, Any]]:
    """The description of each array, by its name."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; save_graph() and save_edges() make such folders")
    try:
        content = json.loads(path.read_text())
        arrays = content["arrays"]
        intact = content["format"] == _FORMAT and content["sha256"] == _checksum(arrays)
        intact = intact and arrays.keys() >= {"indptr", "index"} and all(map(_is_described, arrays.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise ValueError(f"{path} is damaged, or of another version; make the folder again")
    return arrays


def _is_described(array: Mapping[str, Any]) -> bool:
    sizes = [isinstance(size, int) and size >= 0 for size in array["shape"]]
    return array["dtype"] in _DTYPES and array["level"] in ("graph", "node", "edge") and bool(sizes) and all(sizes)


def _mapped(path: Path, array: Mapping[str, Any]) -> Tensor:
    """An array of a folder, mapped read-only in effect: what is written to it stays in this process."""
    dtype, shape = _DTYPES[array["dtype"]], array["shape"]
    size = math.prod(shape)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; make the folder again")
    if path.stat().st_size != size * dtype.itemsize:
        raise ValueError(f"{path} has {path.stat().st_size} bytes instead of {size * dtype.itemsize}; make it again")
    found = torch.from_file(str(path), shared=False, size=size, dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return found.view(shape)
