"""Configs of vision transformers: pre-norm, norms of single nodes and a class token under a mask."""

from pathlib import Path

import pytest
import torch

from pyg_topomask.run import check_config
from pyg_topomask.run.model.build import build_model

CONFIG = Path(__file__).parents[2] / "configs" / "masked" / "digits-toeplitz.yaml"
NODE = ["gt.layer_norm=true", "gt.batch_norm=false", "topomask.layer_norm_mode=node"]
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
