"""Training curves of several models, with their spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_topomask.viz.drawing import PALETTE, integer_ticks, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    plt = pyplot()
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
        integer_ticks(panel.xaxis)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(frameon=False)
    return figure


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
