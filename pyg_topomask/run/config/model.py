"""``model``, ``gt`` and ``gnn``: the network."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from pyg_topomask.run.config.base import MAX_DEPTH, Probability, Section, Size, Width

PEER_ATTENTIONS = {"Full": "Transformer", "BiasedTransformer": "Transformer", "SparseAttention": "KMIP"}
"""Other spellings of attentions, most of them the peers' -> the names of our table."""

FOREIGN_MODELS = {
    "Graphormer": "its own network is not provided; use GPSModel with gt.layer_type None+BiasedTransformer, the sizes "
    "of graphormer in gt.layers, gt.n_heads, gt.dim_hidden and gt.dropout, and gnn.head graph",
    "gnn": "use custom_gnn, which takes gnn.layer_type gcnconv, gatconv, gineconv and gatedgcnconv, with gnn.residual "
    "true; GraphGym's own network is not provided",
    "Performer": "use GPSModel with layer_type None+Performer",
    "BigBird": "use GPSModel with layer_type None+BigBird",
}
"""Architectures of the peers that are refused, and what to use instead."""

CUSTOM_GNN_CONVS = {"gatedgcnconv": "CustomGatedGCN", "gineconv": "GINE", "gcnconv": "GCN", "gatconv": "GAT"}
"""``gnn.layer_type`` of ``custom_gnn``, GraphGPS's and then LRGB's and k-MIP's -> the names of our table."""

SAN_LAYER = "None+SAN"
"""GraphGPS's ``SANLayer`` as a layer of ours."""


class ModelConfig(Section):
    """``model``: what kind of model and loss."""

    type: Literal["GPSModel", "MultiModel", "SingleModel", "SANTransformer", "custom_gnn"] = Field(
        default="GPSModel",
        description="Architecture: a stack of GraphGPS layers; Exphormer calls it MultiModel, and SingleModel where "
        "layers have one branch and no feed-forward part; SANTransformer: layers None+SAN; custom_gnn: GraphGPS's "
        "message passing alone, by `gnn`.",
    )
    loss_fun: Literal["cross_entropy", "weighted_cross_entropy", "l1", "smoothl1", "mse"] = Field(
        default="cross_entropy", description="Loss of the task."
    )
    graph_pooling: Literal["mean", "add", "sum", "max", "graph_token"] = Field(
        default="mean", description="How nodes become one vector per graph."
    )
    edge_decoding: Literal["dot", "cosine_similarity", "concat"] = Field(
        default="dot", description="How two node embeddings become the score of an edge."
    )
    auto_satisfy_param_budget: bool = Field(
        default=False,
        description="k-MIP's: the largest width from 32 to 512 within `param_budget`, in place of `gt.dim_hidden`, "
        "`gnn.dim_inner` and `gt.sparse.val_dim`, in GPSModel and custom_gnn; a pretrained model has that of its run.",
    )
    param_budget: Size = Field(default=500_000, description="Parameters that auto_satisfy_param_budget allows.")

    @field_validator("type", mode="before")
    @classmethod
    def _ours(cls, value: Any) -> Any:
        if value in FOREIGN_MODELS:
            raise ValueError(FOREIGN_MODELS[value])
        return value


class SparseConfig(Section):
    """``gt.sparse``: the k-MIP attention, in the spelling of its authors."""

    k: Width = Field(default=10, description="Keys that each query attends to.")
    kq_dim: Width | None = Field(
        default=None, description="Width of one head's queries and keys; none: `gt.dim_hidden` / `gt.n_heads`."
    )
    val_dim: Width | None = Field(
        default=None, description="Width of one head's values; none: `gt.dim_hidden` / `gt.n_heads`."
    )
    head_agg: Literal["Linear", "none"] = Field(
        default="Linear", description="Linear mixes the heads by an output projection; none only joins them."
    )

    @field_validator("kq_dim", "val_dim", mode="before")
    @classmethod
    def _none_in_words(cls, value: Any) -> Any:
        return None if value == "none" else value


class BigBirdConfig(Section):
    """``gt.bigbird``: block-sparse attention."""

    num_random_blocks: int = Field(default=3, ge=0, le=2**16, description="Random blocks that each block attends to.")
    block_size: Width = Field(default=3, description="Nodes in a block.")


class GTConfig(Section):
    """``gt``: the GraphGPS layers."""

    layer_type: str = Field(
        default="GCN+GRF",
        description="Convolutions and attentions side by side, joined by +; one of two may be None: GCN+GRF, "
        "CustomGatedGCN+Transformer, None+Linear, CustomGatedGCN+Exphormer+GRF.",
    )
    layers: int = Field(default=2, ge=1, le=MAX_DEPTH, description="Number of layers.")
    n_heads: Width = Field(default=1, description="Attention heads; they divide `dim_hidden` where there is attention.")
    dim_hidden: Width = Field(default=64, description="Width of the layers.")
    dim_edge: Width | None = Field(default=None, description="Width of edge embeddings; only that of `dim_hidden`.")
    dropout: Probability = Field(default=0.0, description="Dropout after each branch and in the feed-forward part.")
    attn_dropout: Probability = Field(default=0.0, description="Dropout inside the attention, where it has one.")
    layer_norm: bool = Field(
        default=False, description="Normalise the nodes of each graph: LayerNorm, or GraphNorm in MultiModel."
    )
    batch_norm: bool = Field(default=True, description="Normalise by BatchNorm.")
    sparse: SparseConfig = Field(default_factory=SparseConfig, description="The k-MIP attention.")
    bigbird: BigBirdConfig = Field(default_factory=BigBirdConfig, description="The BigBird attention.")
    full_graph: bool = Field(default=True, description="Whether SAN attends to pairs without an edge, too.")
    gamma: float = Field(default=1e-5, description="Weight of these pairs in SAN beside that of edges; above 0.")

    @field_validator("layer_type")
    @classmethod
    def _named_parts(cls, value: str) -> str:
        parts = [part.strip() for part in value.split("+")]
        if not all(parts):
            raise ValueError("must be a convolution and an attention joined by '+', such as GCN+GRF or GCN+None")
        if all(part == "None" for part in parts):
            raise ValueError("leaves nothing to train: at most one part may be None")
        foreign = next((part for part in parts if "__" in part), None)
        if foreign:
            raise ValueError(f"{foreign}: message passing along expander edges is not provided; use Exphormer")
        return "+".join(parts)

    @property
    def first(self) -> str:
        """What stands first in ``layer_type``."""
        return self.layer_type.split("+")[0]

    @property
    def parts(self) -> list[str]:
        """Names joined by ``+``, in the spelling of our tables, without None."""
        return [PEER_ATTENTIONS.get(part, part) for part in self.layer_type.split("+") if part != "None"]


class GNNConfig(Section):
    """``gnn``: what surrounds the layers, and the activation of the whole model."""

    head: str = Field(default="default", description="Prediction head; default: by the task.")
    layers_pre_mp: int = Field(
        default=0, ge=0, le=MAX_DEPTH, description="Layers between the encoders and the first GraphGPS layer."
    )
    layers_post_mp: int = Field(default=1, ge=1, le=MAX_DEPTH, description="Linear layers of the head.")
    dim_inner: Width | None = Field(
        default=None, description="Width of the model as GraphGPS repeats it: `gt.dim_hidden`."
    )
    act: Literal["relu", "gelu", "elu", "selu", "silu", "tanh", "prelu"] = Field(
        default="relu", description="Activation."
    )
    batchnorm: bool = Field(
        default=False, description="BatchNorm in the layers before and the head after the GraphGPS layers."
    )
    dropout: Probability = Field(default=0.0, description="Dropout in these layers.")
    residual: bool = Field(default=False, description="custom_gnn: residuals around layers; it must say true.")
    layers_mp: int = Field(default=2, ge=1, le=MAX_DEPTH, description="custom_gnn: layers.")
    layer_type: str = Field(
        default="generalconv", description=f"custom_gnn: convolution, {', '.join(CUSTOM_GNN_CONVS)}."
    )

    @field_validator("act", mode="before")
    @classmethod
    def _one_name(cls, value: Any) -> Any:
        return "silu" if value == "swish" else value  # one function, two names
