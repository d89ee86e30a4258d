"""Graphs on disk of growing size: time and memory of making one, of a part, of neighbourhoods of walks, of a shard.

Node i is in community i div 1,000, and its class is that of the community. Each node draws five edges, four of five
within its community, with targets by a power law, so that each community and the whole graph have hubs. Sizes of what
is read are the same for every graph: a part of 16 communities, a batch of 256 neighbourhoods of at most 32 nodes with
their walks, a shard of 16,384 start nodes. Times are processor time of one thread, the median of several. Memory is
that of the process after the work: ``own`` is anonymous, ``mapped`` are pages of the files, which processes share
(Linux only).

Run: python scripts/bench/disk_graph.py [--quick] [--nodes 100000 1000000] [--engines processes ray] [--folder /tmp]
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from _measure import bench_parser, described, exponent, in_fresh_process, machine, markdown, milliseconds, save_json
from torch import Tensor

from pyg_topomask.data import DiskGraph, save_edges
from pyg_topomask.data.graph_parts import GraphParts
from pyg_topomask.loader import WalkNeighborLoader
from pyg_topomask.run.walk_shards import prepare, write_shard, write_shards
from pyg_topomask.transforms import AddRandomWalks

COMMUNITY, FEATURES, STARTS, REPEATS = 1_000, 16, 2**14, 7


def edges(num_nodes: int) -> Iterator[Tensor]:
    """Blocks of edges, each in one direction."""
    draw = torch.Generator().manual_seed(0)
    for source in torch.arange(num_nodes).split(2**20):
        one = source.repeat_interleave(5)
        skewed = torch.rand(one.shape, generator=draw, dtype=torch.float64) ** 2
        near = one - one % COMMUNITY + (skewed * COMMUNITY).long()
        far = (skewed * num_nodes).long()
        yield torch.stack([one, torch.where(torch.rand(one.shape, generator=draw) < 0.8, near, far)])


def make(folder: Path, num_nodes: int) -> Iterator[None]:
    """Write the graph from a stream, with features and classes."""
    draw = torch.Generator().manual_seed(1)
    blocks = torch.arange(num_nodes).split(2**20)
    features = (torch.randn(nodes.numel(), FEATURES, generator=draw) for nodes in blocks)
    classes = (nodes // COMMUNITY % 10 for nodes in blocks)
    yield save_edges(folder, edges(num_nodes), num_nodes, {"x": features, "y": classes}, undirected=True)


def prepare_walks(folder: Path, num_nodes: int) -> Iterator[None]:
    """The passes over all edges before the first shard."""
    shards = {"shards": num_nodes // STARTS}
    yield prepare(folder.with_name("walks"), DiskGraph(folder), AddRandomWalks(seed=0), shards)


def part(folder: Path, num_nodes: int) -> Iterator[Any]:
    """Parts of 16 of the communities."""
    draw, parts = torch.Generator().manual_seed(0), GraphParts(DiskGraph(folder), 1, 0)
    for chosen in torch.randint(num_nodes // COMMUNITY, (REPEATS + 1, 16), generator=draw):
        yield parts.source.subgraph((chosen[:, None] * COMMUNITY + torch.arange(COMMUNITY)).flatten().unique())


def neighborhoods(folder: Path, num_nodes: int) -> Iterator[Any]:
    """Batches of 256 targets."""
    targets = torch.randint(num_nodes, (256 * (REPEATS + 1),), generator=torch.Generator().manual_seed(0))
    return iter(WalkNeighborLoader(DiskGraph(folder), targets, transform=AddRandomWalks(seed=0)))


def shard(folder: Path, num_nodes: int) -> Iterator[Any]:
    """Shards of start nodes."""
    shards = num_nodes // STARTS
    for number in range(REPEATS + 1):
        yield write_shard(folder.with_name("walks"), number * shards // (REPEATS + 1), shards)


WORKS = {"make": make, "prepare": prepare_walks, "part": part, "neighborhoods": neighborhoods, "shard": shard}


def measure(work: str, folder: Path, num_nodes: int) -> dict[str, float]:
    """Time and memory of one kind of work; whole passes are made once, and others several times."""
    torch.set_num_threads(1)
    steps, counts = WORKS[work](folder, num_nodes), (1, 0) if work in ("make", "prepare") else (REPEATS, 1)
    seconds = milliseconds(lambda: next(steps), *counts)["cpu"] / 1e3
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    mib = {name.rstrip(":"): int(size) / 1024 for name, size, *_ in lines}
    return {"seconds": seconds, "own": mib["Anonymous"], "mapped": mib["Rss"] - mib["Anonymous"]}


def engines(folder: Path, num_nodes: int, names: Sequence[str]) -> None:
    """Print the wall time of all shards by one process, and by two workers of each engine."""
    for name, workers in (("processes", 1), *((name, 2) for name in names)):
        for path in folder.glob("*.pt"):
            path.unlink()
        begin = time.perf_counter()
        write_shards(folder, num_nodes // STARTS, name, workers)
        print(f"{num_nodes // STARTS} shards, {name}, {workers} workers: {time.perf_counter() - begin:.1f} s")


def main() -> int:
    """Measure each size, and print a table."""
    parser = bench_parser(__doc__ or "", "20,000 and 40,000 nodes")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--engines", nargs="*", default=[], help="times all shards by two workers of: processes, ray")
    parser.add_argument("--folder", type=Path, help="where graphs are made and deleted (default: the system's)")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "rows": {}}
    for num_nodes in [20_000, 40_000] if options.quick else options.nodes:
        with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
            folder = Path(temporary) / "graph"
            row = {work: in_fresh_process(measure, work, folder, num_nodes) for work in WORKS}
            report["rows"][str(num_nodes)] = row | {"edges": DiskGraph(folder).num_edges}
            if options.engines:
                engines(folder.with_name("walks"), num_nodes, options.engines)
        save_json(options.out / "disk_graph.json", report)
    rows = report["rows"]
    cells = [
        [
            f"{int(nodes):,}",
            f"{row['edges']:,}",
            *("{seconds:.3g} s, {own:,.0f} + {mapped:,.0f} MiB".format(**row[work]) for work in WORKS),
        ]
        for nodes, row in rows.items()
    ]
    if len(rows) > 1:
        slopes = (exponent(list(map(int, rows)), [row[work]["seconds"] for row in rows.values()]) for work in WORKS)
        cells.append(["exponent", "", *(f"{slope:.2f}" for slope in slopes)])
    head = " | ".join(f"{title}:" for title in ("nodes", "edges", *WORKS))
    print(f"{described(report['machine'])}\n", *markdown(head, cells), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
