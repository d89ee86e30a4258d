"""``dataset``, ``prep`` and ``share``: the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pyg_topomask.run.graphgps.config.base import FROM_DATA, NO_LOADERS, Count, Section, Size, Width, spelled

WITHOUT_STANDARD_SPLIT = (
    "PyG-MotifDataset",
    "PyG-InducedCycleDataset",
    "PyG-LongRangeDataset",
    "PyG-DigitsDataset",
    "PyG-TUDataset",
    "PyG-Amazon",
    "PyG-Coauthor",
)
"""Formats whose data have no split of their own; their default is a random one."""

GENERATED = ("PyG-MotifDataset", "PyG-InducedCycleDataset", "PyG-LongRangeDataset")
"""Formats whose graphs are generated, in the number and size that the config gives."""

OTHER_FORMATS = {"PyG-S3DISOnDisk": "PyG-S3DIS"}
"""Other spellings of formats, mapped to ours."""

DEFAULT_NAMES = {"PyG-ShapeNet": "all", "PyG-S3DIS": "Area_6"}
"""Names for formats without a name, as in k-MIP's files: all categories; the test area that PyG and k-MIP use."""


class DatasetConfig(Section):
    """``dataset``: the data, their features and their split."""

    no_effect_because: ClassVar[dict[str, str]] = {
        NO_LOADERS: "shuffle_split edge_message_ratio edge_negative_sampling_ratio cache_save cache_load tu_simple "
        "label_table label_column encoder encoder_name encoder_bn encoder_dim edge_dim",
        FROM_DATA: "transductive",
    }
    only = (
        "edge_train_mode: all, infer_link_label: 'None', location: local, remove_feature: false, "
        "resample_disjoint: false, transform: none"
    )

    format: str
    """Family of data sets: OGB or PyG-<class>, such as PyG-ZINC; Registered, for register_dataset; Files, for graphs in
    the file or folder `dir`. `topomask list datasets` prints all."""
    name: str
    """Data set of the family: ogbg-molhiv, subset, circle, ENZYMES, Cora, ... The default is all for PyG-ShapeNet,
    Area_6 for PyG-S3DIS, and the name of `dir` for Files."""
    dir: str | None = None
    """Folder to search for raw files before $TOPOMASK_DATA; it may be read-only. With Files, a file or folder of graphs
    in the formats of torch.save and InMemoryDataset."""
    task: Literal["graph", "node", "edge", "link_pred"] = "graph"
    """Whether whole graphs, nodes or edges are predicted."""
    task_type: Literal[
        "classification",
        "classification_binary",
        "classification_multi",
        "classification_multilabel",
        "regression",
        "subtoken_prediction",
    ] = "classification"
    """Kind of target."""
    split_mode: (
        Literal["standard", "random", "fixed", "errica"]
        | Annotated[str, Field(pattern=r"^cv-(stratified)?kfold-\d{1,9}$")]
    ) = "standard"
    """standard: the data set's own split (a data set without one defaults to random); random: shares by `split`; fixed:
    as random, but in the order of the data set; cv-[stratified]kfold-K: folds; errica: the published folds of TU data
    sets."""
    split: Annotated[tuple[float, ...], Field(min_length=3, max_length=3)] = (0.8, 0.1, 0.1)
    """Shares, or numbers of items, for training, validation and test in a random or fixed split. Read if the kind of
    split, dataset.split_mode, has this setting."""
    split_index: Count = 0
    """Number of the split if there are several; with folds, the test fold, and the next fold is the validation fold."""
    split_seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    """Seed of the split; none: the seed of the run for random splits, 0 for folds. Read if the kind of split,
    dataset.split_mode, has this setting."""
    split_dir: str = "./splits"
    """Folder of published splits (errica), searched before the data folders. Other folds are drawn from the seed. Read
    if the kind of split, dataset.split_mode, has this setting."""
    node_encoder: bool = True
    """Whether node features are encoded; otherwise the layers take them unchanged."""
    node_encoder_name: str = "LinearNode"
    """Encoder of node features and positional encodings, joined by +, such as Atom+LapPE+RWSE. Constant replaces the
    features by 1; CityNetworkNode, for PyG-CityNetwork, replaces coordinates by sines and cosines and standardises the
    other features."""
    node_encoder_bn: bool | None = None
    """BatchNorm after the node encoder; none: only in MultiModel, as in the authors' code."""
    node_encoder_num_types: Annotated[int, Field(ge=0, le=10**7)] = 0
    """Number of node types. Read if dataset.node_encoder_name contains TypeDictNode."""
    edge_encoder: bool = False
    """Whether edge features are encoded for the layers. Read if a convolution, an attention or the bias of pairs reads
    encoded edge features."""
    edge_encoder_name: str = "DummyEdge"
    """Encoder of edge features: Bond, LinearEdge, ...; DummyEdge learns one vector for all edges. Read if a
    convolution, an attention or the bias of pairs reads encoded edge features and dataset.edge_encoder is true."""
    edge_encoder_bn: bool = False
    """BatchNorm after the edge encoder. Read if a convolution, an attention or the bias of pairs reads encoded edge
    features and dataset.edge_encoder is true."""
    edge_encoder_num_types: Annotated[int, Field(ge=0, le=10**7)] = 0
    """Number of edge types. Read if a convolution, an attention or the bias of pairs reads encoded edge features and
    dataset.edge_encoder_name is TypeDictEdge."""
    slic_compactness: Literal[10, 30] = 10
    """Compactness of the superpixels of PyG-VOCSuperpixels and PyG-COCOSuperpixels."""
    to_undirected: bool = False
    """Add the reverse of each edge, with the same features. If both directions exist, features are averaged, and the
    larger of two categories is taken. Heat masks need it on graphs with one-way edges."""
    resample_negative: bool = False
    """Draw new negative edges in every epoch (link prediction). Read if edges are ranked among all nodes of their
    graph, as in pcqm-contact."""
    normalize: bool = False
    """Standardise each channel of node and edge features by the training graphs."""
    normalize_targets: bool = False
    """Train on targets that are standardised by the training set (regression). Metrics and predictions are in the units
    of the data, the loss is not."""
    use_node_attr: bool = False
    """Add the continuous node attributes of a TU data set."""
    num_graphs: int = Field(default=4096, ge=3, le=10**7)
    """Number of graphs to generate (motifs, induced cycles, long range)."""
    num_nodes: int = Field(default=100, ge=10, le=10**6)
    """Number of nodes of each generated graph (motifs, induced cycles, long range)."""

    @model_validator(mode="before")
    @classmethod
    def _by_format(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("format"), str):
            return values
        family = OTHER_FORMATS.get(values["format"], values["format"])
        values = values | {"format": family}
        if family in DEFAULT_NAMES and values.get("name", "none") in ("none", None):
            values["name"] = DEFAULT_NAMES[family]
        if family == "Files" and values.get("name") is None:
            values["name"] = Path(str(values.get("dir") or family)).stem
        if family in WITHOUT_STANDARD_SPLIT:
            values.setdefault("split_mode", "random")
        return values

    @field_validator("split")
    @classmethod
    def _split_adds_up(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        counts = min(value) >= 1 and all(share == int(share) for share in value)
        if not counts and (min(value) <= 0 or sum(value) > 1 + 1e-6):
            raise ValueError("must be three positive shares that add up to at most 1, or three numbers of items")
        return value

    @property
    def num_folds(self) -> int | None:
        """K of ``cv-[stratified]kfold-K``; None for other split modes."""
        return int(self.split_mode.rsplit("-", 1)[1]) if self.split_mode.startswith("cv-") else None

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """What is wrong with the split and the encoders."""
        folds = 10 if self.split_mode == "errica" else self.num_folds
        if folds is not None and folds < 3:
            yield "dataset.split_mode", "at least 3 folds are needed: test, validation and training"
        indices_of = {"dataset.split_index": [self.split_index], "run_multiple_splits": config.run_multiple_splits}
        for key, indices in indices_of.items():
            if self.split_mode in ("random", "fixed") and config.is_set(key):
                yield key, f"only folds and published splits have an index, and split_mode is {self.split_mode!r}"
            if folds is not None and indices and max(indices) >= folds:
                yield key, f"must be below the number of folds (got {max(indices)})"
        for kind, parts in (("node", self.node_encoder_parts), ("edge", [self.edge_encoder_name] * self.edge_encoder)):
            name, key = f"TypeDict{kind.capitalize()}", f"{kind}_encoder_num_types"
            if name in parts and getattr(self, key) < 1:
                yield f"dataset.{key}", f"{name} needs the number of types"
        if "CityNetworkNode" in self.node_encoder_parts and self.format != "PyG-CityNetwork":
            message = f"CityNetworkNode reads the coordinates of PyG-CityNetwork (got {self.format}); use LinearNode"
            yield "dataset.node_encoder_name", message

    @property
    def node_encoder_parts(self) -> list[str]:
        """The parts of ``node_encoder_name``; empty if node features are not encoded."""
        return [part.strip() for part in self.node_encoder_name.split("+")] if self.node_encoder else []


_RANDOM = spelled(**{"Random-d2": "Random-d-2"})


class PrepConfig(Section):
    """``prep``: Exphormer's expander edges and other preparation of the graph."""

    no_effect_because: ClassVar[dict[str, str]] = {
        "Exphormer's own splits and distances are not used": "train_percent dist_cutoff"
    }
    only = "add_reverse_edges: true, dist_enable: false, exp_count: 1, layer_edge_indices_dir: null"

    exp: bool = True
    """Whether to add expander edges for an attention that reads them."""
    exp_algorithm: Annotated[Literal["Random-d", "Random-d-2", "Hamiltonian"], _RANDOM] = "Random-d"
    """How to draw expander edges: one permutation per degree (Random-d), one permutation of copies of all nodes
    (Random-d-2, also spelled Random-d2), or Hamiltonian cycles (Hamiltonian)."""
    use_exp_edges: bool = True
    """Whether the attention uses expander edges."""
    exp_deg: Width = 5
    """Number of permutations or cycles; each node gets twice as many expander edges."""
    exp_max_num_iters: Size = 100
    """Largest number of draws until the spectral gap is wide enough."""
    add_edge_index: bool = True
    """Whether the attention also uses the graph's own edges."""
    num_virt_node: int = Field(default=0, ge=0, le=2**16)
    """Number of virtual nodes of each graph."""
    add_self_loops: bool = False
    """Add self-loops to a single large graph. Read if the data set is one graph."""


class ShareConfig(Section):
    """``share``: memory (k-MIP)."""

    no_effect_because: ClassVar[dict[str, str]] = {FROM_DATA: "dim_in dim_out num_splits"}

    gradient_checkpointing: bool = False
    """Store only the inputs of layers for the backward pass and recompute the rest."""
