from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.nn import ATTENTION
from pyg_topomask.nn.attention.pyg import PYG_ATTENTION
from pyg_topomask.run.errors import ConfigError
from pyg_topomask.run.graphgps.attentions import build_attention, build_sampling_transforms
from pyg_topomask.run.graphgps.check import check_config
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.convs import CONVS
from pyg_topomask.run.graphgps.model import build_model

CONFIGS = Path(__file__).parents[4] / "configs"
PLAIN = {"dataset": {"format": "PyG-MotifDataset", "name": "circle"}}


@pytest.mark.parametrize("conv", [*CONVS, "None"])
@pytest.mark.parametrize("attention", [*ATTENTION, "None"])
def test_every_pair_builds_and_steps(conv, attention):
    types = ["dataset.edge_encoder_num_types=2"] if conv == "RGCN" else []
    check_config(PLAIN, [f"gt.layer_type={conv}+{attention}", "dataset.edge_encoder=true", *types])


@pytest.mark.parametrize("name", PYG_ATTENTION)
def test_pygs_attentions_have_names(name):
    attn = build_attention(load(PLAIN, [f"gt.layer_type=GCN+{name}", "gt.n_heads=2", "gt.dim_hidden=12"]).config, name)
    assert attn.channels == 12
    check_config(PLAIN, [f"gt.layer_type=GCN+{name}", "gt.n_heads=2"])


def test_types_of_edges_reach_convolutions_and_masks():
    """RGCN beside a mask of one relation: the network is PyG's RGCN and attention along edges of type 1 alone."""
    masks = ["topomask.mask=[none,power_series]", "topomask.mask_heads=[1,1]", "topomask.mask_power_series.edge_type=1"]
    layers = ["gt.layer_type=RGCN+Masked", "gt.layers=1", "gt.dim_hidden=4", "gt.n_heads=2", *masks]
    config = check_config(PLAIN, [*layers, "dataset.edge_encoder_num_types=3"])[0].config
    model = build_model(config, 4, 2).eval()
    edges, types = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]), torch.tensor([0, 1, 2, 0, 1])
    graph = Data(x=torch.randn(5, 4), edge_index=edges, edge_type=types)
    (layer,), seen = model.layers, {}
    layer.conv.register_forward_hook(lambda conv, given, out: seen.update(conv=(given[0], out)))
    before = model(graph)
    x, out = seen["conv"]
    expected = x @ layer.conv.root + layer.conv.bias  # h_i = W h_i + sum over types of the mean over its neighbours
    for edge in range(5):  # each node has one edge
        expected[edges[1, edge]] += x[edges[0, edge]] @ layer.conv.weight[types[edge]]
    torch.testing.assert_close(out, expected)
    graph.edge_type = types.flip(0)
    assert not torch.allclose(model(graph), before)
    for wrong in (None, types + 1, types - 1):
        with pytest.raises(ValueError, match="from 0 to 2 for each edge"):
            layer.conv(x, edges, wrong)
    with pytest.raises(ConfigError, match="edge_encoder_num_types: RGCN needs the number of edge types"):
        check_config(PLAIN, layers)


def test_numbers_reach_the_model():
    overrides = "gt.layers=3 gt.n_heads=2 gt.dim_hidden=12 gt.dropout=0.25 gt.attn_dropout=0.5 topomask.max_length=6"
    overrides += " topomask.input_dropout=0.75 topomask.encoder_dropout=0.125"
    config = load(PLAIN, [*overrides.split(), "gnn.layers_post_mp=2", "gt.batch_norm=false"]).config
    model = build_model(config, 5, 4)
    assert len(model.layers) == 3
    attention = model.layers[0].attn
    assert attention.heads == 2
    assert attention.mask.max_length == 6
    rates = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates - {0.0} == {0.125, 0.25, 0.5, 0.75}
    assert not any(isinstance(module, torch.nn.BatchNorm1d) for module in model.modules())
    assert sum(isinstance(module, torch.nn.Linear) for module in model.head.modules()) == 2


def test_sparse_keys_reach_the_k_mip_attention():
    sparse = ["gt.sparse.k=3", "gt.sparse.kq_dim=5", "gt.sparse.val_dim=7"]
    sizes = ["gt.n_heads=2", "gt.dim_hidden=12", "gt.attn_dropout=0.5"]
    attn = build_attention(load(PLAIN, ["gt.layer_type=GCN+KMIP", *sparse, *sizes]).config, "KMIP")
    assert (attn.k, attn.kq_dim, attn.val_dim, attn.heads, attn.dropout) == (3, 5, 7, 2, 0.5)
    assert attn.out is not None
    check_config(PLAIN, ["gt.layer_type=None+SparseAttention", *sparse, *sizes])
    joined = ["gt.layer_type=None+SparseAttention", "gt.sparse.head_agg=none", "gt.sparse.val_dim=6", *sizes]
    attn = build_attention(check_config(PLAIN, joined)[0].config, "KMIP")
    assert (attn.k, attn.kq_dim, attn.val_dim, attn.out) == (10, 6, 6, None)


def test_heads_divide_the_width_only_where_there_is_attention():
    sizes = ["gt.n_heads=4", "gt.dim_hidden=63", "dataset.edge_encoder=true"]
    check_config(PLAIN, ["gt.layer_type=CustomGatedGCN+None", *sizes])
    for layer_type in ("GAT+None", "GCN+Transformer"):
        with pytest.raises(ConfigError, match=r"gt\.n_heads: must divide gt\.dim_hidden \(got 4 and 63\)"):
            check_config(PLAIN, [f"gt.layer_type={layer_type}", *sizes])


@pytest.mark.parametrize("name", ["Performer", "BigBird"])
def test_layers_and_runs_draw_for_themselves(name):
    def seeds(seed):
        config = load(PLAIN, [f"gt.layer_type=GCN+{name}", "gt.layers=3", f"seed={seed}"]).config
        attentions = [layer.attentions[0] for layer in build_model(config, 3, 2).layers]
        return [(attention.feature_map or attention).seed for attention in attentions]

    assert len({*seeds(0), *seeds(1)}) == 6
    assert seeds(1) == seeds(1)


def test_walks_only_where_the_attention_needs_them():
    for none in ("GCN+Linear", "GCN+None"):
        assert build_sampling_transforms(load(PLAIN, [f"gt.layer_type={none}"]).config, 0) == []
    (walks,) = build_sampling_transforms(load(PLAIN, ["gt.layer_type=None+GRF", "topomask.num_walks=3"]).config, 5)
    assert (walks.num_walks, walks.seed) == (3, 5)


def test_a_check_leaves_the_random_state_alone(tiny):
    before = torch.get_rng_state()
    check_config(tiny)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "channels", "parameters"),
    [("gatedgcnconv", 138, 509_230), ("gineconv", 208, 475_706), ("gcnconv", 100, 68_910), ("gatconv", 100, 69_910)],
)
def test_custom_gnn_is_message_passing_alone(name, channels, parameters):
    """The first two have the sizes of LRGB's baselines on Peptides-func, whose published numbers are 509k and 476k.

    For the others, a layer has C² + C parameters, or C² + 3 C with one head of attention; the atom encoder has 174 C
    and the head 10 C + 10.
    """
    gnn = {"layer_type": name, "layers_mp": 5, "dim_inner": channels, "residual": True}
    data = {"format": "OGB", "name": "peptides-functional", "task_type": "classification_multilabel"}
    data |= {"node_encoder_name": "Atom", "edge_encoder": True, "edge_encoder_name": "Bond"}
    model = build_model(load({"model": {"type": "custom_gnn"}, "gnn": gnn, "dataset": data}).config, 9, 10, 3, "graph")
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    layer, x = model.layers[0].eval(), torch.randn(4, channels)
    edge_index, edge_attr = torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.randn(3, channels)
    if name in ("gcnconv", "gatconv"):
        torch.testing.assert_close(layer(x, edge_index), x + layer.conv.conv(x, edge_index).relu())
        assert model.edge_encoder is None  # nothing reads it
        return
    out = layer(x, edge_index, edge_attr=edge_attr)
    if name == "gineconv":
        nn = layer.conv.conv.nn
        received = torch.zeros_like(x).index_add(0, edge_index[1], (x[edge_index[0]] + edge_attr).relu())
        torch.testing.assert_close(out, x + nn(x + received).relu())
    else:
        torch.testing.assert_close(out[0], layer.conv(x, edge_index, edge_attr)[0])


def test_gated_gcn_in_custom_gnn_has_relu_and_the_head_the_activation_of_the_config():
    config = load(CONFIGS / "none" / "peptides-func-published.yaml").config
    model = build_model(config, 9, 10, 3, "graph")
    named = {str(module) for module in model.layers.modules() if "LU" in type(module).__name__}
    assert config.gnn.act == "gelu"
    assert named == {"ReLU()"}
    assert [type(module) for module in model.head.modules() if "LU" in type(module).__name__] == [torch.nn.GELU] * 2


@pytest.mark.parametrize(
    ("name", "task", "published"), [("peptides-functional", "graph", 493), ("PCQM4Mv2Contact-shuffle", "edge", 499)]
)
def test_san_has_as_many_parameters_as_published(name, task, published):
    """Sizes and number of parameters (in thousands) are those of LRGB's baseline SAN+LapPE."""
    data = {"format": "OGB", "name": name, "task": task, "node_encoder_name": "Atom+LapPE"}
    data |= {"task_type": "classification_multilabel", "edge_encoder": True, "edge_encoder_name": "Bond"}
    source = {
        "dataset": data,
        "posenc_LapPE": {"enable": True, "model": "Transformer", "dim_pe": 16, "layers": 2, "n_heads": 4},
        "model": {"type": "SANTransformer"},
        "gt": {"layers": 4, "n_heads": 4, "dim_hidden": 84},
        "gnn": {"head": "default" if task == "graph" else "inductive_edge"},
    }
    model = build_model(load(source).config, 9, 10 if task == "graph" else 1, 3, task)
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1000) == published


def test_keys_of_san_reach_its_attention():
    overrides = ["gt.layer_type=GCN+SAN", "gt.gamma=0.25", "gt.n_heads=2", "gt.attn_dropout=0.5"]
    attn = build_attention(load(PLAIN, overrides).config, "SAN")
    assert (attn.heads, attn.gamma, attn.full_graph, attn.dropout, attn.edge_dim) == (2, 0.25, True, 0.5, None)
    overrides += ["gt.full_graph=false", "dataset.edge_encoder=true", "prep.add_edge_index=false"]
    attn = build_attention(load(PLAIN, overrides).config, "SAN")
    assert (attn.full_graph, attn.edge_dim) == (False, 64)  # edges that Exphormer leaves out are kept
    with pytest.raises(ConfigError, match=r"gt\.gamma: the model cannot be built: 'gamma' must be a positive number"):
        check_config(PLAIN, ["gt.layer_type=None+SAN", "gt.gamma=0"])


@pytest.mark.parametrize("mask", ["toeplitz", "grf", "none"])
def test_the_keys_build_a_vision_transformer(mask):
    """Pre-norm, norms of single nodes and a class token under a mask."""
    keys = "model.graph_pooling=graph_token topomask.pre_norm=true gt.dim_hidden=8 gt.layer_norm=true"
    keys += f" gt.batch_norm=false topomask.layer_norm_mode=node topomask.mask={mask}"
    model = build_model(check_config(CONFIGS / "masked" / "digits-toeplitz.yaml", keys.split())[0].config, 1, 10)
    assert isinstance(model.norm_out, torch.nn.LayerNorm)
    assert all(layer.pre_norm and isinstance(layer.norm_attn, torch.nn.LayerNorm) for layer in model.layers)
    assert model.pool_token
    assert model.graph_token.pair is None  # there is no bias of pairs
