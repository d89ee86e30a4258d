"""The general form of attention under a topological mask."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch_geometric.data import Data

from pyg_topomask.checks import check_choice
from pyg_topomask.nn.attention.base import Attention, check_input, uncompiled
from pyg_topomask.nn.card import Card, keys_of
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.feature_map import FEATURE_MAP, FeatureMap, SoftmaxFeatures
from pyg_topomask.nn.graph_attributes import requirements_of, with_attributes
from pyg_topomask.nn.graph_token import mask_of_graph
from pyg_topomask.nn.mask.mixture import joined_masks
from pyg_topomask.ops.attention.choice import PATHS
from pyg_topomask.ops.attention.inputs import NORMALIZERS
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.mask import AttentionMask
from pyg_topomask.ops.attention.masked import masked_linear_attention, masked_softmax_attention, problem_of
from pyg_topomask.ops.attention.weights import PairWeights, Rows, pair_weights
from pyg_topomask.ops.functions import recomputed
from pyg_topomask.ops.numerics import at_least_float32

KERNELS = (*FEATURE_MAP, "softmax")

# Number N H R of random features above which heads are computed one by one, and again in the backward pass. This takes
# a quarter more time and 1/H of the memory. GKAT on Cora and CiteSeer stays below.
_MANY_FEATURES = 2**23


class MaskedAttention(Attention):
    r"""Multi-head attention with a low-rank or softmax kernel and an optional topological mask.

    .. math:: \mathrm{out}_i = \sum_j M_{ij} K(q_i, k_j) v_j \Big/ \sum_j B_{ij} K(q_i, k_j)

    with the bounding mask :math:`B \ge |M|`. If no parameter of the mask is negative, B equals M and this is the
    attention of the papers. Otherwise the output keeps the signs of the mask, and before the output projection no
    entry exceeds the largest ``|v|`` of the graph.

    Reference: Choromanski et al., ICML 2022, arXiv:2107.07999, Definition 2.1 and Algorithm 1. They divide by the sum
    of :math:`M_{ij} K(q_i, k_j)` (``normalizer="signed"``).
    Cost: linear in the nodes for a low-rank kernel and a sparse or fast mask; see
    :func:`~pyg_topomask.ops.masked_linear_attention`. With ``kernel="softmax"``, the cost grows with the number of
    pairs in the mask's support, and so with the square of a hub's degree. More than 2^23 pairs are processed in parts,
    with a `PerformanceWarning`, so that memory stays below about 2 GiB.

    Args:
        channels: Width ``C`` of input and output.
        heads: Number of heads ``H``; each has ``C / H`` channels.
        kernel: ``"relu"``, ``"elu1"`` (``elu(x) + 1``), ``"square"`` and ``"exp"`` map each entry to a feature; with
            ``"relu"``, a query without a positive entry gets the output zero. ``"softmax_rf"`` uses random features of
            the softmax kernel, and ``"softmax"`` the exact softmax kernel.
        mask: Module that builds the mask from the graph; ones within each graph if :obj:`None`. A list of both stands
            for their sum with learned weights (:class:`~pyg_topomask.nn.MixtureMask`), in which each mask has its own
            engine; or with ``mask_heads`` for one of them for each group of heads.
        path: ``"auto"``, ``"factored"``, ``"pairwise"``, ``"blocks"`` or ``"dense"``. All compute the same result;
            ``"auto"`` chooses the one with the least estimated time.
        num_features: Random features per head for ``"softmax_rf"``; 64 is about ``D log D`` for ``D`` = 21.
        dropout: Probability of zeroing an entry of the result before the output projection, in training. Linear
            attention forms no normalised weights that dropout could act on.
        bias: Whether the projections have a bias.
        seed: Seed of the random features. Give each layer its own so that their errors are independent.
        mask_heads: Number of heads that each mask of the list ``mask`` serves. All serve all heads if :obj:`None`.
        normalizer: ``"bound"`` divides by the sum of the bounding mask's weights. ``"signed"`` divides by the sum of
            the mask's weights, as in the papers; if signs cancel, outputs and gradients then grow without bound.

    Shapes:
        - ``x``: ``[N, C]``, ``batch``: ``[N]``, sorted; output: ``[N, C]``

    Raises:
        TypeError: If a size or count is not an integer, or ``mask`` is neither a module nor a list of them.
        ValueError: If ``heads`` does not divide ``channels``, ``dropout`` or ``num_features`` is out of range, a name
            is unknown, ``kernel="softmax"`` has ``path="factored"``, ``mask_heads`` does not divide the heads among a
            list of masks, or a mask of the list has neither one head nor as many as it serves.
    """

    card = Card(
        formula="all nodes of the graph, weighted by a mask of your choice",
        learns="projections; what the mask learns",
        cost="N without a mask, or that of the mask",
        when="a [mask](../masks.md) of your choice; without one, a cheap exchange between all nodes",
        reach="far",
        examples=tuple({"kernel": kernel, "num_features": 12} for kernel in KERNELS),
    )
    accepts_tokens = True  # `mask_of_graph` borders the mask
    config_keys = keys_of(
        "heads", "mask", "mask_heads", "kernel", "path", "num_features", "dropout", "seed", "normalizer"
    )

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        kernel: str = "relu",
        mask: Module | Sequence[Module | None] | None = None,
        path: str = "auto",
        num_features: int = 64,
        dropout: float = 0.0,
        bias: bool = True,
        seed: int = 0,
        normalizer: str = "bound",
        mask_heads: Sequence[int] | None = None,
    ) -> None:
        super().__init__(channels, heads)
        check_choice("normalizer", normalizer, NORMALIZERS)
        mask = joined_masks(mask, self.heads, mask_heads)
        check_choice("kernel", kernel, KERNELS)
        if path not in PATHS or (kernel == "softmax" and path == "factored"):
            raise ValueError(f"'path' must be one of {', '.join(PATHS)}; 'softmax' is never factored (got {path!r})")
        self.kernel, self.mask, self.path, self.normalizer = kernel, mask, path, normalizer
        self.requires = requirements_of(mask)
        self.transform_settings = getattr(mask, "transform_settings", {})
        self.qkv = Linear(self.channels, 3 * self.channels, bias=bias)
        self.out = Linear(self.channels, self.channels, bias=bias)
        self.dropout = Dropout(dropout)
        self.feature_map: FeatureMap | None = None
        if kernel == "softmax_rf":
            self.feature_map = SoftmaxFeatures(self.channels // self.heads, num_features, seed)
        elif kernel != "softmax":
            self.feature_map = FEATURE_MAP[kernel]()

    @uncompiled
    def forward(self, x: Tensor, batch: Tensor | None = None, graph: Data | None = None) -> Tensor:
        batch = check_input(x, self.channels, batch, graph)
        q, k, v = self._split_heads(self.qkv(x))
        mask = self.build_mask(x, batch, graph)
        if self.feature_map is None:
            out = masked_softmax_attention(q, k, v, mask, batch, self.path, self.normalizer)
        else:
            with torch.autocast(x.device.type, enabled=False):  # sums of features need float32
                out = self._attend_features(self.feature_map, q, k, v, mask, batch).to(v.dtype)
        return self.out(self.dropout(out.flatten(1)))

    def _weights(self, x: Tensor, batch: Tensor | None, graph: Data | None, rows: Rows) -> PairWeights:
        q, k, _ = self._split_heads(self.qkv(x))
        mask, kernel = self.build_mask(x, batch, graph), Kernel("softmax" if self.feature_map is None else "linear")
        with torch.autocast(x.device.type, enabled=False):
            q, k = at_least_float32(q, k)
            q, k = self.feature_map(q, k, batch) if self.feature_map is not None else (q * q.size(-1) ** -0.5, k)
            return pair_weights(problem_of(kernel, (q, k, k), mask, batch, self.normalizer), rows)

    def _attend_features(
        self, feature_map: FeatureMap, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None, batch: Tensor | None
    ) -> Tensor:
        """Linear attention of features, head by head if there are many random features."""

        def attend(features: FeatureMap, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = features(q, k, batch)
            return masked_linear_attention(q, k, v, mask, batch, self.path, self.normalizer, signed_features=False)

        q, k, v = at_least_float32(q, k, v)
        numbers = q.size(0) * self.heads * getattr(feature_map, "num_features", 0)
        if self.heads == 1 or numbers <= _MANY_FEATURES or (mask is not None and mask.heads is not None):
            return attend(feature_map, q, k, v)
        now = copy.copy(feature_map)  # the backward pass computes features again, perhaps after a redraw
        now._buffers = dict(feature_map._buffers)
        heads = zip(*(x.split(1, dim=1) for x in (q, k, v)))
        return torch.cat([recomputed(attend, now, *head) for head in heads], dim=1)

    def build_mask(self, x: Tensor, batch: Tensor | None, graph: Data | None) -> AttentionMask | None:
        """The mask of this batch, or None for ones within each graph."""
        if self.mask is None:
            return None
        if batch is not None and isinstance(graph, Data) and graph.get("batch") is None:
            graph = with_attributes(graph, batch=batch)  # a mask must not join graphs that attention separates
        return mask_of_graph(self.mask, graph)
