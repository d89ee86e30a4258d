"""Error of the GRF mask's estimates at equal work (Reid et al. 2024, arXiv:2410.03462, Eq. 10), by graph and scheme.

    python scripts/reproduce/grf_estimates.py --quick       # a trial
    python scripts/reproduce/grf_estimates.py --results docs/results          # 8 minutes on one core

Work has two parts: walkers, which are drawn once, and multiply-adds of a product with the mask (factored path), which
every layer and step repeats. Two tables of 8 walkers per node and one table of 16 draw equally many walkers; two tables
of 8 and one of 8 need equally many multiply-adds. The error is the root mean square over draws and entries, relative to
that of the exact mask, on and off the diagonal. "pairs" is the number per node of non-zeros of the estimated mask. The
symmetrised estimate is the mean of the independent one and its transpose, which takes two products in place of one. The
one-sided estimate is the sum over the visits of one walker of twice the length (Appendix D).

The second table has the error by distance, of estimates of the same mask ((1 + W) / 2)^12 that take equally many
steps of walkers: a product of 2 l factors with K = 6 / l hops each is that mask for every l.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import comb
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from _bench import described, draw_lines, machine, markdown, ring_with_bridges
from _tables import finish, read_options, start, table_parser
from _verdicts import mean_interval
from rich.progress import track
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph, grid, remove_self_loops, to_dense_adj, to_undirected

from pyg_topomask.nn import GRFMask
from pyg_topomask.ops.hops import hop_pairs
from pyg_topomask.run.output.progress import error_output
from pyg_topomask.transforms import AddRandomWalks

MAX_LENGTH = 4
SCHEMES = ("iid", "antithetic", "repelling")
ESTIMATES = (
    *(("independent", 8), ("symmetrised", 8), ("corrected", 16), ("shared", 16), ("corrected", 8), ("shared", 8)),
    ("one-sided", 16),
)
"""Estimates of the diagonal, and walkers from each node in each of their tables."""
HOPS, STEPS = 12, 96
"""Longest walk of the mask ((1 + W) / 2)^HOPS, and steps of the walkers of a node in all tables."""
BY_DISTANCE: dict[str, tuple[float, dict[str, Any]]] = {
    "one table (not symmetric), halting 0.2": (0.5, {"halt_prob": 0.2}),
    "plain, halting 0.5": (1, {}),
    "antithetic, halting 0.5": (1, {"scheme": "antithetic"}),
    "repelling, halting 0.5": (1, {"scheme": "repelling"}),
    "plain, uniform lengths": (1, {"lengths": "uniform"}),
    "plain, no halting": (1, {"halt_prob": 0.0}),
    "repelling, no halting": (1, {"halt_prob": 0.0, "scheme": "repelling"}),
    "stitched 2, no halting": (2, {"halt_prob": 0.0}),
    "stitched 3, no halting": (3, {"halt_prob": 0.0}),
    "stitched 3, uniform lengths": (3, {"lengths": "uniform"}),
    "stitched 3, repelling, no halting": (3, {"halt_prob": 0.0, "scheme": "repelling"}),
    "stitched 6, no halting": (6, {"halt_prob": 0.0}),
}
"""Estimates of one mask: pairs of factors, and settings of the walks."""
RANGES = {"near": (1, 3), "far": (6, 12)}
MOST_DRAWS = 20
"""Draws of the errors by distance, at most."""


def graphs(size: int) -> dict[str, Data]:
    """One graph of each family with about ``size`` nodes."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(size, 3, generator=generator)
    near = torch.cdist(points, points).topk(5, largest=False).indices[:, 1:]
    knn = torch.stack([torch.arange(size).repeat_interleave(4), near.flatten()])
    side = round(size**0.5)
    torch.manual_seed(0)
    np.random.seed(0)  # PyG draws the power-law graph from NumPy's global state
    found = {
        "kNN": knn,
        "grid": grid(side, side)[0],
        "molecule": ring_with_bridges(size).edge_index,
        "power law": barabasi_albert_graph(size, 2),
    }
    simple = {name: to_undirected(remove_self_loops(index)[0]) for name, index in found.items()}
    return {name: Data(edge_index=index, num_nodes=int(index.max()) + 1) for name, index in simple.items()}


def normalized(data: Data) -> Tensor:
    """W as a dense matrix."""
    adj = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0].double()
    scale = adj.sum(1).clamp(min=1).rsqrt()
    return scale[:, None] * adj * scale


def errors_by_distance(data: Data, pairs: float, walk: dict[str, Any], draws: int) -> dict[str, Any]:
    """Relative error of each draw for near and far pairs of nodes, with walks of equally many steps."""
    size, symmetric = int(data.num_nodes or 0), pairs >= 1
    stitch, length = int(max(pairs, 1)), int(HOPS / (2 * pairs))
    f = [comb(length, hops) / 2**length for hops in range(length + 1)]
    mask = GRFMask(max_length=length, symmetric=symmetric, stitch=stitch, initial=f)
    halting = {key: value for key, value in walk.items() if key != "scheme"}
    hops_of_walk = sum(AddRandomWalks(1, length, **halting).settings.tail[1:])
    walks = max(1, round(STEPS / (2 * pairs * hops_of_walk)))
    transform = AddRandomWalks(walks, length, independent=symmetric, seed=0, num_tables=stitch, **walk)
    exact = torch.linalg.matrix_power((torch.eye(size).double() + normalized(data)) / 2, HOPS)
    index, hops = hop_pairs(data.edge_index, size, HOPS)
    found: dict[str, Any] = {"walks": walks, "steps": 2 * pairs * walks * hops_of_walk} | {name: [] for name in RANGES}
    for epoch in range(draws):
        transform.set_epoch(epoch)
        with torch.no_grad():
            operator = mask(Batch.from_data_list([transform(data)]))
            estimate = operator.to_dense().double()
        for name, (low, high) in RANGES.items():
            row, col = index[:, (hops >= low) & (hops <= high)]
            if row.numel() > 0:
                wanted = exact[row, col]
                found[name].append(float((estimate[row, col] - wanted).norm() / wanted.norm()))
    return found | {"multiply_adds": operator.num_multiply_adds / size}


def errors(data: Data, diagonal: str, scheme: str, draws: int, num_walks: int) -> dict[str, float]:
    """Relative error off and on the diagonal; multiply-adds and pairs per node."""
    mask = GRFMask(max_length=MAX_LENGTH, diagonal=diagonal if diagonal in ("corrected", "shared") else "independent")
    step, f = normalized(data), mask.modulation.detach().double()
    if diagonal == "one-sided":
        mask = GRFMask(max_length=2 * MAX_LENGTH, symmetric=False, initial=np.convolve(f, f).tolist())
    transform = AddRandomWalks(num_walks, mask.max_length, 0.5, scheme, diagonal=mask.diagonal, seed=0)
    features = sum(f[k] * torch.linalg.matrix_power(step, k) for k in range(MAX_LENGTH + 1))
    exact, eye = features @ features.t(), torch.eye(data.num_nodes, dtype=torch.bool)
    squares, pairs, products = torch.zeros(2), 0.0, 0.0
    for epoch in range(draws):
        transform.set_epoch(epoch)
        with torch.no_grad():
            operator = mask(Batch.from_data_list([transform(data)]))
            found = operator.to_dense().double()
        products += operator.num_multiply_adds * (2 if diagonal == "symmetrised" else 1)
        if diagonal == "symmetrised":
            found = (found + found.t()) / 2
        error = (found - exact).square()
        squares += torch.stack([error[~eye].sum(), error[eye].sum()])
        pairs += float((found != 0).sum())
    whole = torch.stack([exact[~eye].square().sum(), exact[eye].square().sum()])
    off, on = (squares / draws / whole).sqrt().tolist()
    per_node = draws * data.num_nodes
    return {"off": off, "diagonal": on, "multiply_adds": products / per_node, "pairs": pairs / per_node}


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was measured."""
    yield f"{described(report['machine'])}. Graphs of about {report['size']} nodes, {report['draws']} draws.\n"
    head = "graph | estimate | walkers: | multiply-adds: | pairs: | error off the diagonal: | error on the diagonal:"
    yield from markdown(head, map(_cells, report["rows"]))
    yield "\nError by distance:\n"
    cells = []
    for row in report["by_distance"]:
        errors = ("{:.0f} ± {:.0f} %".format(*interval(row[name])) if row[name] else "–" for name in RANGES)
        work = f"{int(2 * row['pairs'])} × {row['walks']}", f"{row['steps']:.0f}", f"{row['multiply_adds']:.0f}"
        cells.append([row["graph"], row["estimate"], *work, *errors])
    yield from markdown("graph | estimate | tables × walkers: | steps: | multiply-adds: | near: | far:", cells)


def _cells(row: Mapping[str, Any]) -> list[Any]:
    first, tables = row["schemes"]["iid"], 1 if row["estimate"] in ("corrected", "shared", "one-sided") else 2
    cells = [row["graph"], row["estimate"], f"{tables} × {row['walks']}"]
    cells += [f"{first[key]:.0f}" for key in ("multiply_adds", "pairs")]
    for part in ("off", "diagonal"):
        iid, *others = (f"{100 * row['schemes'][scheme][part]:.1f}" for scheme in SCHEMES)
        cells.append(f"{iid} % ({', '.join(others)})")
    return cells


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of an interval of 95 % by Student's t, in percent."""
    mean = fmean(values)
    return 100 * mean, 100 * (mean_interval(mean, stdev(values), len(values), 0.95)[1] - mean)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """For each graph, the error off the diagonal over multiply-adds, with a line for each scheme; below, the error for
    near and far pairs.
    """
    panels: dict[str, dict[str, list[Any]]] = {}
    for row in report["rows"]:
        for scheme, found in row["schemes"].items():
            line = panels.setdefault(f"{row['graph']}, over multiply-adds", {}).setdefault(scheme, [])
            line.append((found["multiply_adds"], 100 * found["off"]))
    for row in report["by_distance"]:
        for part in (part for part in RANGES if row[part]):
            line = panels.setdefault(f"{row['graph']}, by distance", {}).setdefault(part, [])
            line.append((row["estimate"], *interval(row[part])))
    draw_lines(panels, path, "", "error (%)", "y", columns=len(panels) // 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every estimate on every graph, and write the table."""
    options = read_options(table_parser(__doc__ or "", "grf_estimates", "small graphs and few draws"), arguments)
    size, draws = (64, 5) if options.quick else (400, 50)
    rows: list[dict[str, Any]] = []
    cases = [(*graph, *entry) for graph in graphs(size).items() for entry in ESTIMATES]
    for name, data, estimate, walks in track(cases, "estimates", console=error_output()):
        schemes = {scheme: errors(data, estimate, scheme, draws, walks) for scheme in SCHEMES}
        rows.append({"graph": name, "estimate": estimate, "walks": walks, "schemes": schemes})
    by_distance = [
        {"graph": name, "estimate": estimate, "pairs": pairs}
        | errors_by_distance(data, pairs, walk, min(draws, MOST_DRAWS))
        for name, data in graphs(size).items()
        for estimate, (pairs, walk) in BY_DISTANCE.items()
    ]
    report = {"machine": machine(), "size": size, "draws": draws, "rows": rows, "by_distance": by_distance}
    finish(report, lines, plot, options)


if __name__ == "__main__":
    start(main)
