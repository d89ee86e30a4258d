"""Graphs on disk of growing size: time and memory of making one, of a part, of neighbourhoods of walks, of a shard.

Node i is in community i div 1,000, and its class is that of the community. Each node draws five edges, four of five
within its community, with targets by a power law, so that each community and the whole graph have hubs. Sizes of what
is read are the same for every graph: a part of 16 communities, a batch of 256 neighbourhoods of at most 32 nodes with
their walks, a shard of 16,384 start nodes; but ``64th`` is a shard of one node in 64. Times are processor time of one
thread, the median of several, or of one ``64th``. Memory is the largest of 20 samples a second: ``own`` pages, and
``mapped`` ones of files, which processes share (Linux only).

With ``--folder``, graphs are kept there; works that are done again replace those in the report. ``--engines`` makes all
shards of the first size in one process, and in two workers of each engine.

Run: python scripts/bench/disk_graph.py [--quick] [--nodes 100000 1000000] [--engines processes ray] [--folder graphs]
"""

import hashlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _measure as bench
import torch
from torch import Tensor

from pyg_topomask import data, loader, transforms
from pyg_topomask.data.disk import node_blocks
from pyg_topomask.data.graph_parts import GraphParts
from pyg_topomask.data.walk_shards import SHARD, prepare_shards, write_shard, write_shards

COMMUNITY, FEATURES, STARTS, REPEATS = 1_000, 16, 2**14, 7
FORM = "{seconds:.3g} s, {own:,.0f} + {mapped:,.0f} MiB"


def edges(num_nodes: int) -> Iterator[Tensor]:
    """Blocks of edges, each in one direction."""
    draw = torch.Generator().manual_seed(0)
    for source in node_blocks(num_nodes, 2**20):
        one = source.repeat_interleave(5)
        skewed = torch.rand(one.shape, generator=draw, dtype=torch.float64) ** 2
        near = one - one % COMMUNITY + (skewed * COMMUNITY).long()
        far = (skewed * num_nodes).long()
        yield torch.stack([one, torch.where(torch.rand(one.shape, generator=draw) < 0.8, near, far)])


def make(folder: Path, num_nodes: int, *_: int) -> Iterator[None]:
    """Write the graph from a stream, with features and classes."""
    draw = torch.Generator().manual_seed(1)
    features = (torch.randn(nodes.numel(), FEATURES, generator=draw) for nodes in node_blocks(num_nodes, 2**20))
    classes = (nodes // COMMUNITY % 10 for nodes in node_blocks(num_nodes, 2**20))
    yield data.save_edges(folder, edges(num_nodes), num_nodes, {"x": features, "y": classes}, undirected=True)


def prepare_walks(folder: Path, num_nodes: int, *_: int) -> Iterator[None]:
    """The passes over all edges before the first shard."""
    shards = {"shards": num_nodes // STARTS}
    yield prepare_shards(folder.with_name("walks"), data.DiskGraph(folder), transforms.AddRandomWalks(seed=0), shards)


def part(folder: Path, num_nodes: int, count: int) -> Iterator[Any]:
    """Parts of 16 of the communities."""
    draw, parts = torch.Generator().manual_seed(0), GraphParts(data.DiskGraph(folder), 1, 0)
    for chosen in torch.randint(num_nodes // COMMUNITY, (count, 16), generator=draw):
        yield parts.source.subgraph((chosen[:, None] * COMMUNITY + torch.arange(COMMUNITY)).flatten().unique())


def neighborhoods(folder: Path, num_nodes: int, count: int) -> Iterator[Any]:
    """Batches of 256 targets."""
    targets = torch.randint(num_nodes, (256 * count,), generator=torch.Generator().manual_seed(0))
    return iter(loader.WalkNeighborLoader(data.DiskGraph(folder), targets, transform=transforms.AddRandomWalks(seed=0)))


def shard(folder: Path, num_nodes: int, count: int, shards: int | None = None) -> Iterator[None]:
    """Shards of start nodes."""
    shards = shards or num_nodes // STARTS
    for number in range(count):
        yield write_shard(folder.with_name("walks"), number * shards // count, shards)
        (folder.with_name("walks") / SHARD.format(number * shards // count, shards)).unlink()


WORKS = {
    "make": make,
    "prepare": prepare_walks,
    "part": part,
    "neighborhoods": neighborhoods,
    "shard": shard,
    "64th": partial(shard, shards=64),
}


def measure(work: str, folder: Path, num_nodes: int, batches: int) -> dict[str, float]:
    """Seconds and MiB of one kind of work, done once or several times."""
    torch.set_num_threads(1)
    watch, repeats = bench.Watch(), {"part": REPEATS, "neighborhoods": batches, "shard": REPEATS}.get(work, 0)
    steps = WORKS[work](folder, num_nodes, repeats + 1)
    times = bench.milliseconds(lambda: next(steps), max(1, repeats), min(1, repeats))
    return {"seconds": times["cpu"] / 1e3, "wall": times["wall"] / 1e3, **watch.memory}


def engines(folder: Path, num_nodes: int, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Seconds of all shards by one process, and by two workers of each engine, and whether their bits are the same."""
    watch, found, first = bench.Watch(), {}, None
    for name, workers in (("processes", 1), *((name, 2) for name in names)):
        for path in folder.glob("*.pt"):
            path.unlink()
        wall, cpu = time.perf_counter(), time.process_time() + watch.others()
        write_shards(folder, num_nodes // STARTS, name, workers)
        wall, cpu = time.perf_counter() - wall, time.process_time() + watch.others() - cpu
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.pt"))]
        first = first or digests
        found[f"{name}, {workers} workers"] = {"wall": wall, "cpu": cpu, "same": digests == first}
    return found


def table(report: dict[str, Any]) -> Iterator[str]:
    """The machine, each size, the exponents, and the engines in Markdown."""
    rows = {int(nodes): report["rows"][nodes] for nodes in sorted(report["rows"], key=int)}
    cells = [
        [f"{nodes:,}", f"{row['edges']:,}", *(FORM.format(**row[work]) if work in row else "" for work in WORKS)]
        for nodes, row in rows.items()
    ]
    if len(rows) > 1:
        cells.append(["exponent", ""])
        for work in WORKS:
            seconds = {nodes: row[work]["seconds"] for nodes, row in rows.items() if work in row}
            cells[-1].append(f"{bench.exponent(list(seconds), list(seconds.values())):.2f}")
    yield bench.described(report["machine"]) + "\n"
    yield from bench.markdown(" | ".join(f"{title}:" for title in ("nodes", "edges", *WORKS)), cells)
    for name, found in report.get("engines", {}).items():
        yield f"{name}: " + "{wall:.1f} s, {cpu:.1f} of processors, same bits: {same}".format(**found)


def main() -> None:
    """Measure each size, and print a table."""
    parser = bench.bench_parser(__doc__ or "", "20,000 and 40,000 nodes")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--works", nargs="*", default=list(WORKS), choices=WORKS)
    parser.add_argument("--batches", type=int, default=REPEATS, help="batches of neighborhoods")
    parser.add_argument("--engines", nargs="*", default=[], help="times all shards by two workers of: processes, ray")
    parser.add_argument("--folder", type=Path, help="where graphs are kept (default: a temporary folder)")
    options = parser.parse_args()
    path = options.out / "disk_graph.json"
    report = bench.resumed(path, {"machine": bench.machine()}, "rows")
    for num_nodes in [20_000, 40_000] if options.quick else options.nodes:
        with tempfile.TemporaryDirectory() as temporary:
            folder = (options.folder or Path(temporary)) / str(num_nodes) / "graph"
            row = report["rows"].setdefault(str(num_nodes), {})
            for work in options.works:
                row[work] = bench.in_fresh_process(measure, work, folder, num_nodes, options.batches)
                row["edges"] = data.DiskGraph(folder).num_edges
                bench.save_json(path, report)
            if options.engines and "engines" not in report:
                report["engines"] = engines(folder.with_name("walks"), num_nodes, options.engines)
                bench.save_json(path, report)
    print("\n".join(table(report)))


if __name__ == "__main__":
    main()
