"""PyG's GPSConv with our attentions."""

import pytest
import torch
import torch_geometric.nn as pyg
from torch.nn import Sequential
from torch_geometric.nn import GCNConv, GINConv

from pyg_topomask.nn import ATTENTION, FullAttention, GPSConv, GPSModel, MaskedAttention, PowerSeriesMask
from pyg_topomask.nn.named import as_attention
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks
from tests.nn.gps_cases import batch_of, randomise


@pytest.mark.parametrize("norm", ["batch_norm", "graph_norm", None])
@pytest.mark.parametrize("attn_type", ["multihead", "performer"])
def test_pygs_attentions_stay_pygs(attn_type, norm):
    batch, theirs = batch_of(), pyg.GPSConv(8, GCNConv(8, 8), heads=2, norm=norm, attn_type=attn_type)
    ours = GPSConv(8, GCNConv(8, 8), heads=2, norm=norm, attn_type=attn_type)
    ours.load_state_dict(randomise(theirs).state_dict())
    x = torch.randn(batch.num_nodes, 8)
    wanted = theirs(x, batch.edge_index, batch.batch)
    assert torch.equal(ours(x, batch.edge_index, graph=batch), wanted)
    assert ours.requires == ()
    if attn_type == "multihead":  # our softmax attention is the same function
        ours.load_state_dict(theirs.state_dict())  # as before the batch norm saw a batch
        full = GPSConv(8, ours.conv, heads=2, norm=norm, attn_type="transformer")
        names = {name.replace("in_proj_", "qkv.").replace("out_proj", "out"): name for name in theirs.state_dict()}
        full.load_state_dict({name: ours.state_dict()[of] for name, of in names.items()})
        torch.testing.assert_close(full(x, batch.edge_index, batch.batch), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ATTENTION)
def test_every_attention_takes_part(name):
    batch, x = batch_of(), torch.randn(13, 8)
    kind = name if name == "Performer" else name.lower()  # "performer" is PyG's
    layer = GPSConv(8, None, heads=2, attn_type=kind).eval()
    assert type(layer.attn) is ATTENTION[name]
    out = layer(x, batch.edge_index, batch.batch, batch)
    with torch.no_grad():
        for parameter in layer.attn.parameters():
            parameter.mul_(2)
    assert not torch.allclose(layer(x, batch.edge_index, graph=batch), out)
    assert "\n" not in repr(layer)


@pytest.mark.parametrize(
    ("attn", "transform"),
    [
        ("grf", AddRandomWalks(seed=0)),
        ("exphormer", AddExpanderEdges(degree=2, num_virtual=1, seed=0)),
        ("san", None),
        (MaskedAttention(8, mask=[None, PowerSeriesMask()]), None),
    ],
)
def test_a_graph_is_made_where_none_is_given(attn, transform):
    batch, x = batch_of("path", "isolated", "star", "path"), torch.randn(17, 8)
    mixed = batch.edge_index[:, torch.randperm(batch.num_edges)]
    for model in (
        GPSConv(8, None, attn_type=attn, transform=transform),
        GPSModel(8, 8, 3, 1, attn=lambda _: as_attention(attn, 8), transform=transform),
    ):
        wanted = model.eval()(x, batch.edge_index, graph=batch)
        torch.testing.assert_close(model(x, mixed, batch.batch), wanted)
        sparse = torch.sparse_coo_tensor(mixed, torch.ones(mixed.size(1)), (17, 17), check_invariants=True)
        torch.testing.assert_close(model(x, sparse, batch.batch), wanted)


def test_our_attention_in_pygs_layer_is_refused_in_one_line():
    layer, attn = pyg.GPSConv(8, GINConv(Sequential())), FullAttention(8)
    with pytest.raises(TypeError, match=r"leave out FullAttention .*use pyg_topomask.nn.GPSConv\(") as caught:
        layer.attn = attn
    assert "\n" not in str(caught.value)
    ours = GPSConv(8, None, attn_type="performer")
    ours.attn = attn
    x = torch.randn(5, 8)
    assert torch.equal(ours.eval()(x, None), GPSConv.forward(ours, x, None))
    assert GPSConv(8, None, attn_type=attn).attn is attn
    assert GPSConv(8, None, attn_kwargs={"max_length": 2}).attn.mask.max_length == 2
