"""Picture of a mask as a matrix, and of one of its rows on the graph."""

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.nn import Module
from torch_geometric.data import Data

from pyg_topomask.transforms.graph_input import with_edge_index
from pyg_topomask.viz.drawing import BAR, DIVERGING, SEQUENTIAL, STAR, draw_edges, integer_ticks, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_mask(
    mask: Any,
    edge_index: Tensor | Data | None = None,
    title: str | None = None,
    node: int | None = None,
    head: int = 0,
    symbol: str | None = None,
) -> "Figure":
    """Plot a mask, or weights of attention, as a heat map and, given the graph, one of its rows on the graph.

    Both panels share one colour scale, from zero to the largest weight, or symmetric about zero for a mask with
    negative weights. Colours change with the square root of the weight, so that weights between nodes stay visible
    next to the larger weights of nodes on themselves.

    Args:
        mask: Matrix ``[N, N]`` or ``[H, N, N]``; an operator, or another object with ``to_dense()``; a mask module; an
            attention, whose input is ``x`` of the graph; or the pairs ``[2, P]`` and weights ``[P, H]`` that attentions
            return by ``return_attention_weights=True``. The last three need a ``Data`` as ``edge_index``.
        edge_index: The edges, shape ``[2, E]``, or the graph; only the heat map is drawn if :obj:`None`.
        title: Title of the heat map.
        node: The node whose row is drawn on the graph, as a star; if :obj:`None`, a node with most neighbours of
            those that attend to any.
        head: Number of the head, for a mask per head.
        symbol: Name of the matrix in labels; ``"A"`` for an attention and its weights, else ``"M"``, if :obj:`None`.

    Returns:
        The figure, which :func:`save_figure` writes.

    Units: mask entries are dimensionless weights.

    Raises:
        ValueError: If the mask is not square, or the graph to draw has more than 2,000 nodes.
        IndexError: If ``head`` or ``node`` is out of range.
        ImportError: If matplotlib is missing.
    """
    graph: Any = with_edge_index(edge_index) if isinstance(edge_index, Data) else edge_index
    edge_index = getattr(graph, "edge_index", graph)
    if hasattr(mask, "attention_weights"):
        mask = mask.attention_weights(graph.x, graph=graph)
    elif isinstance(mask, Module):
        mask = mask(graph)
    symbol = symbol or ("A" if isinstance(mask, tuple) else "M")
    if isinstance(mask, tuple):
        pairs, weights = mask
        mask = matrix_of(pairs, weights, getattr(graph, "num_nodes", 0))
    matrix = _matrix(mask, head)
    figure, axes = panels(1 if edge_index is None else 2, 5.4, 4.6)
    image = axes[0].imshow(matrix, interpolation="nearest", **_scale(matrix))
    axes[0].set(xlabel="node $j$ (seen)", ylabel="node $i$ (sees)", title=title or f"${symbol}$, head {head}")
    integer_ticks(axes[0].xaxis, axes[0].yaxis)
    figure.colorbar(image, ax=axes[0], label=f"weight ${symbol}_{{ij}}$ (no unit, square-root scale)", **BAR)
    if edge_index is not None:
        _draw_row(axes[1], matrix, edge_index, node, symbol)
    return figure


def matrix_of(pairs: Tensor, weights: Tensor, num_nodes: int) -> Tensor:
    """The weights of pairs that an attention returns, as matrices; virtual nodes, if there are some, are at the end.

    Args:
        pairs: Receiver and sender of each pair, shape ``[2, P]``.
        weights: Weights of the pairs, shape ``[P, H]``.
        num_nodes: ``N``, the number of nodes without the virtual ones.

    Returns:
        Shape ``[H, N, N]``, or more rows and columns with virtual nodes.
    """
    size = max(num_nodes, int(pairs.max()) + 1 if pairs.numel() else 0)
    matrix = weights.new_zeros(weights.size(1), size, size)
    matrix[:, pairs[0], pairs[1]] = weights.t()
    return matrix


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
    """Colours by the signed square root: weights between nodes are often far smaller than those on themselves."""
    from matplotlib.colors import FuncNorm

    bound = float(np.abs(matrix).max()) or 1.0
    signed = matrix.min() < 0
    root = (lambda x: np.sign(x) * np.abs(x) ** 0.5, lambda x: np.sign(x) * x**2)
    return {"cmap": DIVERGING if signed else SEQUENTIAL, "norm": FuncNorm(root, -bound if signed else 0, bound)}


def _draw_row(ax: "Axes", matrix: np.ndarray, edge_index: Tensor, node: int | None, symbol: str) -> None:
    num_nodes = matrix.shape[0]
    if node is not None and not 0 <= node < num_nodes:
        raise IndexError(f"'node' is {node}, but the mask has {num_nodes} nodes")
    position, size = draw_edges(ax, edge_index, num_nodes)
    if node is None:
        degree = np.bincount(edge_index[0].detach().cpu().numpy(), minlength=num_nodes)
        node = int(np.where(matrix.any(1), degree, -1).argmax())
    others = np.arange(num_nodes) != node
    colours = _scale(matrix)
    rim: dict[str, Any] = {"edgecolors": "0.35", "linewidths": 0.4}
    east, north = position.T
    points = ax.scatter(east[others], north[others], s=size, c=matrix[node, others], **rim, **colours)
    ax.scatter(east[node], north[node], s=4 * size, c=matrix[node, node], **STAR, **colours)
    ax.set_title(f"row of node {node} (star) on the graph")
    ax.figure.colorbar(points, ax=ax, label=f"weight ${symbol}_{{{node}\\,j}}$ (no unit, square-root scale)", **BAR)
