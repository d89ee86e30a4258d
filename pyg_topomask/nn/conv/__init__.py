"""Convolutions that PyG lacks, called as ``conv(x, edge_index, edge_attr=…, pe=…)``."""

from pyg_topomask.nn.conv.gated_gcn import GatedGCN
from pyg_topomask.nn.conv.stable_gate import StableGate, StableGINEConv

__all__ = ["GatedGCN", "StableGINEConv", "StableGate"]
