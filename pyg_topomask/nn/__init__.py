"""Modules: masks, attention, the GraphGPS layer and model."""

from pyg_topomask.nn.attention import ATTENTION, ExphormerAttention, GRFAttention, KMIPAttention, MaskedAttention
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.mask import GRFMask

__all__ = [
    "ATTENTION",
    "ExphormerAttention",
    "GPSLayer",
    "GPSModel",
    "GRFAttention",
    "GRFMask",
    "KMIPAttention",
    "MaskedAttention",
    "auxiliary_loss",
]
