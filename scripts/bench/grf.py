"""Speed of GRF-masked linear attention; `scale.py` measures its growth.

Setting: points on a sphere joined to their 3 nearest neighbours, n = 16 walks per node, p_halt = 0.5, up to 4 hops,
one head, m = d = 16, learnable modulation function; forward and backward to q, k, v and f. One run compares, in
processor time:

- chosen      the path that the library chooses
- factored    two sparse products of the library with the table merged over lengths, in slices of features
- raw table   the same product with gathers and scatters over the unmerged walk table, as in the papers' code
- unmasked    the library's linear attention without a mask

It counts the bytes that a step must move, beside the measured bandwidth.

Run: python scripts/bench/grf.py [--quick] [--out results/bench]
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from _measure import bench_parser, in_fresh_process, in_turns, machine, milliseconds, save_json
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data

from pyg_topomask import nn, ops, transforms

WIDTH = 16
MAX_LENGTH = 4


def knn_sphere(num_nodes: int) -> Data:
    """An undirected graph of random points on a sphere, each joined to its three nearest neighbours."""
    points = np.random.default_rng(0).normal(size=(num_nodes, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    _, near = cKDTree(points).query(points, k=4)
    row = torch.arange(num_nodes).repeat_interleave(3)
    col = torch.from_numpy(near[:, 1:].reshape(-1))
    edges = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
    return Data(edge_index=torch.unique(edges, dim=1), num_nodes=num_nodes)


def inputs(num_nodes: int) -> tuple[Data, nn.GRFMask, list[Tensor]]:
    """A graph with walks, a mask, and q, k (after ReLU), v and the gradient of the output."""
    torch.manual_seed(0)
    graph = transforms.AddRandomWalks(16, MAX_LENGTH, 0.5, seed=0)(knn_sphere(num_nodes))
    q, k = (torch.randn(num_nodes, 1, WIDTH).relu().requires_grad_() for _ in range(2))
    v = torch.randn(num_nodes, 1, WIDTH, requires_grad=True)
    return graph, nn.GRFMask(max_length=MAX_LENGTH), [q, k, v, torch.randn(num_nodes, 1, WIDTH)]


def step(tensors: list[Tensor], mask: nn.GRFMask | None, graph: Data, path: str = "auto") -> list[Tensor]:
    """One forward and backward pass of the library."""
    *leaves, grad = tensors
    out = ops.masked_linear_attention(*leaves, None if mask is None else mask(graph), path=path)
    return list(torch.autograd.grad(out, [*leaves, *([] if mask is None else [mask.modulation])], grad))


def step_raw_table(tensors: list[Tensor], mask: nn.GRFMask, graph: Data) -> list[Tensor]:
    """One pass with gathers and scatters over the walk table as sampled, with a row of m(d + 1) numbers per entry."""
    q, k, v, grad = tensors

    def features(name: str) -> tuple[Tensor, Tensor, Tensor]:
        start, visited = graph[f"{name}_index"].long()
        return start, visited, mask.modulation[graph[f"{name}_length"].long()] * graph[f"{name}_load"]

    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)[:, 0]
    outer = (k[:, 0, :, None] * values[:, None, :]).flatten(1)
    start, visited, value = features("walk_key")
    hidden = torch.zeros_like(outer).index_add(0, visited, value[:, None] * outer[start])
    start, visited, value = features("walk")
    state = torch.zeros_like(outer).index_add(0, start, value[:, None] * hidden[visited])
    sums = torch.einsum("nr,nrd->nd", q[:, 0], state.view(-1, WIDTH, WIDTH + 1))
    vanished = sums[:, -1:] == 0
    out = torch.where(vanished, 0, sums[:, :-1]) / torch.where(vanished, 1, sums[:, -1:])
    return list(torch.autograd.grad(out[:, None], [q, k, v, mask.modulation], grad))


def compare(num_nodes: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of every form in one process, and the largest difference of their gradients."""
    graph, mask, tensors = inputs(num_nodes)
    chosen = step(tensors, mask, graph)
    scale = [grad.abs().max() for grad in chosen]
    gaps = [
        max(float((a - b).abs().max() / s) for a, b, s in zip(other, chosen, scale))
        for other in (step(tensors, mask, graph, "factored"), step_raw_table(tensors, mask, graph))
    ]
    operator = mask(graph)
    pattern = operator.support.pairs(None)[0]
    own = {name: partial(step, tensors, given, graph) for name, given in (("chosen", mask), ("unmasked", None))}
    others = {
        "factored": lambda: step(tensors, mask, graph, "factored"),
        "raw table": lambda: step_raw_table(tensors, mask, graph),
    }
    times = in_turns(own, repeats) | in_turns(others, 3)
    moved = moved_mib(num_nodes, pattern.nnz, operator.walks.pairs.coeffs.size(1))
    return {
        "num_nodes": num_nodes,
        "milliseconds": times,
        "ratio to chosen": {name: time / times["chosen"] for name, time in times.items()},
        "chosen / unmasked": times["chosen"] / times["unmasked"],
        "pairs per node": pattern.nnz / num_nodes,
        "walk entries per node": graph.walk_index.size(1) / num_nodes,
        "largest relative gap of gradients": max(gaps),
        "MiB moved": moved,
        **floor(moved["total"], times["chosen"]),
    }


def floor(mib: float, measured: float) -> dict[str, float]:
    """The least time of moving so much memory, from the measured bandwidth of reading, and a step's time over it."""
    array = torch.ones(2**25)  # 128 MiB, more than caches hold
    bandwidth = array.numel() * 4 / 2**30 / (milliseconds(array.sum, 9)["cpu"] / 1e3)
    least = mib / 1024 / bandwidth * 1e3
    return {"GiB/s": bandwidth, "floor, ms": least, "chosen / floor": measured / least}


def moved_mib(num_nodes: int, num_pairs: int, num_coeffs: int) -> dict[str, float]:
    """MiB that one step reads and writes according to the algorithm, with 4 bytes per number or index.

    Rows of keys, values and their gradients count once for each pass, because the order of the pairs keeps them in the
    caches while they are used.
    """
    rows, table = num_nodes * WIDTH, num_pairs * (num_coeffs + 1)  # coefficients and the column of each pair
    parts = {
        "pair table, forward": table,
        "pair table, backward": table,
        "q, k, v, output and packed rows, forward": rows * (4 + 2 * 2),
        "the same and gradients, backward": rows * (4 + 3 + 2 * 2 + 2 * 2),
    }
    mib = {name: count * 4 / 2**20 for name, count in parts.items()}
    return {**mib, "total": sum(mib.values())}


def main() -> None:
    options = bench_parser(__doc__, "a smaller graph").parse_args()
    comparison = in_fresh_process(compare, 2**13 if options.quick else 2**15, 9)
    for name, value in comparison["milliseconds"].items():
        print(f"{name:15s} {value:9.2f} ms   {comparison['ratio to chosen'][name]:8.2f} x chosen")
    print(f"chosen / unmasked {comparison['chosen / unmasked']:.2f}")
    print(
        f"{comparison['pairs per node']:.1f} pairs/node; {comparison['MiB moved']['total']:.0f} MiB moved/step at "
        f"{comparison['GiB/s']:.1f} GiB/s: floor {comparison['floor, ms']:.2f} ms, {comparison['chosen / floor']:.2f} x"
    )
    report = {"machine": machine(), "comparison": comparison}
    save_json(options.out / "grf.json", report)


if __name__ == "__main__":
    main()
