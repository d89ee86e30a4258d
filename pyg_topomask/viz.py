"""Pictures: a mask as a matrix and on its graph, kept pairs on theirs, training curves with their spread over seeds.

matplotlib is imported when a picture is drawn, so that the package works without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
MAX_ARROWS = 3000
LAYOUT_STEPS = 60


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install 'pyg_topomask[run]'") from error
    return plt


def plot_mask(
    mask: Any,
    edge_index: Tensor | None = None,
    title: str | None = None,
    node: int | None = None,
    head: int = 0,
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    r"""A mask as a heat map and, given the graph, one of its rows on the graph: how strongly a node sees each other.

    Colours span the weights between different nodes, and both panels share them; larger weights of a node on itself
    take the last colour. A mask with negative weights gets a scale that is symmetric about zero.

    Args:
        mask: Matrix ``[N, N]`` or ``[H, N, N]``, or anything with ``to_dense()``, such as an operator.
        edge_index: The graph, shape ``[2, E]``; without it the heat map stands alone.
        title: Title of the heat map.
        node: The node whose row is drawn on the graph; the one with most neighbours if :obj:`None`.
        head: Which of the ``H`` masks.
        ax: Where to draw: one pair of axes, or one where there is no graph. A new figure if :obj:`None`.

    Returns:
        The figure; :func:`save_figure` writes it.

    Units: mask entries are dimensionless weights.

    Raises:
        ValueError: If the mask is not square, or the number of axes does not fit.
        IndexError: If ``head`` or ``node`` is out of range.
        ImportError: If matplotlib is missing.
    """
    plt = _pyplot()
    matrix = _matrix(mask, head)
    panels = 1 if edge_index is None else 2
    if ax is None:
        figure, axes = plt.subplots(1, panels, figsize=(5.4 * panels, 4.6), layout="constrained", squeeze=False)
        axes = list(axes[0])
    else:
        axes = list(ax) if isinstance(ax, (Sequence, np.ndarray)) else [ax]
        figure = axes[0].figure
    if len(axes) != panels:
        raise ValueError(f"'ax' must hold {panels} axes: one for the matrix, one for a graph (got {len(axes)})")
    image = axes[0].imshow(matrix, interpolation="nearest", **_scale(matrix))
    axes[0].set(xlabel="node $j$ (seen)", ylabel="node $i$ (sees)", title=title or "mask $M$")
    _colour_bar(axes[0], image, "weight $M_{ij}$ (no unit)", matrix)
    if edge_index is not None:
        _draw_row(axes[1], matrix, edge_index, node)
    return figure


def plot_kept_pairs(
    index: Tensor,
    edge_index: Tensor,
    title: str | None = None,
    node: int | None = None,
    head: int = 0,
    ax: Axes | None = None,
) -> Figure:
    r"""The keys that top-k attention keeps, as arrows from query to key over the graph.

    A node's colour says how many queries keep it, itself included and whatever arrows are drawn; a ring is around those
    that keep themselves.

    Args:
        index: Kept keys, shape ``[N, H, k]`` or ``[N, k]``, −1 where there is none: from
            :class:`~pyg_topomask.nn.KMIPAttention` with ``return_index``, or `topk_inner_product`.
        edge_index: The graph, shape ``[2, E]``.
        title: Title of the picture.
        node: Draw the arrows out of this node only; all if :obj:`None`.
        head: Which of the ``H`` heads.
        ax: Where to draw. A new figure if :obj:`None`.

    Returns:
        The figure; :func:`save_figure` writes it.

    Raises:
        ValueError: If there are no nodes, or too many nodes or arrows to be drawn legibly.
        IndexError: If ``head`` or ``node`` is out of range.
        ImportError: If matplotlib is missing.
    """
    kept = index.detach().cpu().numpy()
    kept = kept[:, None] if kept.ndim == 2 else kept
    num_nodes, heads, _ = kept.shape
    for name, value, count in (("head", head, heads), ("node", node or 0, num_nodes)):
        if num_nodes and not 0 <= value < count:
            raise IndexError(f"'{name}' is {value}, but there are {count} {name}s")
    plt = _pyplot()
    if ax is None:
        ax = plt.subplots(figsize=(6.4, 5.8), layout="constrained")[1]
    query, place = np.nonzero(kept[:, head] >= 0)
    key = kept[query, head, place]
    position, size = _draw_edges(ax, edge_index, num_nodes)
    chosen = np.bincount(key, minlength=num_nodes)
    if node is not None:
        query, key = query[query == node], key[query == node]
    own = query == key
    east, north = position.T
    points = ax.scatter(
        east, north, s=size, c=chosen, cmap=SEQUENTIAL, vmin=0, edgecolors="0.35", linewidths=0.4, zorder=3
    )
    _draw_arrows(ax, position, query[~own], key[~own], size)
    ax.scatter(
        east[query[own]],
        north[query[own]],
        s=2.4 * size,
        facecolors="none",
        edgecolors=PALETTE[1],
        linewidths=1.1,
        zorder=3,
    )
    if node is not None:
        ax.scatter(east[node], north[node], s=3 * size, color=PALETTE[1], marker="*", edgecolors="black", zorder=4)
    ax.set_title(title or "kept keys", fontsize=10)
    ax.figure.colorbar(points, ax=ax, label="queries that keep this node (number)", fraction=0.046, pad=0.03)
    legend = "arrow: from a query to a key that it keeps; ring: a node that keeps itself"
    if node is not None:
        legend = f"arrow: from node {node} (star) to a key that it keeps; colours: of all queries"
    ax.text(0.5, -0.03, legend, transform=ax.transAxes, ha="center", va="top", fontsize=8)
    figure: Any = ax.figure
    return figure


def plot_curves(
    metrics: Mapping[str, Any],
    keys: Sequence[str] = ("train_loss", "val_accuracy"),
    labels: Sequence[str] | None = None,
    x: str = "epoch",
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    r"""Training curves of several models: the mean over seeds as a line, one standard deviation
    (the population's, as in the summary of a run) to each side as a band.

    Args:
        metrics: For each model's name the columns of one run, or a list of those of several seeds. Columns are
            anything indexable by name (a data frame, a dict of lists); rows where the value is missing are left out,
            as Lightning writes training and validation values into separate rows.
        keys: One panel for each of these columns.
        labels: Their titles, with units; the column's name with blanks if :obj:`None`.
        x: The column of the horizontal axis.
        ax: One pair of axes for each key. A new figure if :obj:`None`.

    Returns:
        The figure.

    Raises:
        KeyError: If a column is missing.
        ValueError: If there is no model or no key, or the number of axes or labels does not fit.
        ImportError: If matplotlib is missing.
    """
    if not metrics or not keys:
        raise ValueError(f"'metrics' and 'keys' must not be empty (got {len(metrics)} models and {len(keys)} keys)")
    plt = _pyplot()
    if ax is None:
        figure, axes = plt.subplots(1, len(keys), figsize=(5.2 * len(keys), 3.8), layout="constrained", squeeze=False)
        axes = list(axes[0])
    else:
        axes = list(ax) if isinstance(ax, (Sequence, np.ndarray)) else [ax]
        figure = axes[0].figure
    labels = [key.replace("_", " ") for key in keys] if labels is None else list(labels)
    if not len(axes) == len(labels) == len(keys):
        raise ValueError(f"one of 'ax' and 'labels' for each of {len(keys)} keys (got {len(axes)} and {len(labels)})")
    for panel, key, label in zip(axes, keys, labels):
        for i, (name, runs) in enumerate(metrics.items()):
            runs = list(runs) if isinstance(runs, (list, tuple)) else [runs]
            where, mean, spread = _mean_and_spread(name, runs, x, key)
            colour = PALETTE[i % len(PALETTE)]
            panel.plot(where, mean, color=colour, label=name, linewidth=1.8)
            if len(runs) > 1:
                panel.fill_between(where, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
        panel.set(xlabel=x, ylabel=label)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(frameon=False)
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Writes the figure in the format of the path's ending and closes it. An interrupted write leaves the old file.

    Args:
        figure: What the functions above return.
        path: Where to; missing folders are made.
        dpi: Pixels per inch, for pixel formats; 150 is sharp on a screen without large files.

    Returns:
        The path.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        figure.savefig(part, dpi=dpi)
    _pyplot().close(figure)
    return path


def spring_layout(edge_index: np.ndarray, num_nodes: int, num_steps: int = LAYOUT_STEPS) -> np.ndarray:
    r"""Positions ``[N, 2]`` in the unit square by Fruchterman and Reingold's forces, the same at every call.

    Linked nodes attract each other with force :math:`d^2 / k`, all repel each other with :math:`k^2 / d`, and a weak
    pull towards the middle keeps separate parts together; the longest step shrinks to zero. ``O(N²)`` memory.

    Reference: Fruchterman and Reingold, *Graph drawing by force-directed placement*, Software: Practice and
    Experience 21 (1991).
    """
    position = np.random.default_rng(0).random((num_nodes, 2))
    adj = np.zeros((num_nodes, num_nodes))
    adj[edge_index[0], edge_index[1]] = adj[edge_index[1], edge_index[0]] = 1
    k = num_nodes**-0.5
    for step in np.linspace(0.1, 0.0, num_steps, endpoint=False):
        delta = position[:, None] - position
        distance = np.linalg.norm(delta, axis=2).clip(1e-3)
        force = (delta * (k**2 / distance**2 - adj * distance / k)[..., None]).sum(1)
        force -= position - position.mean(0)
        position += force * np.minimum(1.0, step / np.linalg.norm(force, axis=1).clip(1e-9))[:, None]
    position -= position.min(0)
    return position / position.max().clip(1e-9)


def _matrix(mask: Any, head: int) -> np.ndarray:
    dense = mask.to_dense() if hasattr(mask, "to_dense") else mask
    array = dense.detach().float().cpu().numpy() if isinstance(dense, Tensor) else np.asarray(dense, dtype=float)
    if array.ndim == 3:
        if not -array.shape[0] <= head < array.shape[0]:
            raise IndexError(f"'head' is {head}, but the mask has {array.shape[0]} heads")
        array = array[head]
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise ValueError(f"'mask' must be [N, N] or [H, N, N] with N > 0 (got {array.shape})")
    return array


def _scale(matrix: np.ndarray) -> dict[str, Any]:
    """Colours up to the largest weight between two nodes; a node's own is often far larger and would hide the rest."""
    between = matrix[~np.eye(len(matrix), dtype=bool)]
    bound = float(np.abs(between).max(initial=0)) or float(np.abs(matrix).max()) or 1.0
    return (
        {"cmap": DIVERGING, "vmin": -bound, "vmax": bound}
        if matrix.min() < 0
        else {"cmap": SEQUENTIAL, "vmin": 0, "vmax": bound}
    )


def _colour_bar(ax: Axes, artist: Any, label: str, values: np.ndarray) -> None:
    below = values.min(initial=artist.norm.vmin) < artist.norm.vmin
    above = values.max(initial=artist.norm.vmax) > artist.norm.vmax
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    ax.figure.colorbar(artist, ax=ax, label=label, extend=extend[bool(below), bool(above)], fraction=0.046, pad=0.03)


def _draw_edges(ax: Axes, edge_index: Tensor, num_nodes: int) -> tuple[np.ndarray, float]:
    """Draw the edges of a graph; return the positions ``[N, 2]`` of its nodes and the size to draw them in."""
    from matplotlib.collections import LineCollection

    edges = edge_index.detach().cpu().numpy()
    if edges.size and edges.max() >= num_nodes:
        raise ValueError(
            f"'edge_index' holds node {edges.max()}, but the rest has {num_nodes} nodes: are they of one graph?"
        )
    if not 0 < num_nodes <= MAX_LAYOUT_NODES:
        raise ValueError(f"a graph of {num_nodes} nodes cannot be drawn legibly: the limit is {MAX_LAYOUT_NODES}")
    position = spring_layout(edges, num_nodes)
    ax.add_collection(LineCollection(list(position[edges.T]), colors="0.75", linewidths=0.7, zorder=1))
    ax.set_aspect("equal")
    ax.axis("off")
    return position, float(np.clip(6000 / num_nodes, 12, 160))


def _draw_arrows(ax: Axes, position: np.ndarray, start: np.ndarray, end: np.ndarray, size: float) -> None:
    """Arrows between nodes, bent so that both directions of a pair are seen, and ending at the rim of the node."""
    from matplotlib.patches import FancyArrowPatch

    if len(start) > MAX_ARROWS:
        raise ValueError(f"{len(start)} arrows cannot be told apart: the limit is {MAX_ARROWS}; choose one node")
    radius = size**0.5 / 2  # points, as matplotlib's marker sizes are
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
                alpha=0.55 if len(start) > 60 else 0.9,
                linewidth=0.8,
                zorder=2,
            )
        )


def _draw_row(ax: Axes, matrix: np.ndarray, edge_index: Tensor, node: int | None) -> None:
    num_nodes = matrix.shape[0]
    if node is not None and not 0 <= node < num_nodes:
        raise IndexError(f"'node' is {node}, but the mask has {num_nodes} nodes")
    position, size = _draw_edges(ax, edge_index, num_nodes)
    if node is None:
        node = int(np.bincount(edge_index[0].detach().cpu().numpy(), minlength=num_nodes).argmax())
    others = np.arange(num_nodes) != node
    east, north = position.T
    points = ax.scatter(
        east[others], north[others], s=size, c=matrix[node, others], edgecolors="0.35", linewidths=0.4, **_scale(matrix)
    )
    ax.scatter(
        east[node], north[node], s=4 * size, color=PALETTE[1], marker="*", edgecolors="black", linewidths=0.6, zorder=3
    )
    ax.set_title(f"row of node {node} (star) on the graph")
    _colour_bar(ax, points, f"weight $M_{{{node}\\,j}}$ (no unit)", matrix[node, others])


def _mean_and_spread(name: str, runs: list[Any], x: str, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions, mean and standard deviation over those runs that reached each position, each ``[P]``."""
    values: dict[float, list[float]] = {}
    for run in runs:
        for column in (x, key):
            if column not in run:
                raise KeyError(f"'{name}' has no column '{column}' (it has {', '.join(map(str, run))})")
        for at, value in zip(run[x], run[key]):
            if value is not None and value != "" and not np.isnan(float(value)):
                values.setdefault(float(at), []).append(float(value))
    where = sorted(values)
    mean = np.array([np.mean(values[at]) for at in where])
    spread = np.array([np.std(values[at]) for at in where])
    return np.array(where), mean, spread
