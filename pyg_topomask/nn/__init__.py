"""Modules: masks, attention, the GraphGPS layer, encoders, heads, model and network."""

from pyg_topomask.nn.attention import (
    ATTENTION,
    Attention,
    BigBirdAttention,
    ExphormerAttention,
    FullAttention,
    GKATAttention,
    GKATConv,
    GRFAttention,
    KMIPAttention,
    MaskedAttention,
    PerformerAttention,
    PolynormerAttention,
    PrimalAttention,
    PrimphormerAttention,
    SANAttention,
    SGFormerAttention,
    check_input,
)
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.nn.conv import GatedGCN, StableGINEConv
from pyg_topomask.nn.dynamic_walks import redraw_walks
from pyg_topomask.nn.encoder import EDGE_ENCODERS, NODE_ENCODERS, POSITIONAL_ENCODERS, ComposedNodeEncoder
from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.gps_network import GPSNetwork
from pyg_topomask.nn.gps_stack import GPSStack
from pyg_topomask.nn.head import HEADS
from pyg_topomask.nn.mask import MASK, GRFMask, Mask, RWGNKMask
from pyg_topomask.nn.registry import register_attention, register_mask

__all__ = [
    "ATTENTION",
    "EDGE_ENCODERS",
    "HEADS",
    "MASK",
    "NODE_ENCODERS",
    "POSITIONAL_ENCODERS",
    "Attention",
    "BigBirdAttention",
    "ComposedNodeEncoder",
    "ExphormerAttention",
    "FullAttention",
    "GKATAttention",
    "GKATConv",
    "GPSLayer",
    "GPSModel",
    "GPSNetwork",
    "GPSStack",
    "GRFAttention",
    "GRFMask",
    "GatedGCN",
    "KMIPAttention",
    "Mask",
    "MaskedAttention",
    "PerformerAttention",
    "PolynormerAttention",
    "PrimalAttention",
    "PrimphormerAttention",
    "RWGNKMask",
    "SANAttention",
    "SGFormerAttention",
    "StableGINEConv",
    "auxiliary_loss",
    "check_input",
    "redraw_walks",
    "register_attention",
    "register_mask",
]
