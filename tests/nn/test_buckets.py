"""What padding promises: few sizes, and the same results of real graphs, losses, gradients and statistics."""

import copy
import math
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn import BatchNorm1d, Linear, Sequential
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch_geometric import seed_everything
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import FakeDataset
from torch_geometric.nn import GINConv

from pyg_topomask import nn
from pyg_topomask import plan as plans
from pyg_topomask.loader import Buckets, collate, unpadded
from pyg_topomask.nn.encoder.base import NormalizedEncoder
from pyg_topomask.nn.encoder.features import LinearEdgeEncoder, LinearNodeEncoder
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.nn.norm import apply_norm
from pyg_topomask.testing import prepared
from tests.nn.plan_cases import ATTENTIONS, MASKED, attention, model_of, results, slow, tolerance

GRF, HOPS = (lambda: nn.GRFAttention(8, 2)), (lambda: nn.MaskedAttention(8, 2, mask=nn.HopMask(2)))
PADDED = {"rtol": 1e-8, "atol": 1e-10}


def graphs_for(module, count=12, nodes=9):
    seed_everything(0)
    data = FakeDataset(num_graphs=count, avg_num_nodes=nodes, avg_degree=3, num_channels=8, task="graph")
    if isinstance(module, nn.GPSModel):  # for the transforms
        settings = (part.transform_settings for layer in module.layers for part in layer.attentions)
        module.transform_settings = {key: value for each in settings for key, value in each.items()}
    made = prepared(module, [Data(x=g.x, edge_index=g.edge_index, num_nodes=g.num_nodes, y=g.y) for g in data])
    for graph in made:
        graph.x, graph.edge_attr = graph.x.double(), torch.randn(graph.num_edges, 3, dtype=torch.float64)
    return made


def call_model(model, batch, plan):
    more = {"edge_attr": batch.edge_attr} if model.edge_encoder is not None else {}
    given = {"batch": batch.batch, "graph": batch} if plan is None else {"plan": plan}
    return model(batch.x, batch.edge_index, **given, **more)


def check(model, plain, padded, call=call_model, level="num_graphs", close=PADDED):
    """Compare a padded batch with the same graphs without padding, in training and in evaluation."""
    real = unpadded(padded)
    assert padded.num_nodes > plain.num_nodes == real.num_nodes
    for trains in (True, False):
        twin = copy.deepcopy(model.train(trains))
        wanted = results(twin, call(twin, plain, None), [*twin.parameters()])
        found = results(model, call(model, padded, padded.plan)[: getattr(real, level)], [*model.parameters()])
        torch.testing.assert_close([*found, *model.buffers()], [*wanted, *twin.buffers()], **close)


def batches_of(model, size=12, **sizes):
    """Batches as they are, and padded."""
    graphs = graphs_for(model, **sizes)
    parts = [graphs[start : start + size] for start in range(0, len(graphs), size)]
    return [(collate(part), collate(part, plan=model, buckets=Buckets())) for part in parts]


@slow
@pytest.mark.parametrize("name", [n for n in (*ATTENTIONS, *MASKED) if "grid_shape" not in attention(n).requires])
def test_every_attention(name):
    model = model_of(*[partial(attention, name)] * 2).double()
    check(model, *batches_of(model)[0], close=tolerance(name) if "heat" in name else PADDED)


MODELS = {
    "GRF": {"attn": GRF},
    "Full, max": {"attn": lambda: nn.FullAttention(8, 2), "pool": "max", "norm": "layer_norm"},
    "hops, add": {"attn": HOPS, "pool": "add", "norm": "graph_norm"},
    "Primphormer, nodes": {"attn": lambda: nn.PrimphormerAttention(8, 2), "pool": None, "norm": "node_layer_norm"},
    "PyG's norms": {"norm": "PairNorm"},
    "a mean of all batches": {"norm_kwargs": {"momentum": None}},
    "pre_norm": {"attn": GRF, "pre_norm": True},
    "token": {"attn": HOPS, "pool": "graph_token", "pre_norm": True},
    "edges": {"conv": lambda *_: nn.GatedGCN(8), "edge_dim": 3},
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    settings = dict(MODELS[name])
    model = model_of(*[settings.pop("attn", GRF)] * 2, **settings).double()
    check(model, *batches_of(model)[0], level="num_graphs" if model.pool else "num_nodes")


def test_biases_of_pairs():
    model = model_of(lambda: nn.FullAttention(8, 2, attn_bias="attn_bias")).double()
    graphs = graphs_for(nn.FullAttention(8, 2))  # which needs nothing of a graph
    for graph in graphs:
        graph.attn_bias = torch.randn(graph.num_nodes**2, 1, dtype=torch.float64)
    check(model, collate(graphs), collate(graphs, plan=model, buckets=Buckets()))


def test_one_node():
    """Batch norms keep their statistics, since one row has no variance."""
    model = model_of(GRF).double()
    check(model, *batches_of(model, count=1, nodes=1)[0])


@pytest.mark.parametrize("head", ["graph", "mlp_graph", "san_graph", "node"])
def test_networks(head):
    layers = nn.GPSStack(8, 2, lambda _: nn.GatedGCN(8), lambda _: nn.PrimphormerAttention(8, 2))
    tokens = {"graph_token": GraphToken(8)} if head == "graph" else {}
    encoders = NormalizedEncoder(LinearNodeEncoder(8, 8)), NormalizedEncoder(LinearEdgeEncoder(8, 3))
    network = nn.GPSNetwork(encoders[0], layers, nn.HEADS[head](8, 3), edge_encoder=encoders[1], **tokens).double()
    level = "num_nodes" if head == "node" else "num_graphs"
    check(network, *batches_of(network)[0], lambda model, batch, plan: model(batch, plan=plan), level)


def test_norms_of_encodings():
    """Those of Laplacian eigenvectors have several columns for each channel."""
    model, norm = model_of(GRF), BatchNorm1d(3)
    ((plain, padded),), twin = batches_of(model), copy.deepcopy(norm)
    x = torch.randn(padded.num_nodes, 3, 4)
    with plans.read(padded.plan):
        found = apply_norm(norm, x)[: plain.num_nodes]
        with pytest.raises(ValueError, match="a norm of 7 rows, neither nodes nor edges"):
            apply_norm(norm, x[:7])
    torch.testing.assert_close([found, *norm.buffers()], [twin(x[: plain.num_nodes]), *twin.buffers()])


def test_layers():
    model = model_of(GRF).double()
    ((plain, padded),) = batches_of(model)
    layer, padded.plan = model.layers[0], model.layers[0].plan(padded, padded.batch)

    def call(layer, batch, plan):
        return layer(batch.x, batch.edge_index, batch.batch, None if plan else batch, plan=plan)

    check(layer, plain, padded, call, "num_nodes")


def test_a_real_batch_comes_back():
    model = model_of(GRF)
    graphs = graphs_for(model)
    loader = DataLoader(graphs, 4, collate_fn=partial(collate, plan=model, buckets=Buckets()), num_workers=2)
    for number, batch in enumerate(loader):
        wanted, real = collate(graphs[4 * number : 4 * number + 4]), unpadded(batch)
        for one, other in zip((real, *real.to_data_list()), (wanted, *wanted.to_data_list()), strict=True):
            torch.testing.assert_close(one.to_dict(), other.to_dict())
    assert unpadded(wanted) is wanted


@pytest.mark.parametrize("edges", [0, 1])
@pytest.mark.parametrize("attn", [GRF, HOPS])
@pytest.mark.parametrize("count", [1, 16])
def test_graphs_of_one_node(attn, edges, count):
    """Rows of their nodes, edges, tables and graphs have one entry each."""
    model = model_of(attn).double()
    loop = torch.zeros(2, edges, dtype=torch.int64)
    graphs = prepared(model, [Data(x=torch.randn(1, 8).double(), edge_index=loop, num_nodes=1) for _ in range(count)])
    check(model, collate(graphs), collate(graphs, plan=model, buckets=Buckets()))


@pytest.mark.parametrize("sizes", [(0, 4), (1, 4), (0,)])
def test_graphs_without_edges(sizes):
    model = model_of(lambda: nn.FullAttention(8, 2)).double()
    edges = torch.empty(2, 0, dtype=torch.int64)
    made = [Data(x=torch.randn(n, 8).double(), h=torch.ones(n, 1), edge_index=edges, num_nodes=n) for n in sizes]
    padded = collate(made, plan=model, buckets=Buckets())
    assert padded.h.size(0) == padded.num_nodes
    check(model, collate(made), padded)


def test_no_loss_counts_dummy_graphs_silently():
    model = model_of(GRF)
    for target in (1, torch.tensor([1]), 2.5, torch.ones(1, 3)):
        graphs = graphs_for(model, count=3)
        for graph in graphs:
            graph.y = target
            graph.train_mask = torch.ones(graph.num_nodes, dtype=torch.bool)
        padded = collate(graphs, plan=model, buckets=Buckets())
        torch.testing.assert_close(padded.y[:3], collate(graphs).y)
        missing = math.nan if padded.y.is_floating_point() else -100
        torch.testing.assert_close(padded.y[3:], torch.full_like(padded.y[3:], missing), equal_nan=True)
        assert int(padded.train_mask.sum()) == unpadded(padded).num_nodes


def test_nested_attributes_come_back():
    model = model_of(GRF)
    graphs = graphs_for(model, count=3)
    for graph in graphs:
        graph.parts = [torch.ones(graph.num_nodes), torch.ones(graph.num_nodes, 2)]
        graph.named = {"one": torch.ones(graph.num_nodes), "number": 1}
    real = unpadded(collate(graphs, plan=model, buckets=Buckets()))
    for one, other in zip((real, *real.to_data_list()), (collate(graphs), *graphs), strict=True):
        torch.testing.assert_close((one.parts, one.named["one"]), (other.parts, other.named["one"]))


@pytest.mark.parametrize("step", [1.02, 1.1, 2])
def test_sizes(step):
    sizes = [Buckets(step).size(count) for count in range(2000)]
    for count, size in enumerate(sizes[1:], 1):
        assert count <= size <= max(count * step, count)
        assert size >= 2000 or sizes[size] == size
    assert sizes[0] == 0
    assert len({*sizes}) < 13 / (step - 1) + 1


@pytest.mark.parametrize(("largest", "number"), [(40, 2), (5, 4)])
def test_dummies_are_few_and_no_larger_than_real_graphs(largest, number):
    """Blocks of full attention have the size of the largest graph, also those of dummies."""
    graphs = [Data(edge_index=torch.zeros(2, 1).long(), num_nodes=size) for size in [largest, *[5] * 31]]
    sizes = [dummy.num_nodes for dummy in Buckets().dummies(graphs)]
    assert len(sizes) == number
    assert max(sizes) <= largest
    assert sum(sizes) == Buckets().size(155 + largest + number) - 155 - largest


def shapes_of(batch):
    return tuple(x.shape for x in tree_leaves((batch.x, batch.edge_index, batch.plan)))


@pytest.mark.parametrize("attn", [GRF, HOPS])
def test_at_most_twelve_percent_are_added(attn):
    model = model_of(attn)
    batches = batches_of(model, size=24, count=240, nodes=20)
    for plain, padded in batches:
        plain.real_graphs = padded.real_graphs
        plain.plan = model.plan(plain)
        before, after = ([max(shape) for shape in shapes_of(batch)] for batch in (plain, padded))
        assert all(new <= 1.12 * old for old, new in zip(before, after, strict=True) if old > plain.num_graphs + 1)
    assert len({shapes_of(padded) for _, padded in batches}) < len({shapes_of(plain) for plain, _ in batches}) == 10


@slow
@pytest.mark.parametrize("attn", [GRF, lambda: nn.PrimphormerAttention(8, 2)])
def test_each_bucket_is_compiled_once(attn):
    torch._dynamo.reset()
    model, counter = model_of(attn).double(), CompileCounter()
    called = torch.compile(model.eval(), backend=counter, fullgraph=True, dynamic=False)
    batches = batches_of(model, size=24, count=240, nodes=20)
    for plain, padded in batches:
        found = called(padded.x, padded.edge_index, plan=padded.plan)[: plain.num_graphs]
        torch.testing.assert_close(found, call_model(model, plain, None), **PADDED)
    assert counter.frame_count == len({shapes_of(padded) for _, padded in batches}) < 10


def test_refusals():
    model, conv = model_of(GRF).double(), GINConv(Sequential(Linear(8, 8), BatchNorm1d(8), Linear(8, 8)))
    graphs = graphs_for(model, count=2)
    padded, conv_layer = (
        collate(graphs, plan=model, buckets=Buckets()),
        nn.GPSConv(8, None, attn_type="transformer").double(),
    )
    layers = (partial(one, padded.x, padded.edge_index, graph=padded) for one in (model.layers[0], conv_layer))
    for call in (partial(call_model, model, padded, None), *layers):
        with pytest.raises(ValueError, match=r"run it with its plan, model\(…, plan=batch.plan\)"):
            call()
    with pytest.raises(ValueError, match="DiffGroupNorm has statistics of all rows"):
        call_model(model_of(GRF, norm="DiffGroupNorm", norm_kwargs={"groups": 2}).double(), padded, padded.plan)
    with pytest.raises(ValueError, match="Buckets need 'plan', the model"):
        collate(graphs, buckets=Buckets())
    with pytest.raises(ValueError, match="Sequential has a batch norm, which would count dummy graphs"):
        collate(graphs, plan=model_of(GRF, conv=lambda *_: conv), buckets=Buckets())
    with pytest.raises(TypeError, match="must be homogeneous"):
        collate([HeteroData()], plan=model, buckets=Buckets())
    with pytest.raises(ValueError, match=r"'step' must be a number above 1 \(got 1\)"):
        Buckets(1)
    for rows in ([5, 12], [2, 2]):
        for graph, size in zip(graphs, rows):
            graph["grid_shape"] = torch.zeros(size)
        with pytest.raises(ValueError, match=r"cannot pad 'grid_shape' .*: leave it out, or compile with dynamic=True"):
            collate(graphs, plan=model, buckets=Buckets())
