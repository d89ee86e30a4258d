"""Attentions, models and batches for the tests of plans and of exported programs."""

import io
from functools import partial

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv

from pyg_topomask import nn, ops, testing
from pyg_topomask.nn.encoder.base import Encoder
from pyg_topomask.nn.encoder.features import LinearEdgeEncoder, LinearNodeEncoder
from pyg_topomask.nn.graph_token import GraphToken

slow = pytest.mark.slow

SIZES = (
    ("path", "star", "isolated", "two_parts"),
    ("star", "isolated", "weighted", "path", "two_parts"),
    ("path", "isolated", "path", "two_parts", "star", "path", "weighted"),
)
"""Graphs of three batches. Tracing takes equal sizes in the first batch for always equal."""

MASKED = {
    f"{name}, {kernel}": partial(nn.MaskedAttention, kernel=kernel, mask=mask)
    for name, mask in testing.examples(nn.MASK).items()
    for kernel in ("relu", "softmax")
}
ATTENTIONS = dict(testing.examples(nn.ATTENTION))


def attention(name):
    """The attention of that name with 8 channels and 2 heads."""
    torch.manual_seed(0)
    make = MASKED.get(name) or ATTENTIONS[name]
    return make(8, heads=2, mask=make.keywords["mask"]()) if name in MASKED else make(8, heads=2)


def model_of(*attentions, conv=GCNConv, **settings):
    layers, settings = len(attentions), {"pool": "mean", **settings}
    return nn.GPSModel(8, 8, 3, layers, lambda _: conv(8, 8), lambda layer: attentions[layer](), **settings)


def batches_for(module, edge_dim=None, weighted=False, dtype=torch.float64):
    on_grids = "grid_shape" in module.requires
    if isinstance(module, nn.GPSModel):  # for the transforms
        settings = (layer.attn.transform_settings for layer in module.layers)
        module.transform_settings = {key: value for each in settings for key, value in each.items()}
    for names in [("path",) * n for n in (2, 3, 5)] if on_grids else SIZES:
        graphs = testing.prepared(module, [testing.GRAPHS[name].clone() for name in names])
        for graph in graphs:
            graph.x = torch.randn(graph.num_nodes, 8, dtype=dtype)
            graph.edge_attr = torch.randn(graph.num_edges, edge_dim, dtype=dtype) if edge_dim else None
            graph.edge_weight = torch.rand(graph.num_edges, dtype=dtype) if weighted else None
        yield Batch.from_data_list(graphs)


def results(module, out, inputs):
    loss = out.square().sum() + nn.auxiliary_loss(module)
    return out, *torch.autograd.grad(loss, inputs, materialize_grads=True)


def tolerance(name):
    return {"rtol": 1e-3, "atol": 1e-4} if name.startswith("heat") else {"rtol": 1e-8, "atol": 1e-10}


def checked(model, close, **settings):
    """The program of one batch after it was saved and loaded, which must give the model's output for another batch."""
    first, other, _ = batches_for(model, **settings)
    file = io.BytesIO()
    torch.export.save(nn.export_model(model, first), file)
    program = torch.export.load(io.BytesIO(file.getvalue()))
    more = {"edge_attr": other.edge_attr} if model.edge_encoder is not None else {}
    expected = model(other.x, other.edge_index, other.batch, other, **more)
    torch.testing.assert_close(program.module()(**nn.graph_inputs(other, model)), expected, **close)
    return program


class PairBias(Encoder):
    """A learned number for each pair."""

    channels = 2

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(2))

    def forward(self, graph):
        query, key = ops.all_pairs(graph.batch)
        return graph.x[query, :1] * graph.x[key, 1:2] * self.scale


NETWORKS = {
    "edges": {"attn": lambda: nn.SANAttention(8, 2), "edges": True},
    "bias": {"attn": lambda: nn.FullAttention(8, 2, attn_bias="attn_bias"), "bias_encoder": PairBias},
    "carry": {"attn": lambda: nn.PrimphormerAttention(8, 2), "conv": lambda _: nn.GatedGCN(8), "edges": True},
    "tokens": {"attn": lambda: nn.MaskedAttention(8, 2, mask=nn.HopMask(2)), "pool_token": True},
    "biased tokens": {
        "attn": lambda: nn.FullAttention(8, 2, attn_bias="attn_bias"),
        "bias_encoder": PairBias,
        "heads": 2,
    },
}


def network_of(name):
    settings = dict(NETWORKS[name])
    attn, conv, bias = (settings.pop(key, None) for key in ("attn", "conv", "bias_encoder"))
    tokens, edges = "token" in name, settings.pop("edges", False)
    layers = nn.GPSStack(8, 2, conv, lambda _: attn())
    settings |= {"graph_token": GraphToken(8, settings.pop("heads", None))} if tokens else {}
    settings |= {"edge_encoder": LinearEdgeEncoder(8, 3)} if edges else {}
    settings |= {"bias_encoder": bias()} if bias else {}
    return nn.GPSNetwork(LinearNodeEncoder(8, 8), layers, nn.HEADS["graph"](8, 3), **settings).double()
