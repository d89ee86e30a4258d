"""The share of a data set's graphs that each encoding and mask distinguishes, and what encodings cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform, Compose

from pyg_topomask.expressivity import pairs
from pyg_topomask.run.advise.stopwatch import Seconds
from pyg_topomask.run.commands.expressivity import ENCODINGS, mask_and_structure
from pyg_topomask.run.config import Config
from pyg_topomask.transforms import AddLaplacianEncoding, AddRandomWalkEncoding
from pyg_topomask.transforms.base import apply_all

COMPARED_GRAPHS, LARGEST_COMPARED = 100, 100
"""Number of graphs that are compared, and of nodes of the largest of them."""

SIZE = 8
"""Steps of random walks, or eigenvectors."""

_PATH = 65  # nodes of the path on which the reach of a mask is measured

_NAMES = {"rwse": "RWSE", "lappe": "LapPE"}
_KERNEL = f"range(1,{SIZE + 1})"
_SETTINGS = {
    "rwse": ("posenc_RWSE.enable=true", f"posenc_RWSE.kernel.times_func={_KERNEL}"),
    "lappe": ("posenc_LapPE.enable=true", f"posenc_LapPE.eigen.max_freqs={SIZE}"),
}
_TRANSFORMS: dict[str, Callable[[], BaseTransform]] = {
    "rwse": lambda: AddRandomWalkEncoding(list(range(1, SIZE + 1))),
    "lappe": lambda: AddLaplacianEncoding(SIZE),
}


@dataclass(frozen=True)
class ToldApart:
    """What the S-SEG-WL test distinguishes with an encoding or a mask.

    Args:
        name: Name of the encoding or mask; ``features`` for neither.
        share: Share of the non-isomorphic pairs that are distinguished; None if the test refuses, see ``problem``.
        seconds: Seconds to compute the encoding for all graphs; zero for features and masks.
        settings: What to add to the config for an encoding.
        problem: Why there is no share.
    """

    name: str
    share: float | None
    seconds: float = 0.0
    settings: tuple[str, ...] = ()
    problem: str = ""


def told_apart(
    config: Config, graphs: Sequence[Data], masks: Sequence[str], seconds: float, seed: int = 0
) -> tuple[list[ToldApart], int]:
    """Shares for features alone, encodings and masks on a sample of graphs, and the number of graphs compared.

    Args:
        config: The config, whose masks' settings are used.
        graphs: Graphs with features.
        masks: Names of masks.
        seconds: Time after which no further mask is begun.
        seed: Seed of the sample.
    """
    rng = np.random.default_rng(seed)
    small = [i for i, graph in enumerate(graphs) if 0 < int(graph.num_nodes or 0) <= LARGEST_COMPARED]
    some = [graphs[i].clone() for i in rng.permutation(small)[:COMPARED_GRAPHS]]
    if len(some) < 2:
        return [], len(some)
    num_nodes = sum(int(graph.num_nodes or 0) for graph in graphs)
    rows, begin = [_tested("features", some)], time.perf_counter()
    for name, build in _TRANSFORMS.items():
        cost = _seconds_per_node(build(), some) * num_nodes
        row = _tested(_NAMES[name], some, ENCODINGS[name](SIZE))
        encoder = f"dataset.node_encoder_name={config.dataset.node_encoder_name}+{_NAMES[name]}"
        rows.append(ToldApart(row.name, row.share, cost, (encoder, *_SETTINGS[name]), row.problem))
    for name in masks:
        if time.perf_counter() - begin < seconds:
            rows.append(_tested_mask(config, name, some))
    return rows, len(some)


def _tested(name: str, graphs: Sequence[Data], *settings: BaseTransform | None, **mask: object) -> ToldApart:
    try:
        report = pairs(graphs, *settings, **mask)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        return ToldApart(name, None, problem=str(error).partition(";")[0])
    share = report.apart_with / report.non_isomorphic if report.non_isomorphic else None
    return ToldApart(name, share, problem="" if report.non_isomorphic else "all graphs are isomorphic")


def _tested_mask(config: Config, name: str, graphs: Sequence[Data]) -> ToldApart:
    try:
        mask, structure = mask_and_structure(config, name)
    except (ValueError, TypeError) as error:
        return ToldApart(name, None, problem=str(error))
    return _tested(name, graphs, None if structure is None else Compose([structure]), mask=mask)


def reach(config: Config, name: str) -> int | None:
    """Largest distance at which a mask with a config's settings is not zero, measured on a path.

    None if the distance is 64 or more, or the mask does not fit a path.
    """
    ends = torch.arange(_PATH - 1)
    edges = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
    path = Data(edge_index=edges, num_nodes=_PATH)
    try:
        mask, structure = mask_and_structure(config, name)
        with torch.no_grad():
            matrix = mask(path if structure is None else structure(path))
    except (ValueError, TypeError):
        return None
    dense = matrix if isinstance(matrix, torch.Tensor) else matrix.to_dense()
    hops = int(dense.abs().reshape(-1, _PATH, _PATH).sum(0)[0].nonzero().max())
    return hops if hops < _PATH - 1 else None


def _seconds_per_node(transform: BaseTransform, graphs: Sequence[Data]) -> float:
    """Wall time of an encoding per node, with the graphs of the sample computed together, as in a run."""
    apply_all([transform], graphs[:2])  # warms up
    begin = Seconds.now()
    apply_all([transform], graphs)
    return (Seconds.now() - begin).wall / sum(int(graph.num_nodes or 0) for graph in graphs)
