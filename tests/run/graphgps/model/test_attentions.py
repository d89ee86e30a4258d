"""Constructor arguments of attentions from the keys of a config."""

from inspect import signature

import pytest
import torch
import yaml

from pyg_topomask.nn import ATTENTION, MASK, GRFMask, HeadMasks, MixtureMask, RWGNKMask
from pyg_topomask.nn.gps_network import BIAS
from pyg_topomask.nn.graph_attributes import requirements_of
from pyg_topomask.run import check_config, run_config
from pyg_topomask.run.commands.show import picture
from pyg_topomask.run.errors import ConfigError, RunError
from pyg_topomask.run.graphgps.attentions import (
    attention_arguments,
    build_attention,
    build_sampling_transforms,
    built_attentions,
)
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.config.schema import all_keys
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddGridShape, AddRandomWalks, AddTreeOrder, that_add

PLAIN = {"dataset": {"format": "PyG-MotifDataset", "name": "circle"}}


def walks_of(config, seed):
    return next(iter(build_sampling_transforms(config, seed)), None)


def config_of(*overrides):
    return load(PLAIN, overrides).config


@pytest.mark.parametrize("name", ATTENTION)
def test_rows_name_keys_of_the_schema(name):
    assert set(ATTENTION[name].config_keys.values()) <= set(all_keys())


def test_topomask_keys_that_are_not_given_leave_the_default():
    assert "kernel" not in attention_arguments(config_of("gt.layer_type=GCN+GKAT"), "GKAT")
    given = config_of("gt.layer_type=GCN+GKAT", "topomask.kernel=relu")  # equal to the schema's default, but given
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
    sizes = [f"posenc_GraphormerBias.num_{name}=4" for name in ("spatial_types", "in_degrees", "out_degrees")]
    encoder = ["dataset.node_encoder_name=LinearNode+GraphormerBias", "posenc_GraphormerBias.enable=true"]
    biased = config_of("gt.layer_type=None+BiasedTransformer", *encoder, *sizes)
    assert attention_arguments(biased, "Transformer")["attn_bias"] == BIAS


def masked(*overrides):
    return config_of("gt.layer_type=GCN+Masked", *overrides)


def test_masks_come_from_their_section_or_flat_keys():
    assert build_attention(masked(), "Masked").mask is None
    mask = build_attention(masked("topomask.mask=grf", "topomask.mask_grf.max_length=2", "gt.n_heads=4"), "Masked").mask
    assert (type(mask), mask.heads, mask.max_length, mask.symmetric) == (GRFMask, 4, 2, True)
    flat = masked("topomask.mask=grf", "topomask.max_length=3", "topomask.mask_grf.symmetric=false")
    mask = build_attention(flat, "Masked").mask
    assert (mask.max_length, mask.symmetric) == (3, False)
    fixed = masked("topomask.mask=rwgnk", "topomask.mask_rwgnk.decay=0.5", "gt.n_heads=4")
    mask = build_attention(fixed, "Masked").mask
    assert (type(mask), mask.heads, float(mask.decay)) == (RWGNKMask, 1, 0.5)
    learned = masked("topomask.mask=rwgnk", "topomask.mask_rwgnk.learnable=true", "gt.n_heads=4")
    assert build_attention(learned, "Masked").mask.heads == 4
    assert build_attention(config_of("gt.layer_type=GCN+Linear", "topomask.mask=grf"), "Linear").mask is not None


def needed(name):
    """Keys for the arguments of a mask that have no default, as in its example."""
    example, parameters = MASK[name].examples()[0], signature(MASK[name]).parameters.values()
    needed = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    return [f"topomask.mask_{name}.{argument}={list(example[argument])}" for argument in needed]


def test_walks_are_drawn_as_the_mask_says():
    settings = ["topomask.mask_grf.max_length=6", "topomask.mask_grf.independent=false"]
    walks = walks_of(masked("topomask.mask=grf", *settings), 0)
    assert (walks.max_length, walks.independent) == (6, False)
    assert walks_of(masked("topomask.mask=none"), 0) is None
    one = walks_of(masked("topomask.mask=grf", "topomask.mask_grf.diagonal=corrected"), 0)
    assert one.diagonal == "corrected"


def test_the_modulation_of_a_mask_is_set_by_its_section():
    settings = ["initial=[1, 2]", "positive=true", "key_modulation=true"]
    mask = build_attention(masked("topomask.mask=grf", *(f"topomask.mask_grf.{x}" for x in settings)), "Masked").mask
    assert mask.modulation.tolist() == mask.key_modulation.tolist() == [1, 2, 0, 0, 0]
    assert mask.positive
    flat = build_attention(config_of("gt.layer_type=GCN+GRF", "topomask.key_modulation=true"), "GRF").mask
    assert flat.key_modulation is not None
    check_config(PLAIN, ["gt.layer_type=GCN+Masked", "topomask.mask=grf", "topomask.mask_grf.initial=geometric"])


def test_a_list_of_masks_is_their_sum_or_divides_the_heads():
    walks = ["topomask.num_tables=3", "topomask.tables=head", "topomask.mask_grf.max_length=3"]
    settings = ["gt.n_heads=4", "topomask.mask=[none, hop, grf]", "topomask.mask_hop.max_hops=2", *walks]
    config = check_config(PLAIN, ["gt.layer_type=GCN+Masked", *settings])[0].config
    mask = build_attention(config, "Masked").mask
    assert (type(mask), mask.heads, [part.heads for part in mask.masks[1:]]) == (MixtureMask, 4, [4, 4])
    config = check_config(PLAIN, ["gt.layer_type=GCN+Masked", *settings, "topomask.mask_heads=[1, 1, 2]"])[0].config
    mask = build_attention(config, "Masked", layer=1).mask
    assert (type(mask), mask.mask_heads, mask.masks[1].heads, mask.masks[2].tables) == (HeadMasks, [1, 1, 2], 1, (0, 1))
    assert config.mask_name == "none+hop+grf"
    hops, drawn = build_sampling_transforms(config, 0)
    assert (hops.max_hops, drawn.max_length, drawn.num_tables) == (2, 3, 3)


@pytest.mark.parametrize("layer_type", ["GCN+GRF", "GCN+Masked"])
@pytest.mark.parametrize(
    ("tables", "wanted"), [("layer", [(0,), (1,), (2,), (0,)]), ("head", [(0, 1), (2, 0), (1, 2), (0, 1)])]
)
def test_layers_or_heads_have_walks_of_their_own(layer_type, tables, wanted):
    settings = ["gt.layers=4", "gt.n_heads=2", f"gt.layer_type={layer_type}", "topomask.diagonal=corrected"]
    settings += ["topomask.num_tables=3", f"topomask.tables={tables}"]
    settings += ["topomask.mask=grf"] if layer_type == "GCN+Masked" else []
    config = check_config(PLAIN, settings)[0].config
    name = layer_type.removeprefix("GCN+")
    masks = [build_attention(config, name, layer).mask for layer in range(4)]
    assert [mask.tables for mask in masks] == wanted
    data = walks_of(config, 0)(GRAPHS["star"])
    assert {"walk_diagonal", "walk_table1_diagonal", "walk_table2_diagonal"} <= set(
        requirements_of(*built_attentions(config))
    )
    assert set(requirements_of(*built_attentions(config))) <= set(data.to_dict())
    assert not torch.equal(masks[0](data).to_dense(), masks[1](data).to_dense())


def test_a_stitched_mask_gets_walks_for_each_factor():
    settings = ["gt.layer_type=GCN+Masked", "topomask.mask=grf", "topomask.mask_grf.initial=far", "gt.layers=2"]
    config = check_config(PLAIN, [*settings, "topomask.num_tables=2", "topomask.lengths=uniform"])[0].config
    transform = walks_of(config, 0)
    assert (transform.num_tables, transform.lengths) == (6, "uniform")
    assert set(requirements_of(*built_attentions(config))) <= set(transform(GRAPHS["star"]).to_dict())


@pytest.mark.parametrize(
    ("mask", "settings", "wanted"),
    [
        ("tree", [], AddTreeOrder()),
        ("forest", ["topomask.spanning_tree=minimum"], AddTreeOrder("minimum", "edge_weight")),
        ("toeplitz", needed("toeplitz"), AddGridShape()),
    ],
)
def test_the_structure_that_the_mask_needs_is_added(mask, settings, wanted):
    steps = build_sampling_transforms(masked(f"topomask.mask={mask}", *settings), seed=5)
    assert list(map(repr, steps)) == [repr(wanted)]


@pytest.mark.parametrize("name", MASK)
def test_every_mask_builds_steps_and_gets_what_it_requires(name):
    settings = [f"topomask.mask={name}", "gt.n_heads=2", *needed(name)]
    check_config(PLAIN, ["gt.layer_type=GCN+Masked", *settings])
    config = masked(*settings)
    found = [type(step) for step in build_sampling_transforms(config, seed=5)]
    assert found == [type(step) for step in that_add(build_attention(config, "Masked").requires).transforms]


def test_masked_with_a_mask_is_the_named_attention():
    """GRF and GKAT are MaskedAttention with their masks."""
    for name, mask, flat in (("GRF", "grf", []), ("GKAT", "rwgnk", ["topomask.kernel=softmax"])):
        sizes = ["gt.n_heads=2", "topomask.max_length=3", *flat]
        named = build_attention(config_of(f"gt.layer_type=GCN+{name}", *sizes), name)
        general = build_attention(masked(f"topomask.mask={mask}", *sizes), "Masked")
        general.load_state_dict(named.state_dict())
        data = AddRandomWalks(max_length=3, seed=0)(GRAPHS["star"].clone())
        x = torch.randn(5, 64)
        torch.testing.assert_close(general(x, None, data), named(x, None, data))


@pytest.mark.slow
def test_a_heat_mask_refuses_one_way_edges_and_a_key_makes_them_undirected(tiny, tu_folder, tmp_path):
    edges = "".join(f"{3 * g + i}, {3 * g + i + 1}\n" for g in range(12) for i in (1, 2))
    (tu_folder / "TUDataset" / "TINY" / "raw" / "TINY_A.txt").write_text(edges)
    del tiny["topomask"]
    path, data = tmp_path / "tiny.yaml", {"format": "PyG-TUDataset", "name": "TINY", "dir": str(tu_folder)}
    path.write_text(yaml.safe_dump(tiny | {"dataset": data}))
    changes = ["gt.layer_type=GIN+Masked", "topomask.mask=heat", "optim.max_epoch=2"]
    message = r"^GIN\+Masked with topomask.mask heat: .* undirected graph, .*, dataset.to_undirected: true\)$"
    with pytest.raises(RunError, match=message):
        picture("mask", path, overrides=changes)
    with pytest.raises(RunError, match=message):
        run_config(path, tmp_path / "out", overrides=changes)
    run_config(path, tmp_path / "undirected", overrides=[*changes, "dataset.to_undirected=true"])
    tree = ["gt.layer_type=None+Masked", "topomask.mask=tree", "topomask.spanning_tree=minimum"]
    with pytest.raises(RunError, match=r"'edge_weight' must have one length per edge.* \(key topomask.spanning_tree\)"):
        picture("mask", path, overrides=[*changes, *tree])


def test_settings_of_a_mask_that_is_not_used_are_refused():
    settings = {"mask": "rwgnk", "mask_grf": {"max_length": 3}}
    source = PLAIN | {"gt": {"layer_type": "GCN+Masked"}, "topomask": settings}
    with pytest.raises(ConfigError, match=r"topomask\.mask_grf\.max_length: nothing reads it"):
        check_config(source)
    assert check_config(source, ["topomask.mask=none"])[1] == ["topomask.mask_grf.max_length"]
    with pytest.raises(ConfigError, match=r"topomask\.mask_lr: nothing reads it"):
        check_config(source | {"topomask": {"mask": "causal", "mask_lr": 2}})
    with pytest.raises(ConfigError, match=r"topomask\.mask: nothing reads it"):
        check_config(source | {"gt": {"layer_type": "GCN+GRF"}})
