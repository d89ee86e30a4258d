"""Tables and a picture of all masks and attentions for the documentation, from their cards.

    python scripts/gallery.py              # writes docs/masks.png and parts of docs/{masks.md,methods/index.md,api}
    python scripts/gallery.py --reach      # also measures how far masks see; data in $TOPOMASK_DATA

The times in the table are those of docs/operators.json, which is a copy of a report of scripts/bench/operators.py:

    python scripts/bench/operators.py && cp results/bench/operators.json docs

Each mask is drawn with its initial parameters on a path, a tree, a grid, a molecule (caffeine) and a social network
(Zachary's karate club). On the graph, the colours are the row of the matrix that belongs to the star.
"""

import argparse
import json
from collections.abc import Container, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import from_networkx, to_undirected

from pyg_topomask import nn, operators, testing, transforms
from pyg_topomask.ops.reach import mean_hops, reach
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.formats import load_dataset
from pyg_topomask.viz.drawing import DIVERGING, SEQUENTIAL, STAR, draw_edges, pyplot, save_figure

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "docs" / "operators.json"
REACH = ROOT / "docs" / "reach.json"
COST = "<!-- Their costs, from the same script. -->\n\n"
TABLE = "<!-- Written by scripts/gallery.py from the cards of the {}. -->\n\n"
LIST = "   :nosignatures:\n\n"  # of the first list of an API page
COLUMNS = (("multiply_adds_per_node", 0), ("milliseconds", 1), ("ratio", 0))

_REAL = {"peptides-func": 20, "cora": 1}  # config of a data set, and its number of graphs

# The bonds between the 14 heavy atoms of caffeine: a ring of six, a ring of five, and five side groups.
_CAFFEINE = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (3, 6), (6, 7), (7, 8), (8, 4)]
_CAFFEINE += [(0, 9), (1, 10), (2, 11), (5, 12), (6, 13)]


def graphs() -> dict[str, Data]:
    """The five graphs, by name."""
    found = {
        "path": nx.path_graph(16),
        "tree": nx.balanced_tree(2, 3),
        "grid": grid_of(6),
        "molecule": nx.from_edgelist(_CAFFEINE),
        "social network": nx.Graph(nx.karate_club_graph().edges),
    }
    made = {}
    for name, graph in found.items():
        ordered = nx.empty_graph(graph.number_of_nodes())
        ordered.add_edges_from(graph.edges)
        made[name] = from_networkx(ordered)
    return made


def grid_of(side: int) -> nx.Graph:
    """A square grid, whose nodes are numbered row by row."""
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side), ordering="sorted")


def operator_of(name: str, data: Data, **given: Any) -> operators.MaskOperator | None:
    """A mask on a graph; None if it is for graphs of another kind. The nodes of a grid are a sequence, row by row."""
    cls = nn.MASK[name]
    settings = cls.examples()[0] | given
    try:
        if cls.card.graphs != "any":
            data = transforms.AddGridShape()(data.clone())  # refuses what is neither a path nor a grid
    except ValueError:
        return None
    if "grid_shape" in settings:
        settings["grid_shape"] = data.grid_shape[0].tolist()
    mask = cls(**settings)
    with torch.no_grad():
        return mask(testing.prepared(mask, [data])[0])


FAR = {
    "grf, `max_length=10, initial=[1.0] * 11`": {"max_length": 10, "initial": [1.0] * 11},
    "grf, `stitch=3, initial=[1.0] * 5`": {"stitch": 3, "initial": [1.0] * 5},
}
"""Settings of the GRF mask that reach further."""


def kinds() -> dict[str, list[Data]]:
    """Graphs of five kinds, on which the reach is measured."""
    real = {name: load_dataset(load(ROOT / "configs/grf" / f"{name}.yaml").config.dataset).graphs for name in _REAL}
    molecules, cora = ([real[name][number] for number in range(count)] for name, count in _REAL.items())
    points = torch.rand(400, 3, generator=torch.Generator().manual_seed(0))
    nearest = torch.cdist(points, points).topk(9, largest=False).indices[:, 1:]
    near = torch.stack([torch.arange(400).repeat_interleave(8), nearest.flatten()])
    return {
        "molecules": molecules,
        "grid": [from_networkx(grid_of(20))],
        "points": [Data(edge_index=to_undirected(near), num_nodes=400)],
        "Cora": cora,
        "tree": [from_networkx(nx.random_labeled_tree(400, seed=0))],
    }


def defaults(cls: type) -> dict[str, Any]:
    """The defaults of those arguments that the example of a mask sets."""
    found = ((name, parameter.default) for name, parameter in signature(cls).parameters.items())
    return {name: value for name, value in found if name in cls.examples()[0] and value is not Parameter.empty}


def measured_reach() -> dict[str, dict[str, list[float] | None]]:
    """Mean hops, and share within one hop, of masks with their initial parameters on each kind of graphs."""
    found: dict[str, dict[str, list[float] | None]] = {}
    rows: dict[str, Any] = {"no mask": {}} | {name: defaults(cls) for name, cls in nn.MASK.items()} | FAR
    for kind, graphs in kinds().items():
        for row, settings in rows.items():
            shares = []
            for data in graphs:
                bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
                ones = operators.OnesOperator(torch.zeros(bare.num_nodes, dtype=torch.long))
                operator = ones if row == "no mask" else operator_of(row.partition(",")[0], bare, **settings)
                shares += [] if operator is None else [reach(operator, bare, 32, 128)]
            mean = torch.stack(shares).mean(0) if shares else None
            found.setdefault(row, {})[kind] = None if mean is None else [float(mean_hops(mean)), float(mean[:2].sum())]
            print(f"{kind}: {row}", flush=True)
    return found


def reach_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of mean hops in Markdown."""
    kinds = list(next(iter(found.values())))
    rows = []
    for name, by_kind in found.items():
        cells = ["–" if by_kind[kind] is None else f"{by_kind[kind][0]:.2f}" for kind in kinds]
        near = "–" if by_kind["molecules"] is None else f"{by_kind['molecules'][1]:.2f}"
        mask, comma, settings = name.partition(",")
        rows.append((name if name == "no mask" else f"`{mask}`{comma}{settings}", *cells, near))
    return markdown(["mask", *kinds, "within one hop"], rows, right=range(1, len(kinds) + 2))


def draw(names: Iterable[str] = nn.MASK) -> Any:
    """The picture: a row for each mask, and two panels for each graph."""
    named, masks = graphs(), list(names)
    figure, axes = pyplot().subplots(
        len(masks), 2 * len(named), figsize=(3.4 * len(named), 1.75 * len(masks)), layout="constrained"
    )
    for row, mask in zip(axes, masks):
        row[0].set_ylabel(mask, fontsize=13, labelpad=8)
        for number, (name, data) in enumerate(named.items()):
            panels = row[2 * number : 2 * number + 2]
            operator = operator_of(mask, data)
            for panel in panels:
                panel.set(xticks=[], yticks=[])
                panel.set_frame_on(operator is not None)
            if mask == masks[0]:
                panels[0].set_title(name, fontsize=13, loc="left")
            if operator is not None:
                _draw_pair(*panels, operator.to_dense().detach().numpy(), data)
            elif number:
                text = f"for {nn.MASK[mask].card.graphs}"
                panels[0].text(0.5, 0.5, text, ha="center", va="center", color="0.5", fontsize=9)
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


def halves(head: str, rows: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Two tables of the same rows in Markdown: what helps to choose, and what it costs, from the column "time" on."""
    columns = head.split("|")
    cut = columns.index("time")
    choose = markdown(columns[:cut], [row[:cut] for row in rows])
    kept = [0, *range(cut, len(columns))]
    return choose, markdown([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], right=range(4, 7))


def table(measured: dict[str, dict[str, float]]) -> tuple[str, str]:
    """The tables of masks, with the products that the benchmark measured."""
    head = "mask|use|graph needs|for|reach|entry M_ij|learned|time|memory|multiply-adds per column|per node|ms|speed-up"
    rows = []
    for name, cls in nn.MASK.items():
        card, label = cls.card, name.replace("_", " ")
        row = next((row for key, row in measured.items() if key.lower().startswith(label)), None)
        numbers = ("–",) * 3
        if row is not None:
            numbers = tuple(f"{row[key]:.{digits}f}" for key, digits in COLUMNS)
        rows.append((f"`{cls.__name__}` (`{name}`)", *_common(cls(**cls.examples()[0])), card.cost, *numbers))
    return halves(head, rows)


def methods() -> tuple[str, str]:
    """The tables of attentions."""
    rows = []
    for cls in dict.fromkeys(nn.ATTENTION.values()):
        names = [name for name, other in nn.ATTENTION.items() if other is cls]
        link = f"[{', '.join(names)}]({names[-1].lower()}.md): `{cls.__name__}`"
        rows.append((link, *_common(cls(8, **cls.examples()[0])), cls.card.cost))
    head = "attention|use|graph needs|for|reach|what a node attends to|learned|time|memory|grows with"
    return halves(head, rows)


def _common(built: Any) -> tuple[str, ...]:
    """Cells of masks and attentions: what helps to choose, then what is computed, and powers of N."""
    card, needs = built.card, [f"`{type(step).__name__}`" for step in transforms.that_add(built.requires).transforms]
    text = lambda power: "N" if power == 1 else f"N^{power:g}"  # noqa: E731
    powers = (text(power) + (f" to {text(card.most)}" if card.most else "") for power in (card.time, card.memory))
    return card.when, ", ".join(needs) or "–", card.graphs, card.reach, card.formula, card.learns, *powers


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = ()) -> str:
    """A table; columns with the numbers ``right`` are aligned to the right."""
    rule = ["--:" if number in right else "---" for number in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def names(table: Mapping[str, type]) -> str:
    """The classes of a table as lines of an API page."""
    return "\n".join(f"   {cls.__name__}" for cls in dict.fromkeys(table.values()))


def written() -> dict[Path, str]:
    """The pages of which parts are written again, with their new text."""
    example = (ROOT / "examples" / "masks.py").read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    report, reached = (json.loads(path.read_text(encoding="utf-8")) for path in (REPORT, REACH))
    where = report["machine"]
    threads = f"{where['threads']} thread{'s' if where['threads'] > 1 else ''}"
    (masks, cost), (attentions, growth) = table(report["products"]), methods()
    parts = [  # page, what stands before and after the part, and the part
        ("masks.md", "```python\n", "```", example),
        ("masks.md", TABLE.format("masks"), "\n\n", masks),
        ("masks.md", COST, "\n\n", cost),
        ("masks.md", "Numbers and times are for ", " nodes", f"{report['num_nodes']:,}"),
        ("masks.md", "a product with 64 columns (", "), and", f"{where['cpu']}, {threads}"),
        ("masks.md", "`scripts/gallery.py --reach` measures it.\n\n", "\n\n", reach_table(reached)),
        ("methods/index.md", TABLE.format("attentions"), "\n\n", attentions),
        ("methods/index.md", COST, "\n\n", growth),
        ("api/masks.rst", LIST, "\n\n", names(nn.MASK)),
        ("api/attention.rst", LIST, "\n\n", names(nn.ATTENTION)),
    ]
    found: dict[Path, str] = {}
    for page, begin, end, text in parts:
        path = ROOT / "docs" / page
        before, _, after = (found.get(path) or path.read_text(encoding="utf-8")).partition(begin)
        found[path] = before + begin + text + end + after.partition(end)[2]
    return found


def main() -> None:
    """Write the pages and the picture."""
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--reach", action="store_true", help="measure how far masks see again")
    if made.parse_args().reach:
        REACH.write_text(json.dumps(measured_reach(), indent=1) + "\n", encoding="utf-8")
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
    print(f"wrote the pages and {save_figure(draw(), ROOT / 'docs' / 'masks.png', dpi=70)}")


if __name__ == "__main__":
    main()
