"""Picture of the pairs that top-k attention keeps, on the graph or as a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyg_topomask.viz.drawing import (
    BAR,
    PALETTE,
    SEQUENTIAL,
    STAR,
    check_drawable,
    checked_edges,
    draw_edges,
    integer_ticks,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ARROWS = 60
"""Largest number of arrows that can be distinguished; more kept pairs are drawn as a matrix."""


def plot_kept_pairs(
    index: Tensor,
    edge_index: Tensor,
    title: str | None = None,
    node: int | None = None,
    head: int = 0,
    ax: Axes | None = None,
) -> Figure:
    """Plot the keys that top-k attention keeps: arrows from query to key on the graph, or a matrix if there are many.

    A node's colour shows how many queries keep it, including itself, even if only some arrows are drawn. A ring marks a
    node that keeps itself. More than 60 pairs are drawn as a matrix of queries and keys, together with the edges.

    Args:
        index: Kept keys, shape ``[N, H, k]`` or ``[N, k]``, with −1 for missing keys, from
            :class:`~pyg_topomask.nn.KMIPAttention` with ``return_index`` or from `topk_inner_product`.
        edge_index: The graph, shape ``[2, E]``.
        title: Title of the picture.
        node: Draw only the arrows from this node; all pairs if :obj:`None`.
        head: Number of the head.
        ax: The axes to draw on. A new figure if :obj:`None`.

    Returns:
        The figure, which :func:`save_figure` writes.

    Raises:
        ValueError: If there are no nodes, or too many to be drawn legibly.
        IndexError: If ``head`` or ``node`` is out of range.
        ImportError: If matplotlib is missing.
    """
    kept = index.detach().cpu().numpy()
    kept = kept[:, None] if kept.ndim == 2 else kept
    num_nodes, heads, _ = kept.shape
    for name, value, count in (("head", head, heads), ("node", node or 0, num_nodes)):
        if num_nodes and not 0 <= value < count:
            raise IndexError(f"'{name}' is {value}, but there are {count} {name}s")
    ax = panels(ax, 1, 6.4, 5.8)[0]
    query, column = np.nonzero(kept[:, head] >= 0)
    key = kept[query, head, column]
    figure: Any = ax.figure
    ax.set_title(title or "kept keys", fontsize=10)
    if node is None and (query != key).sum() > MAX_ARROWS:
        _draw_kept_matrix(ax, query, key, edge_index, num_nodes)
        return figure
    position, size = draw_edges(ax, edge_index, num_nodes)
    chosen = np.bincount(key, minlength=num_nodes)
    if node is not None:
        query, key = query[query == node], key[query == node]
    own = query == key
    east, north = position.T
    colours: dict[str, Any] = {"cmap": SEQUENTIAL, "vmin": 0, "vmax": chosen.max()}
    points = ax.scatter(east, north, s=size, c=chosen, edgecolors="0.35", linewidths=0.4, zorder=3, **colours)
    _draw_arrows(ax, position, query[~own], key[~own], size)
    ring: dict[str, Any] = {"facecolors": "none", "edgecolors": PALETTE[1], "linewidths": 1.1, "zorder": 3}
    ax.scatter(east[query[own]], north[query[own]], s=2.4 * size, **ring)
    legend = "arrow: from a query to a key that it keeps; ring: a node that keeps itself"
    if node is not None:
        ax.scatter(east[node], north[node], s=4 * size, c=chosen[node], **colours, **STAR)
        legend = f"arrow: from node {node} (star) to a key that it keeps; colours: all queries"
    integer_ticks(figure.colorbar(points, ax=ax, label="queries that keep this node (number)", **BAR))
    ax.text(0.5, -0.03, legend, transform=ax.transAxes, ha="center", va="top", fontsize=8)
    return figure


def _draw_kept_matrix(ax: Axes, query: np.ndarray, key: np.ndarray, edge_index: Tensor, num_nodes: int) -> None:
    """Draw kept pairs and edges as a matrix with a row for each query and a column for each key."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    check_drawable(num_nodes)
    kinds = np.zeros((num_nodes, num_nodes), dtype=int)
    edges = checked_edges(edge_index, num_nodes)
    kinds[edges[0], edges[1]] += 1
    kinds[query, key] += 2
    colours = ("white", "0.8", PALETTE[4], PALETTE[0])
    names = ("edge, not kept", "kept, no edge", "edge, kept")
    ax.imshow(kinds, cmap=ListedColormap(colours), vmin=0, vmax=3, interpolation="nearest")
    ax.set(xlabel="key", ylabel="query")
    integer_ticks(ax.xaxis, ax.yaxis)
    patches = [Patch(facecolor=colour, edgecolor="0.35", label=name) for colour, name in zip(colours[1:], names)]
    ax.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False, fontsize=8)


def _draw_arrows(ax: Axes, position: np.ndarray, start: np.ndarray, end: np.ndarray, size: float) -> None:
    """Draw arrows that end at the edge of a node, curved so that both directions of a pair are visible."""
    from matplotlib.patches import FancyArrowPatch

    radius = size**0.5 / 2  # in points; marker sizes are in square points
    for a, b in zip(position[start], position[end]):
        ax.add_patch(
            FancyArrowPatch(
                a,
                b,
                arrowstyle="-|>",
                connectionstyle="arc3,rad=0.12",
                mutation_scale=max(5.0, radius),
                shrinkA=radius,
                shrinkB=radius,
                color=PALETTE[1],
                alpha=0.55 if len(start) > MAX_ARROWS else 0.9,
                linewidth=0.8,
                zorder=2,
            )
        )
