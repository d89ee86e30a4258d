"""Random walks of one large graph in shards of start nodes: each is a file, which any process can make alone.

A folder holds ``walks.json`` with the settings, ``graph`` with the edges and their factors, which all processes map,
and the shards. A shard is complete or absent, so that a killed command goes on where it was.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask.cache import building
from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.data.disk import DiskGraph, node_blocks, save_graph, with_arrays
from pyg_topomask.data.source import GraphSource
from pyg_topomask.ops.csr import CSR, drop_zeros, root_strengths, to_csr
from pyg_topomask.ops.hashing import draw_seeds, finish_graphs, hash_edges
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.ops.walks.sample import start_stream
from pyg_topomask.ops.walks.walkers import WalkGraph
from pyg_topomask.tensor_files import save_tensors
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.transforms.joined import JoinedEdges, join_edges

SHARDS, SHARD = "walks.json", "walks-{:05}-of-{:05}.pt"
"""Names of the files: the settings, and the walks of some start nodes."""
_ROWS_TOGETHER, _STARTS_TOGETHER = 2**18, 2**16


def prepare_shards(
    folder: str | Path, graph: Data | DiskGraph, walks: AddRandomWalks, settings: dict[str, Any]
) -> None:
    """Make a folder for the walks of one large graph, in two passes over the edges, unless it exists.

    `write_shards` makes the walks, and `pyg_topomask.loader.load_walks` reads them.

    Args:
        folder: The folder.
        graph: The graph; one on disk has distinct edges.
        walks: The walks, of edges of all types, without a ``transition``.
        settings: ``shards``, the number of shards, and what else an existing folder must have been made with, such as a
            name of the graph, which is not compared.

    Raises:
        TypeError: If ``shards`` is not an integer.
        ValueError: If there is no ``shards``, the folder was made with other settings or walks, a graph on disk has
            equal edges or edges of weight 0, or walks have an ``edge_type`` or a ``transition``.
    """
    folder = Path(folder).expanduser()
    check_integer("settings['shards']", settings.get("shards", 0), 1)
    if walks.edge_type is not None or walks.transition is not None:
        raise ValueError(f"'walks' must have no 'edge_type' and no 'transition' (got {walks})")
    arguments = {key: value for key, value in vars(walks).items() if not key.startswith("_")}
    content = json.loads(json.dumps({"settings": settings, "walks": arguments}))
    if folder.exists():
        header = folder / SHARDS
        found = json.loads(header.read_text()) if header.is_file() else {}
        if found != found | content:
            raise ValueError(f"{folder} was made with other settings or walks; delete it, or choose another folder")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with building(folder) as temporary:
        if isinstance(graph, Data):
            edge_index, weight, ptr = join_edges([graph])
            csr = drop_zeros(to_csr(edge_index, int(ptr[-1]), weight))
            edges = torch.stack([csr.row, csr.col])
            data = Data(edge_index=edges, edge_weight=csr.weight.double(), num_nodes=csr.num_nodes)
            graph = save_graph(temporary / "edges", data)
        total, root = torch.zeros(1, dtype=torch.int64), torch.empty(graph.num_nodes, dtype=torch.float64)
        for first, csr in _blocks(graph):
            total += hash_edges(csr.row + first, csr.col, graph.num_nodes).sum(0)
            root[first : first + csr.num_nodes] = root_strengths(csr)
        size = torch.tensor([graph.num_nodes])
        seed = draw_seeds(1) if walks.seed is None else finish_graphs(total, size, walks.seed, 0)
        factors = _factors(graph, root, walks)
        with_arrays(temporary / "graph", graph, {"factor": factors}, "edge")
        (temporary / SHARDS).write_text(json.dumps(content | {"seed": int(seed)}))
        shutil.rmtree(temporary / "edges", ignore_errors=True)


def _blocks(graph: DiskGraph) -> Iterator[tuple[int, CSR]]:
    """The first node and the edges of consecutive rows, counted from the first."""
    source = GraphSource(graph)
    for nodes in node_blocks(graph.num_nodes, _ROWS_TOGETHER):
        row, place = source.edges_from(nodes)
        weight = graph.arrays["edge_weight"][place] if "edge_weight" in graph.of_edges else torch.ones(len(place))
        csr = CSR(Pattern(row, source.index[place], len(nodes), graph.num_nodes), weight.double())
        if bool(((csr.col.diff() <= 0) & (row.diff() == 0)).any()) or bool((csr.weight == 0).any()):
            raise ValueError(f"{graph.folder} has equal edges, or edges of weight 0; save_edges() keeps each edge once")
        yield int(nodes[0]), csr


def _factors(graph: DiskGraph, root: Tensor, walks: AddRandomWalks) -> Iterator[Tensor]:
    """Factors of the load on the edges of consecutive rows, as `walk_graph` has them for all edges."""
    dtype = torch.get_default_dtype()
    for first, csr in _blocks(graph):
        weight = (csr.weight / root[first + csr.row] / root[csr.col]).to(dtype)
        gain = (csr.degree[csr.row].double() / (1 - walks.settings.halt_prob)).to(dtype)
        yield weight * gain if walks.importance else torch.ones_like(weight)


def write_shard(folder: Path, number: int, shards: int) -> None:
    """Make a shard: walks from the start nodes ``number · N / shards`` to the next shard's first one."""
    content, graph = json.loads((folder / SHARDS).read_text()), DiskGraph(folder / "graph")
    walks, size = AddRandomWalks(**content["walks"]), graph.num_nodes
    factor = graph.arrays["factor"]
    rows = WalkGraph(graph.arrays["indptr"], graph.arrays["index"], factor, None, in_place=True)
    alone = JoinedEdges(factor.new_zeros(2, 0), None, torch.tensor([0, size]))
    parts: dict[str, list[Tensor]] = {}
    for nodes in torch.arange(number * size // shards, (number + 1) * size // shards).split(_STARTS_TOGETHER):
        stream = start_stream(nodes, torch.tensor([content["seed"]]))
        for key, columns in walks.columns(rows, nodes, stream, alone).items():
            parts.setdefault(key, []).extend(columns)
    made: dict[str, Any] = {key: torch.cat(columns, int(key.endswith("_index"))) for key, columns in parts.items()}
    made[f"{walks.name}_size"] = size
    save_tensors(made, folder / SHARD.format(number, shards))


def write_shards(folder: str | Path, shards: int, engine: str = "processes", workers: int = 1) -> int:
    """Make the shards that are missing; return their number.

    Args:
        folder: A folder that `prepare_shards` made.
        shards: Number of shards, as in the settings of the folder.
        engine: ``"processes"`` of this machine, or ``"ray"``, whose machines must all see the folder.
        workers: Number of processes; one needs no other process.

    Raises:
        ImportError: If Ray is not installed.
        FileNotFoundError: If `prepare_shards` did not make the folder.
        ValueError: If the engine is unknown, or the folder has another number of shards.
        concurrent.futures.process.BrokenProcessPool: If a process was killed.
    """
    check_choice("engine", engine, ("processes", "ray"))
    folder = Path(folder).expanduser()
    own = json.loads((folder / SHARDS).read_text())["settings"]["shards"]
    if shards != own:
        raise ValueError(f"{folder} is divided into {own} shards (got {shards})")
    missing = [number for number in range(shards) if not (folder / SHARD.format(number, shards)).exists()]
    (_by_ray if engine == "ray" else _by_processes)(folder, missing, shards, workers)
    return len(missing)


def _by_processes(folder: Path, numbers: Sequence[int], shards: int, workers: int) -> None:
    if workers == 1:
        for number in numbers:
            write_shard(folder, number, shards)
        return
    try:
        with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            list(pool.map(write_shard, [folder] * len(numbers), numbers, [shards] * len(numbers)))
    except BrokenProcessPool:
        raise BrokenProcessPool(
            "a process was killed, perhaps for want of memory; the same command makes the rest"
        ) from None


def _by_ray(folder: Path, numbers: Sequence[int], shards: int, workers: int) -> None:
    """Ray repeats the shards of workers that were killed. On a cluster, all machines must see the folder."""
    import ray

    ray.init(**{} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers})
    task = ray.remote(write_shard)
    ray.get([task.remote(folder.resolve(), number, shards) for number in numbers])
    ray.shutdown()
