"""Gated graph convolution that updates edges."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch_geometric.nn.resolver import activation_resolver

from pyg_topomask.nn.conv.stable_gate import StableGate
from pyg_topomask.nn.dropout import Dropout
from pyg_topomask.nn.edge_probe import EdgeProbe
from pyg_topomask.nn.norm import apply_norm, build_norm
from pyg_topomask.nn.reset import Resettable
from pyg_topomask.ops.gated_sum import gated_sum
from pyg_topomask.typing import Adj


class GatedGCN(Resettable):
    r"""Residual gated graph convolution with edge features, GraphGPS's ``CustomGatedGCN``.

    .. math::
        e'_{ij} &= D x_i + E x_j + C e_{ij}, \qquad \sigma_{ij} = r_{ij}\,\mathrm{sigmoid}(e'_{ij}) \\
        x'_i &= A x_i + \frac{\sum_{j \to i} \sigma_{ij} \odot B x_j}{\sum_{j \to i} \sigma_{ij} + 10^{-6}} \\
        x_i &\leftarrow x_i + \mathrm{Dropout}(\mathrm{act}(\mathrm{BN}(x'_i))), \qquad
        e_{ij} \leftarrow e_{ij} + \mathrm{Dropout}(\mathrm{act}(\mathrm{BN}(e'_{ij})))

    Here :math:`r_{ij} = 1`, or with ``equivariant_stable`` the gate of `StableGate`.

    References: Bresson and Laurent, *Residual Gated Graph ConvNets*, 2017, arXiv:1711.07553, equations 11 and 12;
    Dwivedi et al., *Benchmarking Graph Neural Networks*, JMLR 2023, arXiv:2003.00982, for the edge features and the
    normalised gates.

    Cost: :math:`O((N + E) C^2)` operations. Besides input and output, an ``[N, 4 C]`` array is stored for the backward
    pass of the sums, and two ``[E, C]`` arrays for theirs and for norm and activation.

    Args:
        channels: Width ``C`` of nodes and edges.
        dropout: Probability of zeroing an entry of both updates, in training.
        act: Activation of both updates, by PyG's names.
        equivariant_stable: Whether gates are scaled by the distance of positional encodings ``pe``.
        update_edges: Whether edges are updated. Turn it off in the last layer, where nothing reads them: parameters
            without a gradient stop distributed training.

    Shapes:
        - ``x``: ``[N, C]``, ``edge_index``: ``[2, E]``, ``edge_attr``: ``[E, C]``; output: those of ``x`` and
          ``edge_attr``

    Raises:
        ValueError: If ``dropout`` is not in [0, 1], or ``act`` is unknown.
    """

    has_residual = True
    """Dropout is applied and the input is added here, and not by the layer."""

    def __init__(
        self,
        channels: int,
        dropout: float = 0.0,
        act: str = "relu",
        equivariant_stable: bool = False,
        update_edges: bool = True,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.lin_node = Linear(channels, 4 * channels)  # A, B, D, E
        self.lin_edge = Linear(channels, channels)  # C
        self.gate = StableGate(channels, act) if equivariant_stable else None
        self.norm_node = build_norm("batch_norm", channels)
        self.norm_edge = build_norm("batch_norm", channels) if update_edges else None
        self.act, self.dropout, self.probe = activation_resolver(act), Dropout(dropout), EdgeProbe()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Read weights of earlier versions as well, which had a matrix for each part of ``lin_node``."""
        for kind in ("weight", "bias"):
            names = [f"{prefix}lin_{part}.{kind}" for part in ("self", "value", "target", "source")]
            if names[0] in state_dict:
                state_dict[f"{prefix}lin_node.{kind}"] = torch.cat([state_dict.pop(name) for name in names])
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(
        self, x: Tensor, edge_index: Adj, edge_attr: Tensor | None = None, pe: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Update nodes and, with ``update_edges``, edges.

        Args:
            x: Nodes, shape ``[N, C]``.
            edge_index: Edges, shape ``[2, E]``.
            edge_attr: Edge features, shape ``[E, C]``.
            pe: Positional encodings of the nodes, shape ``[N, *]``, for the equivariant-stable gate.

        Returns:
            ``(x [N, C], edge_attr [E, C])``, or ``x`` without ``update_edges``.

        Raises:
            TypeError: If ``edge_index`` is not a tensor, because the order of edge features would be lost.
            ValueError: If edge features or encodings are missing or have another shape, or ``pe`` is given without
                ``equivariant_stable``.
        """
        if not isinstance(edge_index, Tensor):
            raise TypeError(f"GatedGCN needs edges as a [2, E] tensor (got {type(edge_index).__name__})")
        if edge_attr is None or edge_attr.shape != (edge_index.size(1), self.channels):
            got = "none; DummyEdge makes one vector for all edges" if edge_attr is None else list(edge_attr.shape)
            raise ValueError(f"GatedGCN needs 'edge_attr' [{edge_index.size(1)}, {self.channels}] (got {got})")
        if pe is not None and self.gate is None:
            raise ValueError("GatedGCN reads 'pe' only with equivariant_stable=True; leave 'pe' out or set it")
        scale = self.probe.scaled(None if self.gate is None else self.gate(pe, edge_index))
        update, edges = gated_sum(self.lin_node(x), self.lin_edge(edge_attr), edge_index, scale)
        out = self.dropout.after(self.act, apply_norm(self.norm_node, update), x)
        if self.norm_edge is None:
            return out
        return out, self.dropout.after(self.act, apply_norm(self.norm_edge, edges, node=edge_index[0]), edge_attr)
