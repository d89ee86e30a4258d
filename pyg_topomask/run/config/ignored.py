"""Keys of GraphGym, GraphGPS, Exphormer and k-MIP that this runner accepts but does not read.

So their files work unchanged, and ``topomask check`` lists the keys that have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

_ENCODINGS = "posenc_LapPE posenc_SignNet posenc_EquivStableLapPE posenc_RWSE posenc_HKdiagSE posenc_ElstaticSE"

_REASONS = {
    "GraphGym's output and loaders are not used": {
        "": "round print tensorboard_agg cfg_dest gpu_mem benchmark",
        "dataset": "shuffle_split edge_message_ratio edge_negative_sampling_ratio cache_save cache_load tu_simple "
        "label_table label_column encoder encoder_name encoder_bn encoder_dim edge_dim",
        "train": "skip_train_eval eval_smoothing_metrics",
        "train val": "node_per_graph radius iter_per_epoch walk_length",
    },
    "GraphGym's own network is not used": {
        "model": "match_upper thresh",
        "gnn": "stage_type skip_every agg normalize_adj msg_direction self_msg att_heads att_final_linear "
        "att_final_linear_bn l2norm keep_edge clear_feature dim_edge",
    },
    "torch chooses the number of threads": {"": "num_threads"},
    "known from the data": {
        "dataset": "transductive",
        "share": "dim_in dim_out num_splits",
        "gt": "pna_degrees",
    },
    "checkpoints are always written, and an interrupted run always resumes": {
        "train": "enable_ckpt ckpt_best ckpt_clean auto_resume"
    },
    "our attentions have no such setting": {
        "gt": "secondary_edges activation",
        "gt.sparse": "random_fraction",
        "gt.bigbird": "use_bias hidden_act chunk_size_feed_forward max_position_embeddings layer_norm_eps",
    },
    "Exphormer's own splits and distances are not used": {"prep": "train_percent dist_cutoff"},
    "encodings are passed on only in the node features": {_ENCODINGS: "pass_as_var"},
    "the measures of the potential are fixed": {"posenc_ElstaticSE.kernel": "times times_func"},
    "effective resistances are not provided": {
        "": "posenc_ERN posenc_ERE",
        "posenc_ERN posenc_ERE": "accuracy er_dim model dim_pe layers n_heads post_layers raw_norm_type pass_as_var",
    },
    "Graphormer's own network is not provided": {
        "graphormer": "num_layers embed_dim num_heads dropout attention_dropout mlp_dropout input_dropout"
    },
}

IGNORED_KEYS: dict[str, str] = {
    f"{section}.{name}".removeprefix("."): reason
    for reason, table in _REASONS.items()
    for sections, names in table.items()
    for section in sections.split() or [""]
    for name in names.split()
}
"""Keys without effect for any value, mapped to the reason."""

FIXED_KEYS: dict[str, Any] = {
    "custom_metrics": [],
    "view_emb": False,
    "dataset.edge_train_mode": "all",
    "dataset.infer_link_label": "None",
    "dataset.location": "local",
    "dataset.remove_feature": False,
    "dataset.resample_disjoint": False,
    "dataset.transform": "none",
    "train.epoch_resume": -1,
    "train.sample_node": False,
    "val.sample_node": False,
    "model.size_average": "mean",
    "gt.residual": True,
    "gt.sparse.random_attention": False,
    "gt.bigbird.attention_type": "block_sparse",
    "gt.bigbird.is_decoder": False,
    "gt.bigbird.add_cross_attention": False,
    "prep.add_reverse_edges": True,
    "prep.dist_enable": False,
    "prep.exp_count": 1,
    "prep.layer_edge_indices_dir": None,
    "posenc_ERN.enable": False,
    "posenc_ERE.enable": False,
}
"""Keys with a single accepted value, because nothing else is provided."""

_SECTIONS = {key.rpartition(".")[0] for key in (*IGNORED_KEYS, *FIXED_KEYS)}
"""Sections of these keys. Nothing below them is searched, because a YAML alias there may contain itself."""


def ignored_keys(values: Mapping[str, Any]) -> list[str]:
    """The keys of nested values that have no effect for any value."""
    return [key for key, _ in _leaves(values) if key in IGNORED_KEYS]


def without_ignored(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values without the keys that are not read, and without sections that become empty.

    Raises:
        ValidationError: If a key of :data:`FIXED_KEYS` has another value.
    """
    wrong = [
        InitErrorDetails(
            type=PydanticCustomError("fixed_key", f"must be {json.dumps(FIXED_KEYS[key])}: nothing else is provided"),
            loc=tuple(key.split(".")),
            input=value,
        )
        for key, value in _leaves(values)
        if key in FIXED_KEYS and (value, type(value)) != (FIXED_KEYS[key], type(FIXED_KEYS[key]))
    ]
    if wrong:
        raise ValidationError.from_exception_data("Config", wrong)
    return _pruned(values, "")


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value and f"{prefix}{name}" in _SECTIONS:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _pruned(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    kept = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        is_section = isinstance(value, Mapping) and value and key in _SECTIONS
        inner = _pruned(value, f"{key}.") if is_section else value
        emptied = inner == {} and inner is not value
        if not emptied and key not in IGNORED_KEYS and key not in FIXED_KEYS:
            kept[name] = inner
    return kept
