"""Every mask of the library as a matrix and on its graph: one picture, and the page of the documentation.

    python scripts/gallery.py           # writes docs/masks.png and docs/masks.md

The times in the table are those of docs/operators.json, which is a copy of a report of scripts/bench/operators.py:

    python scripts/bench/operators.py && cp results/bench/operators.json docs

Each mask is drawn with its initial parameters on a path, a tree, a grid, a molecule (caffeine) and a social network
(Zachary's karate club). On the graph, the colours are the row of the matrix that belongs to the star.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import from_networkx

from pyg_topomask.nn import MASK
from pyg_topomask.operators import MaskOperator
from pyg_topomask.transforms import AddGridShape, AddPositions, AddRandomWalks, AddTreeOrder
from pyg_topomask.viz.drawing import DIVERGING, SEQUENTIAL, STAR, draw_edges, pyplot, save_figure

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "operators.json"

# The bonds between the 14 heavy atoms of caffeine: a ring of six, a ring of five, and five side groups.
_CAFFEINE = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (3, 6), (6, 7), (7, 8), (8, 4)]
_CAFFEINE += [(0, 9), (1, 10), (2, 11), (5, 12), (6, 13)]


PAGE = """# Masks

A mask is a matrix `M`; its entry `M_ij` multiplies the weight of node `j` for node `i`. Most masks are not stored as
matrices: an operator computes their products with node features. `MaskedAttention` takes any of these modules with any
kernel, and each head may have its own mask. In a config, use `gt.layer_type: GCN+Masked`, `topomask.mask: heat` and
`topomask.mask_heat: {{time: 2.0}}`; the runner adds what the mask needs to the graphs. `toeplitz` also needs the size
of the largest grid: `topomask.mask_toeplitz: {{grid_shape: [8, 8]}}`. [A tutorial](tutorials/extend.md) shows how to
write your own mask.

```python
{example}```

{table}

`N` is the number of nodes, `E` that of edges (both directions), `n` that of nodes of one grid, `nᵢ` that of nodes along
an axis. `W` is the normalised adjacency `D^-1/2 A D^-1/2`, and `L` a Laplacian, `D^-1/2 (D - A) D^-1/2` by default.
The columns "multiply-adds" and "per node" are what an operator declares (`op.num_multiply_adds`), as a formula and as a
number. With `path="auto"`, attention uses these numbers to choose between products with the mask, a list of its pairs,
and the dense blocks of small graphs. All give the same results up to rounding. Numbers and times are for {num_nodes:,}
nodes: a grid with eight neighbours per node, or a random tree for `forest` and `tree` (8 hops). The column "ms" is the
time of a product with 64 columns ({machine}), and "speed-up" compares it with the same mask stored as a dense
matrix. `scripts/bench/operators.py` measures them.

Masks of trees measure distances in a spanning forest. On a graph with cycles, these are upper bounds on the distances
in the graph. `AddTreeOrder` stores in `tree_is_forest` whether the graph has no cycle; its `method` chooses the forest.
Masks of grids and orders depend on the order of the nodes.

The picture shows every mask with its initial parameters on five graphs: as a matrix and, for the node with the star, as
a row on the graph. Colours change with the square root of the weight. `python scripts/gallery.py` draws it and writes
this page.

![Ten masks on five graphs](masks.png)
"""


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Args:
        name: Name in configs.
        bench: Its operator in the report of the benchmark.
        definition: Formula of the entries.
        parameters: What is learned, per head.
        cost: Multiply-adds of a product for one column.
        use: When to use it.
        transform: What the graph needs; None if nothing.
        settings: Arguments of the mask in the picture.
        kind: Kind of graphs that the mask is for; others are left out of the picture.
    """

    name: str
    bench: str
    definition: str
    parameters: str
    cost: str
    use: str
    transform: BaseTransform | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    kind: str = "graphs"


ENTRIES = (
    Entry(
        "grf",
        "GRF, 16 walks",
        "Φ₁Φ₂ᵀ, an estimate of Σ αₖWᵏ by random walks",
        "f at 0 … `max_length` hops",
        "non-zeros of Φ₁ and Φ₂",
        "large graphs, short range: the cost does not grow with the degrees",
        AddRandomWalks(seed=0),
    ),
    Entry(
        "rwgnk",
        "RWGNK, 16 walks",
        "⟨fᵢ, fⱼ⟩ / (‖fᵢ‖ ‖fⱼ‖)^α of visits of random walks",
        "decay λ and α, if `learnable`",
        "non-zeros of the visits",
        "GKAT; nodes are similar if walks from them meet",
        AddRandomWalks(50, halt_prob=0.0, independent=False, seed=0),
    ),
    Entry(
        "power_series",
        "power series, 4 hops",
        "Σ αₖWᵏ with α = f ∗ f",
        "f at 0 … `max_length` hops",
        "2 `max_length` (E + N)",
        "the exact form of grf: small graphs, no noise",
    ),
    Entry(
        "heat",
        "heat, tol 1e-4",
        "exp(−λL)",
        "time λ in (0, `max_time`)",
        "degree of the series × (E + 2N)",
        "a range that is learned, beyond a few hops; undirected graphs",
        settings=(("time", 3.0),),
    ),
    Entry(
        "grid_heat",
        "grid heat",
        "exp(−λL) of a grid",
        "time λ in (0, `max_time`)",
        "N Σ nᵢ or N log N",
        "images and lattices, without a direction",
        AddGridShape(),
        (("time", 2.0),),
        kind="grids",
    ),
    Entry(
        "toeplitz",
        "Toeplitz, 2 axes",
        "w(p − q) of the positions p, q on a grid",
        "a weight for each offset, or each distance",
        "N log N, or N n for small grids",
        "images and sequences: the only mask here that knows directions on grids",
        AddGridShape(),
        (("grid_shape", (6, 6)),),
        kind="grids",
    ),
    Entry(
        "forest",
        "forest, random tree",
        "exp(a · dist(i, j) + b) in a spanning forest",
        "rate a, which keeps its sign",
        "about 8 N",
        "trees with lengths of edges; one number per head",
        AddTreeOrder(),
    ),
    Entry(
        "tree",
        "tree distance, 8 hops",
        "f(hops between i and j) in a spanning forest",
        "f at 0 … `max_hops`",
        "N min(`max_hops`, diameter), or N log² N",
        "trees and molecules, long range: exact distances",
        AddTreeOrder(),
        (("max_hops", 8),),
    ),
    Entry(
        "low_rank",
        "low rank, 16",
        "≈ exp(Σ λₖ² cos(2πfₖ(pᵢ − pⱼ) + θₖ)) of positions p",
        "amplitude, frequency and phase of each wave",
        "2 N `num_features`",
        "sequences with positions of any spacing",
        AddPositions(),
        (("max_period", 16.0), ("num_features", 256)),
        kind="sequences",
    ),
    Entry(
        "causal",
        "causal",
        "1 if j ≤ i, in the order of the nodes",
        "none",
        "N",
        "sequences in which the future is not known",
        kind="sequences",
    ),
)


def graphs() -> dict[str, Data]:
    """The five graphs, by name."""
    grid = nx.grid_2d_graph(6, 6)
    found = {
        "path": nx.path_graph(16),
        "tree": nx.balanced_tree(2, 3),
        "grid": nx.relabel_nodes(grid, {place: number for number, place in enumerate(sorted(grid))}),
        "molecule": nx.from_edgelist(_CAFFEINE),
        "social network": nx.Graph(nx.karate_club_graph().edges),
    }
    made = {}
    for name, graph in found.items():
        ordered = nx.empty_graph(graph.number_of_nodes())
        ordered.add_edges_from(graph.edges)
        made[name] = from_networkx(ordered)
    return made


def operator_of(entry: Entry, name: str, data: Data) -> MaskOperator | None:
    """The mask on a graph; None if it is for graphs of another kind. The nodes of a grid are a sequence, row by row."""
    if entry.kind != "graphs" and name not in ("path", "grid"):
        return None
    settings = dict(entry.settings)
    if "grid_shape" in settings and name == "path":
        settings["grid_shape"] = (data.num_nodes,)
    module: Callable[[Data], MaskOperator] = MASK[entry.name](**settings)
    with torch.no_grad():
        return module(data.clone() if entry.transform is None else entry.transform(data.clone()))


def draw() -> Any:
    """The picture: a row for each mask, and two panels for each graph."""
    named = graphs()
    figure, axes = pyplot().subplots(
        len(ENTRIES), 2 * len(named), figsize=(3.4 * len(named), 1.75 * len(ENTRIES)), layout="constrained"
    )
    for row, entry in zip(axes, ENTRIES):
        row[0].set_ylabel(entry.name, fontsize=13, labelpad=8)
        for number, (name, data) in enumerate(named.items()):
            panels = row[2 * number : 2 * number + 2]
            operator = operator_of(entry, name, data)
            for panel in panels:
                panel.set(xticks=[], yticks=[])
                panel.set_frame_on(operator is not None)
            if entry is ENTRIES[0]:
                panels[0].set_title(name, fontsize=13, loc="left")
            if operator is not None:
                _draw_pair(*panels, operator.to_dense().detach().numpy(), data)
            elif number:
                panels[0].text(0.5, 0.5, f"for {entry.kind}", ha="center", va="center", color="0.5", fontsize=9)
    return figure


def _draw_pair(left: Any, right: Any, matrix: np.ndarray, data: Data) -> None:
    """The matrix, and the row of its node with most neighbours on the graph; both with one scale of colours."""
    from matplotlib.colors import PowerNorm, TwoSlopeNorm

    most = np.abs(matrix).max()
    signed = matrix.min() < 0
    scale = {"cmap": DIVERGING, "norm": TwoSlopeNorm(0, -most, most)} if signed else {}
    scale = scale or {"cmap": SEQUENTIAL, "norm": PowerNorm(0.5, 0, most)}
    left.imshow(matrix, interpolation="nearest", **scale)
    place, size = draw_edges(right, data.edge_index, data.num_nodes)
    degree = torch.bincount(data.edge_index[0])
    node = int((degree == degree.max()).nonzero().median())
    others = np.arange(data.num_nodes) != node
    size = min(size, 45)
    right.scatter(*place[others].T, s=size, c=matrix[node, others], edgecolors="0.35", linewidths=0.4, **scale)
    right.scatter(*place[node], s=4 * size, c=[matrix[node, node]], **(STAR | {"linewidths": 1.0}), **scale)


def page() -> str:
    """The page of the documentation."""
    example = (ROOT / "examples" / "masks.py").read_text(encoding="utf-8")
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    where = report["machine"]
    machine = f"{where['cpu']}, {where['threads']} thread{'s' if where['threads'] > 1 else ''}"
    return PAGE.format(
        example=example.split('"""\n\n', 1)[1],
        table=table(report["products"]),
        num_nodes=report["num_nodes"],
        machine=machine,
    )


def table(measured: dict[str, dict[str, float]]) -> str:
    """The table of masks in Markdown, with the products that the benchmark measured."""
    head = ("mask", "entry M_ij", "learned", "multiply-adds per column")
    head += ("per node", "ms", "speed-up", "graph needs", "use")
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|---|--:|--:|--:|---|---|"]
    for entry in ENTRIES:
        row = measured[entry.bench]
        numbers = (f"{row['multiply_adds_per_node']:.0f}", f"{row['milliseconds']:.1f}", f"{row['ratio']:.0f}")
        needs = "–" if entry.transform is None else f"`{type(entry.transform).__name__}`"
        cells = (f"`{MASK[entry.name].__name__}` (`{entry.name}`)", entry.definition, entry.parameters, entry.cost)
        lines.append("| " + " | ".join([*cells, *numbers, needs, entry.use]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Write the page and the picture."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of masks.md and masks.png")
    options = made.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "masks.md").write_text(page(), encoding="utf-8")
    print(f"wrote {options.out / 'masks.md'} and {save_figure(draw(), options.out / 'masks.png', dpi=70)}")


if __name__ == "__main__":
    main()
