"""PyG's explainers on models with our attention."""

import copy
import pickle

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.explain import AttentionExplainer, Explainer, GNNExplainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import GCNConv

from pyg_topomask.nn import ATTENTION, GatedGCN, GPSModel, HeatMask, MaskedAttention, PowerSeriesMask, StableGINEConv
from pyg_topomask.testing import GRAPHS
from pyg_topomask.testing.examples import prepared


def _model(attn, conv=lambda layer: GCNConv(8, 8)):
    model = GPSModel(8, 8, 3, 2, conv, attn, norm=None).eval()
    data = Batch.from_data_list(prepared(model, [GRAPHS["star"], GRAPHS["path"]], num_walks=4))
    data.x = torch.randn(data.num_nodes, 8)
    return model, data


def _explain(model, data, algorithm, **given):
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explainer = Explainer(model, algorithm, "model", config, edge_mask_type="object")
    return explainer(data.x, data.edge_index, **{"graph": data, **given}).edge_mask


@pytest.mark.parametrize("name", [name for name, cls in ATTENTION.items() if not cls.adds_loss])
def test_the_attention_explainer_shows_the_weights_of_edges(name):
    model, data = _model(lambda layer: ATTENTION[name](8, heads=2))
    found = []
    for layer in model.layers:  # weights of a layer with the input that the layer has
        call = lambda attn, given, more, out: found.append(attn.attention_weights(*given, **more))  # noqa: E731
        layer.attn.register_forward_hook(call, with_kwargs=True)
    model(data.x, data.edge_index, graph=data)
    dense = torch.zeros(2, 2, data.num_nodes + 2, data.num_nodes + 2)
    for layer, (pairs, weights) in enumerate(found[:2]):
        dense[layer][:, pairs[0], pairs[1]] = weights.detach().t()
    sender, receiver = data.edge_index
    wanted = dense[..., receiver, sender].amax((0, 1))
    assert (wanted > 0).any()
    torch.testing.assert_close(_explain(model, data, AttentionExplainer()), wanted)


@pytest.mark.parametrize("name", ATTENTION)
def test_a_mask_of_edges_is_refused_where_it_would_have_no_gradient(name):
    model, data = _model(lambda layer: ATTENTION[name](8, heads=2))
    if name != "SAN" and not model.layers[0].attn.requires:  # the convolution alone reads edges
        assert (_explain(model, data, GNNExplainer(epochs=2)) > 0).any()
        return
    wanted = model(data.x, data.edge_index, graph=data)
    with pytest.raises(ValueError, match="mask of edges has no gradient there"):
        _explain(model, data, GNNExplainer(epochs=2))
    with pytest.raises(ValueError, match="mask of edges has no gradient there"):
        _explain(model, data, GNNExplainer(epochs=2), graph=None, plan=model.plan(data))
    assert torch.equal(model(data.x, data.edge_index, graph=data), wanted)
    for layer in model.layers:
        layer.attn.probe.explain = False
    assert (_explain(model, data, GNNExplainer(epochs=2)) > 0).any()


def test_a_mask_of_edges_is_refused_by_heat_kernels():
    model, data = _model(lambda layer: MaskedAttention(8, mask=HeatMask()))
    with pytest.raises(ValueError, match="HeatMask reads the edges"):
        _explain(model, data, GNNExplainer(epochs=2))


def test_a_refused_explanation_leaves_nothing_behind():
    model, data = _model(lambda layer: ATTENTION["Primphormer"](8))
    wanted = model(data.x, data.edge_index, graph=data)
    with pytest.raises(NotImplementedError, match="forms no weights of pairs"):
        _explain(model, data, AttentionExplainer())
    assert torch.equal(pickle.loads(pickle.dumps(model))(data.x, data.edge_index, graph=data), wanted)


def test_edges_of_a_power_series_get_the_gradient_of_finite_differences():
    model, data = _model(lambda layer: MaskedAttention(8, mask=PowerSeriesMask()), conv=None)
    model, x = model.double(), data.x.double()
    weight = torch.rand(data.num_edges, dtype=torch.float64) + 0.5

    def run(weight):
        for layer in model.layers:
            probe = layer.attn.probe
            probe.explain, probe._edge_mask, probe._apply_sigmoid = True, weight, False
        return model(x, data.edge_index, graph=data)

    assert torch.autograd.gradcheck(run, weight.requires_grad_())
    assert (_explain(model.float(), data, GNNExplainer(epochs=2)) > 0).all()
    with pytest.raises(ValueError, match=r"PowerSeriesMask reads a plan, .* PowerSeriesMask without a plan"):
        _explain(model, data, GNNExplainer(epochs=2), graph=None, plan=model.plan(data))


def test_a_model_gives_the_explainer_its_edges():
    model, data = _model(lambda layer: ATTENTION["Transformer"](8))
    alone = {"graph": None, "batch": data.batch}
    found, wanted = (_explain(model, data, AttentionExplainer(), **given) for given in (alone, {}))
    assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="needs the edges: give the model graph=data"):
        model.layers[0].attn.probe.show(None, data.edge_index, data.x)


@pytest.mark.parametrize(
    "conv", [GatedGCN(8), GatedGCN(8, equivariant_stable=True), StableGINEConv(torch.nn.Linear(8, 8), 8)]
)
def test_a_mask_of_edges_scales_the_messages_of_convolutions(conv):
    """A mask of zeros and ones is as leaving out the edges; a mask that is learned has a gradient."""
    model, data = _model(lambda layer: ATTENTION["Transformer"](8), lambda layer: copy.deepcopy(conv))
    edges, keep = torch.randn(data.num_edges, 8), torch.arange(data.num_edges) % 3 > 0
    model.edge_encoder, more = torch.nn.Identity(), {"pe": torch.randn(data.num_nodes, 3)} if conv.gate else {}
    wanted = model(data.x, data.edge_index[:, keep], data.batch, edge_attr=edges[keep], **more)
    set_masks(model, keep.float(), data.edge_index, apply_sigmoid=False)
    torch.testing.assert_close(model(data.x, data.edge_index, data.batch, edge_attr=edges, **more), wanted)
    clear_masks(model)
    assert (_explain(model, data, GNNExplainer(epochs=2), edge_attr=edges, **more) > 0).any()
