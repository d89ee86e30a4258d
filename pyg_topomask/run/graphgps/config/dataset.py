"""``dataset``, ``prep`` and ``share``: the data."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pyg_topomask.data import DiskGraph
from pyg_topomask.nn import POSITIONAL_ENCODERS
from pyg_topomask.run.data.source import Split
from pyg_topomask.run.errors import did_you_mean, no_such
from pyg_topomask.run.graphgps.config.base import FROM_DATA, NO_LOADERS, Count, Section, Size, Width, spelled
from pyg_topomask.run.graphgps.formats import FORMATS
from pyg_topomask.run.task import Level, Task, classification

OTHER_FORMATS = {"PyG-S3DISOnDisk": "PyG-S3DIS"}
"""Other spellings of formats, mapped to ours."""

DEFAULT_NAMES = {"PyG-ShapeNet": "all", "PyG-S3DIS": "Area_6"}
"""Names for formats without a name, as in k-MIP's files: all categories; the test area that PyG and k-MIP use."""

OWN = ("Registered", "Files")
"""Formats of users' data, whose task the config gives."""

ONLY_FOR = {
    "use_node_attr": ("PyG-TUDataset",),
    **dict.fromkeys(
        ("num_graphs", "num_nodes"), ("PyG-MotifDataset", "PyG-InducedCycleDataset", "PyG-LongRangeDataset")
    ),
    "slic_compactness": ("PyG-VOCSuperpixels", "PyG-COCOSuperpixels", "PyG-LRGBDataset"),
}
"""Keys that only these formats have, and Files ignores: --data replaces the data of a config."""


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
        if family in FORMATS and FORMATS[family].num_splits == 0:
            values.setdefault("split_mode", "random")
        return values

    @field_validator("split")
    @classmethod
    def _split_adds_up(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        counts = min(value) >= 1 and all(share == int(share) for share in value)
        if not counts and (min(value) <= 0 or sum(value) > 1 + 1e-6):
            raise ValueError("must be three positive shares that add up to at most 1, or three numbers of items")
        return value

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """What is wrong with the split and the encoders."""
        folds = 10 if self.split_mode == "errica" else self.division.num_folds
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

    @property
    def base_encoders(self) -> list[str]:
        """The parts of ``node_encoder_name`` that encode node features."""
        return [name for name in self.node_encoder_parts if name not in POSITIONAL_ENCODERS]

    @property
    def plain_name(self) -> str:
        """The name in the spelling of the tables."""
        return {_spelled(name): name for name in FORMATS[self.format].names}.get(_spelled(self.name), self.name)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that the names allow, before loading; binary and multiclass if the number of classes is unknown."""
        entry = FORMATS[self.format]
        known = entry.tasks.get(self.plain_name) if isinstance(entry.tasks, Mapping) else entry.tasks
        if known is not None:
            return (known,)
        level: Level = entry.level
        if self.format in OWN:
            level = "edge" if self.task == "link_pred" else self.task
        if self.task_type == "regression":
            return (Task(level, "regression", 1),)
        if self.format in OWN and self.task_type == "classification_multilabel":
            return (Task(level, "multilabel", 2),)
        if level == "edge":
            return (Task("edge", "binary", 1),)
        return classification(level, 2), classification(level, 3)

    @property
    def level(self) -> Level:
        """What has a target: graphs, nodes or edges; known before loading."""
        return self.tasks[0].level

    @property
    def is_one_graph(self) -> bool:
        """Whether the data set is one graph whose nodes are split."""
        of_nodes = FORMATS[self.format].level == "node" or (self.format in OWN and self.task == "node")
        return of_nodes or self.plain_name.startswith("ogbn-")

    @property
    def is_on_disk(self) -> bool:
        """Whether the data set is a graph on disk, as `pyg_topomask.data.save_graph` makes it."""
        return self.format == "Files" and self.dir is not None and DiskGraph.is_at(self.dir)

    @property
    def division(self) -> Split:
        """How the data are divided, with the settings that this kind of split has."""
        used = {"standard": "", "fixed": "shares", "random": "shares seed", "errica": "folder"}
        keys = {"shares": "split", "seed": "split_seed", "folder": "split_dir"}
        given = {name: getattr(self, keys[name]) for name in used.get(self.split_mode, "seed").split()}
        return Split(self.split_mode, index=self.split_index, **given)

    def problems(self) -> list[tuple[str, str]]:
        """Pairs (key, what is wrong) that are known without loading: names, keys of other formats, folders, splits."""
        if self.format not in FORMATS:
            return [("dataset.format", no_such("family of data sets", self.format, [*FORMATS]))]
        return [(f"dataset.{key}", message) for key, message in (*self._name_problems(), *self._split_problems())]

    def _name_problems(self) -> Iterator[tuple[str, str]]:
        for key, owners in ONLY_FOR.items():
            if getattr(self, key) != type(self).model_fields[key].default and self.format not in (*owners, "Files"):
                yield key, f"only {owners[0]} has it, and dataset.format is {self.format}"
        names = FORMATS[self.format].names
        if names and self.plain_name not in names:
            message = f"{self.format} has no {self.name!r}; there are {', '.join(names)}."
            yield "name", message + did_you_mean(self.name, names)
        if Path(self.name).name != self.name or self.name in ("", ".", ".."):
            yield "name", f"must be a plain name (got {self.name!r})"
        folder = None if self.dir is None else Path(self.dir).expanduser()
        if self.format == "Files" and folder is None:
            yield "dir", "format Files needs the file or folder of the graphs, or --data PATH"
        if folder is not None and not folder.is_dir() and not (self.format == "Files" and folder.exists()):
            yield "dir", f"there is no {'file or ' * (self.format == 'Files')}folder {self.dir}"
        if "Superpixels" in self.format and self.slic_compactness != 30:
            yield "slic_compactness", f"PyG has the superpixels of compactness 30 only (got {self.slic_compactness})"

    def _split_problems(self) -> Iterator[tuple[str, str]]:
        mode, name, task = self.split_mode, self.name, self.tasks[0]
        num_splits = 0 if name == "CSL" else FORMATS[self.format].num_splits
        if mode == "standard" and num_splits == 0:
            yield "split_mode", f"{self.format} {name} has no standard split; use random or cv-kfold-10"
        elif mode == "standard" and self.split_index >= num_splits:
            yield "split_index", f"must be below the number of splits of {name}, {num_splits} (got {self.split_index})"
        if mode == "errica" and self.format != "PyG-TUDataset":
            yield "split_mode", f"errica's splits are for PyG-TUDataset (got {self.format})"
        if mode != "standard" and self.format == "PyG-GraphLandDataset":
            yield "split_mode", f"some nodes of {name} have no target; use standard, with split_index 0, 1 or 2"
        if mode != "standard" and name.startswith("ogbl-"):
            yield "split_mode", f"{name} is one graph with split edges; use standard"
        if self.division.num_folds is not None and self.is_one_graph:
            yield "split_mode", f"folds need several graphs, and {name} is one; use standard or random"
        if "stratified" in mode and task.kind not in ("binary", "multiclass"):
            yield "split_mode", f"stratified folds need classes, and the task is {task.kind}; use cv-kfold"


def _spelled(name: str) -> str:
    return name.lower().replace("_", "-")


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
