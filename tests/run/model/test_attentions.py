"""Constructor arguments of attentions from the keys of a config."""

import pytest

from pyg_topomask.nn import ATTENTION
from pyg_topomask.nn.gps_network import BIAS
from pyg_topomask.run.config.load import load
from pyg_topomask.run.config.schema import all_keys
from pyg_topomask.run.model.attentions import attention_arguments, build_attention, requirements

PLAIN = {"dataset": {"format": "PyG-MotifDataset", "name": "circle"}}


def config_of(*overrides):
    return load(PLAIN, overrides).config


@pytest.mark.parametrize("name", ATTENTION)
def test_rows_name_keys_of_the_schema(name):
    assert set(ATTENTION[name].config_keys.values()) <= set(all_keys())


@pytest.mark.parametrize("name", ATTENTION)
def test_requirements_are_those_of_the_built_attention(name):
    for settings in ([], ["topomask.independent=false"], ["topomask.symmetric=false"], ["prep.exp=true"]):
        config = config_of(f"gt.layer_type=GCN+{name}", *settings)
        assert requirements(config) == build_attention(config, name).requires, settings


def test_topomask_keys_that_are_not_given_leave_the_default():
    assert "kernel" not in attention_arguments(config_of("gt.layer_type=GCN+GKAT"), "GKAT")
    given = config_of("gt.layer_type=GCN+GKAT", "topomask.kernel=relu")  # the schema's default, but given
    assert attention_arguments(given, "GKAT")["kernel"] == "relu"
    assert attention_arguments(given, "GKAT")["heads"] == 1


def test_keys_that_are_translated():
    config = config_of("gt.layer_type=GCN+Exphormer", "dataset.edge_encoder=true", "gt.dim_hidden=12", "seed=3")
    assert attention_arguments(config, "SAN")["edge_dim"] == 12
    assert attention_arguments(config, "Exphormer")["edge_dim"] == 12
    assert attention_arguments(config, "BigBird", layer=2)["seed"] == 3002
    assert attention_arguments(config, "KMIP")["head_agg"] == "linear"
    without = config_of("gt.layer_type=GCN+Exphormer", "dataset.edge_encoder=true", "prep.add_edge_index=false")
    assert attention_arguments(without, "Exphormer")["edge_dim"] is None  # there are no edges with features
    assert attention_arguments(config, "Transformer")["attn_bias"] is None
    biased = config_of(
        "gt.layer_type=None+BiasedTransformer",
        "dataset.node_encoder_name=LinearNode+GraphormerBias",
        "posenc_GraphormerBias.enable=true",
        "posenc_GraphormerBias.num_spatial_types=4",
        "posenc_GraphormerBias.num_in_degrees=4",
        "posenc_GraphormerBias.num_out_degrees=4",
    )
    assert attention_arguments(biased, "Transformer")["attn_bias"] == BIAS
