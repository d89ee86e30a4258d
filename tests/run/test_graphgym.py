import importlib
import inspect

import pytest
import torch

pytest.importorskip("yacs", reason="GraphGym needs yacs")

from torch_geometric.data import Batch
from torch_geometric.datasets import FakeDataset
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import assert_cfg, cfg, set_cfg
from torch_geometric.graphgym.loss import compute_loss
from torch_geometric.graphgym.model_builder import create_model
from torch_geometric.graphgym.models.layer import GeneralLayer, new_layer_config
from yacs.config import CfgNode

import pyg_topomask.run.graphgym as graphgym
from pyg_topomask.nn import ATTENTION, MASK, auxiliary_loss
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.config.topomask import TopomaskConfig
from pyg_topomask.run.graphgps.model import build_model

SETTINGS = "dataset.task graph model.graph_pooling mean gnn.dim_inner 16 gt.dim_hidden 16 gt.n_heads 2 gnn.att_heads 2"
SETTINGS += " dataset.node_encoder False gnn.layers_pre_mp 1 gnn.head graph gnn.layers_post_mp 1"
SETTINGS += " dataset.edge_encoder_bn False dataset.edge_dim 5 share.dim_in 8 share.dim_out 3 accelerator cpu"


class LinearEdge(torch.nn.Linear):
    """An encoder of edges as a fork has it."""

    def __init__(self, emb_dim):
        super().__init__(5, emb_dim)

    def forward(self, batch):
        batch.edge_attr = super().forward(batch.edge_attr)
        return batch


register.edge_encoder_dict["Forks"] = LinearEdge


@pytest.fixture(autouse=True)
def fresh():
    """GraphGym's config is global: each test starts from its defaults."""
    cfg.clear()
    set_cfg(cfg)
    choose(SETTINGS)
    yield
    cfg.clear()
    set_cfg(cfg)


def choose(settings):
    cfg.merge_from_list(settings.split())
    assert_cfg(cfg)


def graphs(count=4, edge_dim=0):
    return FakeDataset(count, avg_num_nodes=12, avg_degree=4, num_channels=8, edge_dim=edge_dim, num_classes=3)


def batch_of(data):
    return Batch.from_data_list([graphgym.build_transform()(graph) for graph in data])


def losses(model, data, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = batch_of(data)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.training_step(batch.clone())["loss"]
        loss.backward()
        optimizer.step()
        yield loss.item()


@pytest.mark.parametrize("name", ATTENTION)
def test_each_attention_is_a_layer(name):
    choose(f"gnn.layer_type Topomask{name} gnn.l2norm False gnn.batchnorm False gt.bigbird.block_size 2")
    data = graphs()
    layer = GeneralLayer(cfg.gnn.layer_type, new_layer_config(8, 16, 1, has_act=False, has_bias=True, cfg=cfg)).eval()
    batch = batch_of(data)
    out = layer(batch.clone()).x
    wrapped = layer.layer
    assert type(wrapped.attention) is ATTENTION[name]
    assert wrapped.attention.heads == 2
    torch.testing.assert_close(out, wrapped.attention(wrapped.project(batch.x), batch.batch, batch))
    alone = layer(Batch.from_data_list([graphgym.build_transform()(data[0])])).x
    torch.testing.assert_close(out[: data[0].num_nodes], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        *(f"model.type gnn gnn.layer_type Topomask{name} gnn.stage_type skipsum" for name in ("GRF", "Primphormer")),
        "model.type TopomaskGPS gt.layer_type GCN+GRF gnn.layers_pre_mp 2",
    ],
)
def test_graphgyms_own_network_and_linear_layers_ahead_of_ours_learn(settings):
    choose(settings)
    values = list(losses(create_model(), graphs(8), 40))
    assert values[-1] < 0.5 * values[0]


@pytest.mark.parametrize("layer_type", ["GCN+GRF", "CustomGatedGCN+Exphormer", "GINE+KMIP+Primphormer"])
def test_the_network_is_the_runners(layer_type):
    settings = "gt.layers 2 topomask.num_virtual 5" if "Primphormer" in layer_type else "gt.layers 2 gt.sparse.k 3"
    settings += " gt.dropout 0.1 gt.attn_dropout 0.25 gnn.act elu"
    edges = "dataset.edge_encoder True dataset.edge_encoder_name Forks"
    choose(f"model.type TopomaskGPS gt.layer_type {layer_type} {settings} {edges} prep.num_virt_node 2")
    model = create_model().eval().model
    overrides = [f"{key}={value}" for key, value in zip(settings.split()[::2], settings.split()[1::2])]
    overrides += [f"gt.layer_type={layer_type}", "gt.n_heads=2", "gt.dim_hidden=16", "prep.num_virt_node=2"]
    plain = {"dataset": {"format": "PyG-MotifDataset", "name": "circle", "edge_encoder": True}}
    reference = build_model(load(plain, overrides).config, 8, 3, 5).layers.eval()
    assert str(reference) == str(model.mp)
    reference.load_state_dict(model.mp.state_dict())
    batch = batch_of(graphs(edge_dim=5))
    seen = model.pre_mp(model.encoder(batch.clone()))
    edges = {"edge_attr": seen.edge_attr} if reference.takes("edge_attr") else {}
    expected = reference(seen.x, seen.edge_index, seen.batch, seen, 4, **edges)
    given = batch.clone()
    prediction, label = model(given)
    torch.testing.assert_close(given.x, expected)
    assert prediction.shape == (4, 3)
    assert label is given.y


def test_the_auxiliary_loss_takes_part_in_the_backward_pass():
    choose("model.type TopomaskGPS gt.layer_type None+Primphormer topomask.eta 0.5 topomask.num_virtual 5")
    module = create_model().double()
    batch = batch_of(graphs()).apply(lambda value: value.double() if value.is_floating_point() else value)
    weights = [weight for name, weight in module.named_parameters() if "mp." in name]

    def gradients(loss):
        return torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)

    got = gradients(module.training_step(batch.clone())["loss"])
    module.model.eta = 0.0
    task = compute_loss(*module(batch.clone()))[0]
    plain, term = gradients(task), gradients(0.5 * auxiliary_loss(module))
    torch.testing.assert_close(got, tuple(map(torch.add, plain, term)))
    assert any(part.any() for part in term)


def test_importing_again_is_harmless():
    tables = (register.layer_dict, register.network_dict, register.config_dict)
    before = [set(table) for table in tables]
    choose("gt.n_heads 4 topomask.num_walks 3")
    importlib.reload(graphgym)
    assert [set(table) for table in tables] == before
    assert (cfg.gt.n_heads, cfg.topomask.num_walks) == (4, 3)


def test_a_forks_own_keys_stay():
    node = CfgNode({"gt": {"layers": 9, "theirs": 1, "residual": False}})
    graphgym.add_config(node)
    assert (node.gt.layers, node.gt.theirs, node.gt.sparse.k) == (9, 1, 10)
    assert not {"activation", "pna_degrees"} & {*node.gt}
    cfg.gt.residual = False
    assert graphgym.translate(cfg).gt.layers == cfg.gt.layers


def test_keys_left_alone_give_an_attentions_own_defaults():
    # Defaults of cfg are passed to the attention, so that they must equal the attention's defaults.
    for name, cls in (ATTENTION | MASK).items():
        for argument, key in cls.config_keys.items():
            if key.startswith("topomask.") and argument not in ("kernel", "mask", "table"):  # which are translated
                default = TopomaskConfig.model_fields[key.removeprefix("topomask.")].default
                assert inspect.signature(cls).parameters[argument].default == default, (name, argument)
    choose("gt.layer_type None+GKAT model.type TopomaskGPS")
    assert create_model().model.mp[0].attn.kernel == inspect.signature(ATTENTION["GKAT"]).parameters["kernel"].default
    choose("topomask.kernel relu")
    graphgym.add_config(cfg)
    assert create_model().model.mp[0].attn.kernel == "relu"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("gt.layer_type GCN+GFR", "no attention is called 'GFR'.*GRF"),
        ("gt.layer_type GCN+KMIP topomask.rank 7", "topomask.rank"),
        ("topomask.pre_norm True", r"topomask\.pre_norm: is not provided in GraphGym"),
        ("gt.dim_hidden 32", "gnn.dim_inner: must equal gt.dim_hidden"),
        ("gnn.layers_pre_mp 0", "features have 8 columns"),
    ],
)
def test_what_does_not_fit_is_refused(settings, message):
    choose(f"model.type TopomaskGPS gt.layer_type GCN+GRF {settings}")
    with pytest.raises(ValueError, match=message):
        create_model()


def test_masks_and_their_settings():
    choose("gt.layer_type None+Masked model.type TopomaskGPS topomask.mask grf topomask.mask_grf.max_length 2")
    assert create_model().model.mp[0].attn.mask.max_length == 2
    (walks,) = graphgym.build_transform().transforms
    assert walks.max_length == 2
    choose("topomask.max_length 3")
    with pytest.raises(ValueError, match=r"mask_grf\.max_length: topomask\.max_length gives the same setting"):
        create_model()
