"""Tensor operations without learnable parameters: walks, segments, sparse products and attention."""

from pyg_topomask.ops.attention.choice import engines_of
from pyg_topomask.ops.attention.full_softmax import all_pairs
from pyg_topomask.ops.attention.masked import (
    explain,
    masked_additive_attention,
    masked_linear_attention,
    masked_softmax_attention,
)
from pyg_topomask.ops.native.loader import native_state
from pyg_topomask.ops.products.polynomial import deconvolve
from pyg_topomask.ops.reach import mean_hops, reach
from pyg_topomask.ops.topk.attention import topk_attention
from pyg_topomask.ops.topk.search import topk_inner_product
from pyg_topomask.ops.walks.bounds import error_bound, error_scale, row_nonzeros
from pyg_topomask.ops.walks.sample import Walks, sample_walks

__all__ = [
    "Walks",
    "all_pairs",
    "deconvolve",
    "engines_of",
    "error_bound",
    "error_scale",
    "explain",
    "masked_additive_attention",
    "masked_linear_attention",
    "masked_softmax_attention",
    "mean_hops",
    "native_state",
    "reach",
    "row_nonzeros",
    "sample_walks",
    "topk_attention",
    "topk_inner_product",
]
