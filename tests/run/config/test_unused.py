"""Keys without effect, in a config of GraphGPS."""

import pytest

from pyg_topomask.run.cli import main
from pyg_topomask.run.config.load import load
from pyg_topomask.run.config.unused import keys_without_effect

BIASES = "dataset.node_encoder_name=TypeDictNode+GraphormerBias posenc_GraphormerBias.enable=true " + " ".join(
    f"posenc_GraphormerBias.num_{name}=5" for name in ("spatial_types", "in_degrees", "out_degrees")
)


def test_keys_without_effect_are_named(molecules, capsys):
    assert main(["check", str(molecules), "gt.sparse.k=3", "optim.momentum=0.5", "posenc_SignNet.dim_pe=3"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("ok")
    assert lines[1:] == [
        "no effect: dataset.transductive (known from the data)",
        "no effect: gnn.agg, gnn.normalize_adj (GraphGym's own network is not used)",
        "no effect: model.edge_decoding (graphs are predicted, not edges)",
        "no effect: gt.sparse.k (gt.layer_type does not contain KMIP)",
        "no effect: gnn.batchnorm (gnn.layers_pre_mp is 0)",
        "no effect: optim.momentum (optim.optimizer is adamW)",
        "no effect: posenc_SignNet (dataset.node_encoder_name does not contain it)",
    ]
    more = ["dataset.split=[8,1,1]", "dataset.split_dir=x", "pretrained.freeze_main=true"]
    assert main(["check", str(molecules), *more]) == 0
    found = capsys.readouterr().out
    assert "no effect: dataset.split, dataset.split_dir (dataset.split_mode is standard)" in found
    assert "no effect: pretrained.freeze_main (pretrained.dir is not given)" in found
    encoders = ["dataset.node_encoder_name=LinearNode+LapPE+RWSE", "dataset.edge_encoder_name=LinearEdge"]
    assert main(["check", str(molecules), *encoders]) == 0
    found = capsys.readouterr().out
    assert "dataset.node_encoder_num_types (dataset.node_encoder_name does not contain TypeDictNode)" in found
    assert "dataset.edge_encoder_num_types (dataset.edge_encoder_name is LinearEdge)" in found
    assert main(["check", str(molecules), "gt.layer_type=CustomGatedGCN+KMIP", "gt.sparse.k=3"]) == 0
    assert "gt.sparse.k" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        (
            "gt.layer_type=GIN+KMIP",
            "dataset.edge_encoder, dataset.edge_encoder_name, dataset.edge_encoder_bn, dataset.edge_encoder_num_types "
            "(no part of gt.layer_type reads edge features)",
        ),
        ("gt.layer_type=GIN+Exphormer prep.add_edge_index=false", "(no part of gt.layer_type reads edge features)"),
        ("gt.layer_type=GINE+SGFormer gt.attn_dropout=0.5", "gt.attn_dropout (no part of gt.layer_type has it)"),
        ("gnn.dropout=0.5", "gnn.dropout (gnn.layers_pre_mp is 0, and only the head mlp_graph and custom_gnn have it)"),
        ("dataset.resample_negative=true", "dataset.resample_negative (only pcqm-contact draws such edges)"),
        ("dataset.split_seed=3", "dataset.split_seed (dataset.split_mode is standard)"),
        ("prep.add_self_loops=true", "prep.add_self_loops (the data set is not one graph)"),
        ("wandb.use=false", "wandb.project (wandb.use is False)"),
    ],
)
def test_keys_without_effect_by_the_layers_and_the_data(molecules, overrides, note):
    with_it, without = (keys_without_effect(load(molecules, more)) for more in (overrides.split(), []))
    assert any(note in f"{', '.join(keys)} ({why})" for why, keys in with_it.items())
    assert not any(note in f"{', '.join(keys)} ({why})" for why, keys in without.items())


def test_keys_without_effect_on_one_graph():
    values = {"dataset": {"format": "PyG-Planetoid", "name": "Cora", "task": "node"}}
    values |= {"model": {"graph_pooling": "max"}, "train": {"batch_size": 7, "shuffle": False}}
    found = keys_without_effect(load(values))
    assert found == {
        "only graphs are pooled, and the data set has other targets": ["model.graph_pooling"],
        "the data set is one graph": ["train.batch_size", "train.shuffle"],
    }
    for sampler, unread in (("cluster", [["train.batch_size"]]), ("neighbor", [])):
        found = keys_without_effect(load(values, [f"train.sampler={sampler}"]))
        assert [*found.values()] == [*unread, ["model.graph_pooling"]]


@pytest.mark.parametrize(
    "overrides",
    [
        "gt.layer_type=GIN+Exphormer",
        "gt.layer_type=None+SAN",
        "gt.layer_type=GAT+None",
        f"gt.layer_type=GIN+BiasedTransformer {BIASES}",
        "gnn.layers_pre_mp=1 gnn.dropout=0.5 gnn.batchnorm=true",
        "gnn.head=mlp_graph gnn.dropout=0.5",
        "dataset.split_mode=random dataset.split_seed=3",
        "dataset.split_mode=cv-kfold-10 dataset.split_seed=3",
    ],
)
def test_keys_with_effect_are_not_named(molecules, overrides):
    given = {item.split("=")[0] for item in overrides.split()}
    found = {key for keys in keys_without_effect(load(molecules, overrides.split())).values() for key in keys}
    assert not found & {*given, "dataset.edge_encoder"}
