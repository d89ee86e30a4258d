"""Convolutions that PyG lacks, called as ``conv(x, edge_index, edge_attr=…, pe=…)``."""

from pyg_topomask.nn.conv.gated_gcn import GatedGCN
from pyg_topomask.nn.conv.gine import StableGINEConv
from pyg_topomask.nn.conv.stable_gate import StableGate

__all__ = ["GatedGCN", "StableGINEConv", "StableGate"]
