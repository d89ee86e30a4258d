"""The whole config: its sections, in GraphGPS's spelling, and the top-level keys."""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from pyg_topomask.nn import EVERY_ATTENTION, MASK, POSITIONAL_ENCODERS
from pyg_topomask.run.graphgps.config import encodings, topomask
from pyg_topomask.run.graphgps.config.base import NO_LOADERS, Count, NoEffect, Section, Size, noting_reads, spelled
from pyg_topomask.run.graphgps.config.dataset import DatasetConfig, PrepConfig, ShareConfig
from pyg_topomask.run.graphgps.config.model import CUSTOM_GNN_CONVS, SAN_LAYER, GNNConfig, GTConfig, ModelConfig
from pyg_topomask.run.graphgps.config.topomask import TopomaskConfig
from pyg_topomask.run.graphgps.config.training import OptimConfig, PretrainedConfig, TrainConfig, ValConfig, WandbConfig
from pyg_topomask.run.graphgps.convs import CONVS
from pyg_topomask.run.training.settings import LOWER_IS_BETTER

_METRIC_OF = {"regression": "mae", "classification_multilabel": "ap"}

_BENCHMARKS = {
    "auc": "ogbg-molhiv ogbg-molbace ogbg-molbbbp ogbg-molclintox ogbg-molsider ogbg-moltox21 ogbg-moltoxcast "
    "ogbg-molchembl ogbn-proteins minesweeper tolokers questions",
    "ap": "ogbg-molpcba ogbg-molmuv peptides-func peptides-functional tolokers-2 city-reviews artnet-exp web-fraud",
    "r2": "hm-prices avazu-ctr city-roads-m city-roads-l twitch-views artnet-views web-traffic",
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
arXiv:2302.11640 (Minesweeper, Tolokers, Questions); Bazhenov et al., arXiv:2409.14500
(GraphLand); Qi et al., arXiv:1612.00593 (S3DIS, ShapeNet).
"""

FREE_KEYS = ("out_dir", "name_tag", "seed", "num_workers", "accelerator", "devices", "wandb", "tensorboard_each_run")
"""Keys that may differ between runs of one experiment: they change the seed, the place or the device."""


MASK_KEY = "topomask.mask"
"""Key of the mask of attentions that take any mask."""

_MODEL = ("gt", "gnn")
"""Sections whose missing keys a run with ``pretrained.dir`` takes from the finished run."""


def takes_mask(attention: str) -> bool:
    """Whether an attention takes any mask."""
    return MASK_KEY in EVERY_ATTENTION[attention].config_keys.values()


class Config(Section):
    """The whole config."""

    no_effect_because: ClassVar[dict[str, str]] = {
        NO_LOADERS: "round print tensorboard_agg cfg_dest gpu_mem benchmark",
        "torch chooses the number of threads": "num_threads",
    }
    only = "custom_metrics: [], view_emb: false"

    out_dir: str = "results"
    """Folder of all results; the option --out overrides it."""
    name_tag: Annotated[str, Field(pattern=r"^[\w.+-]*$"), BeforeValidator(lambda tag: tag or "")] = ""
    """The folder of the runs is <config name>-<name_tag>."""
    metric_best: Annotated[Literal[
        "auto", "accuracy", "accuracy-SBM", "f1", "precision", "recall", "auc", "ap", "mae", "mse", "rmse", "r2",
        "spearmanr", "mrr", "mrr_filt", "mrr_filt_self", "hits@1", "hits@3", "hits@10", "hits@20", "hits@50",
        "hits@100", "miou", "instance_miou", "category_miou", "loss",
    ], spelled(mIoU="miou")] = "auto"  # fmt: skip
    """Validation metric that chooses the best epoch. auto: that of the data set's leaderboard,
    such as auc for ogbg-molhiv; for other data mae for regression, ap for several labels, accuracy otherwise. mIoU is
    read as miou. With 2 to 20 targets, the tables also have its value for each: mae/0, mae/1, ..."""
    metric_agg: Literal["argmax", "argmin"] | None = None
    """Whether the largest or the smallest value is best; none: decided by the metric."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the first run; later runs count up from it."""
    run_multiple_splits: list[Count] = Field(default=[], max_length=1000)
    """Values of `dataset.split_index` to run one after the other, with the same seed."""
    num_workers: int = Field(default=0, ge=0, le=1024)
    """Number of processes that load data; it does not change the results."""
    accelerator: Literal["auto", "cpu", "cuda", "gpu"] = "auto"
    """Device to train on."""
    devices: Size = 1
    """Always 1; use `torchrun` to start several processes."""
    precision: Literal["32-true", "64-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Floating-point precision: single, double, or mixed with half precision."""
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
    posenc_LapPE: encodings.LapPEConfig = Field(default_factory=encodings.LapPEConfig)
    """Laplacian eigenvectors."""
    posenc_EquivStableLapPE: encodings.EquivStableLapPEConfig = Field(default_factory=encodings.EquivStableLapPEConfig)
    """Laplacian eigenvectors that gate messages."""
    posenc_SignNet: encodings.SignNetConfig = Field(default_factory=encodings.SignNetConfig)
    """Laplacian eigenvectors, invariant to their signs."""
    posenc_RWSE: encodings.KernelEncodingConfig = Field(default_factory=encodings.KernelEncodingConfig)
    """Return probabilities of random walks."""
    posenc_HKdiagSE: encodings.KernelEncodingConfig = Field(default_factory=encodings.KernelEncodingConfig)
    """Diagonal of the heat kernel."""
    posenc_ElstaticSE: encodings.ElectrostaticConfig = Field(default_factory=encodings.ElectrostaticConfig)
    """Electrostatic potentials."""
    posenc_GraphormerBias: encodings.GraphormerBiasConfig = Field(default_factory=encodings.GraphormerBiasConfig)
    """Degrees and shortest-path distances."""
    posenc_RRWP: encodings.RelativeWalkConfig = Field(default_factory=encodings.RelativeWalkConfig)
    """Probabilities that a walk from one node reaches another."""
    posenc_ERN: encodings.ResistanceConfig = Field(default_factory=encodings.ResistanceConfig, exclude=True)
    """Effective resistances of nodes, which are not provided."""
    posenc_ERE: encodings.ResistanceConfig = Field(default_factory=encodings.ResistanceConfig, exclude=True)
    """Effective resistances of edges, which are not provided."""
    graphormer: encodings.GraphormerConfig = Field(default_factory=encodings.GraphormerConfig)
    """Graphormer's graph token."""
    pretrained: PretrainedConfig = Field(default_factory=PretrainedConfig)
    """A finished run to start from."""
    share: ShareConfig = Field(default_factory=ShareConfig)
    """Memory."""
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    """Weights & Biases."""

    @model_validator(mode="after")
    def _metric_of_the_data(self) -> "Config":
        if self.metric_best == "auto":
            data = self.dataset
            names = (data.name.replace("_", "-").lower(), data.format.lower())
            known = next((_METRIC_OF_BENCHMARK[name] for name in names if name in _METRIC_OF_BENCHMARK), None)
            self.__dict__["metric_best"] = known or _METRIC_OF.get(data.task_type, "accuracy")
            self.model_fields_set.add("metric_best")  # so that a written config contains it
        return self

    @model_validator(mode="after")
    def _layers_of_custom_gnn(self) -> "Config":
        """GraphGPS's custom_gnn is its layer without attention, norm and feed-forward part; ``gnn`` has its sizes."""
        gnn, conv = self.gnn, CUSTOM_GNN_CONVS.get(self.gnn.layer_type)
        if self.model.type == "custom_gnn" and conv is not None:
            with noting_reads():
                layers = {"layer_type": f"{CUSTOM_GNN_CONVS[gnn.layer_type]}+None", "layers": gnn.layers_mp}
                layers |= {"dropout": gnn.dropout, "dim_hidden": gnn.dim_inner or self.gt.dim_hidden}
            layers |= {"n_heads": 1, "layer_norm": False, "batch_norm": False}
            # Not by setattr, which would make these sections count as given.
            self.__dict__["gt"] = self.gt.model_copy(update=layers)
            self.__dict__["topomask"] = self.topomask.model_copy(update={"feed_forward": False})
        return self

    @model_validator(mode="after")
    def _layers_of_san(self) -> "Config":
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
    def masks(self) -> list[str]:
        """Names of the masks that ``topomask.mask`` gives to an attention of the layers, without ``none``."""
        if not any(takes_mask(name) for name in self.gt.attentions):
            return []
        return [name for name in dict.fromkeys(self.topomask.masks) if name in MASK]

    @property
    def mask_name(self) -> str | None:
        """The mask of the layers for messages, such as ``hop`` or ``none+hop``, or None."""
        return "+".join(self.topomask.masks) if self.masks else None

    @property
    def loss_weight(self) -> float:
        """Weight of the auxiliary loss of the attentions; 0 if none has one."""
        return self.topomask.eta if any(EVERY_ATTENTION[name].adds_loss for name in self.gt.attentions) else 0.0

    @property
    def follows_attention(self) -> bool:
        """Whether walks follow the attention of the first layer, which must give weights to edges."""
        gives = any(hasattr(EVERY_ATTENTION[name], "edge_attention") for name in self.gt.attentions)
        return gives and self.topomask.transition == "attention"

    @property
    def used_encodings(self) -> list[str]:
        """The parts of ``dataset.node_encoder_name`` that are encodings and are used by the model."""
        named = [name for name in self.dataset.node_encoder_parts if name in POSITIONAL_ENCODERS]
        return [name for name in named if name != "EquivStableLapPE" or self.has_stable_gate]

    @property
    def has_stable_gate(self) -> bool:
        """Whether a convolution is gated by distances of Laplacian encodings; not all convolutions can be."""
        enabled = "EquivStableLapPE" in self.dataset.node_encoder_parts and self.posenc_EquivStableLapPE.enable
        return enabled and any(CONVS[name].takes_pe for name in self.gt.convs)

    @property
    def has_pair_bias(self) -> bool:
        """Whether attention has a bias for each pair of nodes."""
        names = self.used_encodings
        given = "RRWP" in names or ("GraphormerBias" in names and not self.posenc_GraphormerBias.node_degrees_only)
        return given and "BiasedTransformer" in self.gt.layer_type.split("+")

    @property
    def searches_width(self) -> bool:
        """Whether the width is found by ``model.param_budget``.

        As in the authors' code, it is not for a MultiModel. It is not if the model starts from the weights of a
        finished run, either.
        """
        searched = self.model.auto_satisfy_param_budget and self.model.type in ("GPSModel", "custom_gnn")
        return searched and not self.pretrained.dir

    def value(self, key: str) -> Any:
        """The value of ``section.name`` or ``section.part.name``."""
        return reduce(getattr, key.split("."), self)

    def is_set(self, key: str) -> bool:
        """Whether a key was given a value other than its default."""
        section, name = self._place(key)
        return section.peek(name) != type(section).model_fields[name].default

    def is_given(self, key: str) -> bool:
        """Whether the config contains a key, even with its default value."""
        section, name = self._place(key)
        return name in section.model_fields_set

    def was_read(self, key: str) -> bool:
        """Whether a key was read within `noting_reads`."""
        section, name = self._place(key)
        return name in section._read

    def _place(self, key: str) -> tuple[Section, str]:
        """The section of a key, and the key's name there."""
        *sections, name = key.split(".")
        return reduce(getattr, sections, self), name

    def with_defaults(self, keys: Iterable[str]) -> "Config":
        """A copy in which each ``section.name`` has its default value."""
        copy = self.model_copy(deep=True)
        for key in keys:
            section, name = copy._place(key)
            setattr(section, name, type(section).model_fields[name].default)
            section.model_fields_set.discard(name)
        return copy

    def contradictions(self, config: Any) -> Iterator[tuple[str, str]]:
        """What is wrong with the keys without a section."""
        if not self.agrees("devices", 1):
            yield "devices", f"must be 1: use torchrun to start several processes (got {self.devices})"
        if not self.agrees("metric_agg", None, "argmin" if self.metric_best in LOWER_IS_BETTER else "argmax"):
            yield "metric_agg", f"{self.metric_agg} of {self.metric_best} would choose the worst epoch"


def add_mask_sections() -> None:
    """Add a section to ``topomask`` for each mask that was registered since the last call."""
    if topomask.add_mask_sections():
        Config.model_rebuild(force=True)


add_mask_sections()


def section_of(path: list[str]) -> type[Section] | None:
    """The model of the section at a path from the top; None if there is no section at that path."""
    model: type[Section] | None = Config
    for name in path:
        model = nested_section(model.model_fields.get(name)) if model else None
    return model


def nested_section(field: FieldInfo | None) -> type[Section] | None:
    """The model of a key that is a section; None for other keys."""
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


class Key(NamedTuple):
    """A key of the schema, with the name of its sections."""

    name: str
    field: FieldInfo
    no_effect_because: str | None
    """Why no value has an effect; empty for a key with a single accepted value, None for a key that is read."""


def keys(section: type[Section] = Config, prefix: str = "") -> Iterator[Key]:
    """Each key that a config may contain."""
    for name, field in section.model_fields.items():
        inner = nested_section(field)
        if inner:
            yield from keys(inner, f"{prefix}{name}.")
        else:
            reason = next((mark.because for mark in field.metadata if isinstance(mark, NoEffect)), None)
            yield Key(f"{prefix}{name}", field, reason)


def all_keys() -> list[str]:
    """The name of every key that the runner reads."""
    return [key.name for key in keys() if key.no_effect_because is None]


def contradictions(config: Config, complete: bool = True) -> list[tuple[str, str]]:
    """Pairs (key, what is wrong) of a config whose values are valid one by one.

    Args:
        config: The config.
        complete: False if the config takes missing keys of the model from another run, so that these are not checked.
    """
    sections = [
        config,
        *(section for name, section in config if isinstance(section, Section) and (complete or name not in _MODEL)),
    ]
    found = [problem for section in sections for problem in section.contradictions(config)]
    return [*found, *encodings.contradictions(config)] if complete else found
