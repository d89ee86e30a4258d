"""Configs of vision transformers: pre-norm, norms of single nodes and a class token under a mask."""

from pathlib import Path

import pytest
import torch

from pyg_topomask.run import check_config
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.model.build import build_model

CONFIG = Path(__file__).parents[2] / "configs" / "masked" / "digits-toeplitz.yaml"
NODE = ["gt.layer_norm=true", "gt.batch_norm=false", "topomask.layer_norm_mode=node"]
GATED = ["gt.layer_type=CustomGatedGCN+None", "dataset.edge_encoder=true", "dataset.edge_encoder_name=DummyEdge"]
TOKEN = "model.graph_pooling=graph_token"


def model_of(*overrides):
    return build_model(check_config(CONFIG, [*overrides, "gt.dim_hidden=8"])[0].config, 1, 10)


@pytest.mark.parametrize("mask", ["toeplitz", "grf", "none"])
def test_the_keys_build_a_vision_transformer(mask):
    model = model_of(TOKEN, "topomask.pre_norm=true", *NODE, f"topomask.mask={mask}")
    assert isinstance(model.norm_out, torch.nn.LayerNorm)
    assert all(layer.pre_norm and isinstance(layer.norm_attn, torch.nn.LayerNorm) for layer in model.layers)
    assert model.pool_token
    assert model.graph_token.pair is None  # there is no bias of pairs


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([TOKEN, "gt.layer_type=GCN+None"], r"model\.graph_pooling: graph_token needs an attention in gt\.layer_type"),
        (["topomask.pre_norm=true", *GATED], r"adds its input itself.*pre_norm=False"),
        (["topomask.layer_norm_mode=node"], r"topomask\.layer_norm_mode: node needs gt\.layer_norm"),
        ([*NODE, "model.type=MultiModel"], r"other than MultiModel and SingleModel"),
        (["topomask.layer_norm_mode=token"], r"topomask\.layer_norm_mode: must be one of graph, node"),
    ],
)
def test_what_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        model_of(*overrides)
