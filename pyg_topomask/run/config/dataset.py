"""``dataset``, ``prep`` and ``share``: the data."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pyg_topomask.run.config.base import Count, Section, Size, Width

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

    format: str
    """Family of data sets: OGB or PyG-<class>, such as PyG-ZINC; `topomask list datasets` prints all."""
    name: str
    """Data set of the family: ogbg-molhiv, subset, circle, ENZYMES, Cora, ... The default is all for PyG-ShapeNet and
    Area_6 for PyG-S3DIS."""
    dir: str | None = None
    """Folder to search for raw files before $TOPOMASK_DATA; it may be read-only."""
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
        Literal["standard", "random", "fixed", "errica"] | Annotated[str, Field(pattern=r"^cv-(stratified)?kfold-\d+$")]
    ) = "standard"
    """standard: the data set's own split (a data set without one defaults to random); random: shares by `split`; fixed:
    as random, but in the order of the data set; cv-[stratified]kfold-K: folds; errica: the published folds of TU data
    sets."""
    split: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares, or numbers of items, for training, validation and test in a random or fixed split."""
    split_index: Count = 0
    """Number of the split if there are several; with folds, the test fold, and the next fold is the validation fold."""
    split_seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of the split; none: the seed of the run for random splits, 0 for folds."""
    split_dir: str = "./splits"
    """Folder of published splits (errica), searched before the data folders. Other folds are drawn from the seed."""
    node_encoder: bool = True
    """Whether node features are encoded; otherwise the layers take them unchanged."""
    node_encoder_name: str = "LinearNode"
    """Encoder of node features and positional encodings, joined by +, such as Atom+LapPE+RWSE. Constant replaces the
    features by 1; CityNetworkNode, for PyG-CityNetwork, replaces coordinates by sines and cosines and standardises the
    other features."""
    node_encoder_bn: bool | None = None
    """BatchNorm after the node encoder; none: only in MultiModel, as in the authors' code."""
    node_encoder_num_types: int = Field(default=0, ge=0, le=10**7)
    """Number of node types of TypeDictNode."""
    edge_encoder: bool = False
    """Whether edge features are encoded for the layers."""
    edge_encoder_name: str = "DummyEdge"
    """Encoder of edge features: Bond, LinearEdge, ...; DummyEdge learns one vector for all edges."""
    edge_encoder_bn: bool = False
    """BatchNorm after the edge encoder."""
    edge_encoder_num_types: int = Field(default=0, ge=0, le=10**7)
    """Number of edge types of TypeDictEdge."""
    slic_compactness: Literal[10, 30] = 10
    """Compactness of the superpixels of PyG-VOCSuperpixels and PyG-COCOSuperpixels."""
    to_undirected: bool = False
    """Add the reverse of each edge, with the same features. If both directions exist, features are averaged, and the
    larger of two categories is taken. Heat masks need it on graphs with one-way edges."""
    resample_negative: bool = False
    """Draw new negative edges in every epoch (link prediction)."""
    normalize: bool = False
    """Standardise each channel of node and edge features by the training graphs."""
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
        if family in WITHOUT_STANDARD_SPLIT:
            values.setdefault("split_mode", "random")
        return values

    @field_validator("split", mode="before")
    @classmethod
    def _three_shares(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)) and len(value) != 3:
            raise ValueError(
                f"must be three shares, training, validation and test, such as [0.8, 0.1, 0.1]: there are {len(value)}"
            )
        return value

    @field_validator("split")
    @classmethod
    def _split_adds_up(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        counts = min(value) >= 1 and all(share == int(share) for share in value)
        if not counts and (min(value) <= 0 or sum(value) > 1 + 1e-6):
            raise ValueError("must be three positive shares that add up to at most 1, or three numbers of items")
        return value

    @property
    def num_folds(self) -> int | None:
        """K of ``cv-[stratified]kfold-K``; None for other split modes."""
        return int(self.split_mode.rsplit("-", 1)[1]) if self.split_mode.startswith("cv-") else None

    @property
    def split_settings(self) -> dict[str, Any]:
        """The keys that decide the split, with their values; those that ``split_mode`` does not read are left out.

        The key ``dataset.split_seed`` is None if each run draws its split from its own seed.
        """
        found: dict[str, Any] = {"dataset.split_mode": self.split_mode}
        if self.split_mode == "errica":
            found["dataset.split_dir"] = self.split_dir
        if self.split_mode in ("random", "fixed"):
            found["dataset.split"] = self.split
        if self.split_mode == "random":
            found["dataset.split_seed"] = self.split_seed
        if self.num_folds is not None:
            found["dataset.split_seed"] = self.split_seed or 0
        return found

    @property
    def node_encoder_parts(self) -> list[str]:
        """The parts of ``node_encoder_name``; empty if node features are not encoded."""
        return [part.strip() for part in self.node_encoder_name.split("+")] if self.node_encoder else []


class PrepConfig(Section):
    """``prep``: Exphormer's expander edges and other preparation of the graph."""

    exp: bool = True
    """Whether to add expander edges for an attention that reads them."""
    exp_algorithm: Literal["Random-d", "Random-d-2", "Hamiltonian"] = "Random-d"
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
    """Add self-loops to a single large graph."""

    @field_validator("exp_algorithm", mode="before")
    @classmethod
    def _spelling_of_the_readme(cls, value: Any) -> Any:
        return "Random-d-2" if value == "Random-d2" else value


class ShareConfig(Section):
    """``share``: memory (k-MIP)."""

    gradient_checkpointing: bool = False
    """Store only the inputs of layers for the backward pass and recompute the rest."""
