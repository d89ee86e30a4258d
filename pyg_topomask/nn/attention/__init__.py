"""Attention modules, one published method per file: ``attn(x, batch=None, graph=None) -> [N, C]``."""

from pyg_topomask.nn.attention.grf import GRFAttention
from pyg_topomask.nn.attention.kmip import KMIPAttention
from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.attention.primphormer import PrimalAttention, PrimphormerAttention

ATTENTION = {
    "GRF": GRFAttention,
    "KMIP": KMIPAttention,
    "Linear": MaskedAttention,
    "Primphormer": PrimphormerAttention,
}
"""Attention classes by the name that configs use."""

__all__ = ["ATTENTION", "GRFAttention", "KMIPAttention", "MaskedAttention", "PrimalAttention", "PrimphormerAttention"]
