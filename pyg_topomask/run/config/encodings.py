"""``posenc_*`` and ``graphormer``: positional and structural encodings of nodes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pyg_topomask.run.config.base import MAX_DEPTH, Count, Section, Width, parse_times


class EigenConfig(Section):
    """``posenc_*.eigen``: eigenvectors of the graph Laplacian."""

    laplacian_norm: Literal["none", "sym", "rw"] = "sym"
    """Normalisation of the Laplacian."""
    eigvec_norm: Literal["L1", "L2", "abs-max", "wavelength", "wavelength-asin", "wavelength-soft"] = "L2"
    """Normalisation of the eigenvectors."""
    max_freqs: Width = 10
    """Number of eigenvectors, those of the smallest eigenvalues."""


class KernelConfig(Section):
    """``posenc_*.kernel``: steps of a walk, or times of a diffusion."""

    times: list[Annotated[float, Field(ge=0)]] = Field(default=[])
    """Steps or times; `times_func` takes precedence."""
    times_func: str = ""
    """The same as text, range(1,17) or [1, 2, 4]; it is never executed."""

    @field_validator("times_func")
    @classmethod
    def _readable(cls, value: str) -> str:
        if value and any(number < 0 for number in parse_times(value)):
            raise ValueError("steps and times must not be negative")
        return value

    @property
    def numbers(self) -> list[float]:
        """The steps or times, from either key."""
        numbers: list[Any] = list(parse_times(self.times_func)) if self.times_func else list(self.times)
        return [int(number) if number == int(number) else number for number in numbers]


class EncodingConfig(Section):
    """Keys that all encodings share."""

    enable: bool = False
    """Whether the encoding is computed."""
    model: Literal["none", "DeepSet", "Transformer", "Linear", "MLP", "mlp", "linear"] = "none"
    """Network that embeds the encoding."""
    dim_pe: Width = 16
    """Number of columns of the node embedding that it fills."""
    layers: int = Field(default=3, ge=0, le=MAX_DEPTH)
    """Number of layers of the network."""
    n_heads: Width = 4
    """Number of heads of a Transformer."""
    post_layers: int = Field(default=0, ge=0, le=MAX_DEPTH)
    """Number of layers after pooling over the eigenvectors."""
    raw_norm_type: Literal["none", "None", "BatchNorm", "batchnorm"] = "none"
    """Normalisation of the network's input."""


class LapPEConfig(EncodingConfig):
    """``posenc_LapPE``: Laplacian eigenvectors and eigenvalues through a DeepSet or a Transformer."""

    eigen: EigenConfig = Field(default_factory=EigenConfig)
    """The eigenvectors."""


class SignNetConfig(EncodingConfig):
    """``posenc_SignNet``: Laplacian eigenvectors through a network that is invariant to their signs."""

    eigen: EigenConfig = Field(default_factory=EigenConfig)
    """The eigenvectors."""
    phi_out_dim: Width = 4
    """Output width of the network of each eigenvector."""
    phi_hidden_dim: Width = 64
    """Hidden width of the network of each eigenvector."""


class EquivStableLapPEConfig(Section):
    """``posenc_EquivStableLapPE``: Laplacian eigenvectors that gate messages by their distances."""

    enable: bool = False
    """Whether the encoding is computed."""
    eigen: EigenConfig = Field(default_factory=EigenConfig)
    """The eigenvectors."""
    raw_norm_type: Literal["none", "None", "BatchNorm", "batchnorm"] = "none"
    """Normalisation of the eigenvectors."""


class KernelEncodingConfig(EncodingConfig):
    """``posenc_RWSE`` and ``posenc_HKdiagSE``: return probabilities of walks, or the heat kernel's diagonal."""

    kernel: KernelConfig = Field(default_factory=KernelConfig)
    """The steps or times."""


class RelativeWalkConfig(Section):
    """``posenc_RRWP``: walk probabilities between two nodes as a bias of the attention, as in GRIT."""

    enable: bool = False
    """Whether the encoding is computed (for BiasedTransformer)."""
    kernel: KernelConfig = Field(default_factory=KernelConfig)
    """The steps; step 0 is the identity."""


class GraphormerBiasConfig(Section):
    """``posenc_GraphormerBias``: embedded degrees of nodes, and shortest-path distances as a bias of the attention."""

    enable: bool = False
    """Whether the encoding is computed."""
    node_degrees_only: bool = False
    """Use the degrees only, without distances."""
    dim_pe: Count = 0
    """Always 0: it is added to the node embedding, not concatenated."""
    num_spatial_types: Width | None = None
    """Number of distances with their own bias; longer ones share one."""
    num_in_degrees: Width | None = None
    """Number of in-degrees with their own embedding."""
    num_out_degrees: Width | None = None
    """Number of out-degrees with their own embedding."""

    @model_validator(mode="after")
    def _sizes_are_there(self) -> GraphormerBiasConfig:
        if self.enable and None in (self.num_spatial_types, self.num_in_degrees, self.num_out_degrees):
            raise ValueError("num_spatial_types, num_in_degrees and num_out_degrees are needed if enable is true")
        return self


class GraphormerConfig(Section):
    """``graphormer``: the graph token of GraphGPS's Graphormer."""

    use_graph_token: bool = True
    """Add a node to each graph that attends to all others (with posenc_GraphormerBias)."""
