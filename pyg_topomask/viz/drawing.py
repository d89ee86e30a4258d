"""What the pictures share: colours, ticks, the drawing of a graph, and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyg_topomask.cache import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers tell apart; yellow is too faint for lines and left out.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Perceptually even scales: one for weights of one sign, one for both signs around zero.
SEQUENTIAL, DIVERGING = "YlGnBu", "RdBu_r"
MAX_LAYOUT_NODES = 2000
BAR: dict[str, Any] = {"fraction": 0.046, "pad": 0.03}
"""Size and place of a colour bar."""
STAR: dict[str, Any] = {"marker": "*", "edgecolors": PALETTE[1], "linewidths": 1.6, "zorder": 4}
"""How a chosen node is drawn."""


def pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'pyg_topomask[run]'") from error
    return plt


def save_figure(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write the figure in the format of the path's ending and close it. An interrupted write leaves the old file.

    Args:
        figure: What the functions of :mod:`pyg_topomask.viz` return.
        path: Where to; missing folders are made.
        dpi: Pixels per inch, for pixel formats; 150 is sharp on a screen without large files.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        figure.savefig(part, dpi=dpi)
    pyplot().close(figure)
    return path


def integer_ticks(*axes: Any) -> None:
    """Let axes, or colour bars, have ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        set_locator = getattr(axis, "set_major_locator", None) or axis.set_ticks  # a colour bar takes it as its ticks
        set_locator(MaxNLocator(integer=True))


def _layout(edge_index: np.ndarray, num_nodes: int) -> np.ndarray:
    """Positions ``[N, 2]`` of the nodes in the unit square, neighbours close together, the same at every call."""
    import networkx as nx  # type: ignore[import-untyped]  # torch depends on it

    graph = nx.empty_graph(num_nodes)
    graph.add_edges_from(edge_index.T.tolist())
    parts = [min(part) for part in nx.connected_components(graph)]
    if len(parts) > 1:  # a node that is not drawn holds them together
        graph.add_edges_from((num_nodes, node) for node in parts)
    found = nx.spring_layout(graph, iterations=200 if num_nodes <= 500 else 50, seed=0)
    position = np.stack([found[i] for i in range(num_nodes)])
    position -= position.min(0)
    return position / position.max().clip(1e-9)


def checked_edges(edge_index: Tensor, num_nodes: int) -> np.ndarray:
    """The edges as an array.

    Raises:
        ValueError: If they name a node that there is not.
    """
    edges = edge_index.detach().cpu().numpy()
    if edges.size and edges.max() >= num_nodes:
        raise ValueError(
            f"'edge_index' holds node {edges.max()}, but the rest has {num_nodes} nodes: are they of one graph?"
        )
    return edges


def draw_edges(ax: Axes, edge_index: Tensor, num_nodes: int) -> tuple[np.ndarray, float]:
    """Draw the edges of a graph; return the positions ``[N, 2]`` of its nodes and the size to draw them in."""
    from matplotlib.collections import LineCollection

    edges = checked_edges(edge_index, num_nodes)
    if not 0 < num_nodes <= MAX_LAYOUT_NODES:
        raise ValueError(f"a graph of {num_nodes} nodes cannot be drawn legibly: the limit is {MAX_LAYOUT_NODES}")
    position = _layout(edges, num_nodes)
    ax.add_collection(LineCollection(list(position[edges.T]), colors="0.75", linewidths=0.7, zorder=1))
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.axis("off")
    return position, float(np.clip(6000 / num_nodes, 12, 160))
