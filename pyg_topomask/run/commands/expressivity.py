"""``topomask expressivity``: which pairs of a config's graphs encodings and a mask help to distinguish."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Group
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE, BaseTransform, Compose

from pyg_topomask.expressivity import PairReport, pairs
from pyg_topomask.expressivity.expected_walks import with_expected_walks
from pyg_topomask.expressivity.mask_entries import Mask
from pyg_topomask.nn import MASK
from pyg_topomask.run.config import Config
from pyg_topomask.run.config.load import load
from pyg_topomask.run.data.features import input_features
from pyg_topomask.run.data.formats import dataset_problems, level_of, load_dataset
from pyg_topomask.run.errors import RunError, did_you_mean
from pyg_topomask.run.model.attentions import mask_arguments, uses_walks
from pyg_topomask.run.model.sampling import build_sampling_transforms
from pyg_topomask.run.output.progress import Display, error_output, standard_output
from pyg_topomask.run.output.report import titled_table

ENCODINGS: dict[str, Callable[[int], list[BaseTransform]]] = {
    "none": lambda size: [],
    "rwse": lambda size: [AddRandomWalkPE(walk_length=size)],
    "lappe": lambda size: [AddLaplacianEigenvectorPE(k=size)],
}
"""Transforms by the name of the encoding, as functions of the number of steps or eigenvectors."""

_FEATURES_ONLY = """\
An upper bound for models whose attention reads only node features; attention with a mask may distinguish more pairs \
(--mask)."""
_WITH_MASK = """\
An upper bound for models whose attention reads node features and can read the graph through mask {}, at its initial \
parameters. Random walks are replaced by their expectation; a sample may distinguish more pairs."""


def main(arguments: Namespace, overrides: Sequence[str]) -> int:
    """Run the command."""
    names = ("config", "encoding", "size", "limit", "rounds", "mask")
    with Display(error_output()) as display, display.working("comparing graphs"):
        report = measure(**{name: getattr(arguments, name) for name in names}, overrides=overrides)
    name = Path(arguments.config).stem
    standard_output().print(expressivity_table(report, arguments.encoding, name, arguments.mask))
    return 0


def measure(
    config: str | Path,
    encoding: str = "rwse",
    size: int = 8,
    limit: int | None = None,
    rounds: int | None = None,
    overrides: Sequence[str] = (),
    mask: str = "none",
) -> PairReport:
    """Count the pairs of graphs in a config's data set that the features of its model distinguish.

    The config's attention is not used: the counts hold for attention that reads only node features and, with ``mask``,
    also reads the graph through that mask. The mask has its initial parameters and, if it is made of random walks, the
    expectation of infinitely many walks.

    Args:
        config: YAML file.
        encoding: ``"none"``, ``"rwse"`` or ``"lappe"``.
        size: Number of steps of the random walk, or of eigenvectors.
        limit: Number of graphs, from the first; all if :obj:`None`.
        rounds: Number of rounds of refinement; until no colour splits if :obj:`None`.
        overrides: Settings that override the file's.
        mask: Name of a mask, as of ``topomask.mask``; ``"none"`` for attention without one.

    Raises:
        RunError: If a setting is wrong; the message says what to change.
    """
    if mask not in ("none", *MASK):
        choices = ", ".join(("none", *MASK))
        raise RunError(f"--mask must be one of {choices} (got {mask!r})." + did_you_mean(mask, MASK))
    for name, value, least in (("--size", size, 1), ("--limit", limit, 2), ("--rounds", rounds, 0)):
        if value is not None and value < least:
            raise RunError(f"{name} must be at least {least} (got {value})")
    parsed = load(config, overrides)
    parsed.refuse(dataset_problems(parsed.config.dataset))
    if level_of(parsed.config.dataset) != "graph":
        parsed.refuse([("dataset.task", "pairs of graphs are compared, but the task is not about whole graphs")])
    dataset, features = load_dataset(parsed.config.dataset).graphs, input_features(parsed.config)
    count = len(dataset) if limit is None else min(limit, len(dataset))
    try:
        read_mask, structure = (None, []) if mask == "none" else mask_and_structure(parsed.config, mask)
        steps = [*ENCODINGS[encoding](size), *structure]
        graphs = [features(dataset[i]) for i in range(count)]
        return pairs(graphs, Compose(steps) if steps else None, rounds, mask=read_mask)
    except (ValueError, TypeError) as error:
        raise RunError(f"{'dataset' if mask == 'none' else f'mask {mask}'}: {error}") from error


def mask_and_structure(config: Config, name: str) -> tuple[Mask, list[BaseTransform]]:
    """A mask with the config's settings, and the transforms that add the trees, grids or positions that it needs."""
    gt, settings = config.gt.model_copy(update={"layer_type": "None+Masked"}), config.topomask
    config = config.model_copy(update={"gt": gt, "topomask": settings.model_copy(update={"mask": name})})
    arguments = mask_arguments(config, name)
    arguments.pop("diagonal", None)  # with infinitely many walks, all estimates of the diagonal are the same
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        mask: Any = MASK[name](**arguments).double()
    if uses_walks(config):
        return lambda data: mask(with_expected_walks(data, mask.max_length, settings.halt_prob, settings.lengths)), []
    return mask, build_sampling_transforms(config, config.seed)


def expressivity_table(report: PairReport, encoding: str, name: str, mask: str = "none") -> Group:
    """The counts as a table for a terminal."""
    counts = {"all": report.num_pairs, "isomorphic": report.isomorphic}
    counts |= {"undecided": report.undecided} if report.undecided else {}
    counts |= {"non-isomorphic": report.non_isomorphic, "distinguished by features": report.apart_without}
    more = [*([] if encoding == "none" else [encoding]), *([] if mask == "none" else [f"mask {mask}"])]
    if more:
        counts[f"distinguished by {', '.join(['features', *more[:-1]])} and {more[-1]}"] = report.apart_with
    shares = [""] * (3 if report.undecided else 2)  # only of pairs that are not isomorphic
    total = report.non_isomorphic
    shares += [f"{100 * count / total:.2f} %" if total else "–" for count in list(counts.values())[len(shares) :]]
    columns = {"": list(counts), "pairs": [f"{count:,}" for count in counts.values()], "of non-isomorphic": shares}
    caption = _FEATURES_ONLY if mask == "none" else _WITH_MASK.format(mask)
    return titled_table(f"{name}: {report.num_graphs:,} graphs", columns, caption)
