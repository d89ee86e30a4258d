"""Random walks: steps per second compared with walks that never halt, and time and memory for a million nodes.

- steps     16 walks from each of 131,072 nodes, made into a sorted walk table, on points joined to their 3 nearest ones
            and on a random graph. Walks that do not halt and are not made into a table stand beside them: those of
            torch_cluster if it is installed, and a loop of gathers in plain torch. Calls take turns.
- small     the transform on a molecule of 26 atoms, and on a list of 1,000 molecules of 12 to 40 atoms
- sampling  the walks of a million nodes, as one table and by the transform, which stores two on the graph
- attention one forward and backward pass of `GRFAttention` (C = 64, 4 heads) on 1,048,576 nodes with their walks; the
            first one also builds the pair table

The last two run in processes of their own. Wall time depends on other work on the machine; processor time, summed over
threads, hardly does.

Run: python scripts/bench/walks.py [--quick] [--torch-cluster LIBRARY] [--out results/bench]
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import _measure as bench
import torch
from grf import knn_sphere
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask import nn, ops
from pyg_topomask.ops.csr import to_csr
from pyg_topomask.ops.walks.sample import start_stream, walk_tables
from pyg_topomask.ops.walks.settings import walk_settings
from pyg_topomask.ops.walks.walkers import walk_graph
from pyg_topomask.run.process_memory import keep_freed, peak_mib
from pyg_topomask.transforms import AddRandomWalks

NUM_WALKS = 16
HALTING = {"halting .1, 10 hops": (0.1, 10), "halting .5, 4 hops": (0.5, 4)}
FIXED = 10
"""Hops of walks that do not halt."""


def random_graph(num_nodes: int) -> Data:
    """An undirected graph with 4 edges per node between random nodes, whose neighbours are far apart in memory."""
    one_way = torch.randint(num_nodes, (2, 4 * num_nodes), generator=torch.Generator().manual_seed(0))
    return Data(edge_index=torch.cat([one_way, one_way.flip(0)], dim=1), num_nodes=num_nodes)


def gathered_walks(rowptr: Tensor, col: Tensor, start: Tensor, length: int) -> Tensor:
    """Nodes that walks of fixed length visit, ``[length + 1, S]``, in plain torch."""
    visited, degree = [start], rowptr.diff()
    for _ in range(length):
        step = (torch.rand(start.numel()) * degree[visited[-1]]).long()
        visited.append(col[rowptr[visited[-1]] + step])
    return torch.stack(visited)


def steps(graph: Data, repeats: int, library: str | None) -> dict[str, dict[str, float]]:
    """Million steps per second, of wall time and of processor time, of every method on a graph."""
    keep_freed(2**31 - 1)
    torch.manual_seed(0)
    csr = to_csr(graph.edge_index, graph.num_nodes)
    nodes = torch.arange(graph.num_nodes)[csr.degree > 0]
    rowptr, col, starts = csr.pattern.rowptr.long(), csr.col, nodes.repeat(NUM_WALKS)
    taken, calls = dict[str, float](), dict[str, Callable[[], Any]]()
    for name, (halt_prob, length) in HALTING.items():
        settings = walk_settings(NUM_WALKS, length, halt_prob)
        prepared, stream = walk_graph(csr, settings, None), start_stream(nodes, torch.zeros(1, dtype=torch.long))
        tables = lambda g=prepared, s=stream, of=settings: walk_tables(g, nodes, s, 1, of)[0]  # noqa: E731
        options = {"num_walks": NUM_WALKS, "max_length": length, "halt_prob": halt_prob, "start": nodes}
        walks = tables()
        count = float(walks.count[walks.length > 0].double().sum() * NUM_WALKS)
        calls[f"table, {name}"] = tables
        calls[f"sample_walks, {name}"] = lambda o=options: ops.sample_walks(graph.edge_index, graph.num_nodes, **o)
        taken |= {f"table, {name}": count, f"sample_walks, {name}": count}
    if library is not None:
        torch.ops.load_library(library)
        walk = torch.ops.torch_cluster.random_walk
        calls["torch_cluster, no halting"] = lambda: walk(rowptr, col, starts, FIXED, 1.0, 1.0)
    calls["plain torch, no halting"] = lambda: gathered_walks(rowptr, col, starts, FIXED)
    found = {}
    for name, ms in bench.both_clocks(calls, repeats).items():
        million = taken.get(name, float(starts.numel() * FIXED)) / 1e6
        found[name] = {
            "million steps": million,
            "million steps per second": million / ms["wall"] * 1e3,
            "million steps per processor second": million / ms["cpu"] * 1e3,
        }
    return found


def small(repeats: int) -> dict[str, float]:
    """Milliseconds of processor time of the transform for each graph, alone and in a list."""
    transform, graphs = AddRandomWalks(seed=0), [bench.ring_with_bridges(12 + number % 29) for number in range(1000)]
    one = bench.in_turns({"one graph": lambda: transform(graphs[14])}, 20 * repeats)
    (many,) = bench.in_turns({"graphs": lambda: transform(graphs)}, repeats).values()
    return one | {"each of 1,000 graphs": many / 1000}


def measured(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds and peak MiB of one call."""
    begin = time.perf_counter(), time.process_time()
    mib = peak_mib(call)
    seconds, processor = time.perf_counter() - begin[0], time.process_time() - begin[1]
    return {"seconds": seconds, "processor seconds": processor, "MiB": float(mib or "nan")}


def sampling(num_nodes: int, by_transform: bool) -> dict[str, float]:
    """The walks of one graph."""
    torch.manual_seed(0)
    graph, small = knn_sphere(num_nodes), knn_sphere(64)
    halt_prob, length = HALTING["halting .5, 4 hops"]
    transform = AddRandomWalks(NUM_WALKS, length, halt_prob, seed=0)

    def sample(data: Data) -> Any:
        if by_transform:
            return transform(data)
        options = {"num_walks": NUM_WALKS, "max_length": length, "halt_prob": halt_prob}
        return ops.sample_walks(data.edge_index, data.num_nodes, **options)

    sample(small)  # load the compiled code
    return measured(lambda: sample(graph))


def attention(num_nodes: int) -> dict[str, dict[str, float]]:
    """The first and the second forward and backward pass."""
    torch.manual_seed(0)
    transform = AddRandomWalks(NUM_WALKS, seed=0)
    graph, small = transform(knn_sphere(num_nodes)), transform(knn_sphere(64))
    attn = nn.GRFAttention(64, 4)
    x = torch.randn(num_nodes, 64, requires_grad=True)

    def step() -> None:
        attn(x, None, graph).square().sum().backward()

    attn(x[:64], None, small)
    return {"first": measured(step), "second": measured(step)}


def lines(report: Mapping[str, Any]) -> list[str]:
    """The results as Markdown."""
    knn, random = (report["steps"][name] for name in ("kNN", "random"))
    text = "{million steps per second:.0f} ({million steps per processor second:.0f})"
    rates = ((name, *(text.format_map(kind[name]) for kind in (knn, random))) for name in knn)
    small = ((name, f"{milliseconds:.3f}") for name, milliseconds in report["small"].items())
    cells = "{nodes:,} | {seconds:.2f} | {processor seconds:.2f} | {MiB:,.0f}"
    large = ((name, cells.format_map(row)) for name, row in report["large"].items())
    return [
        f"{bench.described(report['machine'])}.\n",
        *bench.markdown("million steps per second (per processor second) | kNN: | random:", rates),
        *("", *bench.markdown("AddRandomWalks, ms of processor time | :", small)),
        *("", *bench.markdown(" | nodes: | seconds: | processor seconds: | peak MiB:", large)),
    ]


def main() -> None:
    parser = bench.bench_parser(__doc__ or "", "a sixteenth of the nodes")
    parser.add_argument("--torch-cluster", metavar="LIBRARY", help="its compiled walks, `_rw_cpu.so`")
    options = parser.parse_args()
    share = 16 if options.quick else 1
    repeats = 3 if options.quick else 9
    graphs = {"kNN": knn_sphere(2**17 // share), "random": random_graph(2**17 // share)}
    report: dict[str, Any] = {"machine": bench.machine(), "steps": {}, "large": {}}
    for name, graph in graphs.items():
        report["steps"][name] = bench.in_fresh_process(steps, graph, repeats, options.torch_cluster)
    report["small"] = bench.in_fresh_process(small, repeats)
    million, power = 10**6 // share, 2**20 // share
    for name, by_transform in (("sample_walks", False), ("AddRandomWalks, two tables", True)):
        report["large"][name] = {"nodes": million, **bench.in_fresh_process(sampling, million, by_transform)}
    for name, row in bench.in_fresh_process(attention, power).items():
        report["large"][f"GRFAttention, forward + backward, {name} step"] = {"nodes": power, **row}
    bench.save_json(options.out / "walks.json", report)
    print("\n".join(lines(report)))


if __name__ == "__main__":
    main()
