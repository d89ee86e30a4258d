"""Attention on the pairs of a mask: compiled code compared with plain torch, forward and backward.

- ``grf``   GRF-masked linear attention on the sphere of ``grf.py``, one head of width 16, learnable modulation function
- ``gkat``  exact GKAT (softmax), 8 heads of width 8, on a random graph of Cora's size
- ``features`` GKAT with 256 random features, 8 heads of width 8, on Cora and on CiteSeer (from $TOPOMASK_DATA; without
  it, on random graphs of their sizes)
- ``conv``  `GKATConv` (additive scores) on the same graph, with the dropout of its paper
- ``small`` both on a batch of 32 small graphs, 16 channels a head
- ``wide``  both on a batch of 128 graphs of 150 nodes, 24 channels a head
- ``exphormer`` Exphormer's attention on 128 graphs of Peptides' size, without and with edge features

Both forms take turns in one process. Each figure is the median processor time of one thread, over all repeats.

Run: python scripts/bench/pairs.py [--quick] [--out results/bench]
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import bench_parser, machine, save_json
from attention import make_batch, random_graph
from grf import inputs, knn_sphere, step
from torch.nn import Module
from torch_geometric.data import Batch, Data
from torch_geometric.io import read_planetoid_data

from pyg_topomask.nn import ExphormerAttention, GKATAttention, GKATConv, GRFAttention
from pyg_topomask.transforms import AddRandomWalks

CORA_NODES, CORA_EDGES = 2_708, 10_556
CITESEER_NODES, CITESEER_EDGES = 3_327, 9_104
FORMS = {"compiled": "1", "plain torch": "0"}  # values of TOPOMASK_NATIVE


def interleaved_ms(function: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median processor time of a call, in milliseconds, with compiled code and without."""
    times: dict[str, list[float]] = {name: [] for name in FORMS}
    for repeat in range(repeats + 1):
        for name, native in FORMS.items():
            os.environ["TOPOMASK_NATIVE"] = native
            begin = time.process_time()
            function()
            if repeat > 0:  # the first call compiles, and builds what a batch keeps
                times[name].append(1e3 * (time.process_time() - begin))
    os.environ.pop("TOPOMASK_NATIVE")
    return {name: statistics.median(some) for name, some in times.items()}


def train(module: Module, graph: Data, channels: int = 64) -> None:
    """Forward and backward pass of an attention on random features."""
    x = torch.randn(graph.num_nodes or 0, channels, requires_grad=True)
    module(x, graph.get("batch"), graph).sum().backward()


def citation_graph(name: str, nodes: int, edges: int, share: float) -> Data:
    """Cora or CiteSeer, or a random graph with a share of its nodes, with the walks of the paper."""
    raw = Path(os.environ.get("TOPOMASK_DATA", "")) / "Planetoid" / name / "raw"
    if share == 1 and raw.is_dir():
        data = read_planetoid_data(str(raw), name.lower())
        graph = Data(edge_index=data.edge_index, num_nodes=nodes)
    else:
        graph = random_graph(int(share * nodes), share * edges, np.random.default_rng(0))
    return AddRandomWalks(100, 4, 0.0, seed=0, independent=False)(graph)


def attentions(channels: int) -> tuple[Module, Module]:
    """Linear and softmax attention of four heads."""
    linear = GRFAttention(channels, 4, independent=False, path="pairwise")
    return linear, GKATAttention(channels, 4, kernel="softmax", path="pairwise")


def cases(quick: bool) -> dict[str, tuple[Callable[[], Any], int]]:
    """Function and number of repeats of each case."""
    torch.manual_seed(0)
    graph, mask, tensors = inputs(2**12 if quick else 2**15)
    share = 0.2 if quick else 1.0
    cora = random_graph(int(share * CORA_NODES), share * CORA_EDGES, np.random.default_rng(0))
    cora = AddRandomWalks(100, 3, 0.0, seed=0, independent=False)(cora)
    gkat = GKATAttention(64, 8, kernel="softmax", max_length=3, path="pairwise")
    features = GKATAttention(64, 8, num_features=256, path="pairwise")
    long_cora = citation_graph("Cora", CORA_NODES, CORA_EDGES, share)
    citeseer = citation_graph("CiteSeer", CITESEER_NODES, CITESEER_EDGES, share)
    conv = GKATConv(64, 8, 8, dropout=0.6, max_length=3, path="pairwise")
    walks = AddRandomWalks(seed=0, independent=False)
    batch = Batch.from_data_list([walks(knn_sphere(18, seed=seed)) for seed in range(32)])
    large = Batch.from_data_list([walks(knn_sphere(150, seed=seed)) for seed in range(16 if quick else 128)])
    linear, softmax = attentions(64)
    wide_linear, wide_softmax = attentions(96)
    peptides, _ = make_batch("Peptides-func", ExphormerAttention.requirements())
    peptides.edge_attr = torch.randn(peptides.num_edges, 96)
    exphormer, with_edges = ExphormerAttention(96, 4), ExphormerAttention(96, 4, edge_dim=96)
    return {
        "grf": (lambda: step(tensors, mask, graph), 9),
        "gkat": (lambda: train(gkat, cora), 3),
        "features, Cora": (lambda: train(features, long_cora), 3),
        "features, CiteSeer": (lambda: train(features, citeseer), 3),
        "conv": (lambda: train(conv, cora), 3),
        "small, linear": (lambda: train(linear, batch), 25),
        "small, softmax": (lambda: train(softmax, batch), 25),
        "wide, linear": (lambda: train(wide_linear, large, 96), 15),
        "wide, softmax": (lambda: train(wide_softmax, large, 96), 15),
        "exphormer": (lambda: train(exphormer, peptides, 96), 9),
        "exphormer, edges": (lambda: train(with_edges, peptides, 96), 9),
    }


def main() -> None:
    options = bench_parser(__doc__, "smaller graphs").parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": machine(), "milliseconds": {}}
    for name, (function, repeats) in cases(options.quick).items():
        times = report["milliseconds"][name] = interleaved_ms(function, repeats)
        ratio = times["plain torch"] / times["compiled"]
        print(f"{name:18s} " + "  ".join(f"{form} {ms:8.1f} ms" for form, ms in times.items()) + f"  {ratio:5.2f} x")
    save_json(options.out / "pairs.json", report)


if __name__ == "__main__":
    main()
