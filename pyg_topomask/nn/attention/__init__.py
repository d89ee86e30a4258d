"""Attention modules, one published method per file: ``attn(x, batch=None, graph=None) -> [N, C]``."""

from collections import ChainMap

from pyg_topomask.nn.attention.base import Attention, check_input
from pyg_topomask.nn.attention.bigbird import BigBirdAttention
from pyg_topomask.nn.attention.exphormer import ExphormerAttention
from pyg_topomask.nn.attention.full import FullAttention
from pyg_topomask.nn.attention.gkat import GKATAttention, GKATConv
from pyg_topomask.nn.attention.grf import GRFAttention
from pyg_topomask.nn.attention.kmip import KMIPAttention
from pyg_topomask.nn.attention.masked import MaskedAttention
from pyg_topomask.nn.attention.performer import PerformerAttention
from pyg_topomask.nn.attention.primal import PrimalAttention
from pyg_topomask.nn.attention.primphormer import PrimphormerAttention
from pyg_topomask.nn.attention.pyg import PYG_ATTENTION
from pyg_topomask.nn.attention.san import SANAttention

ATTENTION: dict[str, type[Attention]] = {
    "BigBird": BigBirdAttention,
    "Exphormer": ExphormerAttention,
    "GKAT": GKATAttention,
    "GRF": GRFAttention,
    "KMIP": KMIPAttention,
    "Linear": MaskedAttention,
    "Masked": MaskedAttention,
    "Performer": PerformerAttention,
    "Primal": PrimalAttention,
    "Primphormer": PrimphormerAttention,
    "SAN": SANAttention,
    "Transformer": FullAttention,
}
"""Attention classes by their names in configs."""

EVERY_ATTENTION = ChainMap(PYG_ATTENTION, ATTENTION)
"""These and the attentions of PyG and torch, such as ``pyg.SGFormer``."""

__all__ = [
    "ATTENTION",
    "EVERY_ATTENTION",
    "Attention",
    "BigBirdAttention",
    "ExphormerAttention",
    "FullAttention",
    "GKATAttention",
    "GKATConv",
    "GRFAttention",
    "KMIPAttention",
    "MaskedAttention",
    "PerformerAttention",
    "PrimalAttention",
    "PrimphormerAttention",
    "SANAttention",
    "check_input",
]
