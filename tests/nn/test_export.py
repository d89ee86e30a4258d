"""Programs of ``torch.export``: equal to the model on batches of other sizes, and in other processes."""

import io
import subprocess
import sys

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, GINEConv

from pyg_topomask import nn
from pyg_topomask.testing import GRAPHS, examples, prepared

SIZES = ("path", "star", "two_parts"), ("star", "path", "isolated", "two_parts", "path")
TRACED = [lambda: nn.MaskedAttention(8, 2), lambda: nn.FullAttention(8, 2)]
TRACED += [lambda: nn.PerformerAttention(8, 2), lambda: nn.PrimphormerAttention(8, 2)]

slow = pytest.mark.slow


def model_of(*attentions, conv=GCNConv, **settings):
    torch.manual_seed(0)
    settings = {"pool": "mean", **settings}
    layers = len(attentions)
    return nn.GPSModel(8, 8, 3, layers, lambda _: conv(8, 8), lambda layer: attentions[layer](), **settings).eval()


def batches_for(model, edge_dim=None):
    model.transform_settings = {k: v for layer in model.layers for k, v in layer.attn.transform_settings.items()}
    for names in SIZES:
        graphs = prepared(model, [GRAPHS[name] for name in names])
        for graph in graphs:
            graph.x = torch.randn(graph.num_nodes, 8)
            graph.edge_attr = torch.randn(graph.num_edges, edge_dim) if edge_dim else None
        yield Batch.from_data_list(graphs)


def operators_of(program):
    return {node.target._name for node in program.graph.nodes if "topomask" in str(node.target)}


def checked(model, edge_dim=None):
    """The program of one batch after it was saved and loaded, which must give the model's output for another batch."""
    first, other = batches_for(model, edge_dim)
    file = io.BytesIO()
    torch.export.save(nn.export_model(model, first), file)
    program = torch.export.load(io.BytesIO(file.getvalue()))
    more = {"edge_attr": other.edge_attr} if model.edge_encoder is not None else {}
    expected = model(other.x, other.edge_index, other.batch, other, **more)
    torch.testing.assert_close(program.module()(**nn.graph_inputs(other, program)), expected)
    return program


@slow
@pytest.mark.parametrize("name", examples(nn.ATTENTION))
def test_every_attention(name):
    attn = examples(nn.ATTENTION)[name]
    model = model_of(lambda: attn(8, heads=2))
    used = operators_of(checked(model))
    assert used == (set() if model.layers[0].attn.is_traceable or "Primphormer" in name else {"topomask::module"})


@slow
@pytest.mark.parametrize("name", [name for name in examples(nn.MASK) if not name.startswith(("grid", "toeplitz"))])
def test_every_mask(name):
    checked(model_of(lambda: nn.MaskedAttention(8, 2, mask=examples(nn.MASK)[name]())))


@slow
@pytest.mark.parametrize("settings", [
    {"norm": "layer_norm", "pool": "max"},
    {"norm": "graph_norm", "pool": None},
    {"pre_norm": True, "checkpoint": True, "dropout": 0.5, "pool": "add"},
    {"edge_dim": 3, "conv": lambda *_: nn.GatedGCN(8)},
    {"edge_dim": 3, "conv": lambda *_: GINEConv(torch.nn.Linear(8, 8), edge_dim=8)},
    {"attn": lambda: nn.MaskedAttention(8, 2, mask=[None, nn.GRFMask(2), nn.HopMask()])},
    {"attn": lambda: nn.MaskedAttention(8, 2, "exp", mask=[nn.GRFMask(), nn.HopMask()], mask_heads=(1, 1))},
])  # fmt: skip
def test_other_models(settings):
    attn = settings.pop("attn", lambda: nn.GRFAttention(8, 2))
    checked(model_of(attn, attn, **settings), settings.get("edge_dim"))


class Convolution(torch.nn.Module):
    """A program whose output has another width than its input."""

    def __init__(self):
        super().__init__()
        self.conv = nn.GKATConv(8, 3, heads=2)

    def forward(self, x, walks):
        return self.conv(x, graph=Data(**walks, num_nodes=x.size(0)))


@slow
def test_a_convolution_of_another_width():
    model = Convolution().eval()
    graph = Batch.from_data_list(prepared(model.conv, [GRAPHS["star"]]))
    inputs = torch.randn(5, 8), {name: graph[name] for name in model.conv.requires}
    program = torch.export.export(model, inputs)
    (out,) = (node.args[0] for node in program.graph.nodes if node.op == "output")
    assert out[0].meta["val"].shape == (5, 6)
    torch.testing.assert_close(program.module()(*inputs), model(*inputs))


IN_NEW_PROCESS = """
import sys
import torch
from torch.testing import assert_close

file, kind = sys.argv[1:]
inputs, expected = torch.load(file + ".pt")
if kind == "package":
    program = torch._inductor.aoti_load_package(file)
    assert "pyg_topomask" not in sys.modules and "torch_geometric" not in sys.modules
else:
    import pyg_topomask.nn
    program = torch.export.load(file).module()
state = torch.random.get_rng_state()
with torch.no_grad():
    for _ in range(2):
        assert_close(program(**inputs), expected)
assert torch.equal(torch.random.get_rng_state(), state)
"""


@slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of AOTInductor itself
@pytest.mark.parametrize(("kind", "attentions"), [("program", ["GRF", "KMIP", "Exphormer"]), ("package", TRACED)])
def test_new_process(kind, attentions, tmp_path):
    """A package of AOTInductor without data-dependent structure runs without this package and without PyG."""
    made = [lambda attn=attn: nn.ATTENTION[attn](8, 2) if isinstance(attn, str) else attn() for attn in attentions]
    model, file = model_of(*made), str(tmp_path / "model.pt2")
    program = checked(model)
    _, other = batches_for(model)
    torch.save((nn.graph_inputs(other, program), model(other.x, other.edge_index, other.batch, other)), f"{file}.pt")
    if kind == "package":
        torch._inductor.aoti_compile_and_package(program, package_path=file)
    else:
        torch.export.save(program, file)
    subprocess.run([sys.executable, "-c", IN_NEW_PROCESS, file, kind], check=True)


def test_model_takes_a_dictionary():
    model = model_of(lambda: nn.GRFAttention(8, 2))
    for batch in batches_for(model):
        expected = model(batch.x, batch.edge_index, batch.batch, batch)
        torch.testing.assert_close(model(**nn.graph_inputs(batch, model)), expected, rtol=0, atol=0)
    assert nn.graph_inputs(batch.get_example(1), model)["graph"]["ptr"].tolist() == [0, 4]
    with pytest.raises(ValueError, match=r"the model needs 'walk_index', .* on the graph"):
        nn.graph_inputs(Batch(x=batch.x, edge_index=batch.edge_index, batch=batch.batch), model)


class OwnAttention(nn.MaskedAttention):
    """An attention with a mask of its own, and an argument that no text can hold."""

    def __init__(self, channels, function):
        super().__init__(channels, mask=nn.HopMask())
        self.function = function


def _changed():
    attn = nn.GRFAttention(8)
    attn.path = "dense"
    return attn


@pytest.mark.parametrize(("attn", "settings", "message"), [
    (_changed, {}, "torch.export cannot take this GRFAttention, because it was changed after it was made"),
    (lambda: OwnAttention(8, torch.relu), {}, "whose arguments are numbers and texts .got <built-in method relu"),
    (lambda: nn.MaskedAttention(8), {"pool": "graph_token"}, "cannot take a model with pool='graph_token'"),
    (lambda: nn.GRFAttention(8), {"train": True}, "torch.export takes GRFAttention in evaluation mode only: call"),
])  # fmt: skip
def test_refusals(attn, settings, message):
    model = model_of(attn, conv=lambda *_: torch.nn.Module(), **{k: v for k, v in settings.items() if k != "train"})
    model.layers[0].conv = model.layers[0].norm_conv = None
    model.train("train" in settings)
    with pytest.raises(RuntimeError, match=message):
        nn.export_model(model, next(batches_for(model)))
