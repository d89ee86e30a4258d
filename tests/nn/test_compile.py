"""``torch.compile`` with back ends that do not generate code: what may go wrong is the tracing, which all share."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend as Counter
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GraphNorm

from pyg_topomask.nn import ATTENTION, GPSLayer, GPSModel, MaskedAttention, auxiliary_loss
from pyg_topomask.run.graphgps.config.load import load
from pyg_topomask.run.graphgps.model import build_model
from pyg_topomask.run.graphgps.parts import fake_batch, source_of
from tests.nn.gps_cases import batch_of

pytestmark = pytest.mark.slow
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def results(model, called, x, batch):
    """Output and auxiliary loss, and their gradients with respect to input and parameters."""
    x = x.clone().requires_grad_()
    out = called(x, batch.edge_index, batch.batch, batch)
    loss = auxiliary_loss(model)
    wanted = [x, *model.parameters()]
    return out, loss, *torch.autograd.grad(out.square().sum() + loss, wanted, materialize_grads=True)


SIZES = (
    ("path", "star", "weighted", "isolated", "two_parts"),
    ("star", "one_way", "weighted"),
    ("one_way", "weighted", "path", "isolated", "star", "path"),
)
"""Graphs of three batches. (Tracing takes equal sizes in the first batch for always equal.)"""


@pytest.fixture(scope="module")
def batches():
    return [batch_of(*names) for names in SIZES]


@pytest.mark.parametrize("name", ["GRF", "SAN", "Exphormer", "Primphormer"])
def test_compiled_model_serves_all_batches(name, batches):
    """Nothing is compiled again for a batch of other sizes."""
    attn, counter = ATTENTION[name], Counter("aot_eager")
    model = GPSModel(8, 8, 3, 2, lambda _: GCNConv(8, 8), lambda _: attn(8, heads=2), norm="node_layer_norm")
    called = torch.compile(model, backend=counter, dynamic=True)
    for batch in batches:
        x = torch.randn(batch.num_nodes, 8)
        torch.testing.assert_close(results(model, called, x, batch), results(model, model, x, batch))
        if batch is batches[0]:
            first = counter.frame_count
    assert counter.frame_count == first


def test_compiled_model_of_a_config():
    """With GatedGCN, carries, encodings and edge features."""
    small = "gt.layers=2 gt.dim_hidden=32 gt.n_heads=2 gt.dropout=0.0 gt.attn_dropout=0.0 gnn.dropout=0.0"
    config = load(CONFIGS / "primphormer" / "peptides-func.yaml", small.split()).config
    batch = fake_batch(config, source_of(config))
    torch.manual_seed(0)
    model, counter = build_model(config, batch.x.size(1), 2, batch.edge_attr.size(1)), Counter("aot_eager")
    state, found = copy.deepcopy(model.state_dict()), []
    for called in (torch.compile(model, backend=counter, dynamic=True), model):
        model.load_state_dict(state)  # of batch norms
        out = called(batch)
        loss = out.square().sum() + auxiliary_loss(model)
        found.append([out, loss, *torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)])
    torch.testing.assert_close(*found)
    assert counter.frame_count > 0


def test_compiled_stack_with_checkpoints(batches):
    """Layers with checkpoints run as they are; running statistics of batch norms change once."""
    x, found = torch.randn(batches[0].num_nodes, 8), []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        model = GPSModel(8, 8, 3, 2, lambda _: GCNConv(8, 8), lambda _: MaskedAttention(8, 2), checkpoint=checkpoint)
        called = torch.compile(model, backend="aot_eager") if checkpoint else model
        out = called(x, batches[0].edge_index, batches[0].batch, graph=batches[0])
        grads = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        found.append([out, *grads, *model.buffers()])
    torch.testing.assert_close(*found)


def test_compiled_parts_of_a_layer_get_the_same_arguments(batches):
    compiled, found = partial(torch.compile, backend="eager"), []
    x, weight = torch.randn(batches[0].num_nodes, 8), torch.rand(batches[0].num_edges)
    for wrap in (lambda part: part, compiled):
        torch.manual_seed(0)
        layer = GPSLayer(8, wrap(GCNConv(8, 8)), wrap(MaskedAttention(8, 2)), norm=wrap(GraphNorm(8)))
        found.append(layer(x, batches[0].edge_index, batches[0].batch, edge_weight=weight))
    torch.testing.assert_close(*found)


def test_wrong_input_of_a_compiled_attention_is_refused(batches):
    attn, x = ATTENTION["GRF"](8, heads=2), torch.randn(batches[0].num_nodes, 8)
    called = torch.compile(attn, backend="aot_eager")
    with pytest.raises(ValueError, match="'x' holds NaN or infinity, first at node 3"):
        called(x.index_fill(0, torch.tensor([3]), torch.nan), batches[0].batch, batches[0])
    with pytest.raises(ValueError, match="AddRandomWalks"):
        called(x, batches[0].batch, Data(edge_index=batches[0].edge_index))
