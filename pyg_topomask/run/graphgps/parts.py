"""From a config to the parts of an experiment."""

from __future__ import annotations

from functools import partial
from typing import Any

from pyg_topomask.run.data.source import Serving, Source
from pyg_topomask.run.graphgps.config import Config
from pyg_topomask.run.graphgps.features import fitted_features, input_features
from pyg_topomask.run.graphgps.formats import ONLY_FOR, is_one_graph, load_dataset, possible_tasks, split_of
from pyg_topomask.run.graphgps.model.attentions import loss_weight, mask_of
from pyg_topomask.run.graphgps.model.encoders import build_encodings
from pyg_topomask.run.graphgps.model.sampling import build_sampling_transforms, follows_attention, key_to_set
from pyg_topomask.run.graphgps.optim import build_optimizer, build_scheduler
from pyg_topomask.run.output.report import layers_text
from pyg_topomask.run.training.settings import Training

_IDENTITY = ("name", "format", "task", "task_type", "num_graphs", "num_nodes", "slic_compactness", "dir")


def parts_of(config: Config) -> dict[str, Any]:
    """The arguments of an experiment, except what depends on the file. Only keys that have an effect are read."""
    wandb, start = config.wandb, config.pretrained
    return {
        "data": source_of(config),
        "training": training_of(config),
        "seed": config.seed,
        "splits": tuple(config.run_multiple_splits),
        "out": config.out_dir,
        "tensorboard": config.tensorboard_each_run,
        "wandb": {"entity": wandb.entity, "project": wandb.project, "name": wandb.name} if wandb.use else None,
        "start": {"reset": start.reset_prediction_head, "freeze": start.freeze_main} if start.dir else None,
    }


def source_of(config: Config) -> Source:
    """The data of a config, how they are prepared, split and served."""
    data = config.dataset
    own = ["name", "dir", "task", "task_type", *(key for key, formats in ONLY_FOR.items() if data.format in formats)]
    own += ["resample_negative"] if possible_tasks(data)[0].ranked else []
    loaded = data.model_copy(update={key: getattr(data, key) for key in own})  # these are read when it is loaded
    return Source(
        partial(load_dataset, loaded),
        name=data.name,
        features=input_features(config),
        encodings=build_encodings(config),
        draws=partial(build_sampling_transforms, config),
        fitted=fitted_features(config),
        split=split_of(data),
        serving=serving_of(config),
        follows_attention=follows_attention(config),
        title=layers_text(config.gt.layer_type, mask_of(config)),
        hint=partial(key_to_set, config=config),
        identity={f"dataset.{key}": data.peek(key) for key in _IDENTITY},
    )


def serving_of(config: Config) -> Serving:
    """How the data are put into batches."""
    train = config.train
    given: dict[str, Any] = {"num_workers": config.num_workers, "sampler": train.sampler}
    if not is_one_graph(config.dataset) or train.sampler != "full_batch":
        given |= {"batch_size": train.batch_size, "shuffle": train.shuffle}
    own = {"neighbor": ["neighbor_sizes"], "walks": ["max_nodes"], "random_partition": ["num_parts"]}
    given |= {name: getattr(train, name) for name in (own | {"cluster": ["num_parts"]}).get(train.sampler, [])}
    return Serving(**given, evaluation=config.val.sampler, redraw=config.topomask.peek("redraw"))


def training_of(config: Config) -> Training:
    """How the model of a config is trained."""
    train, optim = config.train, config.optim
    return Training(
        loss=config.model.loss_fun,
        metric=config.metric_best,
        epochs=optim.max_epoch,
        optimizer=partial(build_optimizer, config),
        scheduler=partial(build_scheduler, config),
        clip=optim.clip_grad_norm_value if optim.clip_grad_norm else None,
        accumulation=optim.batch_accumulation,
        eval_period=train.eval_period,
        ckpt_period=train.ckpt_period,
        patience=train.early_stop_patience,
        auxiliary=loss_weight(config),
        accelerator=config.accelerator,
        precision=config.precision,
        compile=config.compile,
        inference=train.is_inference,
        submission=train.mode == "PCQM4Mv2-inference",
    )
