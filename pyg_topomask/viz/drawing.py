"""Shared parts of the pictures: colours, axes, the drawing of a graph, and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyg_topomask.cache import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish, without yellow, which is too faint for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Perceptually uniform scales, for weights of one sign and for both signs around zero.
SEQUENTIAL, DIVERGING = "YlGnBu", "RdBu_r"
MAX_LAYOUT_NODES = 2000
BAR: dict[str, Any] = {"fraction": 0.046, "pad": 0.03}
"""Size and position of a colour bar."""
STAR: dict[str, Any] = {"marker": "*", "edgecolors": PALETTE[1], "linewidths": 1.6, "zorder": 4}
"""Style of the selected node."""


def pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'pyg_topomask[run]'") from error
    return plt


def panels(count: int, width: float, height: float, title: str | None = None) -> tuple[Any, list["Axes"]]:
    """A new figure of ``count`` panels of this size in inches, perhaps with a title above them."""
    size = (width * count, height)
    figure, axes = pyplot().subplots(1, count, figsize=size, layout="constrained", squeeze=False)
    if title:
        figure.suptitle(title)
    return figure, list(axes[0])


def save_figure(figure: "Figure", path: str | Path, dpi: int = 150) -> Path:
    """Write the figure in the format of the file extension and close it. An interrupted write keeps the old file.

    Args:
        figure: A figure from a function of :mod:`pyg_topomask.viz`.
        path: The file to write; missing folders are created.
        dpi: Pixels per inch of pixel formats; 150 is sharp on a screen and keeps files small.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        figure.savefig(part, dpi=dpi)
    pyplot().close(figure)
    return path


def literal(text: str) -> str:
    """The text of a name, in which matplotlib does not read formulas between dollar signs."""
    return text.replace("$", r"\$")


def integer_ticks(*axes: Any) -> None:
    """Put the ticks of axes at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True))


def _layout(edge_index: np.ndarray, num_nodes: int) -> np.ndarray:
    """Positions ``[N, 2]`` of the nodes in the unit square, with neighbours close together; deterministic."""
    import networkx as nx  # type: ignore[import-untyped]  # torch depends on it

    graph = nx.empty_graph(num_nodes)
    graph.add_edges_from(edge_index.T.tolist())
    parts = [min(part) for part in nx.connected_components(graph)]
    if len(parts) > 1:  # a node that is not drawn keeps the components together
        graph.add_edges_from((num_nodes, node) for node in parts)
    found = nx.spring_layout(graph, iterations=200 if num_nodes <= 500 else 50, seed=0)
    position = np.stack([found[i] for i in range(num_nodes)])
    position -= position.min(0)
    return position / position.max().clip(1e-9)


def draw_edges(ax: "Axes", edge_index: Tensor, num_nodes: int) -> tuple[np.ndarray, float]:
    """Draw the edges of a graph; return the positions ``[N, 2]`` of its nodes and a suitable marker size.

    Raises:
        IndexError: If an edge has a node that does not exist.
        ValueError: If a picture would show none of so many nodes.
    """
    from matplotlib.collections import LineCollection

    edges = edge_index.detach().cpu().numpy()
    if not 0 < num_nodes <= MAX_LAYOUT_NODES:
        raise ValueError(f"a graph of {num_nodes} nodes cannot be drawn legibly; the limit is {MAX_LAYOUT_NODES}")
    position = _layout(edges, num_nodes)
    ax.add_collection(LineCollection(list(position[edges.T]), colors="0.75", linewidths=0.7, zorder=1))
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.axis("off")
    return position, float(np.clip(6000 / num_nodes, 12, 160))
