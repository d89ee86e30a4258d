"""Every attention in a GraphGPS stack: seconds per epoch and peak memory on batches of the sizes the papers report.

For each workload, one run measures a stack of GPSLayers (GINEConv and an attention, batch norm, feed-forward part) and
the attention of one layer alone, forward and backward in training mode, and PyG's GPSConv with "multihead" and
"performer" attention for comparison. Layers, widths and batch sizes are those of the Primphormer paper's Table 4;
"large" is one graph of 100,000 nodes. Seconds per epoch are the median step times the steps of the training split.
Graphs of Peptides-func are real if $TOPOMASK_DATA has them. All others are random graphs with the published numbers of
nodes and edges. Measuring a workload again replaces its figures in the report and keeps the others. Growth over the
number of nodes is measured by `scale.py`.

Run: python scripts/bench/attention.py [--quick] [--only WORKLOAD …] [--out results/bench]
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from _measure import bench_parser, in_fresh_process, machine, milliseconds, peptides, resumed, save_json
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, ReLU, Sequential
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, GPSConv
from torch_geometric.utils import to_dense_batch, to_undirected

from pyg_topomask import nn, transforms
from pyg_topomask.run.process_memory import peak_mib


@dataclass(frozen=True)
class Workload:
    """One batch of a data set, and the size of the stack that runs on it."""

    mean_nodes: float
    nodes_range: tuple[int, int]
    mean_edges: float  # entries of edge_index
    train_graphs: int
    batch_size: int
    layers: int
    channels: int
    heads: int = 4


WORKLOADS = {
    "CIFAR10": Workload(117.6, (85, 150), 941.2, 45_000, 128, 5, 40),
    "MalNet-Tiny": Workload(1_410.3, (5, 5_000), 2_859.9, 3_500, 4, 5, 64),
    "PascalVOC-SP": Workload(479.4, (395, 500), 2_710.5, 8_498, 32, 4, 96),
    "Peptides-func": Workload(150.9, (8, 444), 307.3, 10_873, 128, 4, 96),
    "large": Workload(100_000, (100_000, 100_000), 1_000_000, 1, 1, 2, 128),
}
"""Published statistics: Dwivedi et al. 2022 (LRGB) and 2020 (CIFAR10), Freitas et al. 2021 (MalNet-Tiny)."""

SETTINGS: dict[str, dict[str, Any]] = {
    "Exphormer": {"num_virtual": 1},
    "GKAT": {"num_features": 16, "max_length": 3},
    "GRF": {"max_length": 3},
    "KMIP": {"k": 10},
    "Primphormer": {"num_virtual": 30, "rank": 30},
}
"""Constructor arguments of attentions whose defaults differ from the papers' experiments."""

PYG = {"GPSConv multihead": "multihead", "GPSConv performer": "performer"}
QUADRATIC = ("Transformer", "SAN", "GPSConv multihead")
LARGEST_QUADRATIC = 20_000  # nodes of one graph; on larger graphs, a step takes minutes


def random_graph(nodes: int, edges: float, rng: np.random.Generator) -> Data:
    """A random tree of ``nodes`` nodes with further random edges, about ``edges`` columns of ``edge_index`` in all."""
    child = np.arange(1, nodes)
    parent = (child * rng.random(nodes - 1)).astype(np.int64)
    more = max(0, round(edges / 2) - (nodes - 1))
    far = rng.integers(0, nodes, (2, more))
    both = np.concatenate([np.stack([child, parent]), far[:, far[0] != far[1]]], axis=1)
    return Data(edge_index=to_undirected(torch.from_numpy(both), num_nodes=nodes), num_nodes=nodes)


def sizes(load: Workload, rng: np.random.Generator) -> np.ndarray:
    """Random numbers of nodes within the published range, with about the published mean."""
    low, high = load.nodes_range
    if low == high:
        return np.full(load.batch_size, low)
    share = (load.mean_nodes - low) / (high - low)
    return (low + (high - low) * rng.beta(4 * share, 4 * (1 - share), load.batch_size)).astype(int)


def make_batch(name: str, requires: tuple[str, ...]) -> tuple[Batch, bool]:
    """One batch with the attributes that an attention requires, and whether its graphs are real."""
    load, rng = WORKLOADS[name], np.random.default_rng(0)
    graphs = peptides(load.batch_size) if name == "Peptides-func" else None
    real = graphs is not None
    if graphs is None:
        graphs = [random_graph(int(n), load.mean_edges * n / load.mean_nodes, rng) for n in sizes(load, rng)]
    walks = {"num_walks": 16, "max_length": 3, "halt_prob": 0.5}
    independent = "walk_key_index" in requires  # a second table is not read by all
    transform = transforms.that_add(requires, seed=0, degree=5, num_virtual=1, independent=independent, **walks)
    return Batch.from_data_list([transform(graph) for graph in graphs]), real


def gine(channels: int) -> GINEConv:
    """The convolution of stacks that are compared with PyG's."""
    return GINEConv(Sequential(Linear(channels, channels), ReLU(), Linear(channels, channels)))


CONVS: dict[str, Callable[[int], Module]] = {"GINE": gine, "GatedGCN": nn.GatedGCN}


class PyGStack(Module):
    """PyG's own layers, with `gine` and an attention of that kind."""

    def __init__(self, layers: int, channels: int, heads: int, kind: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = ModuleList(
            GPSConv(channels, gine(channels), heads, dropout, attn_type=kind) for _ in range(layers)
        )

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, graph: Batch, edge_attr: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edge_index, batch, edge_attr=edge_attr)
        return x


def attention_of(name: str, load: Workload, layer: int) -> Module:
    """An attention of the library, equal for each layer."""
    return nn.ATTENTION[name](load.channels, heads=load.heads, **SETTINGS.get(name, {}))


def build(
    name: str, load: Workload, conv: str = "GINE"
) -> tuple[Module, Callable[..., Tensor] | None, tuple[str, ...]]:
    """The stack, the attention of one layer as a function of ``(x, batch)``, and the graph attributes it requires.

    Our stack is a model without pooling, with the same width for input, layers and output.
    """
    if name in PYG:
        stack = PyGStack(load.layers, load.channels, load.heads, PYG[name])
        attn = stack.layers[0].attn

        def padded(x: Tensor, batch: Batch) -> Tensor:
            dense, mask = to_dense_batch(x, batch.batch)
            if PYG[name] == "performer":
                return attn(dense, mask=mask)[mask]
            return attn(dense, dense, dense, key_padding_mask=~mask, need_weights=False)[0][mask]

        return stack, padded, ()

    width, build_conv = load.channels, CONVS[conv]
    attention = None if name == "none" else partial(attention_of, name, load)
    stack = nn.GPSModel(width, width, width, load.layers, lambda _: build_conv(width), attention, edge_dim=width)
    if attention is None:
        return stack, None, ()
    attn = attention(0)
    return stack, lambda x, batch: attn(x, batch.batch, batch), tuple(getattr(attn, "requires", ()))


def measure(workload: str, name: str, repeats: int, conv: str = "GINE") -> dict[str, Any]:
    """Median time of a step and peak memory of the stack and of one layer's attention, in this process."""
    torch.manual_seed(0)
    load = WORKLOADS[workload]
    stack, attention, requires = build(name, load, conv)
    batch, real = make_batch(workload, requires)
    x = torch.randn(batch.num_nodes, load.channels, requires_grad=True)
    edge_attr = torch.randn(batch.num_edges, load.channels)

    def step() -> None:
        out = stack(x, batch.edge_index, batch.batch, batch, edge_attr)
        (out.sum() + nn.auxiliary_loss(stack)).backward()

    def attend() -> None:
        attention(x, batch).sum().backward()

    row = {"nodes": batch.num_nodes, "edges": batch.num_edges, "real graphs": real}
    # The call that measures memory is the warm-up of the timed calls.
    if attention is not None:
        row |= {"attention_mib": peak_mib(attend), "attention_ms": milliseconds(attend, repeats, 0)["wall"]}
    row |= {"step_mib": peak_mib(step), "step_ms": milliseconds(step, repeats, 0)["wall"]}
    row["epoch_s"] = row["step_ms"] / 1e3 * -(-load.train_graphs // load.batch_size)
    row["parameters"] = sum(p.numel() for p in stack.parameters())
    return row


def rows(workload: str, repeats: int) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """For each attention its figures on a workload, measured in a new process, or the reason why there are none."""
    largest = WORKLOADS[workload].nodes_range[1]
    for name in ("none", *PYG, *nn.ATTENTION):
        if name in QUADRATIC and largest > LARGEST_QUADRATIC:
            yield name, f"not run: quadratic, and one graph has {largest:,} nodes"
            continue
        try:
            yield name, in_fresh_process(measure, workload, name, repeats)
        except (RuntimeError, MemoryError) as error:
            yield name, f"failed: {str(error).splitlines()[0]}"


def report_lines(found: Iterator[tuple[str, Any]], results: dict[str, Any]) -> Iterator[str]:
    """The table of one workload, with ratios to PyG's multihead attention; copies ``found`` into ``results``."""
    yield f"{'attention':18s} {'ms/step':>9} {'s/epoch':>9} {'MiB':>7} | {'attn ms':>9} {'MiB':>7} {'x multihead':>11}"
    for name, row in found:
        results[name] = row
        base = results.get("GPSConv multihead")
        if isinstance(row, str):
            yield f"{name:18s} {row}"
            continue
        line = f"{name:18s} {row['step_ms']:9.1f} {row['epoch_s']:9.1f} {row['step_mib']:7.0f} |"
        if "attention_ms" in row:
            ratio = f"{row['attention_ms'] / base['attention_ms']:11.2f}" if isinstance(base, dict) else ""
            line += f" {row['attention_ms']:9.1f} {row['attention_mib']:7.0f} {ratio}"
        yield line


def main() -> None:
    parser = bench_parser(__doc__, "only peptides, one timed step")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), help="workloads to run")
    parser.add_argument("--repeats", type=int, default=5, help="number of timed steps")
    options = parser.parse_args()
    repeats = 1 if options.quick else options.repeats
    stem = options.out / ("attention-quick" if options.quick else "attention")
    report = resumed(stem.with_suffix(".json"), {"machine": machine(), "repeats": repeats}, "workloads")
    for workload in options.only or (["Peptides-func"] if options.quick else list(WORKLOADS)):
        load, results = WORKLOADS[workload], {}
        print(
            f"\n{workload}: batches of {load.batch_size} with {load.mean_nodes:,g} nodes on average, "
            f"{load.layers} layers, {load.channels} channels, {load.heads} heads"
        )
        for line in report_lines(rows(workload, repeats), results):
            print(line, flush=True)
        report["workloads"][workload] = results
        save_json(stem.with_suffix(".json"), report)


if __name__ == "__main__":
    main()
