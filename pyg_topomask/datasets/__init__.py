"""Data sets that are generated from a seed; nothing is downloaded."""

from pyg_topomask.datasets.digits import DigitsDataset
from pyg_topomask.datasets.induced_cycle import InducedCycleDataset
from pyg_topomask.datasets.long_range import LONG_RANGE, LongRangeDataset
from pyg_topomask.datasets.motif import MOTIFS, MotifDataset

__all__ = ["LONG_RANGE", "MOTIFS", "DigitsDataset", "InducedCycleDataset", "LongRangeDataset", "MotifDataset"]
