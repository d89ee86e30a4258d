"""Attention modules, one published method per file: ``attn(x, batch=None, graph=None) -> [N, C]``."""

from pyg_topomask.nn.attention.gkat import GKATAttention
from pyg_topomask.nn.attention.grf import GRFAttention
from pyg_topomask.nn.attention.kmip import KMIPAttention
from pyg_topomask.nn.attention.masked import MaskedAttention

ATTENTION = {
    "GKAT": GKATAttention,
    "GRF": GRFAttention,
    "KMIP": KMIPAttention,
    "Linear": MaskedAttention,
}
"""Attention classes by the name that configs use."""

__all__ = ["ATTENTION", "GKATAttention", "GRFAttention", "KMIPAttention", "MaskedAttention"]
