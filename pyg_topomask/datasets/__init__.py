"""Synthetic data sets of the papers, generated from a seed; nothing is downloaded."""

from pyg_topomask.datasets.induced_cycle import InducedCycleDataset
from pyg_topomask.datasets.motif import MOTIFS, MotifDataset

__all__ = ["MOTIFS", "InducedCycleDataset", "MotifDataset"]
