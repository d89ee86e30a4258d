"""GKAT's cost (Choromanski et al., ICML 2022, arXiv:2107.07999, Table 3): one layer of GKAT, GKAT-0 and PyG's GATConv.

    python scripts/reproduce/gkat_cost.py --quick       # a trial
    python scripts/reproduce/gkat_cost.py               # the same command continues an interrupted one

Times are processor time, so that other programs disturb them less, and layers take turns, so that all are disturbed
alike. Memory is the rise of the peak during a forward and backward pass in a new process, including the graph's tables.
A batch of graphs is new in each call, as in shuffled training, so its masks are built again; a single graph stays the
same. Walks are drawn in advance. All layers have the same heads and widths. PyG's GATConv scores only edges, but GAT
and GKAT-0 in the authors' code form all pairs of nodes, as "GAT, all pairs" (which computes the function of GATConv)
and "GKAT-0, all pairs" do here. The citation graphs are random graphs of the same size.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _bench import described, draw_lines, in_fresh_process, in_turns, machine, markdown, resumed
from _gkat import CYCLE_LENGTH, MOTIF_LENGTH, ROOT, TASKS
from _tables import finish, read_options, start, store, table_parser
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv
from torch_geometric.utils import add_self_loops, erdos_renyi_graph, remove_self_loops

from pyg_topomask import nn, ops, transforms
from pyg_topomask.operators import DenseOperator, SparseFactorOperator
from pyg_topomask.ops.attention.masked import masked_additive_attention
from pyg_topomask.run.process_memory import peak_mib

SIZES = {"citeseer": (3327, 4732), "cora": (2708, 5429), "pubmed": (19717, 44338)}  # nodes, undirected edges
CASES = ("motif", "cycle", "cora", "citeseer", "pubmed")
PUBLISHED = {
    "motif": ("1.40–1.42", "1.46–1.49", "0.52–0.55"),
    "cycle": ("1.10", "1.12", "0.95"),
    "citeseer": ("5.1", "5.21", "0.18"),
    "pubmed": ("9.5", "9.54", "0.07"),
}
"""Speed of GKAT relative to GAT in training and in inference, and memory of GKAT relative to GKAT-0."""


BATCHES = {"motif": ("caveman", 2, 9, 16), "cycle": ("induced cycle", 8, 4, 8)}
"""A task of which a batch is made; heads, width of a head, and random features."""

REPEATS, LARGEST_DENSE = 7, 5000
"""Timed passes of each layer, and nodes of the largest graph whose pairs are all formed."""


def graph_of(case: str, num_graphs: int) -> tuple[Data, int, int, int]:
    """A batch or graph with walks, and the layers' number of heads, head width, and number of random features."""
    name, *sizes = BATCHES.get(case, (case, 8, 8, 256))
    walk = transforms.AddRandomWalks(50, length_of(case), 0.0, independent=False, seed=0)
    if case in BATCHES:
        return Batch.from_data_list([walk(graph) for graph in TASKS[name].load(ROOT, num_graphs)]), *sizes
    torch.manual_seed(0)
    nodes, edges = SIZES[case]
    edge_index = erdos_renyi_graph(nodes, 2 * edges / nodes / (nodes - 1))
    return walk(Data(edge_index=edge_index, num_nodes=nodes)), *sizes


def length_of(case: str) -> int:
    """Longest walk."""
    return CYCLE_LENGTH if case == "cycle" else MOTIF_LENGTH


def layers(case: str, heads: int, width: int, num_features: int) -> dict[str, Module]:
    """Layers by name."""
    length, channels = length_of(case), heads * width
    return {
        "GAT": GATConv(channels, width, heads),
        "GKAT": nn.GKATAttention(channels, heads, num_features, max_length=length),
        "GKAT-0": nn.GKATAttention(channels, heads, kernel="softmax", max_length=length),
        "GAT-shaped": nn.GKATConv(channels, width, heads, max_length=length),
        "GAT, all pairs": GATConv(channels, width, heads),
        "GKAT-0, all pairs": nn.GKATAttention(channels, heads, kernel="softmax", max_length=length),
    }


def call(name: str, layer: Module, x: Tensor, data: Data) -> Tensor:
    """Output of a layer; for names with "all pairs", over all pairs of nodes."""
    if name.endswith("all pairs"):
        return (dense_gat if isinstance(layer, GATConv) else dense_gkat_0)(layer, x, data)
    return layer(x, data.edge_index) if isinstance(layer, GATConv) else layer(x, data.get("batch"), data)


def dense_gkat_0(layer: nn.GKATAttention, x: Tensor, data: Data) -> Tensor:
    """GKAT-0 as in the paper: the mask and the scores of all pairs of nodes within each graph."""
    q, k, v = layer.qkv(x).view(x.size(0), 3, layer.heads, -1).unbind(1)
    mask = layer.mask(data)
    if "batch" in data:
        return layer.out(ops.masked_softmax_attention(q, k, v, mask, data.batch, "blocks").flatten(1))
    return layer.out(ops.masked_softmax_attention(q, k, v, DenseOperator(mask.to_dense())).flatten(1))


def dense_gat(layer: GATConv, x: Tensor, data: Data) -> Tensor:
    """GATConv as in the paper: scores of all pairs of nodes within each graph, masked by the edges."""
    v = layer.lin(x).view(x.size(0), layer.heads, -1)
    sender, receiver = add_self_loops(remove_self_loops(data.edge_index)[0], num_nodes=x.size(0))[0]
    edges = SparseFactorOperator((torch.stack([receiver, sender]), torch.ones(sender.numel())), None, x.size(0))
    scores = ((v * layer.att_dst).sum(-1), (v * layer.att_src).sum(-1))
    return masked_additive_attention(*scores, v, edges, data.get("batch"), "blocks").flatten(1) + layer.bias


def memory(case: str, name: str, num_graphs: int) -> float:
    """Peak memory of a forward and backward pass, in MiB."""
    data, heads, width, num_features = graph_of(case, num_graphs)
    layer = layers(case, heads, width, num_features)[name]
    x = torch.randn(data.num_nodes, heads * width)
    return peak_mib(lambda: call(name, layer, x, data).sum().backward())


def measure(case: str, num_graphs: int, repeats: int) -> dict[str, Any]:
    """Times and memory of one kind of graph."""
    data, heads, width, num_features = graph_of(case, num_graphs)
    x = torch.randn(data.num_nodes, heads * width)
    made = {
        name: layer
        for name, layer in layers(case, heads, width, num_features).items()
        if not name.endswith("all pairs") or "batch" in data or data.num_nodes <= LARGEST_DENSE
    }
    return {
        "case": case,
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "pairs": made["GKAT"].mask(data).support.count(),
        "ms": times(made, x, data, repeats),
        "mib": {name: in_fresh_process(memory, case, name, num_graphs) for name in made},
    }


def times(made: Mapping[str, Module], x: Tensor, data: Data, repeats: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds of each layer's inference and of its forward and backward pass; layers take turns."""

    def infer(name: str) -> None:
        with torch.no_grad():
            call(name, made[name], x, new(data))

    def train(name: str) -> None:
        call(name, made[name], x, new(data)).sum().backward()

    calls = {(name, step): partial(step, name) for name in made for step in (infer, train)}
    found = in_turns(calls, repeats)  # the first pass compiles, and builds what a single graph keeps
    return {name: (found[name, infer], found[name, train]) for name in made}


def new(data: Data) -> Data:
    """A copy of a batch, for which nothing is cached; a single graph itself."""
    return data.clone() if "batch" in data else data


def measured(cases: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """The report; rows of an earlier, interrupted run with the same settings are kept."""
    num_graphs, repeats = (16, 2) if options.quick else (128, REPEATS)
    settings = {"machine": machine(), "repeats": repeats, "graphs": num_graphs}
    settings |= {"largest dense": LARGEST_DENSE, "batches": "new in each call", "quick": options.quick}
    report = resumed(options.out / f"{options.name}.json", settings, "rows")
    for case in cases:
        if case not in report["rows"]:
            print(f"measuring {case}", flush=True)
            report["rows"][case] = measure(case, num_graphs, repeats)
            store(report, lines, options)
    return report


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The tables of time and of memory, and how they were measured."""
    timed = ("GAT", "GAT, all pairs", "GKAT", "GKAT-0", "GAT-shaped")
    yield f"{described(report['machine'])}. Each time is the median of {report['repeats']} passes."
    if report["quick"]:
        yield "A trial with few repeats: these figures only show that everything runs."
    yield ""
    times, memory, kept = [], [], ("GAT", "GKAT", "GKAT-0", "GKAT-0, all pairs")
    for case, row in report["rows"].items():
        infer, train = ({name: both[part] for name, both in row["ms"].items()} for part in (0, 1))
        published = PUBLISHED.get(case, ("–", "–", "–"))
        known = [case, *(f"{row[key]:,}" for key in ("nodes", "edges", "pairs")), *_figures(train, timed, ",.1f")]
        ratios = [ratio(train, "GAT", "GKAT"), ratio(train, "GAT, all pairs", "GKAT"), published[0]]
        times.append([*known, *ratios, ratio(infer, "GAT, all pairs", "GKAT"), published[1]])
        ratios = [ratio(row["mib"], "GKAT", name) for name in kept[2:]]
        memory.append([case, *_figures(row["mib"], kept, ",.0f"), *ratios, published[2]])
    titles = ["nodes", "edges", "pairs", *timed, "GAT / GKAT", "GAT, all pairs / GKAT", "published", "in inference"]
    yield from markdown(" | ".join(["graphs", *(f"{title}:" for title in (*titles, "published"))]), times)
    yield ""
    titles = [*kept, "GKAT / GKAT-0", "GKAT / GKAT-0, all pairs", "published"]
    yield from markdown(" | ".join(["MiB", *(f"{title}:" for title in titles)]), memory)


def _figures(found: Mapping[str, float], names: Sequence[str], form: str) -> Iterator[str]:
    return (format(found[name], form) if name in found else "–" for name in names)


def ratio(figures: Mapping[str, float], first: str, second: str) -> str:
    """Ratio of the first figure to the second, if both were measured."""
    return f"{figures[first] / figures[second]:.3g}" if first in figures and second in figures else "–"


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Training time of each layer on each kind of graph."""
    lines: dict[str, list[tuple[str, float]]] = {}
    for row in report["rows"].values():
        for name, (_, training) in row["ms"].items():
            lines.setdefault(name, []).append((row["case"], training))
    draw_lines({"": lines}, path, "graphs", "ms, forward and backward", "y")


def main() -> None:
    """Measure every kind of graph."""
    made = table_parser(__doc__, "gkat_cost", "a trial of minutes")
    made.add_argument("--cases", nargs="+", choices=CASES, help="default: all, or motif and cycle with --quick")
    options = read_options(made)
    torch.set_num_threads(1)  # processor time would count threads that wait for each other
    cases = options.cases or (("motif", "cycle") if options.quick else CASES)
    finish(measured(cases, options), lines, plot, options)


if __name__ == "__main__":
    start(main)
