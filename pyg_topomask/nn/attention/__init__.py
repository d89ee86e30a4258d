"""Attention modules, one published method per file: ``attn(x, batch=None, graph=None) -> [N, C]``."""

from pyg_topomask.nn.attention.exphormer import ExphormerAttention
from pyg_topomask.nn.attention.grf import GRFAttention
from pyg_topomask.nn.attention.kmip import KMIPAttention
from pyg_topomask.nn.attention.masked import MaskedAttention

ATTENTION = {
    "Exphormer": ExphormerAttention,
    "GRF": GRFAttention,
    "KMIP": KMIPAttention,
    "Linear": MaskedAttention,
}
"""Attention classes by the name that configs use."""

__all__ = ["ATTENTION", "ExphormerAttention", "GRFAttention", "KMIPAttention", "MaskedAttention"]
