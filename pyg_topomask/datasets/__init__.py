"""Data sets that are generated from a seed, and the digits of scikit-learn; nothing is downloaded."""

from pyg_topomask.datasets.digits import DigitsDataset
from pyg_topomask.datasets.induced_cycle import InducedCycleDataset
from pyg_topomask.datasets.long_range import LONG_RANGE, LongRangeDataset
from pyg_topomask.datasets.motif import MOTIFS, MotifDataset
from pyg_topomask.datasets.particles import FORCES, AddParticleGraph, ParticleDataset

__all__ = [
    "FORCES",
    "LONG_RANGE",
    "MOTIFS",
    "AddParticleGraph",
    "DigitsDataset",
    "InducedCycleDataset",
    "LongRangeDataset",
    "MotifDataset",
    "ParticleDataset",
]
