"""``model``, ``gt`` and ``gnn``: the network."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from pyg_topomask.nn import EVERY_ATTENTION
from pyg_topomask.run.graphgps.config.base import (
    FROM_DATA,
    MAX_DEPTH,
    AlsoCalled,
    Probability,
    Section,
    Size,
    Width,
    spelled,
)
from pyg_topomask.run.graphgps.convs import CONVS

PEER_ATTENTIONS = {"Full": "Transformer", "BiasedTransformer": "Transformer", "SparseAttention": "KMIP"}
"""Other spellings of attentions, mapped to the names in :data:`~pyg_topomask.nn.ATTENTION`."""

REPLACED = {"Graphormer": "set model.type: GPSModel and gt.layer_type: None+BiasedTransformer"}
"""Networks of peers, mapped to what replaces them."""

CUSTOM_GNN_CONVS = {"gatedgcnconv": "CustomGatedGCN", "gineconv": "GINE", "gcnconv": "GCN", "gatconv": "GAT"}
"""``gnn.layer_type`` of ``custom_gnn`` in GraphGPS, LRGB and k-MIP, mapped to the names of our convolutions."""

SAN_LAYER = "None+SAN"
"""Our ``gt.layer_type`` for GraphGPS's ``SANLayer``."""


_NO_SETTING = "our attentions have no such setting"
_NO_NETWORK = "GraphGym's own network is not used"


class ModelConfig(Section):
    """``model``: the architecture and the loss."""

    no_effect_because: ClassVar[dict[str, str]] = {_NO_NETWORK: "match_upper thresh"}
    only = "size_average: mean"

    type: Literal["GPSModel", "MultiModel", "SingleModel", "SANTransformer", "custom_gnn"] = "GPSModel"
    """Architecture. GPSModel, MultiModel (Exphormer's name): a stack of GraphGPS layers; SingleModel: layers with one
    branch and no feed-forward part; SANTransformer: layers None+SAN; custom_gnn: GraphGPS's message passing without
    attention, configured by `gnn`."""
    loss_fun: Literal["cross_entropy", "weighted_cross_entropy", "l1", "smoothl1", "mse"] = "cross_entropy"
    """Loss of the task."""
    graph_pooling: Literal["mean", "add", "sum", "max", "graph_token"] = "mean"
    """How node embeddings are pooled into one vector per graph. graph_token: not at all; a graph token, one more node
    per graph that all attentions see, is read instead. Read if graphs are predicted, or there is a graph token."""
    edge_decoding: Literal["dot", "cosine_similarity", "concat"] = "dot"
    """How two node embeddings are combined into the score of an edge. Read if edges are predicted."""
    auto_satisfy_param_budget: bool = False
    """Use the largest width from 32 to 512 within `param_budget` (k-MIP) instead of `gt.dim_hidden`, `gnn.dim_inner`
    and `gt.sparse.val_dim`. For GPSModel and custom_gnn; a pretrained model keeps its width."""
    param_budget: Size = 500_000
    """Largest number of parameters. Read if model.auto_satisfy_param_budget is true."""


class SparseConfig(Section):
    """``gt.sparse``: the k-MIP attention, in its authors' spelling."""

    no_effect_because: ClassVar[dict[str, str]] = {_NO_SETTING: "random_fraction"}
    only = "random_attention: false"

    k: Width = 10
    """Number of keys that each query attends to."""
    kq_dim: Annotated[Width | None, spelled(none=None)] = None
    """Width of the queries and keys of one head; none: `gt.dim_hidden` / `gt.n_heads`."""
    val_dim: Annotated[Width | None, spelled(none=None)] = None
    """Width of the values of one head; none: `gt.dim_hidden` / `gt.n_heads`."""
    head_agg: Literal["Linear", "none"] = "Linear"
    """Linear mixes the heads by an output projection; none only concatenates them."""


class BigBirdConfig(Section):
    """``gt.bigbird``: block-sparse attention."""

    no_effect_because: ClassVar[dict[str, str]] = {
        _NO_SETTING: "use_bias hidden_act chunk_size_feed_forward max_position_embeddings layer_norm_eps"
    }
    only = "attention_type: block_sparse, is_decoder: false, add_cross_attention: false"

    num_random_blocks: int = Field(default=3, ge=0, le=2**16)
    """Number of random blocks that each block attends to."""
    block_size: Width = 3
    """Number of nodes in a block."""


class GTConfig(Section):
    """``gt``: the GraphGPS layers."""

    no_effect_because: ClassVar[dict[str, str]] = {_NO_SETTING: "secondary_edges activation", FROM_DATA: "pna_degrees"}
    only = "residual: true"

    layer_type: str = "GCN+GRF"
    """The parallel branches of a layer, convolutions and attentions, joined by +. One part may be None; None+None
    leaves a feed-forward network on each node, which does not read the edges. Examples: GCN+GRF,
    CustomGatedGCN+Transformer, None+Linear, CustomGatedGCN+Exphormer+GRF."""
    layers: Annotated[int, Field(ge=1, le=MAX_DEPTH), AlsoCalled("num_layers")] = 2
    """Number of layers."""
    n_heads: Annotated[Width, AlsoCalled("heads"), AlsoCalled("num_heads")] = 1
    """Number of attention heads; it must divide `dim_hidden` if the layer has attention."""
    dim_hidden: Annotated[Width, AlsoCalled("hidden_dim"), AlsoCalled("hidden_channels")] = 64
    """Width of the layers."""
    dim_edge: Width | None = None
    """Width of edge embeddings; it must equal `dim_hidden`."""
    dropout: Probability = 0.0
    """Dropout after each branch and in the feed-forward part."""
    attn_dropout: Probability = 0.0
    """Dropout inside the attention, if it has one. Read if an attention in gt.layer_type or its mask has this
    argument."""
    layer_norm: bool = False
    """Normalise the nodes of each graph by LayerNorm, or by GraphNorm in MultiModel."""
    batch_norm: bool = True
    """Normalise by BatchNorm."""
    sparse: SparseConfig = Field(default_factory=SparseConfig)
    """The k-MIP attention."""
    bigbird: BigBirdConfig = Field(default_factory=BigBirdConfig)
    """The BigBird attention."""
    full_graph: bool = True
    """Whether SAN also attends to pairs of nodes without an edge. Read if gt.layer_type contains SAN."""
    gamma: float = 1e-5
    """Weight of these pairs in SAN relative to edges; it must exceed 0. Read if gt.layer_type contains SAN."""

    @field_validator("layer_type")
    @classmethod
    def _named_parts(cls, value: str) -> str:
        parts = [part.strip() for part in value.split("+")]
        if not all(parts):
            raise ValueError("must be a convolution and an attention joined by '+', such as GCN+GRF or GCN+None")
        return "+".join(parts)

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """What is wrong with the layers."""
        parts, kind, given = self.layer_type.split("+"), config.model.type, f"(got {self.layer_type!r})"
        if not self.agrees("dim_edge", None, self.dim_hidden):
            yield "gt.dim_edge", f"must equal gt.dim_hidden (got {self.dim_edge} and {self.dim_hidden})"
        if self.dim_hidden % self.n_heads != 0 and (parts[1:] != ["None"] or parts[0] == "GAT"):
            yield "gt.n_heads", f"must divide gt.dim_hidden (got {self.n_heads} and {self.dim_hidden})"
        if self.layer_norm and not self.agrees("batch_norm", False):
            yield "gt.layer_norm", "layer_norm and batch_norm are both true: set one to false"
        if len(parts) == 1 and kind == "GPSModel":
            message = "must be a convolution and an attention joined by '+', such as GCN+GRF or GCN+None"
            yield "gt.layer_type", f"{message} {given}"
        if kind == "SANTransformer" and self.layer_type != SAN_LAYER:
            message = f"SANTransformer takes SANLayer; for another layer use model.type GPSModel {given}"
            yield "gt.layer_type", message

    @property
    def parts(self) -> list[str]:
        """The parts of ``layer_type`` in our spelling, without None."""
        return [PEER_ATTENTIONS.get(part, part) for part in self.layer_type.split("+") if part != "None"]

    @property
    def attentions(self) -> list[str]:
        """Names of the attentions in ``layer_type``, in our spelling."""
        return [name for name in self.parts if name in EVERY_ATTENTION]

    @property
    def convs(self) -> list[str]:
        """Names of the convolutions in ``layer_type``."""
        return [name for name in self.parts if name in CONVS]


class GNNConfig(Section):
    """``gnn``: the layers before and after the GraphGPS layers, and the activation of the whole model."""

    no_effect_because: ClassVar[dict[str, str]] = {
        _NO_NETWORK: "stage_type skip_every agg normalize_adj msg_direction self_msg att_heads att_final_linear "
        "att_final_linear_bn l2norm keep_edge clear_feature dim_edge"
    }

    head: str = "default"
    """Prediction head; default: decided by the task."""
    layers_pre_mp: int = Field(default=0, ge=0, le=MAX_DEPTH)
    """Number of layers between the encoders and the first GraphGPS layer."""
    layers_post_mp: int = Field(default=1, ge=1, le=MAX_DEPTH)
    """Number of linear layers of the head."""
    dim_inner: Width | None = None
    """Width of the model, which GraphGPS gives twice; it must equal `gt.dim_hidden`."""
    act: Annotated[Literal["relu", "gelu", "elu", "selu", "silu", "tanh", "prelu"], spelled(swish="silu")] = "relu"
    """Activation of feed-forward parts, of GIN, GINE and GatedGCN, of layers_pre_mp, of the layers of custom_gnn (but
    GatedGCN has ReLU there, as in GraphGPS), and of the heads mlp_graph and san_graph."""
    batchnorm: bool = True
    """BatchNorm in the layers of `layers_pre_mp`. Read if there are layers between the encoders and the GraphGPS
    layers, gnn.layers_pre_mp."""
    dropout: Probability = 0.0
    """Dropout in the layers of `layers_pre_mp`, in the head mlp_graph and in custom_gnn. Read if there are layers
    before the GraphGPS layers (gnn.layers_pre_mp), the head mlp_graph, or custom_gnn."""
    residual: bool = False
    """Residual connections of custom_gnn; they must be on. Read if model.type is custom_gnn."""
    layers_mp: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 2
    """Number of layers. Read if model.type is custom_gnn."""
    layer_type: str = "generalconv"
    """Convolution of custom_gnn: gatedgcnconv, gineconv, gcnconv or gatconv. Read if model.type is custom_gnn."""

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """What is wrong with the head, the width and custom_gnn."""
        custom, width = config.model.type == "custom_gnn", config.gt.dim_hidden
        if not custom and not self.agrees("dim_inner", None, width):
            yield "gnn.dim_inner", f"must equal gt.dim_hidden (got {self.dim_inner} and {width})"
        if custom and self.layer_type not in CUSTOM_GNN_CONVS:
            yield "gnn.layer_type", f"custom_gnn takes {', '.join(CUSTOM_GNN_CONVS)} (got {self.layer_type!r})"
        if custom and not self.agrees("residual", True):
            yield "gnn.residual", "custom_gnn is provided with residuals only: set it to true"
