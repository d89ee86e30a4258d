"""Attentions of PyG and torch in our layers: each graph as if it were alone."""

import pytest
import torch
from torch.nn import MultiheadAttention
from torch_geometric.data import Batch, Data
from torch_geometric.nn import TransformerConv
from torch_geometric.nn import attention as dense
from torch_geometric.utils import to_dense_batch

from pyg_topomask.nn import GPSLayer, GPSModel, GRFAttention, HopMask
from pyg_topomask.nn.attention.pyg import PYG_ATTENTION, ConvAttention, DenseAttention
from pyg_topomask.nn.named import as_attention, as_conv
from tests.nn.gps_cases import batch_of

MODULES = {
    "multihead": lambda: MultiheadAttention(8, 2, batch_first=True),
    "multihead, batch second": lambda: MultiheadAttention(8, 2),
    "performer": lambda: dense.PerformerAttention(8, 2, head_channels=4),
    "polynormer": lambda: dense.PolynormerAttention(8, 2, 4, qk_shared=False),
    "qformer": lambda: dense.QFormer(8, 12, 8, 2, 2),
    "sgformer": lambda: dense.SGFormerAttention(8, 2, 8, qkv_bias=True),
    **{name: lambda name=name: PYG_ATTENTION[name](8, 2) for name in PYG_ATTENTION},
}


@pytest.mark.parametrize("name", MODULES)
def test_each_graph_is_computed_as_if_it_were_alone(name):
    batch, made = batch_of("path", "star", "empty", "two_parts", "single", "star"), MODULES[name]()
    attn = as_attention(made, 8).eval()
    module, x = attn.module, torch.randn(batch.num_nodes, 8, requires_grad=True)  # PyG's SGFormer takes float32 alone
    out = attn(x, batch.batch)
    for number, rows in enumerate(x.split(batch.ptr.diff().tolist())):
        inside = batch.batch == number
        if isinstance(module, MultiheadAttention):
            wanted = module(rows, rows, rows)[0]
        else:
            wanted = module(rows[None])[0] if len(rows) else rows
        torch.testing.assert_close(out[inside], wanted, rtol=1e-5, atol=1e-6)
        (grad,) = torch.autograd.grad(out[inside].sin().sum(), x, retain_graph=True)
        assert (grad[~inside] == 0).all()
    assert torch.equal(attn(x, None, batch), out)
    assert attn(x[:0]).shape == (0, 8)
    attn.requires_grad_(False)
    for parameter in attn.parameters():
        parameter.fill_(7.0)
    attn.reset_parameters()
    assert all((parameter != 7).all() for parameter in attn.parameters())


def test_multihead_attention_is_that_of_padded_nodes():
    batch, module = batch_of(), MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(batch.num_nodes, 8)
    nodes, mask = to_dense_batch(x, batch.batch)
    wanted = module(nodes, nodes, nodes, key_padding_mask=~mask)[0]
    torch.testing.assert_close(as_attention(module, 8)(x, batch.batch), wanted[mask], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(as_attention(module, 8)(nodes, mask)[mask], wanted[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("edge_dim", [None, 3])
def test_convolutions_attend_along_edges(edge_dim):
    batch, conv = batch_of(), TransformerConv(8, 4, heads=2, edge_dim=edge_dim)
    x, edge_attr = torch.randn(batch.num_nodes, 8), torch.randn(batch.num_edges, 3)
    batch.edge_attr, given = edge_attr, {} if edge_dim is None else {"edge_attr": edge_attr}
    layer = GPSLayer(8, attn=conv, norm=None, feed_forward=False)
    wanted = x + conv(x, batch.edge_index, **given)
    torch.testing.assert_close(layer(x, batch.edge_index, graph=batch), wanted)
    if edge_dim is None:
        torch.testing.assert_close(layer(x, batch.edge_index, batch.batch), wanted)
    else:
        with pytest.raises(ValueError, match="edge_dim=3, but the graph has no 'edge_attr'"):
            layer(x, batch.edge_index)
    with pytest.raises(ValueError, match="reads 'edge_index', which are for the nodes without"):
        GPSModel(8, 8, 1, 1, attn=lambda _: TransformerConv(8, 8), pool="graph_token")


def test_names_build_branches():
    model = GPSModel(8, 8, 2, 2, conv="gcn", attn="grf", heads=2, attn_kwargs={"kernel": "elu1"})
    assert all(isinstance(layer.attn, GRFAttention) and layer.attn.kernel == "elu1" for layer in model.layers)
    assert model.layers[0].attn is not model.layers[1].attn
    masked = GPSModel(8, 8, 2, 2, attn="masked", attn_kwargs={"mask": HopMask()})
    assert masked.layers[0].attn.mask is not masked.layers[1].attn.mask
    batch = batch_of()
    assert model(torch.randn(batch.num_nodes, 8), batch.edge_index, graph=batch).shape == (batch.num_nodes, 2)
    assert isinstance(GPSLayer(8, attn="PYG.sgformer").attn, DenseAttention)
    edges = Batch.from_data_list([Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)]).edge_index
    for name in ("gcn", "GINConv", "gine", "gatv2", "gatedgcn", "GatedGCN", "sage"):
        given = {"edge_attr": torch.randn(2, 8)} if name.lower() in ("gine", "gatedgcn") else {}
        out = GPSLayer(8, name)(torch.randn(2, 8), edges, **given)
        assert (out[0] if isinstance(out, tuple) else out).shape == (2, 8)
    assert isinstance(as_attention(TransformerConv(8, 8), 8), ConvAttention)
    assert as_conv("gin", 8) is not as_conv("gin", 8)
