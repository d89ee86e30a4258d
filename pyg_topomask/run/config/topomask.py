"""``topomask``: our attentions and masks, which GraphGPS does not have."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pyg_topomask.run.config.base import Count, Probability, Section, Width


class TopomaskConfig(Section):
    """``topomask``: our attentions and masks, which GraphGPS does not have."""

    num_walks: int = Field(default=16, ge=1, le=10**6)
    """Number of random walks from each node."""
    max_length: int = Field(default=4, ge=0, le=2**15 - 1)
    """Largest length of a walk, in edges."""
    halt_prob: Probability = 0.5
    """Probability that a walk halts, per step."""
    scheme: str = "iid"
    """How walks from one node are coupled."""
    independent: bool = True
    """Draw two independent walk tables, so that every mask entry is unbiased."""
    diagonal: Literal["independent", "corrected", "shared"] | None = None
    """How the diagonal of the mask is estimated. independent: by two tables; corrected: without bias by one table;
    shared: by one table, with bias; null: as `independent` says."""
    num_tables: int = Field(default=1, ge=1, le=10**4)
    """Number of independent sets of walks for the layers or heads (GRF)."""
    tables: Literal["layer", "head"] = "layer"
    """What has its own walks if num_tables > 1. layer: layer l uses set l mod num_tables; head: head h of layer l uses
    set (l * gt.n_heads + h) mod num_tables."""
    symmetric: bool = True
    """true: the mask is the product of two tables of walks, one of them transposed; false: it is one table, a weighted
    sum over the visited nodes, for graphs whose edges have a direction."""
    redraw: Count = 0
    """Number of epochs after which the training graphs get new walks; 0: never. Parts of a large graph get new walks in
    each epoch."""
    transition: Literal["uniform", "attention"] = "uniform"
    """Distribution of a walk's next node: uniform over the neighbours, or, for redrawn walks, in proportion to the
    first layer's attention (dynamic GKAT)."""
    mask: str = "none"
    """Mask of the attentions Masked and Linear, such as grf; none: all ones within each graph. The section mask_<name>
    has its settings."""
    spanning_tree: Literal["breadth_first", "minimum", "random"] = "breadth_first"
    """Spanning tree that gives the distances of the masks forest and tree. breadth_first: the tree of a breadth-first
    search; minimum: the tree of the smallest total edge_weight, which is then the length of an edge; random: a tree
    drawn from the seed."""
    decay: float = Field(default=1.0, gt=0)
    """Factor on the weight per step of a walk (GKAT)."""
    alpha: float = Field(default=1.0, ge=0)
    """Exponent of the mask's normalisation (GKAT)."""
    learnable: bool = False
    """Learn one `decay` and one `alpha` per head (GKAT)."""
    kernel: str = "relu"
    """Feature map of the linear attention; some attentions have another default."""
    num_features: Width = 64
    """Number of random features per head (kernel softmax_rf, Performer)."""
    path: Literal["auto", "factored", "pairwise", "blocks"] = "auto"
    """How masked attention is computed. factored: by products with the mask; pairwise: on the pairs at which the
    mask is not zero; blocks: on all pairs within each graph; auto: by the least work. The results are equal up to
    rounding."""
    normalizer: Literal["bound", "signed"] = "bound"
    """Denominator of masked attention. bound: the sum of the bounding mask's weights; signed: the sum of the mask's own
    weights, as in the papers, which may cancel if they are learned. Both are equal if the mask has no negative
    parameter."""
    num_virtual: Width = 30
    """Number of virtual nodes that summarise a graph (Primphormer)."""
    rank: Width = 30
    """Rank of the primal projections (Primphormer)."""
    eta: float = Field(default=0.1, ge=0)
    """Weight of the auxiliary loss, which trains the projections (Primphormer)."""
    feed_forward: bool = True
    """Whether a layer ends with a feed-forward part."""
    pre_norm: bool = False
    """Normalise the input of each part of a layer instead of its output, and the nodes after the last layer, as in
    vision transformers."""
    layer_norm_mode: Literal["graph", "node"] = "graph"
    """What `gt.layer_norm` normalises. graph: all nodes and channels of a graph together, as GraphGPS does; node: the
    channels of each node."""
    normalize_features: bool = False
    """Scale the features of each node to sum to one."""
    input_dropout: Probability = 0.0
    """Dropout of node features before the encoder."""
    encoder_dropout: Probability = 0.0
    """Dropout of node embeddings after the encoder."""
