import pytest
import torch
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.data import Batch
from torch_geometric.nn import GINEConv

from pyg_topomask.nn import GatedGCN, GPSLayer, StableGINEConv
from pyg_topomask.nn.conv import StableGate
from pyg_topomask.testing import GRAPHS, block_permutation, permute
from tests.ops.test_gated_sum import gated_sum_reference

NAMES = ("path", "isolated", "single", "star", "one_way")
TOL = {"rtol": 1e-10, "atol": 1e-12}


def given(names=NAMES):
    parts = [GRAPHS[name].clone() for name in names]
    for part in parts:
        part.x = torch.randn(part.num_nodes, 8, dtype=torch.float64)
        part.edge_attr = torch.randn(part.num_edges, 8, dtype=torch.float64)
        part.pe = torch.randn(part.num_nodes, 3, dtype=torch.float64)
    return Batch.from_data_list(parts)


def batch_norm(norm, x, training):
    mean, var = (x.mean(0), x.var(0, unbiased=False)) if training else (norm.running_mean, norm.running_var)
    return (x - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias


def naive(conv, graph, training):
    """The formula of the docstring, edge by edge."""
    (j, i), scale = graph.edge_index, None
    if conv.gate is not None:
        scale = conv.gate.mlp(((graph.pe[i] - graph.pe[j]) ** 2).sum(1, keepdim=True))
    found, raw = gated_sum_reference(conv.lin_node(graph.x), conv.lin_edge(graph.edge_attr), graph.edge_index, scale)
    nodes = batch_norm(conv.norm_node, found, training).clamp(min=0)
    return graph.x + nodes, graph.edge_attr + batch_norm(conv.norm_edge, raw, training).clamp(min=0)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_gated_gcn_is_the_formula(stable, training):
    graph, conv = given(), GatedGCN(8, equivariant_stable=stable).double().train(training)
    for norm in (conv.norm_node, conv.norm_edge):
        for value in (*norm.parameters(), norm.running_mean, norm.running_var):
            value.data.uniform_(0.5, 1.5)
    with torch.no_grad():
        wanted = naive(conv, graph, training)
        found = conv(graph.x, graph.edge_index, graph.edge_attr, graph.pe if stable else None)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_gated_gcn_gradients_reach_everything():
    graph, conv = given(), GatedGCN(8, equivariant_stable=True).double()
    out, edges = conv(graph.x, graph.edge_index, graph.edge_attr, graph.pe)
    (out.square().sum() + edges.pow(3).sum()).backward()
    for name, parameter in conv.named_parameters():
        assert parameter.grad.isfinite().all(), name
    assert all((p.grad.abs() > 1e-12).any() for p in conv.parameters())


def test_gated_gcn_reads_weights_of_earlier_versions():
    conv, graph = GatedGCN(8).double(), given()
    earlier = conv.state_dict()
    for kind in ("weight", "bias"):
        parts = earlier.pop(f"lin_node.{kind}").chunk(4)
        earlier |= {f"lin_{name}.{kind}": part for name, part in zip(("self", "value", "target", "source"), parts)}
    again = GatedGCN(8).double()
    again.load_state_dict(earlier)
    arguments = graph.x, graph.edge_index, graph.edge_attr
    assert all(map(torch.equal, again(*arguments), conv(*arguments)))


def test_gated_gcn_batch_equals_singles_and_follows_relabelling():
    graph, conv = given(), GatedGCN(8, equivariant_stable=True).double().eval()
    out, edges = conv(graph.x, graph.edge_index, graph.edge_attr, graph.pe)
    alone = [conv(part.x, part.edge_index, part.edge_attr, part.pe) for part in graph.to_data_list()]
    torch.testing.assert_close((out, edges), tuple(map(torch.cat, zip(*alone))), **TOL)
    perm = block_permutation(graph.batch)
    moved = permute(graph, perm)
    again = conv(moved.x, moved.edge_index, graph.edge_attr, moved.pe)
    torch.testing.assert_close(again, (out[perm], edges), **TOL)
    order = torch.randperm(graph.num_edges)  # the order of edges is nobody's business
    again = conv(graph.x, graph.edge_index[:, order], graph.edge_attr[order], graph.pe)
    torch.testing.assert_close(again, (out, edges[order]), **TOL)


@pytest.mark.parametrize(
    "build", [lambda: GatedGCN(8, equivariant_stable=True), lambda: StableGINEConv(Linear(8, 8), 8)]
)
def test_stable_gate_ignores_rotations_of_the_encoding(build):
    graph, conv = given(), build().double().eval()
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    signs = torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)

    def nodes(pe):
        out = conv(graph.x, graph.edge_index, graph.edge_attr, pe)
        return out[0] if isinstance(out, tuple) else out

    wanted = nodes(graph.pe)
    for pe in (graph.pe @ rotation, graph.pe * signs):
        torch.testing.assert_close(nodes(pe), wanted, **TOL)
    assert not torch.allclose(nodes(2 * graph.pe), wanted)


def test_stable_gine_with_an_open_gate_is_gine():
    graph = given()
    nn = Sequential(Linear(8, 8), ReLU(), Linear(8, 8))
    mine, plain = StableGINEConv(nn, 8).double(), GINEConv(nn).double()
    for value in mine.gate.mlp[2].parameters():
        value.data.zero_()
    mine.gate.mlp[2].bias.data.fill_(50.0)
    arguments = (graph.x, graph.edge_index, graph.edge_attr)
    torch.testing.assert_close(mine(*arguments, graph.pe), plain(*arguments))


@pytest.mark.parametrize("names", [("single",), ("isolated",)])
def test_gated_gcn_without_edges_and_on_one_node(names):
    graph, conv = given(names=names), GatedGCN(8).double()
    out, edges = conv(graph.x, graph.edge_index, graph.edge_attr)
    (out.sum() + edges.sum()).backward()
    assert out.isfinite().all()
    assert edges.shape == graph.edge_attr.shape
    none = conv(torch.zeros(0, 8).double(), torch.zeros(2, 0, dtype=torch.long), torch.zeros(0, 8).double())
    assert [part.shape for part in none] == [(0, 8), (0, 8)]


def test_gps_layer_adds_nothing_to_a_conv_with_its_own_residual():
    graph = given()
    layer = GPSLayer(8, GatedGCN(8), norm=None, dropout=0.5, feed_forward=False).double()
    found = layer(graph.x, graph.edge_index, edge_attr=graph.edge_attr)
    torch.testing.assert_close(found, layer.conv(graph.x, graph.edge_index, graph.edge_attr))


def test_dropout_and_the_last_layer():
    graph = given()
    conv, full = (GatedGCN(8, dropout=0.5, update_edges=edges).double() for edges in (False, True))
    arguments = (graph.x, graph.edge_index, graph.edge_attr)
    assert not torch.equal(conv(*arguments), conv(*arguments))
    conv.load_state_dict(full.state_dict(), strict=False)
    torch.testing.assert_close(conv.eval()(*arguments), full.eval()(*arguments)[0])


def test_autocast():
    graph, conv = given(), GatedGCN(8, equivariant_stable=True).eval()
    arguments = (graph.x.float(), graph.edge_index, graph.edge_attr.float(), graph.pe.float())
    exact = conv(*arguments)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, edges = conv(*arguments)
        (out.sum() + edges.sum()).backward()
    assert (out.float() - exact).norm() <= 0.05 * exact.norm()
    assert all(parameter.grad.isfinite().all() for parameter in conv.parameters())


def test_bad_input_is_refused():
    graph, conv = given(), GatedGCN(8).double()
    with pytest.raises(ValueError, match=r"\[23, 8\] \(got none; DummyEdge"):
        conv(graph.x, graph.edge_index)
    with pytest.raises(ValueError, match=r"needs 'edge_attr' \[23, 8\] \(got \[23, 4\]\)"):
        conv(graph.x, graph.edge_index, graph.edge_attr[:, :4])
    with pytest.raises(TypeError, match=r"edges as a \[2, E\] tensor \(got object\)"):
        conv(graph.x, object(), graph.edge_attr)
    with pytest.raises(ValueError, match="reads 'pe' only with equivariant_stable=True"):
        conv(graph.x, graph.edge_index, graph.edge_attr, graph.pe)
    with pytest.raises(ValueError, match="EquivStableLapPE makes from the transform AddLaplacianEncoding"):
        StableGate(4)(None, graph.edge_index)
