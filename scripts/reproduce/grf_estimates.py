"""Error of the GRF mask's estimates at equal work (Reid et al. 2024, arXiv:2410.03462, Eq. 10), by graph and scheme.

    python scripts/reproduce/grf_estimates.py --quick       # a trial
    python scripts/reproduce/grf_estimates.py --results docs/results          # 5 minutes on one core

Work has two parts: walkers, which are drawn once, and multiply-adds of a product with the mask (factored path), which
every layer and step repeats. Two tables of 8 walkers per node and one table of 16 draw equally many walkers; two tables
of 8 and one of 8 need equally many multiply-adds. The error is the root mean square over draws and entries, relative to
that of the exact mask, on and off the diagonal. "pairs" is the number per node of non-zeros of the estimated mask. The
symmetrised estimate is the mean of the independent one and its transpose, which takes two products in place of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _tables import described, machine, pyplot, read_options, save_json, save_plot, start, table_parser, write_table
from rich.progress import track
from torch import Tensor
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph, coalesce, grid, to_dense_adj

from pyg_topomask.nn import GRFMask
from pyg_topomask.run.output.progress import error_output
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.viz.drawing import PALETTE

MAX_LENGTH = 4
SCHEMES = ("iid", "antithetic", "repelling")
ESTIMATES = (("independent", 8), ("symmetrised", 8), ("corrected", 16), ("shared", 16), ("corrected", 8), ("shared", 8))
"""Estimates of the diagonal, and walkers from each node in each of their tables."""


def graphs(size: int) -> dict[str, Data]:
    """One graph of each family with about ``size`` nodes."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(size, 3, generator=generator)
    near = torch.cdist(points, points).topk(5, largest=False).indices[:, 1:]
    knn = torch.stack([torch.arange(size).repeat_interleave(4), near.flatten()])
    side = round(size**0.5)
    ring = torch.arange(size)
    bonds = torch.stack([ring, (ring + 1) % size])  # a ring of atoms with bridges between every sixth
    bridges = torch.stack([ring[::6], (ring[::6] + 5) % size])
    torch.manual_seed(0)
    np.random.seed(0)  # PyG draws the power-law graph from NumPy's global state
    found = {
        "kNN": knn,
        "grid": grid(side, side)[0],
        "molecule": torch.cat([bonds, bridges], 1),
        "power law": barabasi_albert_graph(size, 2),
    }
    return {
        name: Data(edge_index=_simple(index), num_nodes=side**2 if name == "grid" else size)
        for name, index in found.items()
    }


def _simple(edge_index: Tensor) -> Tensor:
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    return coalesce(torch.cat([edge_index, edge_index.flip(0)], 1))


def errors(data: Data, diagonal: str, scheme: str, draws: int, num_walks: int) -> dict[str, float]:
    """Relative error off and on the diagonal; multiply-adds and pairs per node."""
    mask = GRFMask(max_length=MAX_LENGTH, diagonal="independent" if diagonal == "symmetrised" else diagonal)
    transform = AddRandomWalks(num_walks, MAX_LENGTH, 0.5, scheme, diagonal=mask.diagonal, seed=0)
    adj = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0].double()
    scale = adj.sum(1).clamp(min=1).rsqrt()
    step, f = scale[:, None] * adj * scale, mask.modulation.detach().double()
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
    yield (
        f"{described(report['machine'])}. Graphs of about {report['size']} nodes, {report['draws']} draws, walks of up "
        f"to {MAX_LENGTH} hops that halt with probability 0.5, mask exp(W). Walkers, multiply-adds and pairs are per "
        "node; errors are those of independent walkers, and in brackets of antithetic and repelling ones."
    )
    yield ""
    yield "| graph | estimate | walkers | multiply-adds | pairs | error off the diagonal | error on the diagonal |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for row in report["rows"]:
        first = row["schemes"]["iid"]
        tables = 1 if row["estimate"] in ("corrected", "shared") else 2
        cells = [row["graph"], row["estimate"], f"{tables} × {row['walks']}", f"{first['multiply_adds']:.0f}"]
        cells.append(f"{first['pairs']:.0f}")
        for part in ("off", "diagonal"):
            iid, *others = (f"{100 * row['schemes'][scheme][part]:.1f}" for scheme in SCHEMES)
            cells.append(f"{iid} % ({', '.join(others)})")
        yield "| " + " | ".join(cells) + " |"


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Error off the diagonal over multiply-adds, with a panel for each graph and a color for each scheme."""
    names = list(dict.fromkeys(row["graph"] for row in report["rows"]))
    size = (4 * len(names), 3.6)
    figure, axes = pyplot().subplots(1, len(names), figsize=size, layout="constrained", squeeze=False)
    markers = dict(zip(dict.fromkeys((row["estimate"], row["walks"]) for row in report["rows"]), "os^vD*"))
    for row in report["rows"]:
        axis, kind = axes[0, names.index(row["graph"])], (row["estimate"], row["walks"])
        for scheme, color in zip(SCHEMES, PALETTE):
            found, label = row["schemes"][scheme], "{}, {} walkers, ".format(*kind) + scheme
            axis.plot(found["multiply_adds"], 100 * found["off"], markers[kind], color=color, ms=5, label=label)
    for axis, name in zip(axes[0], names):
        axis.set(title=name, xlabel="multiply-adds of a node", ylabel="error off the diagonal (%)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    save_plot(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every estimate on every graph, and write the table."""
    options = read_options(table_parser(__doc__ or "", "grf_estimates", "small graphs and few draws"), arguments)
    size, draws = (64, 5) if options.quick else (400, 50)
    rows: list[dict[str, Any]] = []
    cases = [(*graph, *entry) for graph in graphs(size).items() for entry in ESTIMATES]
    for name, data, estimate, walks in track(cases, "estimates", console=error_output()):
        schemes = {scheme: errors(data, estimate, scheme, draws, walks) for scheme in SCHEMES}
        rows.append({"graph": name, "estimate": estimate, "walks": walks, "schemes": schemes})
    report = {"machine": machine(), "size": size, "draws": draws, "rows": rows}
    save_json(options.out / "grf_estimates.json", report)
    text = "\n".join(lines(report)) + "\n"
    write_table(options, "grf_estimates", text)
    plot(report, options.out / "grf_estimates.png")
    print(text)


if __name__ == "__main__":
    start(main)
