"""Picture of how well random walks estimate a mask, by the number of walks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyg_topomask.viz.drawing import PALETTE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = (
    ("share of the nodes within reach", (("coverage", "visited by a node's walks", "o-"),)),
    (
        "non-zeros in a row",
        (
            ("entries", "features, mean", "o-"),
            ("pairs", "mask, mean", "s-"),
            ("most_entries", "features, bound of Lemma 3.2", "--"),
        ),
    ),
    (
        "error of entries between different nodes",
        (
            ("error", "root mean square", "o-"),
            ("estimated", "the same, estimated from repeated draws", "x:"),
            ("quantile", "exceeded by 5 % of entries", "s-"),
            ("bound", "the same, bound of Theorem 3.1", "--"),
        ),
    ),
)
"""Label of each panel, with its lines: column, label and style."""


def plot_walks(
    quality: Mapping[str, Sequence[float]],
    title: str | None = None,
    chosen: int | None = None,
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    """Plot coverage, non-zeros per row and errors of a mask of random walks against the number of walks.

    The bounds hold for independent walkers with probability 95 %.

    Args:
        quality: Columns of equal length: ``walks``, ``coverage``, ``entries``, ``pairs``, ``most_entries``, ``error``,
            ``estimated``, ``quantile`` and ``bound``, as in the panels' legends.
        title: Title of the first panel.
        chosen: Number of walks to mark by a vertical line.
        ax: Three axes to draw on. A new figure if :obj:`None`.

    Returns:
        The figure, which :func:`save_figure` writes.

    Units: errors are in units of the mask's weights, which have none.

    Raises:
        ValueError: If the number of axes is not three.
        ImportError: If matplotlib is missing.
    """
    axes = panels(ax, len(_PANELS), 5.0, 4.2)
    if len(axes) != len(_PANELS):
        raise ValueError(f"'ax' must hold {len(_PANELS)} axes (got {len(axes)})")
    for panel, (label, lines) in zip(axes, _PANELS):
        for number, (column, text, style) in enumerate(lines):
            panel.plot(quality["walks"], quality[column], style, color=PALETTE[number], label=text)
        if chosen is not None:
            panel.axvline(chosen, color="0.6", linewidth=1, zorder=0, label="this config")
        panel.set_xscale("log", base=2)
        panel.set_xticks(quality["walks"], [f"{n:g}" for n in quality["walks"]])
        panel.set(xlabel="walks from each node, $n$", ylabel=label)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    axes[0].set_ylim(0, 1.02)
    axes[1].set_yscale("log")
    axes[2].set_yscale("log")
    axes[0].set_title(title or "random walks")
    figure: Any = axes[0].figure
    return figure
