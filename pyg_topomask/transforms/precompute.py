"""Apply transforms of this package to a whole data set at once, and store what they add between runs."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

import pyg_topomask
from pyg_topomask.cache import cache_dir, locked
from pyg_topomask.fingerprint import stable_hash
from pyg_topomask.tensor_files import UnreadableFileError, load_tensors, save_tensors
from pyg_topomask.transforms.base import GraphTransform, attached, parts_of
from pyg_topomask.transforms.encoding import Encoding
from pyg_topomask.transforms.graph_input import num_nodes_of
from pyg_topomask.transforms.joined import together

log = logging.getLogger(__name__)

Packed = dict[str, tuple[Tensor, list[int], int] | tuple[list[Any], None, None]]
"""For each attribute: the joined tensor, each graph's size and the joined dimension; or the list of values."""

_CHUNK_NODES = 16_384  # nodes of a group of graphs
_FORMAT = 6


def precompute(
    graphs: Sequence[Data],
    transforms: BaseTransform | Sequence[BaseTransform],
    *,
    cache: bool | str | Path = True,
    tick: Callable[[int], Any] | None = None,
) -> list[Data]:
    """Graphs with all attributes that the transforms add, computed for many graphs at a time and stored on disk.

    A transform processes a group of graphs of similar size at once, after the transforms before it.

    The added attributes are stored in one file. Its name is a hash of the package's version, torch's default dtype, the
    transforms with their settings (including seeds) and the graphs' contents, so that a change of these leads to
    another file. If several processes need a missing file, one computes it and the others wait. The file is written
    completely before it gets its name, so a killed process leaves no broken file. The file is mapped into memory, so
    that processes on one machine share it.

    Args:
        graphs: Graphs, in the order of the result.
        transforms: Transforms of this package. Give others to a data set as its ``pre_transform``.
        cache: Whether to store the result in `cache_dir` (``$TOPOMASK_CACHE``), or a folder to store it in.
        tick: Called with the number of graphs that are done, to show progress.

    Returns:
        Copies of the graphs, which share their tensors, with the added attributes on the CPU.

    Raises:
        TypeError: If a transform is not of this package, or a graph is not homogeneous.
        ValueError: If the result is stored, and a transform draws numbers without a seed, or adds other attributes to
            some graphs than to others.
    """
    steps = [*parts_of(*([transforms] if isinstance(transforms, BaseTransform) else transforms))]
    for step in steps:
        if not isinstance(step, GraphTransform):
            message = f"precompute() takes transforms of pyg_topomask (got {type(step).__name__})"
            raise TypeError(f"{message}; give others to a data set as its 'pre_transform'")
    if not steps or len(graphs) == 0:
        return [copy.copy(graph) for graph in graphs]
    if not cache:
        return attached(graphs, _compute(graphs, steps, tick))
    folder = (cache_dir() if cache is True else Path(cache).expanduser()) / "encodings"
    path = folder / f"{cache_key(graphs, steps)}.pt"
    if (found := _load(path)) is None:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(path):
            if (found := _load(path)) is None:  # another process may have written it in the meantime
                found = _pack(_compute(graphs, steps, tick))
                save_tensors(found, path, durable=True)  # damage to a mapped file would not be noticed
    return attached(graphs, _unpack(found, len(graphs)))


def cache_key(graphs: Sequence[Data], transforms: Sequence[GraphTransform]) -> str:
    """Hash of everything that the result of `precompute` depends on."""
    for transform in transforms:
        if vars(transform).get("seed", 0) is None:
            raise ValueError(
                f"{type(transform).__name__} has no seed: every call makes new draws, but the cache would keep one; "
                "give it a seed, or precompute with cache=False"
            )
    own = all(isinstance(transform, Encoding) for transform in transforms)
    reads = {key for transform in transforms for key in transform.reads} if own else None
    content = [
        (num_nodes_of(graph), {key: graph.get(key) for key in (graph.keys() if reads is None else reads)})
        for graph in graphs
    ]
    dtype = torch.get_default_dtype()
    return stable_hash(_FORMAT, pyg_topomask.__version__, dtype, len(graphs), transforms, content)


def _load(path: Path) -> Packed | None:
    """Content of a file; None if it is missing or damaged, so that it is computed again."""
    try:
        return load_tensors(path, mmap=True)
    except FileNotFoundError:
        return None
    except UnreadableFileError as error:
        log.warning("%s; it is computed again", error)
    return None


def _compute(
    graphs: Sequence[Data], transforms: Sequence[GraphTransform], tick: Callable[[int], Any] | None
) -> list[dict[str, Any]]:
    """What the transforms add to all graphs."""
    sizes = [num_nodes_of(graph) for graph in graphs]
    order = sorted(range(len(graphs)), key=sizes.__getitem__)
    found: list[dict[str, Any]] = [{} for _ in graphs]
    for begin, end in together([sizes[position] for position in order], _CHUNK_NODES):
        group = [graphs[position] for position in order[begin:end]]
        for transform in transforms:
            additions = transform.additions(group)
            group = attached(group, additions)
            for position, added in zip(order[begin:end], additions):
                found[position] |= {key: x.cpu() if isinstance(x, Tensor) else x for key, x in added.items()}
        if tick is not None:
            tick(end)
    return found


def _pack(added: list[dict[str, Any]]) -> Packed:
    """Join each attribute over the graphs, because thousands of small tensors are slow to store."""
    if any(one.keys() != added[0].keys() for one in added):
        names = sorted({key for one in added for key in one.keys() ^ added[0].keys()})
        raise ValueError(f"the transforms must add the same attributes to every graph (they differ in {names})")
    packed: Packed = {}
    for key in added[0]:
        values = [one[key] for one in added]
        dim = 1 if "index" in key else 0  # as in PyG's collation
        if not _joinable(values, dim):
            packed[key] = (values, None, None)
            continue
        packed[key] = (torch.cat([value.detach() for value in values], dim), [v.size(dim) for v in values], dim)
    return packed


def _joinable(values: list[Any], dim: int) -> bool:
    """Whether all values are tensors that differ at most in their size along ``dim``."""
    if not all(isinstance(value, Tensor) and value.dim() > dim for value in values):
        return False
    return len({(value.dtype, value.shape[:dim], value.shape[dim + 1 :]) for value in values}) == 1


def _unpack(packed: Packed, count: int) -> Iterator[dict[str, Any]]:
    columns = {}
    for key, (values, sizes, dim) in packed.items():
        columns[key] = values if sizes is None else values.split(sizes, dim)  # type: ignore[union-attr]
    for position in range(count):
        yield {key: column[position] for key, column in columns.items()}
