"""Test cases for new mask operators and attentions, and small graphs for them. They need pytest."""

from pyg_topomask.testing.attention_case import AttentionCase
from pyg_topomask.testing.examples import examples, prepared
from pyg_topomask.testing.graphs import GRAPHS, block_permutation, dense_adjacency, empty_graph
from pyg_topomask.testing.operator_case import OperatorCase
from pyg_topomask.transforms.relabel import permute

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
