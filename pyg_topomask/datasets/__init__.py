"""Data sets that are generated from a seed, the digits of scikit-learn, and a registry of your own."""

from pyg_topomask.datasets.digits import DigitsDataset
from pyg_topomask.datasets.induced_cycle import InducedCycleDataset
from pyg_topomask.datasets.long_range import LONG_RANGE, LongRangeDataset
from pyg_topomask.datasets.motif import MOTIFS, MotifDataset
from pyg_topomask.datasets.particles import FORCES, AddParticleGraph, ParticleDataset
from pyg_topomask.datasets.registry import REGISTERED, register_dataset

__all__ = [
    "FORCES",
    "LONG_RANGE",
    "MOTIFS",
    "REGISTERED",
    "AddParticleGraph",
    "DigitsDataset",
    "InducedCycleDataset",
    "LongRangeDataset",
    "MotifDataset",
    "ParticleDataset",
    "register_dataset",
]
