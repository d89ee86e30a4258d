"""``topomask``: our attentions and masks, which GraphGPS does not have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pyg_topomask.run.config.base import Count, Probability, Section, Width


class TopomaskConfig(Section):
    """``topomask``: our attentions and masks, which GraphGPS does not have."""

    num_walks: int = Field(default=16, ge=1, le=10**6, description="Random walks from each node.")
    max_length: int = Field(default=4, ge=0, le=10**6, description="Longest walk, in edges.")
    halt_prob: Probability = Field(default=0.5, description="Probability of halting, per step.")
    scheme: str = Field(default="iid", description="How walks from one node are coupled.")
    independent: bool = Field(
        default=True, description="Two independent walk tables, so that the mask is unbiased everywhere."
    )
    symmetric: bool = Field(
        default=True, description="One modulation function for both tables, so that the mask is symmetric."
    )
    redraw: Count = Field(
        default=0,
        description="Epochs from one draw of the training graphs' walks to the next; 0: never. Parts of a large graph "
        "get walks of their own in each epoch.",
    )
    transition: Literal["uniform", "attention"] = Field(
        default="uniform",
        description="Where walks step: uniform over neighbours, or, where they are redrawn, in proportion to the first "
        "layer's attention over them (dynamic GKAT).",
    )
    pair_table: bool = Field(default=False, description="Store the pairs of nodes the mask reaches with the walks.")
    mask: str = Field(
        default="none",
        description="Mask of the attentions Masked and Linear, such as grf; none: ones within each graph. Its settings "
        "go into mask_<name>.",
    )
    decay: Annotated[float, Field(gt=0)] = Field(default=1.0, description="Weight of each further step (GKAT).")
    alpha: Annotated[float, Field(ge=0)] = Field(default=1.0, description="Power of the mask's normalisation (GKAT).")
    learnable: bool = Field(default=False, description="Learn `decay` and `alpha`, one of each per head (GKAT).")
    kernel: str = Field(
        default="relu", description="Feature map of the linear attention; an attention may have a default of its own."
    )
    num_features: Width = Field(default=64, description="Random features per head of kernel softmax_rf, and Performer.")
    path: Literal["auto", "factored", "pairwise", "blocks"] = Field(
        default="auto",
        description="How the masked product is computed: by products with the mask, on the pairs it supports, or on "
        "all pairs within each graph; auto: whichever is the least work. All give the same numbers.",
    )
    normalizer: Literal["bound", "signed"] = Field(
        default="bound",
        description="What masked attention divides by: the sum of the bounding mask's weights, or of the mask's own, "
        "as in the papers, where learned signs can cancel. The same where the mask has no negative entry.",
    )
    num_virtual: Width = Field(default=30, description="Virtual nodes that sum up a graph (Primphormer).")
    rank: Width = Field(default=30, description="Rank of the primal projections (Primphormer).")
    eta: Annotated[float, Field(ge=0)] = Field(
        default=0.1, description="Weight of the auxiliary loss that makes them singular vectors (Primphormer)."
    )
    feed_forward: bool = Field(default=True, description="Whether a layer ends in a feed-forward part.")
    normalize_features: bool = Field(default=False, description="Scale the features of each node to sum to one.")
    input_dropout: Probability = Field(default=0.0, description="Dropout of node features, before the encoder.")
    encoder_dropout: Probability = Field(default=0.0, description="Dropout of embedded nodes, after the encoder.")
