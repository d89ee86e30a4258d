"""Picture of how far masks see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from pyg_topomask.viz.drawing import PALETTE, integer_ticks, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_reach(shares: Mapping[str, Tensor], title: str | None = None) -> Figure:
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
    figure, axes = panels(len(shares), 4.2, 3.6)
    most = max((float(by_hop.max()) for by_hop in shares.values()), default=1.0)
    for panel, (name, by_hop) in zip(axes, shares.items(), strict=True):
        by_head = by_hop.view(-1, by_hop.size(-1))
        beyond = by_head.size(1) - 1
        for head, values in enumerate(by_head.tolist()):
            color, label = PALETTE[head % len(PALETTE)], f"head {head}" if len(by_head) > 1 else "all heads"
            panel.plot(range(beyond), values[:-1], "o-", color=color, markersize=3, label=label)
            panel.plot([beyond + 0.5], values[-1:], "D", color=color, markersize=5)
        panel.axvline(beyond - 0.25, color="0.8", linewidth=1, zorder=0)
        panel.set(title=name, xlabel=f"hops (diamond: more than {beyond - 1})", ylim=(0, 1.05 * most))
        integer_ticks(panel.xaxis)
        panel.set_xticks([tick for tick in panel.get_xticks() if 0 <= tick < beyond])
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("share of a row's mass")
    if title:
        figure.suptitle(title)
    return figure
