"""Test cases to subclass for a new mask operator or attention, and the tiny graphs they run on. Needs pytest."""

from pyg_topomask.testing.attention_case import AttentionCase
from pyg_topomask.testing.graphs import GRAPHS, block_permutation, dense_adjacency, empty_graph, permute
from pyg_topomask.testing.operator_case import OperatorCase

__all__ = [
    "GRAPHS",
    "AttentionCase",
    "OperatorCase",
    "block_permutation",
    "dense_adjacency",
    "empty_graph",
    "permute",
]
