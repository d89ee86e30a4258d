"""Particles: does attention along walks model forces between neighbours better than attention without a mask?

    python scripts/reproduce/grf_particles.py --quick                     # a trial
    python scripts/reproduce/grf_particles.py                             # both forces, 5 seeds; 0.3 h on one core
    python scripts/reproduce/grf_particles.py --datasets "springs, 10,000 particles"

Systems are those of `ParticleDataset`: 24 for training, 8 for choosing the epoch, 16 for the test. A model predicts the
change of position and velocity in a frame from the state before, on the graph of the 3 nearest neighbours. The
interlacer alternates layers of unmasked attention with layers of masked attention, as in Reid et al. 2024,
arXiv:2410.03462, Section 4; message passing takes the place of the mask in the rows "GIN interlacer" and "GCN
interlacer". Each method is trained twice: for an equal number of epochs, and for as many epochs as take the time of the
first row. Errors are mean squared errors over the variance of the target (of velocities, in one frame), and over the
mean square of the displacement after 8 predicted frames (positions), with the graph built again in each frame.
The same command continues an interrupted one.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from _fitting import begin, fit_graphs, gin, mean_and_spread, predict
from _folds import Comparison
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import mse_loss
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv

from pyg_topomask import nn, transforms
from pyg_topomask.datasets import FORCES, AddParticleGraph, ParticleDataset

WIDTH, HEADS, LAYERS, HOPS = 24, 2, 4, 3
EPOCHS, BATCH, RATE, DECAY = 16, 2, 6e-3, 1e-4
COUNTS, QUICK_COUNTS, FRAMES = (24, 8, 16), (4, 2, 2), 8
SYSTEMS = {kind: (kind, 300) for kind in FORCES} | {f"{kind}, 10,000 particles": (kind, 10_000) for kind in FORCES}
"""Force, and number of particles."""

FIRST = "GRF interlacer"
"""The row whose time is that of the second comparison."""


def _linear(_: int) -> Module:
    return nn.MaskedAttention(WIDTH, heads=HEADS)


def _grf(_: int) -> Module:
    return nn.GRFAttention(WIDTH, heads=HEADS, max_length=HOPS)


def _gin(_: int, width: int = WIDTH) -> Module:
    return gin(width)


def _gcn(_: int, width: int = WIDTH) -> Module:
    return GCNConv(width, width)


def _every_second(make: Callable[[int], Module], first: int) -> Callable[[int], Module | None]:
    return lambda layer: make(layer) if layer % 2 == first else None


METHODS: dict[str, dict[str, Any]] = {
    FIRST: {"attn": lambda layer: (_linear if layer % 2 == 0 else _grf)(layer)},
    "GRF": {"attn": _grf},
    "linear": {"attn": _linear},
    "GIN": {"conv": _gin},
    "GCN": {"conv": _gcn},
    "GIN, width 64": {"conv": partial(_gin, width=64), "channels": 64},
    "GCN, width 64": {"conv": partial(_gcn, width=64), "channels": 64},
    "GIN interlacer": {"attn": _every_second(_linear, 0), "conv": _every_second(_gin, 1)},
    "GCN interlacer": {"attn": _every_second(_linear, 0), "conv": _every_second(_gcn, 1)},
}
"""Settings of the model."""

TRANSFORM = transforms.AddRandomWalks(16, max_length=HOPS, halt_prob=0.3, seed=0)


@cache
def load_systems(force: str, particles: int, counts: Sequence[int]) -> tuple[dict[str, list[Data]], Tensor]:
    """Simulate the systems, and draw their walks: graphs of the three parts, and the scale of targets ``[6]``."""
    with tempfile.TemporaryDirectory() as folder:
        graphs = iter(TRANSFORM(list(ParticleDataset(folder, force, sum(counts), particles, FRAMES))))
    parts = {name: list(islice(graphs, count)) for name, count in zip(("train", "val", "test"), counts)}
    change = torch.cat([data.y for data in parts["train"]])
    return parts, change.unflatten(1, (2, 3)).square().mean((0, 2)).sqrt().repeat_interleave(3)


def train(parts: Mapping[str, list[Data]], scale: Tensor, name: str, epochs: int) -> dict[str, float]:
    """Train one model; errors on the test set are those of the epoch with the best validation error."""
    model = nn.GPSModel(in_channels=7, out_channels=6, num_layers=LAYERS, **{"channels": WIDTH} | METHODS[name])

    def loss(out: Tensor, change: Tensor) -> Tensor:
        return mse_loss(out, change / scale)

    def error(out: Tensor, change: Tensor) -> Tensor:
        """Mean squared error of the change of velocity over its variance."""
        found, wanted = (scale * out)[:, 3:], change[:, 3:]
        return (found - wanted).square().mean() / (wanted - wanted.mean(0)).square().mean()

    found = fit_graphs(model, parts, loss, error, BATCH, epochs=epochs, rate=RATE, decay=DECAY)
    return found | {f"frame {i + 1}": value for i, value in enumerate(rollout(model, parts["test"], scale))}


def changes_of(model: nn.GPSModel, graphs: Sequence[Data], scale: Tensor) -> list[Tensor]:
    """Predicted change ``[N, 6]`` of each graph, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        out = [predict(model, batch) * scale for batch in DataLoader(graphs, 8)]
    return list(torch.cat(out).split([data.num_nodes for data in graphs]))


def rollout(model: nn.GPSModel, graphs: Sequence[Data], scale: Tensor) -> Iterator[float]:
    """Error of the positions after each frame, over the mean square of the displacement until then."""
    now, rebuild = list(graphs), AddParticleGraph()
    for frame in range(FRAMES):
        changes = changes_of(model, now, scale)
        for i, change in enumerate(changes):
            state = torch.cat([now[i].pos, now[i].vel], dim=1) + change
            now[i] = Data(pos=state[:, :3], vel=state[:, 3:])
        wanted = torch.cat([data.future[:, frame, :3] for data in graphs])
        start, found = (torch.cat([data.pos for data in part]) for part in (graphs, now))
        yield float((found - wanted).square().mean() / (wanted - start).square().mean())
        now = TRANSFORM([rebuild(data) for data in now])


def make_run(row: Mapping[str, Any], run: int, epochs: int, out: Path) -> dict[str, Any]:
    """Results of one run."""
    begin(run)
    force, particles = SYSTEMS[row["dataset"]]
    sizes = (32, QUICK_COUNTS) if out.name == "quick" else (particles, COUNTS)
    return train(*load_systems(force, *sizes), row["method"], epochs)


COMPARISON = Comparison(
    __doc__,
    "grf_particles",
    dict.fromkeys(SYSTEMS, EPOCHS),
    METHODS,
    make_run,
    f"Errors of one frame, and of {FRAMES}, after the epoch of the best validation error.",
    figures={f"{FRAMES} frames": lambda row, rows: mean_and_spread(row[f"frame {FRAMES}"])},
    form=(1, 3),
    label="error of one frame, test",
    runs=5,
    first=FIRST,
    optional=list(SYSTEMS)[2:],
)


if __name__ == "__main__":
    COMPARISON.start()
