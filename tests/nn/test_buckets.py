"""What padding promises: few sizes, and the same results of real graphs, losses, gradients and statistics."""

import copy
from functools import partial

import pytest
import torch
from torch.nn import BatchNorm1d, Linear, Sequential
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GCNConv, GINConv

from pyg_topomask.loader import Buckets, collate, unpadded
from pyg_topomask.nn import (
    ATTENTION,
    HEADS,
    MASK,
    FullAttention,
    GatedGCN,
    GPSLayer,
    GPSModel,
    GPSNetwork,
    GPSStack,
    GRFAttention,
    HopMask,
    MaskedAttention,
    PrimphormerAttention,
    auxiliary_loss,
)
from pyg_topomask.nn.encoder.base import NormalizedEncoder
from pyg_topomask.nn.encoder.features import LinearEdgeEncoder, LinearNodeEncoder
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.testing import examples, prepared

slow = pytest.mark.slow
CLOSE = {"rtol": 1e-8, "atol": 1e-10}


def graphs_for(module, count=12, nodes=9):
    torch.manual_seed(0)
    data = FakeDataset(num_graphs=count, avg_num_nodes=nodes, avg_degree=3, num_channels=8, edge_dim=3, task="graph")
    plain = [Data(x=g.x, edge_index=g.edge_index, num_nodes=g.num_nodes, y=g.y) for g in data]
    if isinstance(module, GPSModel):  # for the transforms
        settings = (part.transform_settings for layer in module.layers for part in layer.attentions)
        module.transform_settings = {key: value for each in settings for key, value in each.items()}
    for graph, given in zip(made := prepared(module, plain), data):
        graph.x, graph.edge_attr = graph.x.double(), torch.randn(given.num_edges, 3, dtype=torch.float64)
    return made


def results(model, out):
    """Output, loss and the gradients of all parameters, and the running statistics."""
    loss = out.square().sum() + auxiliary_loss(model)
    grads = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True, materialize_grads=True)
    return out, loss, *grads, *(buffer.clone() for buffer in model.buffers())


def check(model, call, level="num_graphs", close=CLOSE, **sizes):
    """Compare a padded batch with the same graphs without padding, in training and in evaluation."""
    graphs = graphs_for(model, **sizes)
    plain, padded = collate(graphs), collate(graphs, plan=model, buckets=Buckets())
    real = unpadded(padded)
    assert padded.num_nodes > plain.num_nodes == real.num_nodes
    for trains in (True, False):
        twin = copy.deepcopy(model).train(trains)
        model.train(trains)
        wanted = results(twin, call(twin, plain, None))
        found = results(model, call(model, padded, padded.plan)[: getattr(real, level)])
        torch.testing.assert_close(found, wanted, **close)


def call_model(model, batch, plan):
    more = {"edge_attr": batch.edge_attr} if model.edge_encoder is not None else {}
    given = {"batch": batch.batch, "graph": batch} if plan is None else {"plan": plan}
    return model(batch.x, batch.edge_index, **given, **more)


def model_of(attn, conv=lambda _: GCNConv(8, 8), layers=2, **settings):
    torch.manual_seed(0)
    return GPSModel(8, 8, 3, layers, conv, attn and (lambda _: attn()), **{"pool": "mean", **settings}).double()


ATTENTIONS = dict(examples(ATTENTION))
MASKED = {
    f"{name}, {kernel}": partial(MaskedAttention, kernel=kernel, mask=mask)
    for name, mask in examples(MASK).items()
    for kernel in ("relu", "softmax")
}


def attention(name):
    make = MASKED.get(name) or ATTENTIONS[name]
    return lambda: make(8, heads=2, mask=make.keywords["mask"]()) if name in MASKED else make(8, heads=2)


@slow
@pytest.mark.parametrize("name", [n for n in (*ATTENTIONS, *MASKED) if "grid_shape" not in attention(n)().requires])
def test_every_attention(name):
    check(model_of(attention(name)), call_model, close={"rtol": 1e-3, "atol": 1e-4} if "heat" in name else CLOSE)


MODELS = {
    "GRF": {"attn": lambda: GRFAttention(8, 2)},
    "Full, max": {"attn": lambda: FullAttention(8, 2), "pool": "max", "norm": "layer_norm"},
    "hop, add": {"attn": lambda: MaskedAttention(8, 2, mask=HopMask(2)), "pool": "add", "norm": "graph_norm"},
    "Primphormer, nodes": {"attn": lambda: PrimphormerAttention(8, 2), "pool": None, "norm": "node_layer_norm"},
    "PyG's norms": {"attn": None, "norm": "PairNorm"},
    "a mean of all batches": {"attn": None, "norm_kwargs": {"momentum": None}},
    "pre_norm": {"attn": lambda: GRFAttention(8, 2), "pre_norm": True},
    "token": {"attn": lambda: MaskedAttention(8, 2, mask=HopMask(2)), "pool": "graph_token", "pre_norm": True},
    "edges": {"attn": None, "conv": lambda _: GatedGCN(8), "edge_dim": 3},
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    model = model_of(**MODELS[name])
    check(model, call_model, level="num_graphs" if model.pool else "num_nodes")


def test_one_node():
    """Batch norms keep their statistics, since one row has no variance."""
    check(model_of(None), call_model, count=1, nodes=1)


@pytest.mark.parametrize("head", ["graph", "mlp_graph", "san_graph", "node"])
def test_networks(head):
    torch.manual_seed(0)
    layers = GPSStack(8, 2, lambda _: GatedGCN(8), lambda _: PrimphormerAttention(8, 2))
    encoders = NormalizedEncoder(LinearNodeEncoder(8, 8)), NormalizedEncoder(LinearEdgeEncoder(8, 3))
    tokens = {"graph_token": GraphToken(8)} if head == "graph" else {}
    network = GPSNetwork(encoders[0], layers, HEADS[head](8, 3), edge_encoder=encoders[1], **tokens).double()
    level = "num_nodes" if head == "node" else "num_graphs"
    check(network, lambda model, batch, plan: model(batch, plan=plan), level)


def test_layers():
    layer = GPSLayer(8, GCNConv(8, 8), GRFAttention(8, 2)).double()
    layer.plan_of_layer = layer.plan
    layer.plan = lambda batch: layer.plan_of_layer(batch, batch.batch)
    check(
        layer,
        lambda model, batch, plan: model(
            batch.x, batch.edge_index, batch.batch, batch if plan is None else None, plan=plan
        ),
        "num_nodes",
    )


def test_a_real_batch_comes_back():
    model = model_of(lambda: GRFAttention(8, 2))
    graphs = graphs_for(model)
    loader = DataLoader(graphs, 4, collate_fn=partial(collate, plan=model, buckets=Buckets()), num_workers=2)
    for number, batch in enumerate(loader):
        wanted, real = collate(graphs[4 * number : 4 * number + 4]), unpadded(batch)
        assert real.keys() == wanted.keys()
        torch.testing.assert_close(real.to_dict(), wanted.to_dict())
        torch.testing.assert_close(
            [g.to_dict() for g in real.to_data_list()], [g.to_dict() for g in wanted.to_data_list()]
        )
    assert unpadded(wanted) is wanted


@pytest.mark.parametrize("step", [1.02, 1.1, 2])
def test_sizes(step):
    sizes = [Buckets(step).size(count) for count in range(2000)]
    for count, size in enumerate(sizes[1:], 1):
        assert count <= size <= max(count * step, count)
        assert size >= 2000 or sizes[size] == size
    assert sizes[0] == 0
    assert len(set(sizes)) < 13 / (step - 1) + 1


def batches_of(model, **sizes):
    graphs = graphs_for(model, **sizes)
    parts = [graphs[start : start + 24] for start in range(0, len(graphs), 24)]
    return [(collate(part), collate(part, plan=model, buckets=Buckets())) for part in parts]


def shapes_of(batch):
    return tuple(x.shape for x in tree_leaves((batch.x, batch.edge_index, batch.plan)))


@pytest.mark.parametrize("attn", [lambda: GRFAttention(8, 2), lambda: MaskedAttention(8, 2, mask=HopMask(2))])
def test_at_most_twelve_percent_are_added(attn):
    model = model_of(attn, layers=1)
    batches = batches_of(model, count=240, nodes=20)
    for plain, padded in batches:
        plain.real_graphs = padded.real_graphs
        plain.plan = model.plan(plain)
        before, after = ([max(x.shape) for x in tree_leaves(batch.plan)] for batch in (plain, padded))
        assert padded.num_edges <= 1.12 * plain.num_edges
        assert all(new <= 1.12 * old for old, new in zip(before, after, strict=True) if old > plain.num_graphs + 1)
    assert len({shapes_of(padded) for _, padded in batches}) < len({shapes_of(plain) for plain, _ in batches}) == 10


@slow
@pytest.mark.parametrize("attn", [lambda: GRFAttention(8, 2), lambda: PrimphormerAttention(8, 2)])
def test_each_bucket_is_compiled_once(attn):
    torch._dynamo.reset()
    model, compiled = model_of(attn), []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    called = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    batches = batches_of(model, count=240, nodes=20)
    buckets = {shapes_of(padded) for _, padded in batches}
    for plain, padded in batches:
        state = copy.deepcopy(model.state_dict())
        wanted = results(model, call_model(model, plain, None))
        model.load_state_dict(state)
        found = results(model, called(padded.x, padded.edge_index, plan=padded.plan)[: plain.num_graphs])
        torch.testing.assert_close(found, wanted, **CLOSE)
    assert len(compiled) == len(buckets) < 10


def test_refusals():
    model, conv = model_of(lambda: FullAttention(8, 2)), GINConv(Sequential(Linear(8, 8), BatchNorm1d(8), Linear(8, 8)))
    graphs = graphs_for(model, count=2)
    padded = collate(graphs, plan=model, buckets=Buckets())
    for call in (
        lambda: call_model(model, padded, None),
        lambda: model.layers[0](torch.ones(2, 8).double(), None, graph=padded),
    ):
        with pytest.raises(ValueError, match=r"run it with its plan, model\(…, plan=batch.plan\)"):
            call()
    with pytest.raises(ValueError, match="DiffGroupNorm has statistics of all rows"):
        call_model(model_of(None, norm="DiffGroupNorm", norm_kwargs={"groups": 2}), padded, padded.plan)
    with pytest.raises(ValueError, match="Buckets need 'plan', the model"):
        collate(graphs, buckets=Buckets())
    with pytest.raises(ValueError, match="Sequential has a batch norm, which would count dummy graphs"):
        collate(graphs, plan=model_of(None, lambda _: conv), buckets=Buckets())
    with pytest.raises(ValueError, match="'step' must be a number above 1 \\(got 1\\)"):
        Buckets(1)
    for graph in graphs:
        graph.grid_shape = torch.tensor([[3, 3]])
    with pytest.raises(ValueError, match=r"cannot pad grids, .*use torch.compile\(dynamic=True\)"):
        collate(graphs, plan=model, buckets=Buckets())
    for number, graph in enumerate(graphs):
        del graph.grid_shape
        graph.other = torch.zeros(5 + 7 * number)
    with pytest.raises(ValueError, match="cannot pad 'other', whose rows are not those of nodes, edges or graphs"):
        collate(graphs, plan=model, buckets=Buckets())
