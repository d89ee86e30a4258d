"""``dataset``, ``prep`` and ``share``: what is learned from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pyg_topomask.run.config.base import Count, Section, Size, Width

WITHOUT_STANDARD_SPLIT = (
    "PyG-MotifDataset",
    "PyG-InducedCycleDataset",
    "PyG-TUDataset",
    "PyG-Amazon",
    "PyG-Coauthor",
    "PyG-CitationFull",
)
"""Formats whose data come without a split; the default for them is a random one."""

OTHER_FORMATS = {"PyG-S3DISOnDisk": "PyG-S3DIS"}
"""Other spellings of formats -> ours."""

DEFAULT_NAMES = {"PyG-ShapeNet": "all", "PyG-S3DIS": "Area_6"}
"""Name where none is given, as k-MIP's files give none: all categories; the test area that PyG and they take."""


class DatasetConfig(Section):
    """``dataset``: what is learned from."""

    format: str = Field(
        description="Family of data sets: OGB, or PyG-<class>, such as PyG-ZINC; `topomask list datasets` prints all."
    )
    name: str = Field(
        description="Data set of the family: ogbg-molhiv, subset, circle, ENZYMES, Cora, ...; the default for "
        "PyG-ShapeNet is all, for PyG-S3DIS Area_6."
    )
    dir: str | None = Field(
        default=None, description="Folder looked in for raw files before $TOPOMASK_DATA; may be read-only."
    )
    task: Literal["graph", "node", "edge", "link_pred"] = Field(
        default="graph", description="Whether whole graphs, nodes or edges are predicted."
    )
    task_type: Literal[
        "classification",
        "classification_binary",
        "classification_multi",
        "classification_multilabel",
        "regression",
        "subtoken_prediction",
    ] = Field(default="classification", description="Kind of target.")
    split_mode: (
        Literal["standard", "random", "fixed", "sliced", "errica"]
        | Annotated[str, Field(pattern=r"^cv-(stratified)?kfold-\d+$")]
    ) = Field(
        default="standard",
        description="standard: the data set's own split (where there is none, the default is random, by `split`); "
        "cv-[stratified]kfold-K: folds; errica: the published folds of TU data sets; fixed, sliced: as in GraphGPS.",
    )
    split: tuple[float, float, float] = Field(
        default=(0.8, 0.1, 0.1),
        description="Shares of training, validation and test in a random or fixed split, or numbers of items.",
    )
    split_index: Count = Field(
        default=0, description="Which of several splits; of folds: the test one, the one after it is for validation."
    )
    split_seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="Seed of the split; none: the run's own seed for random splits, 0 for folds.",
    )
    split_dir: str = Field(
        default="./splits",
        description="Folder of published splits (errica), looked in before the data folders; other folds follow from "
        "seeds.",
    )
    node_encoder: bool = Field(default=True, description="Whether node features are encoded; if not, they go in as is.")
    node_encoder_name: str = Field(
        default="LinearNode",
        description="Encoder of node features and positional encodings, joined by +: Atom+LapPE+RWSE; "
        "Constant puts 1 in place of features; CityNetworkNode, for PyG-CityNetwork, waves in place of coordinates, "
        "and standardises the rest.",
    )
    node_encoder_bn: bool | None = Field(
        default=None,
        description="BatchNorm after the node encoder; none: as in the file's own project, that is only in MultiModel.",
    )
    node_encoder_num_types: int = Field(default=0, ge=0, le=10**7, description="Node types that TypeDictNode knows.")
    edge_encoder: bool = Field(default=False, description="Whether edges carry encoded features into the layers.")
    edge_encoder_name: str = Field(
        default="DummyEdge",
        description="Encoder of edge features: Bond, LinearEdge, ...; DummyEdge learns one vector for all edges.",
    )
    edge_encoder_bn: bool = Field(default=False, description="BatchNorm after the edge encoder.")
    edge_encoder_num_types: int = Field(default=0, ge=0, le=10**7, description="Edge types that TypeDictEdge knows.")
    slic_compactness: Literal[10, 30] = Field(
        default=10, description="Compactness of the superpixels of PyG-VOCSuperpixels and PyG-COCOSuperpixels."
    )
    resample_negative: bool = Field(
        default=False, description="Draw negative edges afresh in every epoch, in link prediction."
    )
    normalize: bool = Field(
        default=False, description="Standardise node and edge features channel by channel, by training statistics."
    )
    use_node_attr: bool = Field(default=False, description="Add the continuous node attributes of a TU data set.")
    num_graphs: int = Field(default=4096, ge=3, le=10**7, description="Graphs to generate (motifs, induced cycles).")
    num_nodes: int = Field(
        default=100, ge=10, le=10**6, description="Nodes of each generated graph (motifs, induced cycles)."
    )

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
                f"must be three shares, training, validation, test, such as [0.8, 0.1, 0.1]: there are {len(value)}"
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
        """K of ``cv-[stratified]kfold-K``; none for other split modes."""
        return int(self.split_mode.rsplit("-", 1)[1]) if self.split_mode.startswith("cv-") else None

    @property
    def node_encoder_parts(self) -> list[str]:
        """Names joined by ``+`` in ``node_encoder_name``; none where node features are not encoded."""
        return [part.strip() for part in self.node_encoder_name.split("+")] if self.node_encoder else []


class PrepConfig(Section):
    """``prep``: Exphormer's expander edges and other preparations of the graph."""

    exp: bool = Field(default=True, description="Whether an attention that takes expander edges gets them.")
    exp_algorithm: Literal["Random-d", "Random-d-2", "Hamiltonian"] = Field(
        default="Random-d",
        description="How: by permutations, one for each degree (Random-d) or one of copies of all nodes (Random-d-2, "
        "also Random-d2), or by cycles (Hamiltonian).",
    )
    use_exp_edges: bool = Field(default=True, description="Whether the attention uses them.")
    exp_deg: Width = Field(default=5, description="Permutations or cycles; nodes get twice as many expander edges.")
    exp_max_num_iters: Size = Field(default=100, description="Draws until the spectral gap is wide enough.")
    add_edge_index: bool = Field(default=True, description="Whether the attention uses the graph's own edges too.")
    num_virt_node: int = Field(default=0, ge=0, le=2**16, description="Virtual nodes of each graph.")
    add_self_loops: bool = Field(default=False, description="Add self-loops to a single large graph.")

    @field_validator("exp_algorithm", mode="before")
    @classmethod
    def _spelling_of_the_readme(cls, value: Any) -> Any:
        return "Random-d-2" if value == "Random-d2" else value


class ShareConfig(Section):
    """``share``: memory."""

    gradient_checkpointing: bool = Field(
        default=False, description="k-MIP's: keep only layer inputs for the backward pass and compute the rest again."
    )
