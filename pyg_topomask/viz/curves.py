"""Picture of training curves of several models with their spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyg_topomask.viz.drawing import PALETTE, integer_ticks, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_curves(
    metrics: Mapping[str, Any],
    keys: Sequence[str] = ("train_loss", "val_accuracy"),
    labels: Sequence[str] | None = None,
    ax: Sequence[Axes] | None = None,
) -> Figure:
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
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
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
