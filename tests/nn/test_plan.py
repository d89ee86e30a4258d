"""What a plan promises: one compiled graph for batches of all sizes, and the results of a call without it."""

import copy
import threading
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.autograd.functional import jacobian, vhp
from torch.nn import Linear, Module
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv, SAGEConv
from torch_geometric.utils import to_undirected
from torch_geometric.utils.influence import jacobian_l1

from pyg_topomask import loader, nn, operators, testing
from pyg_topomask.nn.graph_attributes import with_attributes
from tests.nn.plan_cases import (
    ATTENTIONS,
    MASKED,
    NETWORKS,
    attention,
    batches_for,
    checked,
    model_of,
    network_of,
    results,
    slow,
    tolerance,
)


@slow
@pytest.mark.parametrize("name", [*ATTENTIONS, *MASKED])
def test_one_graph_serves_all_batches(name):
    torch._dynamo.reset()
    attn, counter = attention(name).double(), CompileCounter()
    called = torch.compile(attn, backend=counter, fullgraph=True, dynamic=True)
    for batch in batches_for(attn):
        x, plan = batch.x.requires_grad_(), attn.plan(batch)
        inputs = [x, *attn.parameters()]
        wanted = results(attn, attn(x, batch.batch, batch), inputs)
        torch.testing.assert_close(results(attn, called(x, plan=plan), inputs), wanted, **tolerance(name))
    assert counter.frame_count <= 2


class Planned(Module):
    """An attention with its plan, which PyG calls as ``model(x, edge_index)``."""

    def __init__(self, attn, plan):
        super().__init__()
        self.attn, self.planned = attn, plan

    def forward(self, x, edge_index=None):
        return self.attn(x, plan=self.planned)


@slow
@pytest.mark.parametrize("name", ATTENTIONS)
def test_jacobians(name):
    """By `torch.func`, mapped by autograd, and for PyG's ``total_influence``; and a second derivative."""
    attn = attention(name).double()
    batch, close = next(batches_for(attn)), tolerance(name)
    x, run = batch.x, Planned(attn, attn.plan(batch))

    def eager(x):
        return attn(x, batch.batch, batch)

    wanted = jacobian(eager, x)
    for found in (torch.func.jacrev(run)(x), jacobian(run, x, vectorize=True)):
        torch.testing.assert_close(found, wanted, **close)
    everywhere = torch.ones(len(x), len(x)).triu(1).nonzero().t()
    graph = Data(x=x, edge_index=to_undirected(everywhere))
    influence = jacobian_l1(run, graph, 1, 2, "cpu")  # which `total_influence` sums in float32
    torch.testing.assert_close(influence, wanted[2].abs().sum((0, 2)), **close)
    direction = torch.randn_like(x)
    second = [vhp(lambda x, f=f: f(x).square().sum(), x, direction)[1] for f in (run, eager)]
    torch.testing.assert_close(*second, **close)


OTHERS = {
    "layer norm": {"norm": "layer_norm", "pool": "max"},
    "graph norm": {"norm": "graph_norm", "pool": None},
    "pre_norm": {"pre_norm": True, "pool": "add"},
    "GatedGCN": {"edge_dim": 3, "conv": lambda *_: nn.GatedGCN(8)},
    "GINE": {"edge_dim": 3, "conv": lambda *_: GINEConv(Linear(8, 8), edge_dim=8)},
    "edge_weight": {"weighted": True, "attn": lambda: nn.MaskedAttention(8, 2, mask=nn.PowerSeriesMask(2))},
    "graph token": {"pool": "graph_token", "attn": lambda: nn.MaskedAttention(8, 2, mask=nn.HopMask(2))},
    "sum": {"attn": lambda: nn.MaskedAttention(8, 2, mask=[None, nn.GRFMask(2), nn.HopMask()])},
    "stack": {"attn": lambda: nn.MaskedAttention(8, 2, "exp", mask=[nn.GRFMask(), nn.HopMask()], mask_heads=(1, 1))},
    "carry": {"attn": lambda: nn.PrimphormerAttention(8, 2)},
}


@slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_models(name):
    settings = dict(OTHERS[name])
    attn, weighted = settings.pop("attn", lambda: nn.GRFAttention(8, 2)), settings.pop("weighted", False)
    model = model_of(attn, attn, **settings).double()
    torch._dynamo.reset()
    called = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for batch in batches_for(model, settings.get("edge_dim"), weighted):
        plan, more = model.plan(batch), {"edge_weight": batch.edge_weight} if weighted else {}
        more |= {"edge_attr": batch.edge_attr} if model.edge_encoder is not None else {}
        inputs = list(model.parameters())
        wanted = results(model, model(batch.x, batch.edge_index, batch.batch, batch, **more), inputs)
        for one in (model, called):
            found = results(model, one(batch.x, batch.edge_index, plan=plan, **more), inputs)
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)
    checked(model.eval(), {"rtol": 1e-8, "atol": 1e-10}, edge_dim=settings.get("edge_dim"), weighted=weighted)


def test_equal_layers_share_their_plan():
    model = model_of(*[lambda: nn.GRFAttention(8, 2)] * 3, lambda: nn.FullAttention(8, 2))
    batch = next(batches_for(model))
    plan = model.plan(batch)
    first, second, third, full = (plan.parts[str(number)].parts["0"] for number in range(4))
    assert first is second is third is not full
    assert plan.nbytes < 2 * (first.nbytes + full.nbytes)


def test_layers_that_differ_in_a_constant_have_plans_of_their_own():
    """The kernel of walks is a part of the plan, and its constants are buffers, also after weights are loaded."""
    layers = [nn.GKATAttention(8, 2, kernel="softmax", decay=decay) for decay in (1.0, 0.1)]
    model = model_of(*(lambda layer=layer: layer for layer in layers)).double().eval()
    batch = next(batches_for(model))
    plain = model_of(*[lambda: nn.GKATAttention(8, 2, kernel="softmax")] * 2).double().eval()
    plain.load_state_dict(model.state_dict())
    expected = model(batch.x, batch.edge_index, graph=batch)
    for one in (model, plain):
        torch.testing.assert_close(one(batch.x, batch.edge_index, plan=one.plan(batch)), expected)


def test_a_plan_is_frozen_and_says_its_bytes():
    attn = nn.GRFAttention(8, 2)
    plan = attn.plan(next(batches_for(attn)))
    with pytest.raises(AttributeError, match="a plan is frozen"):
        plan.given = {}
    with pytest.raises(AttributeError, match="has no 'size'"):
        plan.size  # noqa: B018
    assert repr(plan) == f"Plan({plan.nbytes:,} bytes)"
    assert isinstance(plan.to("cpu"), nn.Plan)


def test_a_plan_of_nodes_alone():
    attn, x = nn.KMIPAttention(8, 2, k=2), torch.randn(5, 8)
    torch.testing.assert_close(attn(x, plan=attn.plan(num_nodes=5)), attn(x))
    batch = torch.tensor([0, 0, 1, 1, 1])
    torch.testing.assert_close(attn(x, plan=attn.plan(batch=batch)), attn(x, batch))


@pytest.mark.parametrize(
    "cls", [nn.FullAttention, nn.KMIPAttention, nn.GRFAttention, nn.ExphormerAttention, nn.SANAttention]
)
@pytest.mark.parametrize("trains", [False, True])
def test_one_plan_serves_training_and_evaluation(cls, trains):
    attn = cls(8, heads=2, dropout=0.5).double().train(trains)
    batch = next(batches_for(attn))
    plan = tree_unflatten(*tree_flatten(attn.plan(batch)))
    attn(batch.x, plan=plan)
    attn.train(not trains)
    torch.manual_seed(0)
    found = attn(batch.x, plan=plan)
    if trains:
        torch.testing.assert_close(found, attn(batch.x, batch.batch, batch))
    assert found.isfinite().all()


def test_threads_have_plans_of_their_own():
    """One thread makes plans while another runs without any."""
    attn, other = nn.GRFAttention(8, 2).double(), nn.MaskedAttention(8, 2, mask=nn.HopMask(2)).double()
    batch, second = next(batches_for(attn)), next(batches_for(other))
    wanted, found = other(second.x, second.batch, second), []

    def run():
        found.extend(other(second.x, second.batch, second.clone()) for _ in range(50))

    thread = threading.Thread(target=run)
    thread.start()
    sizes = {attn.plan(batch.clone()).nbytes for _ in range(50)}
    thread.join()
    assert len(sizes) == 1
    assert len(found) == 50
    for out in found:
        torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    network = network_of(name)
    torch._dynamo.reset()
    called = torch.compile(network, backend="eager", fullgraph=True, dynamic=True)
    for batch in batches_for(network, edge_dim=3):
        with torch.inference_mode():
            plan = network.plan(batch)
        inputs = list(network.parameters())
        wanted = results(network, network(batch), inputs)
        for one in (network, called):
            found = results(network, one(batch, plan=plan), inputs)
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("workers", [0, 2])
def test_plans_of_loaders(workers):
    """Workers plan for a model whose parameters they could not read, and plans move with their batches."""
    model = model_of(lambda: nn.GRFAttention(8, 2), lambda: nn.FullAttention(8, 2)).double()
    graphs = [graph for batch in batches_for(model) for graph in batch.to_data_list()]
    away = partial(loader.collate, plan=copy.deepcopy(model).to("meta"))
    for number, batch in enumerate(DataLoader(graphs, batch_size=4, collate_fn=away, num_workers=workers)):
        wanted = model(batch.x, batch.edge_index, batch.batch, batch)
        torch.testing.assert_close(model(batch.x, batch.edge_index, plan=batch.plan), wanted)
        for part, graph in zip(batch.to_data_list(), graphs[4 * number :]):
            torch.testing.assert_close(part.to_dict(), graph.to_dict())
        assert {leaf.device.type for leaf in tree_leaves(batch.cpu().plan)} == {"cpu"}
        moved = tree_leaves(batch.to("meta").plan)
        assert {leaf.device.type for leaf in moved if leaf.numel()} == {"meta"}  # others are sizes


class WeightedEdges(nn.Mask):
    """A mask with the weights of the graph, of any sign."""

    def forward(self, graph):
        return operators.SparseOperator(graph.edge_index, graph.edge_weight, graph.num_nodes)


def test_a_mask_reads_a_planned_graph_as_any_other():
    class Positions(WeightedEdges):
        def forward(self, graph):
            return operators.LowRankOperator(graph.pos, graph.pos, graph.batch)

    graph, mask = testing.GRAPHS["weighted"].clone(), Positions()
    graph.pos = torch.rand(5, 2)
    with pytest.raises(AttributeError, match="a plan keeps no 'pos' of its graph: name it in 'requires'"):
        mask(plan=mask.plan(graph))
    mask.requires = ("pos",)
    torch.testing.assert_close(mask(plan=mask.plan(graph)).to_dense(), mask(graph).to_dense())


def test_an_earlier_plan_decides_nothing_that_is_not_true_of_the_batch():
    attn, search = nn.MaskedAttention(8, 2, mask=WeightedEdges()).double(), nn.KMIPAttention(8, 2, k=3).double()
    graph, signed, x = testing.GRAPHS["weighted"], testing.GRAPHS["weighted"].clone(), torch.randn(100, 8).double()
    signed.edge_weight = signed.edge_weight * torch.tensor([1.0, -1.0]).repeat(5)
    plan = attn.plan(signed, like=attn.plan(graph))
    torch.testing.assert_close(attn(x[:5], plan=plan), attn(x[:5], graph=signed))
    plan = search.plan(num_nodes=100, like=search.plan(num_nodes=5))
    torch.testing.assert_close(search(x, plan=plan), search(x))


@pytest.mark.parametrize("name", ["Masked kernel=relu num_features=12", "SAN", "Primphormer num_virtual=5 rank=3"])
def test_plans_of_batches_that_were_made_in_inference_mode_serve_training(name):
    attn = attention(name).double()
    model = nn.GPSModel(8, 8, 3, 1, None, lambda _: attn).double()
    with torch.inference_mode():
        batch = next(batches_for(attn))
        plans = attn.plan(batch), model.plan(batch).parts["0"].parts["0"]
    x = batch.x.clone().requires_grad_()
    graph = with_attributes(
        batch, **{key: value.clone() for key, value in batch.to_dict().items() if torch.is_tensor(value)}
    )
    wanted = results(attn, attn(x, graph=graph), [x])
    for plan in plans:
        torch.testing.assert_close(results(attn, attn(x, plan=plan), [x]), wanted, **tolerance(name))


@pytest.mark.parametrize("cls", [nn.ExphormerAttention, nn.PrimphormerAttention])
def test_carries_of_a_plan_have_a_row_for_an_empty_graph_at_the_end(cls):
    model = model_of(lambda: cls(8), lambda: cls(8)).eval()
    graphs = testing.prepared(model, [testing.GRAPHS["path"], testing.empty_graph()])
    batch, x = Batch.from_data_list(graphs), torch.randn(4, 8)
    found = model(x, batch.edge_index, plan=model.plan(batch))
    torch.testing.assert_close(found, model(x, batch.edge_index, graph=batch))
    attn = model.layers[0].attn
    torch.testing.assert_close(attn(x, plan=attn.plan(batch)), attn(x, graph=batch))


def test_frozen_parameters_change_no_plan():
    """Results of a plan follow parameters that are changed later, also if they needed no gradient before."""
    attn = nn.MaskedAttention(8, 2, mask=nn.HopMask(2, positive=False)).double().requires_grad_(False)
    batch = next(batches_for(attn))
    plan = attn.plan(batch)
    attn.mask.values.neg_()
    torch.testing.assert_close(attn(batch.x, plan=plan), attn(batch.x, batch.batch, batch))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda attn, graph: attn.plan(), "needs 'graph', 'batch' or 'num_nodes'"),
        (lambda attn, graph: attn.plan(testing.GRAPHS["path"]), "AddRandomWalks"),
        (lambda attn, graph: torch.export.export(attn, (graph.x, graph.batch)), "with a plan"),
        (lambda attn, graph: attn(graph.x[1:], plan=attn.plan(graph)), "which is that of the plan, must have shape"),
        (lambda attn, graph: attn(graph.x, plan=nn.FullAttention(8).plan(graph)), "keeps no 'walk_index': it is of an"),
        (
            lambda attn, graph: nn.GPSLayer(8, attn=attn)(graph.x, graph.edge_index, plan=attn.plan(graph)),
            "has no part 0: it is of another module",
        ),
    ],
)
def test_refusals(build, message):
    attn = nn.GRFAttention(8, 2).double()
    with pytest.raises((ValueError, RuntimeError), match=message):
        build(attn, next(batches_for(attn)))


@pytest.mark.parametrize("name", ["GKAT kernel=softmax", "rwgnk, relu", "power_series, softmax"])
def test_a_plan_with_numbers_of_another_dtype_is_refused(name):
    attn = attention(name)
    batch = next(batches_for(attn))
    plan = attn.plan(batch)
    with pytest.raises(TypeError, match=r"plan was made for torch\.float32, but the module now has torch\.float64"):
        attn.double()(batch.x, plan=plan)


@pytest.mark.parametrize("name", ["KMIP k=3", "degree, softmax", "forest, relu"])
def test_a_plan_without_such_numbers_serves_every_dtype(name):
    attn = attention(name)
    batch = next(batches_for(attn))
    plan = attn.plan(batch)
    torch.testing.assert_close(attn.double()(batch.x, plan=plan), attn(batch.x, batch.batch, batch))


@pytest.mark.filterwarnings("ignore:SAGEConv takes no 'edge_weight'")
def test_convolutions_without_edge_weights_run_with_a_plan():
    model = model_of(lambda: nn.MaskedAttention(8, 2, mask=nn.PowerSeriesMask()), conv=SAGEConv).double().eval()
    batch = next(batches_for(model, weighted=True))
    planned = model(batch.x, batch.edge_index, plan=model.plan(batch))
    torch.testing.assert_close(planned, model(batch.x, batch.edge_index, batch.batch, batch))


def test_learned_edge_weights_are_refused_and_given_ones_missed():
    model = model_of(lambda: nn.MaskedAttention(8, 2, mask=nn.PowerSeriesMask())).double()
    batch = next(batches_for(model, weighted=True))
    plan = model.plan(batch)
    parts = plan.parts["0"], model.layers.plan(batch, batch.batch)
    for part, own in ((model, plan), *zip((model.layers[0], model.layers), parts)):
        with pytest.raises(ValueError, match="the plan is of a graph with 'edge_weight'"):
            part(batch.x, batch.edge_index, plan=own)
        expected = part(batch.x, batch.edge_index, batch.batch, batch)
        planned = part(batch.x, batch.edge_index, edge_weight=batch.edge_weight, plan=own)
        torch.testing.assert_close(planned, expected)
    batch.edge_weight.requires_grad_()
    with pytest.raises(ValueError, match="'edge_weight' requires a gradient, and a plan is constant"):
        model.plan(batch)


def test_a_convolution_of_another_width():
    conv = nn.GKATConv(8, 3, heads=2).double()
    batch = next(batches_for(conv))
    torch.testing.assert_close(conv(batch.x, plan=conv.plan(batch)), conv(batch.x, graph=batch))


@pytest.mark.parametrize("name", testing.examples(nn.MASK))
def test_a_mask_of_a_plan(name):
    mask = testing.examples(nn.MASK)[name]().double()
    batch = next(batches_for(mask))
    plan = tree_unflatten(*tree_flatten(mask.plan(batch)))
    torch.testing.assert_close(mask(plan=plan).to_dense(), mask(batch).to_dense(), **tolerance(name))


def test_a_model_takes_a_dictionary():
    model = model_of(lambda: nn.GRFAttention(8, 2)).double()
    batch = next(batches_for(model))
    given = {name: batch[name] for name in (*model.requires, "edge_index", "ptr")}
    wanted = model(batch.x, batch.edge_index, batch.batch, batch)
    torch.testing.assert_close(model(batch.x, batch.edge_index, batch.batch, given), wanted)
