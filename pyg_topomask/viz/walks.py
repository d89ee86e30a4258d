"""Picture of the error of a mask by the number of walks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyg_topomask.viz.drawing import PALETTE, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = {
    "error": ("error", "root mean square error"),
    "quantile": ("error", "error that 5 % of entries exceed"),
    "bound": ("error", "bound on it (Theorem 3.1)"),
    "typical": ("error", "root mean square of the exact entries"),
    "nonzeros": ("size", "entries that 5 % of rows exceed"),
    "most": ("size", "bound on them (Lemma 3.2)"),
}
"""Panel and label of each column."""


def plot_walks(rows: Sequence[Mapping[str, Any]], chosen: int, title: str | None = None) -> Figure:
    """Plot the errors of a mask of random walks and the entries of its features against the number of walks.

    Args:
        rows: For each number of walks, the columns that ``topomask show walks`` prints. Those that are None are left
            out.
        chosen: The number to mark, such as that of a config.
        title: Title of the figure.

    Returns:
        The figure, which :func:`save_figure` writes.

    Raises:
        ImportError: If matplotlib is missing.
    """
    figure, (errors, sizes) = panels(2, 5.6, 4.2)
    panel_of = {"error": errors, "size": sizes}
    for number, (name, (kind, label)) in enumerate(_LINES.items()):
        points = [(row["walks"], row[name]) for row in rows if row[name] is not None]
        if points:
            style = "o-" if name in ("error", "quantile", "nonzeros") else "--"
            panel_of[kind].plot(*zip(*points), style, color=PALETTE[number], markersize=4, label=label)
    for panel in (errors, sizes):
        panel.axvline(chosen, color="0.6", linewidth=1, zorder=0, label=f"the config's {chosen} walks")
        panel.set(xscale="log", yscale="log", xlabel="random walks from each node")
        panel.set_xticks([row["walks"] for row in rows], [str(row["walks"]) for row in rows])
        panel.minorticks_off()
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    errors.set_ylabel("absolute error of an entry of the mask")
    sizes.set_ylabel("entries in a row of the features")
    if title:
        figure.suptitle(title)
    return figure
