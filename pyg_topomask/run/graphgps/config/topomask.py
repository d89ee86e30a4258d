"""``topomask``: our attentions and masks, which GraphGPS does not have, with a section for each mask.

The section ``topomask.mask_<name>`` is built from the arguments of the mask's constructor.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Field, PydanticSchemaGenerationError, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from pyg_topomask.nn import MASK, Mask
from pyg_topomask.run.graphgps.config.base import Count, Probability, Section, Size, Width

_NOT_KEYS = ("self", "heads", "name", "table")
"""Arguments that the runner sets itself."""

_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""An entry under ``Args:`` in a docstring: names and text."""


class TopomaskConfig(Section):
    """``topomask``: our attentions and masks, which GraphGPS does not have."""

    num_walks: Annotated[int, Field(ge=1, le=10**6)] = 16
    """Number of random walks from each node. Read if an attention or its mask needs random walks."""
    max_length: Annotated[int, Field(ge=0, le=2**15 - 1)] = 4
    """Largest length of a walk, in edges. Read if an attention or its mask needs random walks."""
    halt_prob: Probability = 0.5
    """Probability that a walk halts, per step. Read if an attention or its mask needs random walks."""
    lengths: Literal["uniform"] | list[float] | None = None
    """Probabilities of 0, 1, … max_length hops of a walk, in place of halt_prob; uniform: all are equally likely; null:
    as `halt_prob` says. Read if an attention or its mask needs random walks."""
    scheme: str = "iid"
    """How walks from one node are coupled. Read if an attention or its mask needs random walks."""
    independent: bool = True
    """Draw two independent walk tables, so that every mask entry is unbiased. Read if an attention or its mask needs
    random walks."""
    diagonal: Literal["independent", "corrected", "shared"] | None = None
    """How the diagonal of the mask is estimated. independent: by two tables; corrected: without bias by one table;
    shared: by one table, with bias; null: as `independent` says."""
    num_tables: int = Field(default=1, ge=1, le=10**4)
    """Number of independent sets of walks for the layers or heads (GRF)."""
    tables: Literal["layer", "head"] = "layer"
    """What has its own walks if num_tables > 1. layer: layer l uses set l mod num_tables; head: head h of layer l uses
    set (l * gt.n_heads + h) mod num_tables. Read if an attention or its mask may use several sets of walks."""
    symmetric: bool = True
    """true: the mask is the product of two tables of walks, one of them transposed; false: it is one table, a weighted
    sum over the visited nodes, for graphs whose edges have a direction."""
    key_modulation: bool = False
    """Learn a modulation function of its own for the keys (GRF)."""
    redraw: Count = 0
    """Number of epochs after which the training graphs get new walks; 0: never. Parts of a large graph get new walks in
    each epoch. Read if an attention or its mask needs random walks."""
    transition: Literal["uniform", "attention"] = "uniform"
    """Distribution of a walk's next node: uniform over the neighbours, or, for redrawn walks, in proportion to the
    first layer's attention (dynamic GKAT). Read if an attention gives weights to the edges, which walks can follow."""
    mask: str | Annotated[list[str], Field(min_length=1)] = "none"
    """Mask of the attentions Masked and Linear, such as grf; none: all ones within each graph. The section mask_<name>
    has its settings. A list such as [none, hop] is the sum of these masks with learned weights."""
    mask_heads: list[Size] | None = None
    """Number of heads that each mask of the list `mask` serves, in their order; null: all masks serve all heads."""
    mask_lr: Annotated[float | None, Field(gt=0)] = 25.0
    """Factor on the learning rate of the parameters of masks, which have no weight decay: they are few, and at the rate
    of the model they hardly move. null: they are trained like all others. Read if a mask has parameters."""
    spanning_tree: Literal["breadth_first", "minimum"] = "breadth_first"
    """Spanning tree that gives the distances of the masks forest and tree. breadth_first: the tree of a breadth-first
    search; minimum: the tree of the smallest total edge_weight, which is then the length of an edge. Read if the mask
    needs a spanning tree."""
    decay: float = Field(default=1.0, gt=0)
    """Factor on the weight per step of a walk (GKAT)."""
    alpha: float = Field(default=1.0, ge=0)
    """Exponent of the mask's normalisation (GKAT)."""
    learnable: bool = False
    """Learn one `decay` and one `alpha` per head (GKAT)."""
    kernel: str = "relu"
    """Feature map of the linear attention; some attentions have another default."""
    num_features: Width = 64
    """Number of random features per head (kernel softmax_rf, Performer). Read if an attention draws random features:
    Performer, or one with topomask.kernel softmax_rf."""
    path: Literal["auto", "factored", "pairwise", "blocks"] = "auto"
    """How masked attention is computed. factored: by products with the mask; pairwise: on the pairs at which the
    mask is not zero; blocks: on all pairs within each graph; auto: the one with the least estimated time. The
    results are equal up to rounding."""
    normalizer: Literal["bound", "signed"] = "bound"
    """Denominator of masked attention. bound: the sum of the bounding mask's weights; signed: the sum of the mask's own
    weights, as in the papers, which may cancel if they are learned. Both are equal if the mask has no negative
    parameter."""
    num_virtual: Width = 30
    """Number of virtual nodes that summarise a graph (Primphormer)."""
    num_samples: Width = 200
    """Number of nodes sampled from each graph (Primal)."""
    rank: Width = 30
    """Rank of the primal projections (Primphormer, Primal)."""
    eta: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the auxiliary loss, which trains the projections (Primphormer, Primal). Read if an attention has an
    auxiliary loss."""
    feed_forward: bool = True
    """Whether a layer ends with a feed-forward part."""
    pre_norm: bool = False
    """Normalise the input of each part of a layer instead of its output, and the nodes after the last layer, as in
    vision transformers."""
    layer_norm_mode: Literal["graph", "node"] = "graph"
    """What `gt.layer_norm` normalises. graph: all nodes and channels of a graph together, as GraphGPS does; node: the
    channels of each node. Read if nodes are normalised by gt.layer_norm, in a model.type other than MultiModel and
    SingleModel."""
    normalize_features: bool = False
    """Scale the features of each node to sum to one, by PyG's NormalizeFeatures: the smallest value of the graph is
    subtracted before, and nodes whose features sum to less than one are not scaled."""
    input_dropout: Probability = 0.0
    """Dropout of node features before the encoder."""
    encoder_dropout: Probability = 0.0
    """Dropout of node embeddings after the encoder."""

    @property
    def masks(self) -> list[str]:
        """The names in `mask`."""
        return [self.mask] if isinstance(self.mask, str) else self.mask

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """What is wrong with heads of masks, and with walks that follow the attention."""
        counts, heads = self.mask_heads, config.gt.n_heads
        if counts is not None and (isinstance(self.mask, str) or len(counts) != len(self.mask) or sum(counts) != heads):
            message = f"must divide the {heads} heads (gt.n_heads) among the masks of a list topomask.mask"
            yield "topomask.mask_heads", f"{message} (got {counts} for {self.mask})"
        if self.transition == "attention" and (self.redraw == 0 or config.train.sampler != "full_batch"):
            message = "only walks on whole graphs that are redrawn can follow the attention: set topomask.redraw"
            yield "topomask.transition", f"{message} and train.sampler full_batch"


class _Made(Section):
    """Base of the sections that are made here: their descriptions are given, and looking for texts takes seconds."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def add_mask_sections() -> bool:
    """Add a section to ``topomask`` for each mask without one; return whether any was added."""
    added = {f"mask_{name}": cls for name, cls in MASK.items() if f"mask_{name}" not in TopomaskConfig.model_fields}
    for key, cls in added.items():
        section = mask_section(key, cls)
        description = f"Settings of topomask.mask {key.removeprefix('mask_')}."
        TopomaskConfig.model_fields[key] = FieldInfo(
            annotation=section, default_factory=section, description=description
        )
    if added:
        TopomaskConfig.model_rebuild(force=True)
    return bool(added)


def mask_section(key: str, cls: type[Mask]) -> type[Section]:
    """A section with the arguments of a mask's constructor that YAML can express.

    A required argument has the default None here; if it is not given, the constructor raises an error.
    """
    hints, texts, fields = get_type_hints(cls.__init__), _argument_texts(cls), {}
    for argument, parameter in inspect.signature(cls.__init__).parameters.items():
        hint = hints.get(argument, Any)
        if argument in _NOT_KEYS or parameter.kind is parameter.VAR_KEYWORD or not _is_plain(hint):
            continue
        given = parameter.default is not parameter.empty
        kind, default = (hint, parameter.default) if given else (hint | None, None)
        description = texts.get(argument, f"Argument of {cls.__name__}.")
        fields[argument] = (kind, Field(default=default, description=description))
    name = "".join(part.capitalize() for part in key.split("_"))
    section = create_model(f"{name}Config", __base__=_Made, __module__=__name__, **fields)  # type: ignore[call-overload]
    section.__doc__ = f"``topomask.{key}``: settings of {cls.__name__}."
    globals()[section.__name__] = section  # where pickle finds the class
    return section


def _is_plain(hint: Any) -> bool:
    """Whether YAML can express a value of that type."""
    try:
        TypeAdapter(hint)
    except PydanticSchemaGenerationError:
        return False
    return True


def _argument_texts(cls: type) -> dict[str, str]:
    """The description of each argument in the class's docstring."""
    entries = _ENTRY.findall((inspect.getdoc(cls) or "").partition("\nArgs:\n")[2])
    plain = {names: re.sub(r":\w+:`(.*?)`", r"\1", " ".join(text.split())) for names, text in entries}
    return {name: text for names, text in plain.items() for name in names.split(", ")}
