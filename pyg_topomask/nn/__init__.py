"""Modules: masks, attention, the GraphGPS layer, encoders, heads, and whole models."""

from pyg_topomask.nn import attention, mask
from pyg_topomask.nn.attention import *  # noqa: F403
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.nn.card import Card
from pyg_topomask.nn.conv import GatedGCN, StableGINEConv
from pyg_topomask.nn.dynamic_walks import redraw_walks, walks_along
from pyg_topomask.nn.encoder import EDGE_ENCODERS, NODE_ENCODERS, POSITIONAL_ENCODERS
from pyg_topomask.nn.encoder.base import ComposedNodeEncoder, Encoder, NormalizedEncoder
from pyg_topomask.nn.encoder.features import MLPNodeEncoder
from pyg_topomask.nn.encoder.pair_bias import GraphormerDegrees
from pyg_topomask.nn.export import export_model, graph_inputs
from pyg_topomask.nn.gps_conv import GPSConv
from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.gps_network import GPSNetwork
from pyg_topomask.nn.gps_stack import GPSStack
from pyg_topomask.nn.graph_attributes import requirements_of
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.head import HEADS
from pyg_topomask.nn.mask import *  # noqa: F403
from pyg_topomask.nn.norm import build_norm
from pyg_topomask.nn.parameter_groups import parameter_groups
from pyg_topomask.nn.registry import register_attention, register_mask
from pyg_topomask.nn.walk_errors import walk_errors
from pyg_topomask.plan import Plan

__all__ = [
    "EDGE_ENCODERS",
    "HEADS",
    "NODE_ENCODERS",
    "POSITIONAL_ENCODERS",
    "Card",
    "ComposedNodeEncoder",
    "Encoder",
    "GPSConv",
    "GPSLayer",
    "GPSModel",
    "GPSNetwork",
    "GPSStack",
    "GatedGCN",
    "GraphToken",
    "GraphormerDegrees",
    "MLPNodeEncoder",
    "NormalizedEncoder",
    "Plan",
    "StableGINEConv",
    "auxiliary_loss",
    "build_norm",
    "export_model",
    "graph_inputs",
    "parameter_groups",
    "redraw_walks",
    "register_attention",
    "register_mask",
    "requirements_of",
    "walk_errors",
    "walks_along",
]
__all__ += attention.__all__
__all__ += mask.__all__
