"""``topomask``: our attentions and masks, which GraphGPS does not have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pyg_topomask.run.config.base import Count, Probability, Section, Width


class TopomaskConfig(Section):
    """``topomask``: our attentions and masks, which GraphGPS does not have."""

    num_walks: int = Field(default=16, ge=1, le=10**6, description="Number of random walks from each node.")
    max_length: int = Field(default=4, ge=0, le=2**15 - 1, description="Largest length of a walk, in edges.")
    halt_prob: Probability = Field(default=0.5, description="Probability that a walk halts, per step.")
    scheme: str = Field(default="iid", description="How walks from one node are coupled.")
    independent: bool = Field(
        default=True, description="Draw two independent walk tables, so that every mask entry is unbiased."
    )
    diagonal: Literal["independent", "corrected", "shared"] | None = Field(
        default=None,
        description="How the diagonal of the mask is estimated. independent: by two tables; corrected: without bias by "
        "one table; shared: by one table, with bias; null: as `independent` says.",
    )
    num_tables: int = Field(
        default=1, ge=1, le=10**4, description="Number of independent sets of walks for the layers or heads (GRF)."
    )
    tables: Literal["layer", "head"] = Field(
        default="layer",
        description="What has its own walks if num_tables > 1. layer: layer l uses set l mod num_tables; head: head h "
        "of layer l uses set (l * gt.n_heads + h) mod num_tables.",
    )
    symmetric: bool = Field(
        default=True,
        description="true: the mask is the product of two tables of walks, one of them transposed; false: it is one "
        "table, a weighted sum over the visited nodes, for graphs whose edges have a direction.",
    )
    redraw: Count = Field(
        default=0,
        description="Number of epochs after which the training graphs get new walks; 0: never. Parts of a large graph "
        "get new walks in each epoch.",
    )
    transition: Literal["uniform", "attention"] = Field(
        default="uniform",
        description="Distribution of a walk's next node: uniform over the neighbours, or, for redrawn walks, in "
        "proportion to the first layer's attention (dynamic GKAT).",
    )
    pair_table: bool = Field(
        default=False, description="Store, with the walks, the pairs of nodes at which the mask is not zero."
    )
    mask: str = Field(
        default="none",
        description="Mask of the attentions Masked and Linear, such as grf; none: all ones within each graph. The "
        "section mask_<name> has its settings.",
    )
    spanning_tree: Literal["breadth_first", "minimum", "random"] = Field(
        default="breadth_first",
        description="Spanning tree that gives the distances of the masks forest and tree. breadth_first: the tree of a "
        "breadth-first search; minimum: the tree of the smallest total edge_weight, which is then the length of an "
        "edge; random: a tree drawn from the seed.",
    )
    decay: float = Field(default=1.0, gt=0, description="Factor on the weight per step of a walk (GKAT).")
    alpha: float = Field(default=1.0, ge=0, description="Exponent of the mask's normalisation (GKAT).")
    learnable: bool = Field(default=False, description="Learn one `decay` and one `alpha` per head (GKAT).")
    kernel: str = Field(
        default="relu", description="Feature map of the linear attention; some attentions have another default."
    )
    num_features: Width = Field(
        default=64, description="Number of random features per head (kernel softmax_rf, Performer)."
    )
    path: Literal["auto", "factored", "pairwise", "blocks"] = Field(
        default="auto",
        description="How masked attention is computed. factored: by products with the mask; pairwise: on the pairs at "
        "which the mask is not zero; blocks: on all pairs within each graph; auto: by the least work. The results are "
        "equal up to rounding.",
    )
    normalizer: Literal["bound", "signed"] = Field(
        default="bound",
        description="Denominator of masked attention. bound: the sum of the bounding mask's weights; signed: the sum "
        "of the mask's own weights, as in the papers, which may cancel if they are learned. Both are equal if the mask "
        "has no negative parameter.",
    )
    num_virtual: Width = Field(default=30, description="Number of virtual nodes that summarise a graph (Primphormer).")
    rank: Width = Field(default=30, description="Rank of the primal projections (Primphormer).")
    eta: float = Field(
        default=0.1, ge=0, description="Weight of the auxiliary loss, which trains the projections (Primphormer)."
    )
    feed_forward: bool = Field(default=True, description="Whether a layer ends with a feed-forward part.")
    pre_norm: bool = Field(
        default=False,
        description="Normalise the input of each part of a layer instead of its output, and the nodes after the last "
        "layer, as in vision transformers.",
    )
    layer_norm_mode: Literal["graph", "node"] = Field(
        default="graph",
        description="What `gt.layer_norm` normalises. graph: all nodes and channels of a graph together, as GraphGPS "
        "does; node: the channels of each node.",
    )
    normalize_features: bool = Field(default=False, description="Scale the features of each node to sum to one.")
    input_dropout: Probability = Field(default=0.0, description="Dropout of node features before the encoder.")
    encoder_dropout: Probability = Field(default=0.0, description="Dropout of node embeddings after the encoder.")
