"""Modules: masks, attention, the GraphGPS layer, encoders, heads, and whole models."""

from pyg_topomask.nn import attention, mask
from pyg_topomask.nn.attention import *  # noqa: F403
from pyg_topomask.nn.auxiliary import auxiliary_loss
from pyg_topomask.nn.card import Card
from pyg_topomask.nn.conv import GatedGCN, StableGINEConv
from pyg_topomask.nn.dynamic_walks import redraw_walks
from pyg_topomask.nn.encoder import EDGE_ENCODERS, NODE_ENCODERS, POSITIONAL_ENCODERS
from pyg_topomask.nn.encoder.base import ComposedNodeEncoder
from pyg_topomask.nn.export import export_model, graph_inputs
from pyg_topomask.nn.gps_conv import GPSConv
from pyg_topomask.nn.gps_layer import GPSLayer
from pyg_topomask.nn.gps_model import GPSModel
from pyg_topomask.nn.gps_network import GPSNetwork
from pyg_topomask.nn.gps_stack import GPSStack
from pyg_topomask.nn.head import HEADS
from pyg_topomask.nn.mask import *  # noqa: F403
from pyg_topomask.nn.parameter_groups import parameter_groups
from pyg_topomask.nn.registry import register_attention, register_mask
from pyg_topomask.plan import Plan

__all__ = [
    "EDGE_ENCODERS",
    "HEADS",
    "NODE_ENCODERS",
    "POSITIONAL_ENCODERS",
    "Card",
    "ComposedNodeEncoder",
    "GPSConv",
    "GPSLayer",
    "GPSModel",
    "GPSNetwork",
    "GPSStack",
    "GatedGCN",
    "Plan",
    "StableGINEConv",
    "auxiliary_loss",
    "export_model",
    "graph_inputs",
    "parameter_groups",
    "redraw_walks",
    "register_attention",
    "register_mask",
]
__all__ += attention.__all__
__all__ += mask.__all__
