"""``posenc_*`` and ``graphormer``: positional and structural encodings of nodes."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from pyg_topomask.run.graphgps.config.base import MAX_DEPTH, MAX_STEPS, Section, Width, parse_times


class EigenConfig(Section):
    """``posenc_*.eigen``: eigenvectors of the graph Laplacian."""

    laplacian_norm: Literal["none", "sym", "rw"] = "sym"
    """Normalisation of the Laplacian."""
    eigvec_norm: Literal["L1", "L2", "abs-max", "wavelength", "wavelength-asin", "wavelength-soft"] = "L2"
    """Normalisation of the eigenvectors."""
    max_freqs: Width = 10
    """Number of eigenvectors, those of the smallest eigenvalues."""


_MODELS = {"LapPE": ("DeepSet", "Transformer"), "SignNet": ("MLP", "DeepSet")}
"""Networks of encodings; others are linear maps or MLPs."""

_NO_ER = "effective resistances are not provided"
_NO_SUCH = "its network has no such setting"
_NO_OWN = "Graphormer's own network is not provided"


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


class EnabledConfig(Section):
    """What all encodings have."""

    no_effect_because: ClassVar[dict[str, str]] = {"encodings are passed on only in the node features": "pass_as_var"}

    enable: bool = False
    """Whether the encoding is computed."""


class EncodingConfig(EnabledConfig):
    """Keys of encodings that are embedded and concatenated to node features."""

    model: Literal["none", "DeepSet", "Transformer", "Linear", "MLP", "mlp", "linear"] = "none"
    """Network that embeds the encoding."""
    dim_pe: Width = 16
    """Number of columns of the node embedding that it fills."""
    layers: Annotated[int, Field(ge=0, le=MAX_DEPTH)] = 3
    """Number of layers of the network. Read if the encoding's model is not Linear."""


class LapPEConfig(EncodingConfig):
    """``posenc_LapPE``: Laplacian eigenvectors and eigenvalues through a DeepSet or a Transformer."""

    n_heads: Width = 4
    """Number of heads of a Transformer. Read if posenc_LapPE.model is Transformer."""
    post_layers: int = Field(default=0, ge=0, le=MAX_DEPTH)
    """Number of layers after pooling over the eigenvectors."""
    raw_norm_type: Literal["none", "None", "BatchNorm", "batchnorm"] = "none"
    """Normalisation of the network's input."""
    eigen: EigenConfig = Field(default_factory=EigenConfig)
    """The eigenvectors."""


class SignNetConfig(EncodingConfig):
    """``posenc_SignNet``: Laplacian eigenvectors through a network that is invariant to their signs."""

    no_effect_because: ClassVar[dict[str, str]] = {_NO_SUCH: "n_heads raw_norm_type"}

    post_layers: int = Field(default=0, ge=0, le=MAX_DEPTH)
    """Number of layers after pooling over the eigenvectors."""
    eigen: EigenConfig = Field(default_factory=EigenConfig)
    """The eigenvectors."""
    phi_out_dim: Width = 4
    """Output width of the network of each eigenvector."""
    phi_hidden_dim: Width = 64
    """Hidden width of the network of each eigenvector."""


class EquivStableLapPEConfig(EnabledConfig):
    """``posenc_EquivStableLapPE``: Laplacian eigenvectors that gate messages by their distances."""

    eigen: EigenConfig = Field(default_factory=EigenConfig)
    """The eigenvectors."""
    raw_norm_type: Literal["none", "None", "BatchNorm", "batchnorm"] = "none"
    """Normalisation of the eigenvectors."""


class KernelEncodingConfig(EncodingConfig):
    """``posenc_RWSE`` and ``posenc_HKdiagSE``: return probabilities of walks, or the heat kernel's diagonal."""

    no_effect_because: ClassVar[dict[str, str]] = {_NO_SUCH: "n_heads post_layers"}

    raw_norm_type: Literal["none", "None", "BatchNorm", "batchnorm"] = "none"
    """Normalisation of the network's input."""
    kernel: KernelConfig = Field(default_factory=KernelConfig)
    """The steps or times."""


class RelativeWalkConfig(EnabledConfig):
    """``posenc_RRWP``: walk probabilities between two nodes as a bias of the attention, as in GRIT."""

    kernel: KernelConfig = Field(default_factory=KernelConfig)
    """The steps; step 0 is the identity."""


class GraphormerBiasConfig(EnabledConfig):
    """``posenc_GraphormerBias``: embedded degrees of nodes, and shortest-path distances as a bias of the attention."""

    only = "dim_pe: 0"  # it is added to the node embedding, not concatenated

    node_degrees_only: bool = False
    """Use the degrees only, without distances."""
    num_spatial_types: Width | None = None
    """Number of distances with their own bias; longer ones share one."""
    num_in_degrees: Width | None = None
    """Number of in-degrees with their own embedding."""
    num_out_degrees: Width | None = None
    """Number of out-degrees with their own embedding."""


class ElectrostaticConfig(EncodingConfig):
    """``posenc_ElstaticSE``: electrostatic potentials."""

    no_effect_because: ClassVar[dict[str, str]] = {
        "the measures of the potential are fixed": "kernel",
        _NO_SUCH: "n_heads post_layers",
    }

    raw_norm_type: Literal["none", "None", "BatchNorm", "batchnorm"] = "none"
    """Normalisation of the network's input."""


class ResistanceConfig(Section):
    """``posenc_ERN`` and ``posenc_ERE``: effective resistances, which are not provided."""

    no_effect_because: ClassVar[dict[str, str]] = {
        _NO_ER: "accuracy er_dim model dim_pe layers n_heads post_layers raw_norm_type pass_as_var"
    }
    only = "enable: false"


class GraphormerConfig(Section):
    """``graphormer``: the graph token of GraphGPS's Graphormer."""

    no_effect_because: ClassVar[dict[str, str]] = {
        _NO_OWN: "num_layers embed_dim num_heads dropout attention_dropout mlp_dropout input_dropout"
    }

    use_graph_token: bool = True
    """Add a node to each graph that attends to all others (with posenc_GraphormerBias)."""


def contradictions(config: Any) -> Iterator[tuple[str, str]]:
    """Pairs (key, what is wrong) of the encodings in ``dataset.node_encoder_name``."""
    parts, gt = config.dataset.node_encoder_parts, config.gt
    used = {name: getattr(config, f"posenc_{name}") for name in parts if f"posenc_{name}" in type(config).model_fields}
    for name, section in used.items():
        if not section.agrees("enable", True):
            message = f"posenc_{name}.enable is false, and dataset.node_encoder_name contains {name}"
            yield f"posenc_{name}.enable", message
        models = _MODELS.get(name, ("Linear", "linear", "MLP", "mlp"))
        if getattr(section, "model", models[0]) not in models:
            yield f"posenc_{name}.model", f"must be one of {', '.join(models)} (got {section.model!r})"
        sizes = [size for size in ("num_spatial_types", "num_in_degrees", "num_out_degrees") if hasattr(section, size)]
        if any(getattr(section, size) is None for size in sizes):
            yield f"posenc_{name}", f"{', '.join(sizes)} are needed"
        steps, least = getattr(getattr(section, "kernel", None), "numbers", [1]), {"RWSE": 1, "RRWP": 0}.get(name)
        if not steps:
            yield f"posenc_{name}.kernel", "needs times, or times_func such as range(1,17)"
        if least is not None and any(step != int(step) or not least <= step <= MAX_STEPS for step in steps):
            yield f"posenc_{name}.kernel", f"the steps of a walk must be whole numbers from {least} to {MAX_STEPS}"
    width = sum(getattr(section, "dim_pe", 0) for section in used.values())
    if width >= gt.dim_hidden and len(used) < len(parts):
        message = f"encodings of width {width} leave no column of gt.dim_hidden {gt.dim_hidden} to node features"
        yield "dataset.node_encoder_name", message
    biased, biases = "BiasedTransformer" in gt.layer_type.split("+"), {"GraphormerBias", "RRWP"} & {*used}
    if biased and not biases:
        message = "BiasedTransformer needs posenc_GraphormerBias or posenc_RRWP, enabled and in node_encoder_name"
        yield "gt.layer_type", message
    if len(biases) > 1 or (biases == {"RRWP"} and not biased):
        message = "RRWP needs gt.layer_type with BiasedTransformer and excludes GraphormerBias"
        yield "dataset.node_encoder_name", message
