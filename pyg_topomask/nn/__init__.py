"""Modules: masks, attention, the GraphGPS layer and model."""

from pyg_topomask.nn.attention import (
    ATTENTION,
    BigBirdAttention,
    FullAttention,
    GRFAttention,
    KMIPAttention,
    MaskedAttention,
    PerformerAttention,
    PolynormerAttention,
    SGFormerAttention,
)
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.mask import GRFMask

__all__ = [
    "ATTENTION",
    "BigBirdAttention",
    "FullAttention",
    "GPSLayer",
    "GPSModel",
    "GRFAttention",
    "GRFMask",
    "KMIPAttention",
    "MaskedAttention",
    "PerformerAttention",
    "PolynormerAttention",
    "SGFormerAttention",
    "auxiliary_loss",
]
