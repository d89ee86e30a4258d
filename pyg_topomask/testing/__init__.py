"""Test cases for new mask operators and attentions, which need pytest, and small graphs for them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyg_topomask.testing.examples import examples, prepared
from pyg_topomask.testing.graphs import GRAPHS, block_permutation, dense_adjacency, empty_graph
from pyg_topomask.transforms.relabel import permute

if TYPE_CHECKING:
    from pyg_topomask.testing.attention_case import AttentionCase
    from pyg_topomask.testing.operator_case import OperatorCase

__all__ = [
    "GRAPHS",
    "AttentionCase",
    "OperatorCase",
    "block_permutation",
    "dense_adjacency",
    "empty_graph",
    "examples",
    "permute",
    "prepared",
]


def __getattr__(name: str) -> Any:
    """A case, imported at its first use, so that pictures and benchmarks of the examples run without pytest."""
    if name not in ("AttentionCase", "OperatorCase"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{name.removesuffix('Case').lower()}_case"), name)
