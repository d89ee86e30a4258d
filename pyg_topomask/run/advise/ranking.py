"""The order of the attentions by cost, and the reasons that are printed with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from pyg_topomask.run.advise.candidates import OWN_MASKS, Candidate
from pyg_topomask.run.advise.graph_statistics import GraphStatistics
from pyg_topomask.run.advise.prediction import Prediction

Clock = Literal["wall", "processor"]

SEES = {
    "Transformer": "scores all pairs of nodes",
    "KMIP": "searches all pairs of nodes, keeps the k best",
    "SAN": "scores all pairs of nodes, edges apart from the others",
    "BigBird": "sees blocks in the order of node numbers, and random blocks",
    "Exphormer": "sees edges, and random expander edges",
    "Performer": "sees all nodes, no edges",
    "Linear": "sees all nodes, no edges",
    "SGFormer": "sees all nodes, no edges",
    "Polynormer": "sees all nodes, no edges",
    "Primphormer": "sees all nodes through a few virtual ones, no edges",
    "Masked:heat": "weights nodes by diffusion along edges",
    "Masked:tree": "weights nodes by distance in a spanning tree",
    "Masked:forest": "weights nodes by distance in a spanning tree",
    "Masked:low_rank": "weights nodes by their numbers: only for sequences",
    "Masked:causal": "sees nodes with smaller numbers: only for sequences",
}
"""What an attention sees of a graph, by the candidate's name."""


FAR = ("heat", "grid_heat", "toeplitz", "forest", "causal", "low_rank")
"""Masks whose entries are not limited to a distance in the graph."""


@dataclass
class Advice:
    """A line of the answer.

    Args:
        candidate: The attention.
        layer_type: The layers that were tried.
        prediction: Its cost; None if it cannot be used or does not fit.
        parameters: Number of parameters.
        total_mib: Predicted peak memory in MiB, of the process or of tensors on the GPU; None if it is not known.
        problem: Why it cannot be used or does not fit; empty if it can.
        reasons: Facts about it on these graphs.
    """

    candidate: Candidate
    layer_type: str = ""
    prediction: Prediction | None = None
    parameters: int = 0
    total_mib: float | None = None
    problem: str = ""
    reasons: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """``fits``, ``too large`` or ``not usable``."""
        if self.prediction is None:
            return "not usable"
        return "too large" if self.problem else "fits"


def slowdown(advice: Sequence[Advice]) -> float:
    """Median ratio of the wall time of an epoch to its processor time; large if other programs use the machine."""
    epochs = [one.prediction.epoch for one in advice if one.prediction is not None]
    return median(epoch.wall / max(1e-9, epoch.processor) for epoch in epochs) if epochs else 1.0


def ranked(advice: Sequence[Advice], clock: Clock) -> list[Advice]:
    """Those that fit by their time per epoch, then those that are too large, then those that cannot be used."""
    order = ("fits", "too large", "not usable")

    def key(one: Advice) -> tuple[int, float]:
        return order.index(one.status), getattr(one.prediction.epoch, clock) if one.prediction else 0.0

    return sorted(advice, key=key)


def add_reasons(
    advice: Sequence[Advice],
    layers: int,
    graphs: GraphStatistics,
    reaches: Mapping[str, int],
    shares: Mapping[str, float | None],
    clock: Clock,
) -> None:
    """State what an attention sees, which distances its mask covers, and what its mask tells apart.

    Args:
        advice: The lines; their reasons are extended.
        layers: Number of layers of the model.
        graphs: The measured distances.
        reaches: Largest distance that a mask covers, by its name, if there is one.
        shares: Shares of pairs of graphs that are told apart, by the name of the mask and ``features``.
        clock: The time that is compared.
    """
    alone = next((one for one in advice if not one.candidate.attention), None)
    for one in advice:
        name = one.candidate.name
        if one is alone:
            one.reasons.append(f"message passing alone: {_reach(layers, graphs)}, one for each layer")
        elif alone is not None and alone.prediction is not None and one.prediction is not None:
            ratio = getattr(one.prediction.epoch, clock) / max(1e-9, getattr(alone.prediction.epoch, clock))
            one.reasons.append(f"{ratio:.1f} × the time of message passing alone")
        mask = mask_name(one.candidate)
        if name in SEES:
            one.reasons.append(SEES[name])
        if mask in reaches:
            one.reasons.append(f"its mask covers {_reach(reaches[mask], graphs)}")
        share, plain = shares.get(mask), shares.get("features")
        if share is not None and plain is not None and plain < 1:
            one.reasons.append(f"its mask tells {percent(share)} of pairs of graphs apart, features {percent(plain)}")


def mask_name(candidate: Candidate) -> str:
    """Name of the mask that an attention applies, its own or a chosen one; empty without a mask."""
    return OWN_MASKS.get(candidate.attention, candidate.mask or "")


def _reach(hops: int, graphs: GraphStatistics) -> str:
    return f"{hops} hops, {percent(graphs.within(hops))} of connected pairs"


def percent(share: float) -> str:
    """A share in percent; 100 % only if it is complete."""
    text = f"{100 * share:.2f}" if 0.99 < share < 1 else f"{100 * share:.0f}"
    return f"{'99.99' if share < 1 and text == '100.00' else text} %"
