"""Modules: masks, attention, the GraphGPS layer and model."""

from pyg_topomask.nn.attention import (
    ATTENTION,
    GRFAttention,
    KMIPAttention,
    MaskedAttention,
    PrimalAttention,
    PrimphormerAttention,
)
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.mask import GRFMask

__all__ = [
    "ATTENTION",
    "GPSLayer",
    "GPSModel",
    "GRFAttention",
    "GRFMask",
    "KMIPAttention",
    "MaskedAttention",
    "PrimalAttention",
    "PrimphormerAttention",
    "auxiliary_loss",
]
