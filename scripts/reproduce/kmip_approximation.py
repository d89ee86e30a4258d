"""Theorem 2 of the k-MIP poster: transformers with k-MIP attention approximate one with full attention.

    python scripts/reproduce/kmip_approximation.py --quick
    python scripts/reproduce/kmip_approximation.py --results docs/results    # 3 minutes on one core

The theorem has blocks of 2 heads of width 1 and feed-forward layers of width 4. The construction is that of Yun et al.,
*Are Transformers Universal Approximators of Sequence-to-Sequence Functions?*, ICLR 2020, whose proof needs an attention
that takes the largest key alone: k-MIP with k = 1. Feed-forward blocks round each of three tokens in [0, 1) to a grid;
attention blocks shift the tokens one after the other, until each number tells all three tokens; feed-forward blocks
write the target at this number, in a second channel. The target is a random transformer with full attention.
The theorem says nothing about single layers, so one is measured apart: the error of k-MIP attention against full
attention by k, on random queries and keys.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from _bench import described, draw_lines, machine, markdown
from _tables import finish, read_options, start, table_parser
from torch import Tensor

from pyg_topomask import nn, ops

TOKENS, SAMPLES, CELLS, SPREAD = 3, 4096, (4, 8, 16, 32, 64), 2.0
NODES, WIDTH, KEYS, SCALES = 512, 16, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (1.0, 2.0, 4.0)


def transformer() -> nn.GPSModel:
    """The target: two layers of full attention, from ``[N, 1]`` to ``[N, 1]``; less smooth than at the start."""
    model = nn.GPSModel(1, 8, 1, 2, attn=lambda _: nn.FullAttention(8, 2), norm=None).double()
    for parameter in model.parameters():
        parameter.mul_(SPREAD)
    return model


def plateau(z: Tensor, begin: Tensor | float, end: Tensor | float, edge: float) -> Tensor:
    """1 between ``begin`` and ``end``, 0 further away than ``edge``: a sum of four ReLUs."""
    ramps = [(z - begin) / edge + 1, (z - begin) / edge, (z - end) / edge, (z - end) / edge - 1]
    rise, top, fall, after = (ramp.relu() for ramp in ramps)
    return rise - top - fall + after


def rounded(x: Tensor, cells: int) -> Tensor:
    """The lower end of each token's cell, by one feed-forward block for each cell."""
    edge, level = 1e-9, torch.zeros_like(x)
    for cell in range(cells):
        level = level + cell / cells * plateau(x, cell / cells, (cell + 1) / cells - edge, edge)
    return (level * cells).round() / cells  # without the rounding of steep ReLUs, which large numbers would amplify


def kept(level: Tensor, cut: float, batch: Tensor) -> Tensor:
    """One head of width 1, k = 1: tokens above ``cut`` read the largest level of their graph, others the least."""
    return ops.topk_attention((level - cut)[:, None], level[:, None], level[:, None], 1, batch)[:, 0]


def told_apart(level: Tensor, cells: int, batch: Tensor) -> Tensor:
    """Numbers ``[N, 1]`` that tell a token and all tokens of its graph, if these differ, by blocks of two heads."""
    for cell in range(cells):
        below, above = (kept(level, (cell + side) / cells, batch) for side in (-0.5, 0.5))
        level = level + cells * (below - above)  # the tokens of this cell: largest minus least
    return level + float(cells) ** (TOKENS + 1) * kept(level, -1.0, batch)


def tokens(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Three tokens of each row as one graph: ``[3 G, 1]``, and the number of the graph."""
    return levels.reshape(-1, 1), torch.arange(levels.size(0)).repeat_interleave(TOKENS)


def approximation(cells: int, target: nn.GPSModel, samples: Tensor) -> dict[str, Any]:
    """Error of the construction: the root of the mean square over the deviation of the target, p = 2."""
    grid = torch.arange(cells, dtype=torch.float64) / cells
    known, batch = tokens(torch.combinations(grid, TOKENS))
    values, numbers = target(known + 0.5 / cells, None, batch), told_apart(known, cells, batch)
    x, batch = tokens(samples)
    mean, places, wanted = values.mean(), told_apart(rounded(x, cells), cells, batch), target(x, None, batch)
    found = mean.expand_as(x)
    for number, value in zip(numbers, values):  # one feed-forward block each
        found = found + (value - mean) * plateau(places, number, number, 0.5 / cells)
    square = (found - wanted).square() / wanted.var()
    differ = samples.mul(cells).floor().sort(dim=1).values.diff(dim=1).gt(0).all(1).repeat_interleave(TOKENS)
    note = (
        f"{len(numbers.unique()):,} numbers told apart, {cells + 1} blocks of attention, {cells + len(numbers):,} "
        f"feed-forward; {square[differ].mean().sqrt():.3f} where no cell is shared"
    )
    return {"kind": "construction", "size": cells, "error": float(square.mean().sqrt()), "note": note}


def layer_errors(scale: float) -> Iterator[dict[str, Any]]:
    """Errors of one attention with k keys against all keys, and the share of the softmax that it keeps."""
    q, k, v = torch.randn(3, NODES, 1, WIDTH, dtype=torch.float64).unbind()
    full, q = ops.masked_softmax_attention(scale * q, k, v), scale * q
    share = (q[:, 0] @ k[:, 0].t() / WIDTH**0.5).softmax(1).sort(descending=True).values.cumsum(1).mean(0)
    for count in KEYS:
        error = float((ops.topk_attention(q, k, v, count) - full).norm() / full.norm())
        note = f"{100 * share[count - 1]:.0f} % of the weights kept"
        yield {"kind": f"one layer, scale {scale:g}", "size": count, "error": error, "note": note}


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The table, and how it was made."""
    yield f"{described(report['machine'])}.\n"
    rows = ((row["kind"], row["size"], f"{row['error']:.3f}", row["note"]) for row in report["rows"])
    yield from markdown(" | cells or k: | error: | ", rows)


def plot(report: Mapping[str, Any], path: Path) -> None:
    """Errors over the cells of the grid, and over the keys of one layer."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in report["rows"]:
        if row["error"] > 1e-9:
            lines.setdefault(row["kind"], []).append((row["size"], row["error"]))
    draw_lines({"": lines}, path, "cells of the grid, or keys of a query", "error", "xy")


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both, and write JSON, Markdown and a plot."""
    options = read_options(table_parser(__doc__ or "", "kmip_approximation", "grids of 4 and 8 cells"), arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target, samples = transformer(), torch.rand(SAMPLES, TOKENS, dtype=torch.float64)
    rows = [approximation(cells, target, samples) for cells in (CELLS[:2] if options.quick else CELLS)]
    rows += [row for scale in SCALES for row in layer_errors(scale)]
    finish({"machine": machine(), "quick": options.quick, "rows": rows}, lines, plot, options)


if __name__ == "__main__":
    start(main)
