"""What users of PyG expect of every module: reset_parameters, the meta device, norms by name, lazy widths, reprs."""

import inspect
from functools import partial

import pytest
import torch
import torch_geometric as pyg
from torch.nn import PReLU
from torch_geometric.nn import GCNConv, InstanceNorm, PairNorm

from pyg_topomask import datasets, nn, testing, transforms
from pyg_topomask.nn.encoder.features import AtomEncoder
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.named import as_attention
from pyg_topomask.nn.norm import apply_norm, build_norm
from tests.nn.encoder_cases import CASES
from tests.nn.gps_cases import batch_of


def network():
    layers = nn.GPSStack(8, 2, conv="gatedgcn", attn="primphormer")
    return nn.GPSNetwork(AtomEncoder(8), layers, nn.HEADS["graph"](8, 3), graph_token=GraphToken(8, 2))


MADE = {
    **{name: partial(build, 8) for name, build in testing.examples(nn.ATTENTION).items()},
    **{f"mask {name}": build for name, build in testing.examples(nn.MASK).items()},
    **{f"encoder {name}": partial(cls, 8, **options) for name, (cls, options, _) in CASES.items()},
    **{f"head {name}": partial(cls, 8, 1) for name, cls in nn.HEADS.items() if name != "ogb_code_graph"},
    "GatedGCN": partial(nn.GatedGCN, 8, equivariant_stable=True),
    "StableGINEConv": lambda: nn.StableGINEConv(torch.nn.Linear(8, 8), 8),
    "GPSConv": lambda: nn.GPSConv(8, GCNConv(8, 8), 2),
    "GPSModel": lambda: nn.GPSModel(3, 8, 2, 2, "gin", "grf", pool="graph_token", act="prelu", pre_norm=True),
    "GPSNetwork": network,
}


@pytest.mark.parametrize("name", MADE)
def test_reset_fills_a_module_from_the_meta_device_and_repeats(name):
    with torch.device("meta"):
        module = MADE[name]()
    module, found = module.to_empty(device="cpu"), []
    for _ in range(2):
        for value in (*module.parameters(), *module.buffers()):
            value.data.fill_(7)
        torch.manual_seed(0)
        module.reset_parameters()
        found.append({key: value.clone() for key, value in (*module.named_parameters(), *module.named_buffers())})
    for key, value in found[0].items():
        assert (value != 7).all() or not value.is_floating_point(), key
        assert torch.equal(value, found[1][key]), key
    expected = dict(MADE[name]().named_buffers())
    for key, value in module.named_buffers():
        assert torch.equal(value, expected[key]), key
    torch.manual_seed(1)
    module.reset_parameters()
    if name in {*nn.ATTENTION, "GatedGCN", "GPSModel", "GPSNetwork"}:
        assert any(not torch.equal(value, found[0][key]) for key, value in module.named_parameters())


@pytest.mark.parametrize("name", nn.ATTENTION)
def test_attentions_and_layers_have_a_repr_of_one_line(name):
    layer = nn.GPSLayer(8, GCNConv(8, 8), name, heads=2)
    assert repr(layer.attn) == f"{nn.ATTENTION[name].__name__}(channels=8, heads=2)"
    assert repr(layer) == f"GPSLayer(8, conv=GCNConv(8, 8), attn={layer.attn!r})"


def test_reprs_show_the_arguments_that_differ_from_the_defaults_in_one_line():
    texts = {name: repr(build()) for name, build in MADE.items() if name.startswith(("mask", "GPSConv", "GPSModel"))}
    assert not [text for text in texts.values() if "\n" in text]
    assert texts["GPSConv"] == "GPSConv(8, conv=GCNConv(8, 8), heads=2, attn_type=grf)"
    assert texts["GPSModel"].startswith("GPSModel(3, 8, 2, layers=GPSStack( (0-1): 2 x GPSLayer(8, conv=GINConv(")
    assert repr(nn.LowRankMask(num_waves=3)) == "LowRankMask(num_waves=3)"
    mixed = nn.MaskedAttention(8, 2, mask=[None, nn.HopMask(2)], kernel="relu")
    assert repr(mixed) == "MaskedAttention(channels=8, heads=2, mask=[None, HopMask(heads=2)])"
    assert repr(as_attention("pyg.multihead", 8, 2)) == "PyGMultihead(channels=8, heads=2)"

    class Own(nn.FullAttention):
        """Without a constructor of its own."""

    assert repr(Own(8)) == "Own(channels=8)"


def test_norms_and_activations_are_pygs():
    batch, x = batch_of(), torch.randn(13, 8)
    for norm in ("InstanceNorm", "instance", InstanceNorm(8)):
        built = build_norm(norm, 8)
        assert built is not norm
        out = apply_norm(built, x, batch.batch)
        for number in range(3):
            rows = x[batch.batch == number]
            wanted = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()
            torch.testing.assert_close(out[batch.batch == number], wanted)
    assert build_norm("pair_norm", 8).scale == PairNorm().scale
    assert build_norm("batch_norm", 8, {"eps": 0.5}).eps == 0.5
    act = PReLU()
    layer = nn.GPSLayer(8, "gcn", norm="GraphNorm", norm_kwargs={"eps": 0.25}, act=act)
    assert layer.norm_out.eps == layer.norm_conv.eps == 0.25
    assert isinstance(layer.mlp[1], PReLU)
    assert layer.mlp[1] is not act
    model = nn.GPSModel(3, 8, 2, 1, "gcn", act="leaky_relu", act_kwargs={"negative_slope": 0.3}, head_layers=2)
    slopes = [part.negative_slope for part in model.modules() if isinstance(part, torch.nn.LeakyReLU)]
    assert slopes == [0.3, 0.3]
    eps = {"norm_kwargs": {"eps": 0.5}}
    for given in ({"norm": InstanceNorm(8), **eps}, {"norm": None, **eps}, {"act": act, "act_kwargs": {"init": 0.5}}):
        name = next(iter(given))
        with pytest.raises(ValueError, match=f"'{name}_kwargs' are for '{name}' given by name"):
            nn.GPSLayer(8, "gcn", **given)


def test_a_lazy_model_takes_its_widths_from_the_first_graph():
    batch, x, edge_attr = batch_of(), torch.randn(13, 5), torch.randn(batch_of().num_edges, 2)
    lazy, model = (
        nn.GPSModel(width, 8, 3, 1, "gine", edge_dim=edge, pool="mean") for width, edge in ((-1, -1), (5, 2))
    )
    inputs = x, batch.edge_index, batch.batch, None, edge_attr
    lazy(*inputs)
    lazy.load_state_dict(model.state_dict())
    assert torch.equal(lazy(*inputs), model(*inputs))


def positional(cls):
    parameters = inspect.signature(cls).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def test_arguments_that_differ_from_those_of_pygs_class_of_that_name_are_keyword_only():
    found = set()
    for ours, theirs in ((nn, pyg.nn), (nn, pyg.nn.attention), (transforms, pyg.transforms), (datasets, pyg.datasets)):
        for name in {*ours.__all__} & {*dir(theirs)}:
            found.add(name)
            mine, other = (positional(getattr(home, name)) for home in (ours, theirs))
            assert mine == other[: len(mine)], name
    assert found == {"GPSConv", "PerformerAttention"}
