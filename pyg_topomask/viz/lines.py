"""Pictures made of lines: training curves, how far masks see, and the error of a mask by the number of walks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyg_topomask.viz.drawing import PALETTE, integer_ticks, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_curves(
    metrics: Mapping[str, Any],
    keys: Sequence[str] = ("train_loss", "val_accuracy"),
    labels: Sequence[str] | None = None,
    ax: "Sequence[Axes] | None" = None,
) -> "Figure":
    """Plot training curves of several models: means over seeds by epoch as lines with bands of one standard deviation.

    The standard deviation is that of the sample, as in the summary of a run; one value has none.

    Args:
        metrics: Name of each model -> the columns of one run, or a list with the columns of several seeds. Columns are
            a data frame, a dict of lists or any other object that is indexed by name. Rows without a value are left
            out, because Lightning writes training and validation values into separate rows.
        keys: Columns to plot, one per panel.
        labels: Labels of the vertical axes, with units; the columns' names if :obj:`None`.
        ax: The axes to draw on, one per key. A new figure if :obj:`None`.

    Returns:
        The figure, which :func:`save_figure` writes.

    Raises:
        KeyError: If a column is missing.
        ValueError: If the number of axes or labels is not that of the keys.
        ImportError: If matplotlib is missing.
    """
    axes = panels(len(keys), 5.2, 3.8)[1] if ax is None else ax
    labels = [key.replace("_", " ") for key in keys] if labels is None else list(labels)
    for panel, key, label in zip(axes, keys, labels, strict=True):
        for i, (name, runs) in enumerate(metrics.items()):
            runs = list(runs) if isinstance(runs, (list, tuple)) else [runs]
            where, mean, spread = _mean_and_spread(name, runs, key)
            colour = PALETTE[i % len(PALETTE)]
            panel.plot(where, mean, color=colour, label=name, linewidth=1.8)
            if len(runs) > 1:
                panel.fill_between(where, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
        panel.set(xlabel="epoch", ylabel=label)
        integer_ticks(panel.xaxis)
        _tidy(panel)
    axes[-1].legend(frameon=False)
    figure: Any = axes[0].figure
    return figure


def _mean_and_spread(name: str, runs: list[Any], key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs ``[P]``, and at each of them the mean and standard deviation over the runs that reached it."""
    values: dict[float, list[float]] = {}
    for run in runs:
        if key not in run:
            raise KeyError(f"'{name}' has no column '{key}' (it has {', '.join(map(str, run))})")
        for at, value in zip(run["epoch"], run[key]):
            if value is not None and value != "" and not np.isnan(float(value)):
                values.setdefault(float(at), []).append(float(value))
    where = sorted(values)
    mean = np.array([np.mean(values[at]) for at in where])
    spread = np.array([np.std(values[at], ddof=len(values[at]) > 1) for at in where])
    return np.array(where), mean, spread


def plot_reach(shares: Mapping[str, Tensor], title: str | None = None) -> "Figure":
    """Plot the share of a mask's mass against the number of hops, with a panel for each mask.

    Args:
        shares: Name of each mask, and its shares by hop of :func:`~pyg_topomask.ops.reach`, ``[K + 2]`` or
            ``[H, K + 2]``. The last share, of all further nodes, has a point of its own.
        title: Title of the figure.

    Returns:
        The figure, which :func:`save_figure` writes.

    Raises:
        ImportError: If matplotlib is missing.
    """
    figure, axes = panels(len(shares), 4.2, 3.6, title)
    most = max((float(by_hop.max()) for by_hop in shares.values()), default=1.0)
    for panel, (name, by_hop) in zip(axes, shares.items(), strict=True):
        by_head = by_hop.view(-1, by_hop.size(-1))
        beyond = by_head.size(1) - 1
        for head, values in enumerate(by_head.tolist()):
            color, label = PALETTE[head % len(PALETTE)], f"head {head}" if len(by_head) > 1 else "all heads"
            panel.plot(range(beyond), values[:-1], "o-", color=color, markersize=3, label=label)
            panel.plot([beyond + 0.5], values[-1:], "D", color=color, markersize=5)
        panel.axvline(beyond - 0.25, color="0.8", linewidth=1, zorder=0)
        panel.set(title=name, xlabel=f"hops (diamond: more than {beyond - 1}, or no path)", ylim=(0, 1.05 * most))
        integer_ticks(panel.xaxis)
        panel.set_xticks([tick for tick in panel.get_xticks() if 0 <= tick < beyond])
        _tidy(panel)
        panel.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("share of a row's mass")
    return figure


_LINES = {
    "error": ("error", "root mean square error"),
    "quantile": ("error", "error that {risk:.3g} % of entries exceed"),
    "bound": ("error", "bound on it (Theorem 3.1)"),
    "typical": ("error", "root mean square of the exact entries"),
    "nonzeros": ("size", "entries that {risk:.3g} % of rows exceed"),
    "most": ("size", "bound on them (Lemma 3.2)"),
}
"""Panel and label of each column."""


def plot_walks(rows: Sequence[Mapping[str, Any]], chosen: int, title: str | None = None) -> "Figure":
    """Plot the errors of a mask of random walks and the entries of its features against the number of walks.

    Args:
        rows: For each number of walks, the columns of :func:`~pyg_topomask.nn.walk_errors`. Those that are None are
            left out.
        chosen: The number to mark, such as that of a config.
        title: Title of the figure.

    Returns:
        The figure, which :func:`save_figure` writes.

    Raises:
        ImportError: If matplotlib is missing.
    """
    figure, (errors, sizes) = panels(2, 5.6, 4.2, title)
    panel_of = {"error": errors, "size": sizes}
    for number, (name, (kind, label)) in enumerate(_LINES.items()):
        points = [(row["walks"], row[name]) for row in rows if row[name] is not None]
        if points:
            style = "o-" if name in ("error", "quantile", "nonzeros") else "--"
            text = label.format(risk=100 * rows[0]["risk"])
            panel_of[kind].plot(*zip(*points), style, color=PALETTE[number], markersize=4, label=text)
    for panel in (errors, sizes):
        panel.axvline(chosen, color="0.6", linewidth=1, zorder=0, label=f"the config's {chosen} walks")
        panel.set(xscale="log", yscale="log", xlabel="random walks from each node")
        panel.set_xticks([row["walks"] for row in rows], [str(row["walks"]) for row in rows])
        panel.minorticks_off()
        _tidy(panel)
        panel.legend(frameon=False, fontsize=8)
    errors.set_ylabel("absolute error of an entry of the mask")
    sizes.set_ylabel("entries in a row of the features")
    return figure


def _tidy(panel: "Axes") -> None:
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
