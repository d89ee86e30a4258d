"""Modules: masks, attention, the GraphGPS layer and model."""

from pyg_topomask.nn.attention import (
    ATTENTION,
    BigBirdAttention,
    FullAttention,
    GKATAttention,
    GRFAttention,
    KMIPAttention,
    MaskedAttention,
    PerformerAttention,
    PolynormerAttention,
    PrimalAttention,
    PrimphormerAttention,
    SGFormerAttention,
)
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.mask import GRFMask, RWGNKMask

__all__ = [
    "ATTENTION",
    "BigBirdAttention",
    "FullAttention",
    "GKATAttention",
    "GPSLayer",
    "GPSModel",
    "GRFAttention",
    "GRFMask",
    "KMIPAttention",
    "MaskedAttention",
    "PerformerAttention",
    "PolynormerAttention",
    "PrimalAttention",
    "PrimphormerAttention",
    "RWGNKMask",
    "SGFormerAttention",
    "auxiliary_loss",
]
