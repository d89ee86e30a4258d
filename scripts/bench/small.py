"""One GraphGPS layer on batches of small graphs, where fixed costs dominate, compared with PyG's GPSConv.

Each call is a forward and a backward pass of one layer (GCNConv and an attention, batch norm, feed-forward part) on a
new batch, so that nothing about it is cached, and planning belongs to the step. Layers take turns. Each figure is the
median over the batches of processor time on one thread. Ratios are to PyG's ``GPSConv`` with "multihead" attention on
the same batches: of the step alone, and of collation and step. PyG's layer always has
PyG's collation, ``Batch.from_data_list``; ours has it and ``pyg_topomask.loader.collate`` in turns. Attentions and
transforms have their defaults.

With ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2``, a CPU acts as one without
AVX-512. Our compiled code follows the first of them; on AMD, MKL has no AVX-512 code anyway.

With ``--grids``, all graphs are grids of 8 × 8 nodes, which a Toeplitz mask needs. In "half hop", half of the heads
have no mask.

Run: python scripts/bench/small.py [--quick] [--only NAME …] [--graphs 32 128] [--grids] [--out results/bench]
"""

import gc
import statistics
import time
from typing import Any

import networkx as nx
import numpy as np
import torch
from _measure import bench_parser, machine, save_json
from attention import random_graph
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GPSConv
from torch_geometric.utils import from_networkx

from pyg_topomask.loader import collate
from pyg_topomask.nn import ATTENTION, GPSLayer, HeatMask, HopMask, MaskedAttention, ToeplitzMask, auxiliary_loss
from pyg_topomask.testing import prepared

CHANNELS, HEADS = 64, 4
LEAST_NODES, MOST_NODES, EDGES_PER_NODE = 10, 28, 2.2  # about as in a batch of MUTAG
MASKS = {
    "hop": lambda: {"mask": HopMask(HEADS)},
    "half hop": lambda: {"mask": [None, HopMask(HEADS // 2)], "mask_heads": [HEADS // 2] * 2},
    "Toeplitz": lambda: {"mask": ToeplitzMask((8, 8), HEADS)},
    "heat": lambda: {"mask": HeatMask(HEADS)},
}
"""Arguments of `MaskedAttention`, by the name of a row."""
PEER, QUICK = "GPSConv", ["Linear", "Transformer", "KMIP", "GRF", "GKAT"]


def layer_of(name: str) -> Module:
    """One layer: PyG's, or ours with the attention of that name or without attention."""
    conv = GCNConv(CHANNELS, CHANNELS)
    if name == PEER:
        return GPSConv(CHANNELS, conv, HEADS, attn_type="multihead")
    if name in MASKS:
        return GPSLayer(CHANNELS, conv, MaskedAttention(CHANNELS, HEADS, **MASKS[name]()))
    return GPSLayer(CHANNELS, conv, None if name == "none" else ATTENTION[name](CHANNELS, heads=HEADS))


def output(layer: Module, x: Tensor, batch: Batch) -> Tensor:
    """Forward pass of a layer, with a carry if it has one."""
    if not isinstance(layer, GPSLayer):
        return layer(x, batch.edge_index, batch.batch)
    carry = layer.initial_carry(batch.num_graphs)
    out = layer(x, batch.edge_index, batch.batch, batch, carry)
    return out if carry is None else out[0]


def graphs_for(layer: Module, count: int, grids: bool = False) -> list[Data]:
    """So many graphs, with the attributes that the attention of a layer requires."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(LEAST_NODES, MOST_NODES + 1, count)
    graphs = [random_graph(int(size), EDGES_PER_NODE * size, rng) for size in sizes]
    if grids:
        graphs = [from_networkx(nx.grid_2d_graph(8, 8)) for _ in sizes]
    attn = layer.attn if isinstance(layer, GPSLayer) else None
    return graphs if attn is None else prepared(attn, graphs)


def measure(names: list[str], count: int, rounds: int, grids: bool) -> dict[str, dict[str, float]]:
    """Median milliseconds of a step and a collation by ours and PyG's, and ratios to PyG's layer, for each layer."""
    torch.manual_seed(0)
    layers = {name: layer_of(name) for name in names}
    graphs = {name: graphs_for(layer, count, grids) for name, layer in layers.items()}
    x = torch.randn(sum(graph.num_nodes for graph in graphs[PEER]), CHANNELS, requires_grad=True)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    gc.disable()  # a garbage collection would count for an arbitrary layer
    for number in range(rounds + 4):
        for name, layer in layers.items():
            by = "PyG's" if name == PEER or number % 2 else "ours"
            begin = time.process_time()
            batch = Batch.from_data_list(graphs[name]) if by == "PyG's" else collate(graphs[name])
            made = time.process_time()
            (output(layer, x, batch).sum() + auxiliary_loss(layer)).backward()
            if number >= 4:  # after warm-up
                times[name].append({"step": 1e3 * (time.process_time() - made), by: 1e3 * (made - begin)})
        gc.collect()
    gc.enable()
    return {name: row(times[name], times[PEER]) for name in names}


def row(own: list[dict[str, float]], peer: list[dict[str, float]]) -> dict[str, float]:
    """Medians of a layer's times, and of the ratios of its sums to those of PyG's layer in the same rounds."""
    found = {}
    for part in ("step", "ours", "PyG's"):
        found[part] = statistics.median([times[part] for times in own if part in times] or [0])
    found["x step"] = statistics.median(a["step"] / b["step"] for a, b in zip(own, peer))
    for by in ("ours", "PyG's"):
        ratios = [sum(a.values()) / sum(b.values()) for a, b in zip(own, peer) if by in a]
        found[f"x with {by}"] = statistics.median(ratios or [1])
    return found


def main() -> None:
    parser = bench_parser(__doc__, "a few batches and five layers")
    parser.add_argument("--only", nargs="+", choices=["none", *ATTENTION, *MASKS], help="attentions to run")
    parser.add_argument("--graphs", nargs="+", type=int, default=[32, 128], help="numbers of graphs in a batch")
    parser.add_argument("--rounds", type=int, default=60, help="number of timed batches")
    parser.add_argument("--grids", action="store_true", help="grids of 8 × 8 nodes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only or (QUICK if options.quick else ["none", *ATTENTION])
    report: dict[str, Any] = {"machine": machine(), "vectors": torch.backends.cpu.get_cpu_capability()}
    report |= {"nodes": "8 × 8" if options.grids else [LEAST_NODES, MOST_NODES], "channels": CHANNELS, "heads": HEADS}
    print(report)
    for count in options.graphs[:1] if options.quick else options.graphs:
        found = measure([PEER, *names], count, 15 if options.quick else options.rounds, options.grids)
        print(f"{count} graphs: {'':6s}" + "".join(f"{column:>12}" for column in found[PEER]))
        for name, values in found.items():
            print(f"{name:18s}" + "".join(f"{value:12.2f}" for value in values.values()))
        report[f"{count} graphs"] = found
    save_json(options.out / ("small-quick.json" if options.quick else "small.json"), report)


if __name__ == "__main__":
    main()
