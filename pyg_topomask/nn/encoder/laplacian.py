"""Encoders of the Laplacian's eigenvectors."""

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Module, ModuleList, TransformerEncoder, TransformerEncoderLayer
from torch_geometric.data import Data
from torch_geometric.nn import MLP

from pyg_topomask.checks import check_choice, check_heads
from pyg_topomask.nn.encoder.base import Encoder, raw_norm_layer, relu_mlp
from pyg_topomask.nn.norm import apply_norm
from pyg_topomask.nn.pool import count_graphs
from pyg_topomask.ops.edge_sum import neighbour_sum


class _EigenEncoder(Encoder):
    """Reads ``{name}_vectors [N, k]`` and ``{name}_values [N, k]``, which hold NaN for eigenpairs a graph lacks."""

    def __init__(self, channels: int, max_freqs: int, name: str) -> None:
        super().__init__()
        self.channels, self.max_freqs = channels, max_freqs
        self.requires = (f"{name}_vectors", f"{name}_values")
        self.transform_settings = {"max_freqs": max_freqs, "name": name}


class LapPE(_EigenEncoder):
    r"""Encodes each pair (eigenvector entry, eigenvalue) of a node by one network, and sums over the pairs.

    .. math:: p_i = \rho\Bigl(\sum_{f=1}^{k} \phi(u_{f, i}, \lambda_f)\Bigr)

    A graph with fewer than ``max_freqs`` eigenvectors sums over those that it has. The signs of eigenvectors are
    arbitrary, so they are drawn for each graph in every training step (GraphGPS draws one sign for the whole batch).

    References: Rampášek et al., NeurIPS 2022, arXiv:2205.12454, for the DeepSet; Kreuzer et al., *Rethinking Graph
    Transformers with Spectral Attention*, NeurIPS 2021, arXiv:2106.03893, for the Transformer.

    Args:
        channels: Width of the encoding (``dim_pe``).
        max_freqs: Number ``k`` of eigenvectors; 10 by default, as in GraphGPS.
        model: The network :math:`\phi`: ``"DeepSet"``, an MLP with ReLU of hidden width ``2 * channels``, or
            ``"Transformer"`` over a node's pairs.
        layers: Layers of :math:`\phi`; 2 by default, as in GraphGPS's config ``zinc-GPS-LapPE+RWSE``.
        heads: Heads of the Transformer; 4 by default, as in GraphGPS.
        post_layers: Layers of the MLP :math:`\rho`; the identity if 0.
        raw_norm: ``"batch_norm"`` normalises each frequency before :math:`\phi`; no norm if :obj:`None`.
        name: Name of the transform's attributes.

    Raises:
        ValueError: If a name is unknown, or the Transformer's ``heads`` do not divide ``channels``.
    """

    def __init__(
        self,
        channels: int,
        max_freqs: int = 10,
        model: str = "DeepSet",
        layers: int = 2,
        heads: int = 4,
        post_layers: int = 0,
        raw_norm: str | None = None,
        name: str = "laplacian",
    ) -> None:
        super().__init__(channels, max_freqs, name)
        check_choice("model", model, ("DeepSet", "Transformer"))
        self.raw_norm = raw_norm_layer(raw_norm, max_freqs)
        self.transformer: Module | None = None
        if model == "DeepSet":
            self.phi: Module = relu_mlp(2, 2 * channels, channels, layers)
        else:
            check_heads(channels, heads)
            self.phi = Linear(2, channels)
            layer = TransformerEncoderLayer(channels, heads, batch_first=True)
            self.transformer = TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.rho = relu_mlp(channels, 2 * channels, channels, post_layers) if post_layers else None

    def forward(self, graph: Data) -> Tensor:
        """``[N, channels]``."""
        vectors, values = self.read_tables(graph, self.max_freqs)
        missing = vectors.isnan()
        if self.training:
            vectors = vectors * _random_signs(graph, vectors)
        pairs = torch.stack([vectors, values], dim=2).nan_to_num()  # [N, k, 2]
        x = self.phi(apply_norm(self.raw_norm, pairs))
        if self.transformer is not None and x.size(0) > 0:
            # A node without any eigenvector is not hidden, because it must attend to something; it is zeroed below.
            hidden = missing & ~missing.all(dim=1, keepdim=True)
            x = self.transformer(x, src_key_padding_mask=hidden)
        x = x.masked_fill(missing.unsqueeze(2), 0.0).sum(dim=1)
        return x if self.rho is None else self.rho(x)


def _random_signs(graph: Data, vectors: Tensor) -> Tensor:
    """A sign for each eigenvector of each graph, ``[N, k]`` or ``[1, k]``."""
    batch = graph.get("batch")
    shape = (count_graphs(graph, batch), vectors.size(1))
    signs = 2 * torch.randint(0, 2, shape, device=vectors.device, dtype=vectors.dtype) - 1
    return signs if batch is None else signs.index_select(0, batch)


class EquivStableLapPE(_EigenEncoder):
    r"""Eigenvectors for convolutions that use only distances :math:`\|p_i - p_j\|^2` (`GatedGCN`).

    In the paper, the encodings are the eigenvectors themselves. Here they pass through GraphGPS's linear map and norm.

    Reference: Wang et al., *Equivariant and Stable Positional Encoding for More Powerful Graph Neural Networks*,
    ICLR 2022, arXiv:2203.00199.

    Args:
        channels: Width ``C`` of the linear map.
        max_freqs: Number ``k`` of eigenvectors.
        raw_norm: ``"batch_norm"`` normalises each frequency first; no norm if :obj:`None`.
        name: Name of the transform's attributes.
    """

    def __init__(
        self, channels: int, max_freqs: int = 10, raw_norm: str | None = None, name: str = "laplacian"
    ) -> None:
        super().__init__(channels, max_freqs, name)
        self.raw_norm, self.linear = raw_norm_layer(raw_norm, max_freqs), Linear(max_freqs, channels)

    def forward(self, graph: Data) -> Tensor:
        """``[N, C]``."""
        return self.linear(apply_norm(self.raw_norm, self.read_tables(graph, self.max_freqs)[0].nan_to_num()))


class SignNet(_EigenEncoder):
    r"""Sign-invariant encoding of eigenvectors by a graph network.

    .. math:: p_i = \rho\bigl([\phi(u_1)_i + \phi(-u_1)_i, \dots, \phi(u_k)_i + \phi(-u_k)_i]\bigr)

    with a graph isomorphism network :math:`\phi` and an MLP :math:`\rho` of the concatenation (``"MLP"``) or of the sum
    (``"DeepSet"``). Both signs pass through :math:`\phi` in one batch. So batch norms see both, and the result is
    independent of signs in training as well. Eigenvectors that a graph lacks contribute zero.

    Reference: Lim et al., *Sign and Basis Invariant Networks for Spectral Graph Representation Learning*, ICLR 2023,
    arXiv:2202.13013, Section 2.

    Cost: :math:`O(L k (N h + E) h)` for ``L`` layers of hidden width ``h``, which dominates the cost of a small model.

    Args:
        channels: Width of the encoding (``dim_pe``).
        max_freqs: Number ``k`` of eigenvectors; 10 by default, as in GraphGPS.
        model: ``"MLP"`` or ``"DeepSet"``.
        layers: Layers of :math:`\phi`, at least 2. This default and the next are those of GraphGPS's config
            ``zinc-GPS+SNMLP``.
        post_layers: Layers of :math:`\rho`, at least 1.
        phi_hidden_dim: Hidden width; 64 by default, as in GraphGPS.
        phi_out_dim: Output width of :math:`\phi`; 4 by default, as in GraphGPS.
        name: Name of the transform's attributes.

    Raises:
        ValueError: If ``model`` is unknown or there are too few layers.
    """

    def __init__(
        self,
        channels: int,
        max_freqs: int = 10,
        model: str = "MLP",
        layers: int = 8,
        post_layers: int = 2,
        phi_hidden_dim: int = 64,
        phi_out_dim: int = 4,
        name: str = "laplacian",
    ) -> None:
        super().__init__(channels, max_freqs, name)
        check_choice("model", model, ("MLP", "DeepSet"))
        if layers < 2 or post_layers < 1:
            raise ValueError(f"SignNet needs 'layers' ≥ 2 and 'post_layers' ≥ 1 (got {layers} and {post_layers})")
        self.sum_frequencies = model == "DeepSet"
        widths = [1, *[phi_hidden_dim] * (layers - 1), phi_out_dim]
        self.phi = ModuleList(_normed_mlp(a, phi_hidden_dim, b, 2) for a, b in pairwise(widths))
        self.norms = ModuleList(BatchNorm1d(phi_hidden_dim) for _ in range(layers - 1))
        joined = phi_out_dim if self.sum_frequencies else phi_out_dim * max_freqs
        self.rho = _normed_mlp(joined, phi_hidden_dim, channels, post_layers)

    def forward(self, graph: Data) -> Tensor:
        """``[N, channels]``."""
        vectors, _ = self.read_tables(graph, self.max_freqs)
        missing, vectors = vectors.isnan(), vectors.nan_to_num()
        nodes, signed = vectors.size(0), 2 * self.max_freqs
        x = torch.cat([vectors, -vectors], dim=1).view(-1, 1)  # [N 2k, 1]
        for number, mlp in enumerate(self.phi):
            if number > 0:
                x = apply_norm(self.norms[number - 1], x)
            rows = x.view(nodes, signed * x.size(1))
            x = mlp((rows + neighbour_sum(rows, graph.edge_index)).view(-1, x.size(1)))
        plus, minus = x.view(nodes, signed, x.size(1)).chunk(2, dim=1)
        both = (plus + minus).masked_fill(missing.unsqueeze(2), 0.0)  # [N, k, out]
        return self.rho(both.sum(dim=1) if self.sum_frequencies else both.flatten(1))


def _normed_mlp(in_channels: int, hidden: int, out_channels: int, num_layers: int) -> MLP:
    """Linear layers with a ReLU and then a batch norm between them."""
    widths = [in_channels, *[hidden] * (num_layers - 1), out_channels]
    return MLP(widths, act_first=True, norm_kwargs={"allow_single_element": True})
