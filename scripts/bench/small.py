"""One GraphGPS layer on batches of small graphs, where fixed costs dominate, compared with PyG's GPSConv.

Each call is a forward and a backward pass of one layer (GCNConv and an attention, batch norm, feed-forward part) on a
new batch, so that nothing about it is cached. Layers take turns. Each figure is the median over the batches of
processor time on one thread, and ratios are to PyG's ``GPSConv`` with "multihead" attention on the same batches.
Collation of the batch, by PyG for its layer and by
``pyg_topomask.loader.collate`` for ours, is measured separately. Attentions and transforms have their defaults.

With ``--grids``, all graphs are grids of 8 × 8 nodes, which a Toeplitz mask needs. In "half hop", half of the heads
have no mask.

Run: python scripts/bench/small.py [--quick] [--only NAME …] [--grids] [--out results/bench]
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
from pyg_topomask.nn import ATTENTION, GPSLayer, HopMask, MaskedAttention, ToeplitzMask, auxiliary_loss
from pyg_topomask.testing import prepared

CHANNELS, HEADS = 64, 4
NUM_GRAPHS, LEAST_NODES, MOST_NODES, EDGES_PER_NODE = 32, 10, 28, 2.2  # about as in a batch of MUTAG
MASKS = {
    "hop": lambda: {"mask": HopMask(HEADS)},
    "half hop": lambda: {"mask": [None, HopMask(HEADS // 2)], "mask_heads": [HEADS // 2] * 2},
    "Toeplitz": lambda: {"mask": ToeplitzMask((8, 8), HEADS)},
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


def graphs_for(layer: Module, grids: bool = False) -> list[Data]:
    """The graphs, with the attributes that the attention of a layer requires."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(LEAST_NODES, MOST_NODES + 1, NUM_GRAPHS)
    graphs = [random_graph(int(size), EDGES_PER_NODE * size, rng) for size in sizes]
    if grids:
        graphs = [from_networkx(nx.grid_2d_graph(8, 8)) for _ in sizes]
    attn = layer.attn if isinstance(layer, GPSLayer) else None
    return graphs if attn is None else prepared(attn, graphs)


def measure(names: list[str], rounds: int, grids: bool) -> dict[str, dict[str, float]]:
    """Median milliseconds of each layer's call and of its collation, and the ratio of its time to the first layer's."""
    torch.manual_seed(0)
    layers = {name: layer_of(name) for name in names}
    graphs = {name: graphs_for(layer, grids) for name, layer in layers.items()}
    num_nodes = sum(graph.num_nodes for graph in graphs[PEER])
    x = torch.randn(num_nodes, CHANNELS, requires_grad=True)
    calls: dict[str, list[float]] = {name: [] for name in names}
    batching: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()  # a garbage collection would count for an arbitrary layer
    for number in range(rounds + 3):
        for name, layer in layers.items():
            begin = time.process_time()
            batch = Batch.from_data_list(graphs[name]) if name == PEER else collate(graphs[name])
            made = time.process_time()
            (output(layer, x, batch).sum() + auxiliary_loss(layer)).backward()
            if number >= 3:  # after warm-up
                batching[name].append((made - begin) * 1e3)
                calls[name].append((time.process_time() - made) * 1e3)
        gc.collect()
    gc.enable()
    return {
        name: {
            "ms": statistics.median(calls[name]),
            "batch_ms": statistics.median(batching[name]),
            "ratio": statistics.median(own / peer for own, peer in zip(calls[name], calls[names[0]])),
        }
        for name in names
    }


def main() -> None:
    parser = bench_parser(__doc__, "a few batches and five layers")
    parser.add_argument("--only", nargs="+", choices=["none", *ATTENTION, *MASKS], help="attentions to run")
    parser.add_argument("--rounds", type=int, default=60, help="number of timed batches")
    parser.add_argument("--grids", action="store_true", help="grids of 8 × 8 nodes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only or (QUICK if options.quick else ["none", *ATTENTION])
    found = measure([PEER, *names], 15 if options.quick else options.rounds, options.grids)
    load = {
        "graphs": NUM_GRAPHS,
        "nodes": "8 × 8" if options.grids else [LEAST_NODES, MOST_NODES],
        "channels": CHANNELS,
        "heads": HEADS,
    }
    print(", ".join(f"{key} {value}" for key, value in load.items()) + "; processor time on one thread")
    print(f"{'attention':14s} {'ms':>7} {'x ' + PEER:>10} {'collation ms':>13}")
    for name, row in found.items():
        print(f"{name:14s} {row['ms']:7.2f} {row['ratio']:10.2f} {row['batch_ms']:13.2f}")
    report: dict[str, Any] = {"machine": machine(), **load, "layers": found}
    save_json(options.out / ("small-quick.json" if options.quick else "small.json"), report)


if __name__ == "__main__":
    main()
