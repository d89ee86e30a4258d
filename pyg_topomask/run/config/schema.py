"""The whole config: its sections, in GraphGPS's spelling, and the top-level keys."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from functools import partial, reduce
from operator import getitem
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from pyg_topomask.run.config import masks
from pyg_topomask.run.config.base import Count, Section, Size
from pyg_topomask.run.config.dataset import OTHER_FORMATS, DatasetConfig, PrepConfig, ShareConfig
from pyg_topomask.run.config.encodings import (
    EncodingConfig,
    EquivStableLapPEConfig,
    GraphormerBiasConfig,
    GraphormerConfig,
    KernelEncodingConfig,
    LapPEConfig,
    RelativeWalkConfig,
    SignNetConfig,
)
from pyg_topomask.run.config.ignored import without_ignored
from pyg_topomask.run.config.model import CUSTOM_GNN_CONVS, SAN_LAYER, GNNConfig, GTConfig, ModelConfig
from pyg_topomask.run.config.topomask import TopomaskConfig
from pyg_topomask.run.config.training import OptimConfig, PretrainedConfig, TrainConfig, ValConfig, WandbConfig

LOWER_IS_BETTER = ("loss", "mae", "mse", "rmse")
"""Metrics whose smallest value is best."""

_METRIC_OF = {"regression": "mae", "classification_multilabel": "ap", "subtoken_prediction": "f1"}

_BENCHMARKS = {
    "auc": "ogbg-molhiv ogbg-molbace ogbg-molbbbp ogbg-molclintox ogbg-molsider ogbg-moltox21 ogbg-moltoxcast "
    "ogbg-molchembl ogbn-proteins minesweeper tolokers questions",
    "ap": "ogbg-molpcba ogbg-molmuv peptides-func peptides-functional",
    "f1": "ogbg-code2 pascalvoc-sp coco-sp pyg-vocsuperpixels pyg-cocosuperpixels",
    "mae": "pyg-zinc pyg-aqsol peptides-struct peptides-structural pcqm4mv2-subset pcqm4mv2-full pcqm4mv2-inference",
    "rmse": "ogbg-molesol ogbg-molfreesolv ogbg-mollipo",
    "mrr": "pcqm-contact pcqm4mv2contact-shuffle",
    "hits@20": "ogbl-ddi",
    "hits@50": "ogbl-collab",
    "hits@100": "ogbl-ppa",
    "accuracy-SBM": "pattern cluster",
    "miou": "pyg-s3dis",
    "instance_miou": "pyg-shapenet",
}
_METRIC_OF_BENCHMARK = {name: metric for metric, names in _BENCHMARKS.items() for name in names.split()}
"""Metric of the leaderboard of a data set, by its name or format; accuracy for those that are not in the table.

References: Hu et al., arXiv:2005.00687, and the files ``master.csv`` of the package ``ogb`` (OGB); Dwivedi et al.,
arXiv:2206.08164 (LRGB), and arXiv:2003.00982 (ZINC, AQSOL, PATTERN, CLUSTER); Platonov et al.,
arXiv:2302.11640 (Minesweeper, Tolokers, Questions); Qi et al., arXiv:1612.00593 (S3DIS, ShapeNet).
"""

FREE_KEYS = ("out_dir", "name_tag", "seed", "num_workers", "accelerator", "devices", "wandb", "tensorboard_each_run")
"""Keys that may differ between runs of one experiment: they change the seed, the place or the device."""


class Config(Section):
    """The whole config."""

    out_dir: str = "results"
    """Folder of all results; the option --out overrides it."""
    name_tag: str = Field(default="", pattern=r"^[\w.+-]*$")
    """The folder of the runs is <config name>-<name_tag>."""
    metric_best: Literal[
        "accuracy", "accuracy-SBM", "f1", "precision", "recall", "auc", "ap", "mae", "mse", "rmse", "r2", "spearmanr",
        "mrr", "mrr_filt", "mrr_filt_self", "hits@1", "hits@3", "hits@10", "hits@20", "hits@50", "hits@100",
        "miou", "instance_miou", "category_miou", "loss",
    ] = "accuracy"  # fmt: skip
    """Validation metric that chooses the best epoch. If it is auto or not given: that of the data set's leaderboard,
    such as auc for ogbg-molhiv; for other data mae for regression, ap for several labels, accuracy otherwise. mIoU is
    read as miou."""
    metric_agg: Literal["argmax", "argmin"] | None = None
    """Whether the largest or the smallest value is best; none: decided by the metric."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the first run; later runs count up from it."""
    run_multiple_splits: list[Count] = Field(default=[])
    """Values of `dataset.split_index` to run one after the other, with the same seed."""
    num_workers: int = Field(default=0, ge=0, le=1024)
    """Number of processes that load data; it does not change the results."""
    accelerator: Literal["auto", "cpu", "cuda", "gpu"] = "auto"
    """Device to train on."""
    devices: Size = 1
    """Always 1; use `torchrun` to start several processes."""
    precision: Literal["32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Floating-point precision: single, double, or mixed with half precision."""
    compile: bool = False
    """Compile the model with torch.compile."""
    tensorboard_each_run: bool = False
    """Also write the curves of each seed for TensorBoard."""
    dataset: DatasetConfig
    """The data."""
    train: TrainConfig = Field(default_factory=TrainConfig)
    """Batches, evaluation and checkpoints."""
    val: ValConfig = Field(default_factory=ValConfig)
    """What evaluations see."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """Model and loss."""
    gt: GTConfig = Field(default_factory=GTConfig)
    """The layers."""
    gnn: GNNConfig = Field(default_factory=GNNConfig)
    """The head, and the part before the layers."""
    optim: OptimConfig = Field(default_factory=OptimConfig)
    """The optimiser."""
    topomask: TopomaskConfig = Field(default_factory=TopomaskConfig)
    """Our attentions and masks."""
    prep: PrepConfig = Field(default_factory=PrepConfig)
    """Exphormer's preparation of the graph."""
    posenc_LapPE: LapPEConfig = Field(default_factory=LapPEConfig)
    """Laplacian eigenvectors."""
    posenc_EquivStableLapPE: EquivStableLapPEConfig = Field(default_factory=EquivStableLapPEConfig)
    """Laplacian eigenvectors that gate messages."""
    posenc_SignNet: SignNetConfig = Field(default_factory=SignNetConfig)
    """Laplacian eigenvectors, invariant to their signs."""
    posenc_RWSE: KernelEncodingConfig = Field(default_factory=KernelEncodingConfig)
    """Return probabilities of random walks."""
    posenc_HKdiagSE: KernelEncodingConfig = Field(default_factory=KernelEncodingConfig)
    """Diagonal of the heat kernel."""
    posenc_ElstaticSE: EncodingConfig = Field(default_factory=EncodingConfig)
    """Electrostatic potentials."""
    posenc_GraphormerBias: GraphormerBiasConfig = Field(default_factory=GraphormerBiasConfig)
    """Degrees and shortest-path distances."""
    posenc_RRWP: RelativeWalkConfig = Field(default_factory=RelativeWalkConfig)
    """Probabilities that a walk from one node reaches another."""
    graphormer: GraphormerConfig = Field(default_factory=GraphormerConfig)
    """Graphormer's graph token."""
    pretrained: PretrainedConfig = Field(default_factory=PretrainedConfig)
    """A finished run to start from."""
    share: ShareConfig = Field(default_factory=ShareConfig)
    """Memory."""
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    """Weights & Biases."""

    @model_validator(mode="before")
    @classmethod
    def _without_ignored_keys(cls, values: Any) -> Any:
        return without_ignored(values) if isinstance(values, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _metric_by_task(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("metric_best") == "mIoU":
            return values | {"metric_best": "miou"}  # the spelling in k-MIP's files
        if isinstance(values, dict) and values.get("metric_best", "auto") == "auto":
            data = values.get("dataset")
            read = data.get if isinstance(data, dict) else partial(getattr, data)
            family, name, task_type = (str(read(key, None)) for key in ("format", "name", "task_type"))
            benchmarks = (name.replace("_", "-").lower(), OTHER_FORMATS.get(family, family).lower())
            known = next((_METRIC_OF_BENCHMARK[x] for x in benchmarks if x in _METRIC_OF_BENCHMARK), None)
            return values | {"metric_best": known or _METRIC_OF.get(task_type, "accuracy")}
        return values

    @field_validator("name_tag", mode="before")
    @classmethod
    def _tag_as_text(cls, value: Any) -> Any:
        """The text of a number or a date, which YAML reads in tags such as ``name_tag=3``."""
        is_number = isinstance(value, (int, float, date)) and not isinstance(value, bool)
        return str(value) if is_number else "" if value is None else value

    @model_validator(mode="after")
    def _layers_of_custom_gnn(self) -> Config:
        """GraphGPS's custom_gnn is its layer without attention, norm and feed-forward part; ``gnn`` has its sizes."""
        gnn, conv = self.gnn, CUSTOM_GNN_CONVS.get(self.gnn.layer_type)
        if self.model.type == "custom_gnn" and conv is not None:
            layers = {"layer_type": f"{conv}+None", "layers": gnn.layers_mp, "dropout": gnn.dropout}
            layers |= {"dim_hidden": gnn.dim_inner or self.gt.dim_hidden, "layer_norm": False, "batch_norm": False}
            layers |= {"n_heads": 1}
            # Not by setattr, which would make these sections count as given.
            self.__dict__["gt"] = self.gt.model_copy(update=layers)
            self.__dict__["topomask"] = self.topomask.model_copy(update={"feed_forward": False})
        return self

    @model_validator(mode="after")
    def _layers_of_san(self) -> Config:
        """GraphGPS's SANTransformer is its layer with SAN's attention and no convolution.

        Dropout acts after the attention's output projection and again after the feed-forward part, as in all our
        layers. In GraphGPS's own code it acts before the projection.
        """
        if self.model.type == "SANTransformer" and (
            self.gt.layer_type == "SANLayer" or not self.is_given("gt.layer_type")
        ):
            self.__dict__["gt"] = self.gt.model_copy(update={"layer_type": SAN_LAYER})
        return self

    @property
    def best_is_max(self) -> bool:
        """Whether the best epoch has the largest ``metric_best``."""
        return self.metric_best not in LOWER_IS_BETTER

    def value(self, key: str) -> Any:
        """The value of ``section.name`` or ``section.part.name``."""
        return reduce(getattr, key.split("."), self)

    def is_set(self, key: str) -> bool:
        """Whether a key was given a value other than its default."""
        *sections, name = key.split(".")
        values = reduce(getattr, sections, self)
        return getattr(values, name) != type(values).model_fields[name].default

    def is_given(self, key: str) -> bool:
        """Whether the config contains a key, even with its default value."""
        *sections, name = key.split(".")
        return name in reduce(getattr, sections, self).model_fields_set

    def with_defaults(self, keys: Iterable[str]) -> Config:
        """A copy in which each ``section.name`` has its default value."""
        values = self.model_dump(exclude_unset=True)
        for key in keys:
            *sections, name = key.split(".")
            del reduce(getitem, sections, values)[name]
        return Config.model_validate(values)


def add_mask_sections() -> None:
    """Add a section to ``topomask`` for each mask that was registered since the last call."""
    if masks.add_mask_sections():
        Config.model_rebuild(force=True)


add_mask_sections()


def section_of(path: list[str]) -> type[BaseModel] | None:
    """The model of the section at a path from the top; None if there is no section at that path."""
    model: type[BaseModel] | None = Config
    for name in path:
        model = nested_section(model.model_fields.get(name)) if model else None
    return model


def nested_section(field: FieldInfo | None) -> type[BaseModel] | None:
    """The model of a key that is a section; None for other keys."""
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def all_keys(path: tuple[str, ...] = ()) -> list[str]:
    """Every key of the schema, with the names of its sections."""
    model, keys = section_of(list(path)), []
    for name in model.model_fields if model else ():
        here = (*path, name)
        keys += all_keys(here) if section_of(list(here)) else [".".join(here)]
    return keys
