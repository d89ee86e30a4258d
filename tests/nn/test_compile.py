"""``torch.compile`` with back ends that do not generate code: what may go wrong is the tracing, which all share."""

import copy
import gc
import pickle
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import ATTENTION, GKATConv, GPSModel, MaskedAttention, SANAttention, auxiliary_loss
from pyg_topomask.nn.attention import untraced
from pyg_topomask.nn.attention.base import has_carry
from pyg_topomask.run.check import fake_batch
from pyg_topomask.run.config.load import load
from pyg_topomask.run.model.build import build_model
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks

CONFIGS = Path(__file__).parents[2] / "configs"


def batch_of(*names):
    walks, edges = AddRandomWalks(num_walks=4, seed=0), AddExpanderEdges(degree=2, num_virtual=1, seed=0)
    return Batch.from_data_list([edges(walks(GRAPHS[name].clone())) for name in names])


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(module, counts=None, **settings):
    """The module as one graph; ``counts`` collects the number of nodes of each graph that is compiled."""

    def backend(graph, inputs):
        if counts is not None:
            counts.append(len(graph.graph.nodes))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    return torch.compile(module, backend=backend, fullgraph=True, **settings)


def results(attn, called, x, batch):
    """Output and auxiliary loss, and their gradients with respect to input and parameters."""
    x = x.clone().requires_grad_()
    carry = attn.initial_carry(batch.num_graphs) if has_carry(attn) else None
    if carry is None:
        out = called(x, batch.batch, batch)
    else:
        out = torch.cat([part.flatten() for part in called(x, batch.batch, batch, carry=carry)])
    loss = auxiliary_loss(attn)
    wanted = [x, *attn.parameters()]
    grads = torch.autograd.grad(out.square().sum() + loss, wanted, allow_unused=True)
    return out, loss, *(torch.zeros(()) if grad is None else grad for grad in grads)


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        if one.dim() < other.dim():  # a parameter without a gradient
            one = one.expand_as(other)
        torch.testing.assert_close(one, other)


SIZES = (
    ("path", "star", "weighted", "isolated", "two_parts"),
    ("star", "one_way", "weighted"),
    ("one_way", "weighted", "path", "isolated", "star", "path"),
)
"""Graphs of three batches. (Tracing takes equal sizes in the first batch for always equal.)"""


@pytest.fixture(scope="module")
def batches():
    return [batch_of(*names) for names in SIZES]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in ATTENTION if name != "Masked"),  # the same class as "Linear"
        ("GKAT", {"kernel": "softmax"}),
        ("GRF", {"kernel": "softmax"}),
    ],
)
def test_compiled_attention_is_one_graph_for_all_batches(name, settings, batches):
    torch.manual_seed(0)
    attn, counts = ATTENTION[name](8, heads=2, **settings), []
    called = compiled(attn, counts, dynamic=True)
    for batch in batches:
        x = torch.randn(batch.num_nodes, 8)
        assert_same(results(attn, called, x, batch), results(attn, attn, x, batch))
        if batch is batches[0]:
            first = len(counts)  # with an autograd function in the graph, torch calls the back end twice
    assert len(counts) == first


@pytest.mark.parametrize("concat", [True, False])
def test_compiled_convolution_of_another_width_is_one_graph(concat, batches):
    torch.manual_seed(0)
    conv, counts = GKATConv(8, 5, heads=2, concat=concat), []
    conv = copy.deepcopy(conv)
    called = compiled(conv, counts, dynamic=True)
    for batch in batches:
        x = torch.randn(batch.num_nodes, 8)
        assert_same(results(conv, called, x, batch), results(conv, conv, x, batch))
        if batch is batches[0]:
            first = len(counts)
    assert len(counts) == first
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = (function(x, batch.batch, batch) for function in (called, conv))
    assert found.dtype == wanted.dtype
    assert_same([found], [wanted])


@pytest.mark.parametrize("name", ["primphormer", "exphormer"])  # GatedGCN, carries, encodings, edge features
def test_compiled_model_of_a_config_is_one_graph(name):
    small = [
        "gt.layers=2",
        "gt.dim_hidden=32",
        "gt.n_heads=2",
        "gt.dropout=0.0",
        "gt.attn_dropout=0.0",
        "gnn.dropout=0.0",
    ]
    config = load(CONFIGS / name / "peptides-func.yaml", [*small]).config
    batch = fake_batch(config)
    torch.manual_seed(0)
    model, counts = build_model(config, batch.x.size(1), 2, batch.edge_attr.size(1)), []
    state, found = copy.deepcopy(model.state_dict()), []
    for called in (compiled(model, counts, dynamic=True), model):
        model.load_state_dict(state)  # of batch norms
        out = called(batch)
        loss = out.square().sum() + auxiliary_loss(model)
        found.append([out, loss, *torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)])
    assert_same(*found)
    assert 1 <= len(counts) <= 2


def test_compiled_model_with_tokens(batches):
    """SAN compares the rows of x with the nodes of the graph, which the tokens change."""
    torch.manual_seed(0)
    model = GPSModel(8, 8, 3, 1, attn=lambda _: SANAttention(8, 2), norm=None, pool="graph_token")
    called = torch.compile(model, backend="aot_eager", dynamic=True)
    for batch in batches:
        inputs = torch.randn(batch.num_nodes, 8), batch.edge_index, batch.batch, batch
        assert_same([called(*inputs)], [model(*inputs)])


def test_carry_dropout_and_autocast_are_compiled(batches):
    torch.manual_seed(0)
    attn, x = ATTENTION["Exphormer"](8, heads=2, dropout=0.5), torch.randn(batches[0].num_nodes, 8)
    called = compiled(attn)
    results = []
    for function in (called, attn):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            results.append(function(x, batches[0].batch, batches[0], carry=attn.initial_carry(5)))
    assert_same(*results)
    assert [part.dtype for part in results[0]] == [torch.bfloat16] * 2


@pytest.fixture
def records():
    """The records of compiled calls, without those of results of earlier tests that are not collected yet."""
    gc.collect()
    return untraced._records


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_compiled_attention_records_nothing_without_a_gradient(mode, batches, records):
    attn, x = ATTENTION["Linear"](8, heads=2), torch.randn(batches[0].num_nodes, 8)
    with mode():
        assert_same([compiled(attn)(x, batches[0].batch, batches[0])], [attn(x, batches[0].batch, batches[0])])
    assert not records


def test_record_of_a_compiled_call_is_used_once_and_dropped(batches, records):
    attn, x = ATTENTION["Linear"](8, heads=2), torch.randn(batches[0].num_nodes, 8)
    called = compiled(attn)
    out = called(x, batches[0].batch)
    assert len(records) == 1
    out.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="only once"):
        out.sum().backward()
    out = called(x, batches[0].batch)
    del out
    gc.collect()
    assert not records


@pytest.mark.sparse
def test_edges_of_a_sparse_tensor_are_compiled():
    torch_sparse = pytest.importorskip("torch_sparse")
    attn, data, x = SANAttention(8), GRAPHS["one_way"].clone(), torch.randn(5, 8)
    wanted = attn(x, None, data)
    row, col = data.edge_index
    data.adj_t = torch_sparse.SparseTensor(row=col, col=row, sparse_sizes=(5, 5))
    del data.edge_index
    torch.testing.assert_close(torch.compile(attn, backend="eager")(x, None, data), wanted)


def test_copies_of_an_attention_are_compiled_with_their_own_parameters():
    attn, x = ATTENTION["Linear"](8, heads=2), torch.randn(5, 8)
    for twin in (copy.deepcopy(attn), pickle.loads(pickle.dumps(attn))):
        assert twin._number != attn._number
        with torch.no_grad():
            twin.out.weight.zero_()
        torch.testing.assert_close(compiled(twin)(x), twin(x))


@pytest.mark.parametrize("name", ["Linear", "GRF", "KMIP"])
def test_parameters_of_functional_call_are_used(name, batches):
    torch.manual_seed(0)
    attn, batch = ATTENTION[name](8, heads=2), batches[0]
    x = torch.randn(batch.num_nodes, 8)

    def run(parameters, x):
        return torch.func.functional_call(attn, parameters, (x, batch.batch, batch))

    called = compiled(run)
    for scale in (1.0, 1.3):
        found = []
        for function in (called, run):
            parameters = {
                key: (scale * value.detach() + 0.1).requires_grad_() for key, value in attn.named_parameters()
            }
            out = function(parameters, x)
            loss = out.square().sum()
            found.append(
                [out, *torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True, allow_unused=True)]
            )
        assert_same(*found)


def test_gradients_reach_other_tensors_with_the_memory_of_frozen_parameters():
    attn, x = ATTENTION["Linear"](8, heads=2).requires_grad_(False), torch.randn(5, 8)
    found = []
    for function in (compiled(lambda given: torch.func.functional_call(attn, given, (x,))), None):
        given = {key: value.detach().requires_grad_() for key, value in attn.named_parameters()}
        out = function(given) if function else torch.func.functional_call(attn, given, (x,))
        found.append(torch.autograd.grad(out.square().sum(), list(given.values())))
    assert_same(*found)


def test_equal_calls_with_dropout_are_not_merged(batches):
    attn, x = ATTENTION["Linear"](8, heads=2, dropout=0.5), torch.randn(batches[0].num_nodes, 8)
    difference = compiled(lambda x: attn(x, batches[0].batch) - attn(x, batches[0].batch))
    assert difference(x).abs().max() > 0.01


def test_checkpoint_in_compiled_code_repeats_dropout(batches):
    torch.manual_seed(0)
    attn, batch = ATTENTION["Linear"](8, heads=2, dropout=0.5), batches[0].batch
    x, found = torch.randn(batches[0].num_nodes, 8, requires_grad=True), []

    def function(x):
        return torch.utils.checkpoint.checkpoint(attn, x, batch, use_reentrant=False)

    for called in (compiled(function), function):
        torch.manual_seed(1)
        out = called(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *attn.parameters()])])
    assert_same(*found)


def test_compiled_stack_with_checkpoints(batches):
    """Layers with checkpoints run as they are; running statistics of batch norms change once."""
    x, found = torch.randn(batches[0].num_nodes, 8), []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = GPSModel(
            8, 8, 3, 2, conv=lambda _: GCNConv(8, 8), attn=lambda _: MaskedAttention(8, 2), checkpoint=checkpoint
        )
        called = torch.compile(model, backend="aot_eager") if checkpoint else model
        out = called(x, batches[0].edge_index, batches[0].batch, graph=batches[0])
        grads = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        found.append([out, *grads, *model.buffers()])
    assert_same(*found)


def test_wrong_input_of_a_compiled_attention_is_refused(batches):
    attn, x = ATTENTION["GRF"](8, heads=2), torch.randn(batches[0].num_nodes, 8)
    called = compiled(attn)
    with pytest.raises(ValueError, match="'x' holds NaN or infinity, first at node 3"):
        called(x.index_fill(0, torch.tensor([3]), torch.nan), batches[0].batch, batches[0])
    with pytest.raises(ValueError, match="AddRandomWalks"):
        called(x, batches[0].batch, Data(edge_index=batches[0].edge_index))


def arguments(attn, x):
    """Arguments of the operator for an attention that is called with ``x`` only."""
    tensors = [x, *attn.parameters()]
    return (
        torch.empty(0),
        tensors,
        [tensor.requires_grad for tensor in tensors],
        [attn._number],
        "x",
        None,
        "",
        x.dtype,
        False,
        x.size(1),
        x.dtype,
    )


def test_operator_passes_torchs_checks():
    attn, x = ATTENTION["Linear"](8, heads=2).double(), torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(untraced._attend, arguments(attn, x))


def test_memory_that_compiled_code_writes_to_is_not_used_again():
    """Compiled code reuses the memory of arguments and results that it needs no more, also before the backward pass."""
    attn, x = ATTENTION["Linear"](8, heads=2), torch.randn(5, 8, requires_grad=True)
    wanted = torch.autograd.grad(attn(x).square().sum(), [x, *attn.parameters()])
    call, tensors, needs, *rest = arguments(attn, x.detach().clone())
    needs[0] = True
    out, _, key = untraced._attend(call, [tensor.detach() for tensor in tensors], needs, *rest)
    grads = [2 * out, torch.empty(0)]
    out.zero_()
    tensors[0].zero_()
    found = untraced._attend_backward(grads, key, tensors)
    assert_same(found, wanted)
