import copy

import networkx as nx
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCNConv
from torch_geometric.utils import from_networkx

from pyg_topomask.expressivity import distinguishes
from pyg_topomask.nn import GPSModel, GPSStack, PrimphormerAttention, auxiliary_loss
from tests.nn.gps_cases import batch_of


def stack(num_layers=3, norm=None, **settings):
    attn = lambda _: PrimphormerAttention(8, heads=2, num_virtual=4, rank=3, **settings)  # noqa: E731
    return GPSModel(4, 8, 2, num_layers, lambda _: GCNConv(8, 8), attn, norm=norm)


def test_layers_of_a_model_share_one_matrix():
    model, batch = stack(), batch_of()
    first = model.layers[0].attn.projection
    assert all(layer.attn.projection is first for layer in model.layers)
    assert sum(name.endswith("projection") for name, _ in model.named_parameters()) == 1
    assert len({id(layer.attn.weight_e) for layer in model.layers}) == 3
    for other in (copy.deepcopy(model), stack()):
        other.load_state_dict(model.state_dict())
        shared = other.layers[0].attn.projection
        assert all(layer.attn.projection is shared for layer in other.layers)
        assert shared is not first
        arguments = (batch.x.float(), batch.edge_index, batch.batch)
        assert torch.equal(other(*arguments), model(*arguments))


def test_layers_that_share_a_loss_are_refused():
    shared = PrimphormerAttention(8)
    with pytest.raises(ValueError, match="several layers have the same PrimphormerAttention, whose auxiliary loss"):
        GPSStack(8, 2, attn=lambda layer: shared)


def test_the_loss_needs_a_gradient_in_training_only():
    attn, x = PrimphormerAttention(8), torch.randn(5, 8, requires_grad=True)
    checkpoint(attn, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        auxiliary_loss(attn)
    attn.eval()
    value = auxiliary_loss(attn)
    attn.train()
    with torch.no_grad():
        attn(x)
        assert torch.equal(auxiliary_loss(attn), value)


def test_the_loss_of_a_wrapped_attention_counts_once():
    attn = PrimphormerAttention(8)
    attn(torch.randn(5, 8))
    assert torch.equal(auxiliary_loss(torch.compile(attn, backend="eager")), auxiliary_loss(attn))


def test_objective_is_zero_at_a_stationary_point():
    """Theorem 2, with Λ = N Σ^-1 for means in place of sums, from the singular values of a kernel matrix."""
    num_nodes, channels, rank, num_virtual = 7, 6, 3, 5
    attn = PrimphormerAttention(channels, num_virtual=num_virtual, rank=rank).double()
    x = torch.randn(num_nodes, channels, dtype=torch.float64)
    norms, t = torch.tensor([0.5, 1.0, 2.0]).double(), torch.tensor([1.5, -1.0, 0.5]).double()
    with torch.no_grad():
        attn.virtual.weight.zero_()
        attn.virtual.bias.zero_()
        torch.nn.init.orthogonal_(attn.projection).mul_(norms[:, None])
        q, k = (part / part.norm(dim=1, keepdim=True) for part in attn.qk(x).split(channels, dim=1))
        u, values, vh = torch.linalg.svd(q @ k.t())
        attn.weight_e.copy_(attn.projection.t() @ torch.diag(t) @ vh[:rank] @ k)
        attn.weight_r.copy_(attn.projection.t() @ torch.diag(t) @ u[:, :rank].t() @ q)
        attn.sqrt_lambda.copy_((num_nodes / (values[:rank] * norms**2)).sqrt())
    attn(x)
    trace = float((attn.weight_e * attn.weight_r).sum().detach())
    assert trace == pytest.approx(float((values[:rank] * norms**2 * t**2).sum()))
    assert trace > 1
    assert attn.auxiliary_loss.item() < (1e-13 * trace) ** 2
    with torch.no_grad():  # beside the point it is not
        for parameter in attn.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    attn(x)
    assert attn.auxiliary_loss > 1e-6
    assert not torch.autograd.grad(attn.auxiliary_loss, attn.out.weight)[0].any()  # W_c is the task's alone


def test_carry_and_loss_are_float32_under_autocast_and_in_half_precision():
    attn, x, batch = PrimphormerAttention(8, heads=2), torch.randn(13, 8), batch_of()
    attn(x, batch.batch).sum().backward()
    assert all(parameter.grad is not None for parameter in attn.parameters())  # as DDP wants, without the loss
    objective = attn.auxiliary_loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, carry = attn(x, batch.batch, carry=attn.initial_carry(3))
    assert carry.dtype == attn.auxiliary_loss.dtype == torch.float32
    torch.testing.assert_close(attn.auxiliary_loss, objective, rtol=0.02, atol=1e-3)
    half = attn.bfloat16()
    assert half(x.bfloat16(), batch.batch, carry=half.initial_carry(3))[1].dtype == torch.float32


def test_initial_parameters():
    attn = PrimphormerAttention(48, heads=4)
    for matrix in (attn.weight_e, attn.weight_r, attn.projection):
        torch.testing.assert_close(matrix @ matrix.t(), torch.eye(30), rtol=1e-5, atol=1e-5)
    assert attn.sqrt_lambda.shape == (4, 30)
    assert 0 <= attn.sqrt_lambda.min() <= attn.sqrt_lambda.max() <= 1


def test_hooks_and_replacements_of_linear_maps_count():
    attn, x = PrimphormerAttention(8, heads=2).double(), torch.randn(9, 8, dtype=torch.float64)
    batch = torch.tensor([0] * 4 + [1] * 5)
    plain = attn(x, batch)
    for name in ("out", "virtual"):
        inner = getattr(attn, name)
        setattr(attn, name, torch.nn.Sequential(inner))  # a wrapper without a weight of its own
        torch.testing.assert_close(attn(x, batch), plain)
        getattr(attn, name).register_forward_hook(lambda module, inputs, out: 2 * out)
        if name == "out":
            torch.testing.assert_close(attn(x, batch), 2 * plain)
        assert not torch.allclose(attn(x, batch), plain)
        setattr(attn, name, inner)


def summing_attention(features):
    """One head by which every node reads the mean of the features, channels after the first (Appendix C.4)."""
    attn = PrimphormerAttention(1 + features, num_virtual=3, rank=features, bias=False).double()
    with torch.no_grad():
        for parameter in (attn.qk.weight, attn.projection, attn.virtual.weight, attn.weight_e, attn.weight_r):
            parameter.zero_()
        attn.qk.weight[[0, 1 + features], 0] = 1  # every query and key is the first unit vector
        attn.weight_e[0, 0] = attn.weight_r[0, 0] = 1
        attn.virtual.weight[:, 1:] = torch.eye(features)
        attn.out.weight.zero_()
        attn.out.weight[1:] = torch.eye(features).repeat(1, 2) / 2
    return attn


@pytest.mark.parametrize("form", ["nodes", "edges"])
def test_every_node_can_read_the_whole_graph(form):
    """Theorem 4 on nodes, with rows of the adjacency as encodings, and Theorem 3 on pairs of nodes with an indicator.

    The features of a node are its row in a place of its own, and those of a pair its entry, so their sum is the matrix.
    A function of it, here the number of triangles, tells apart two graphs that the 1-WL test does not.
    """
    hexagon, triangles = nx.cycle_graph(6), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))
    assert not distinguishes(from_networkx(hexagon), from_networkx(triangles))
    matrices = torch.stack([torch.from_numpy(nx.to_numpy_array(graph)) for graph in (hexagon, triangles)])
    i, j = torch.cartesian_prod(torch.arange(6), torch.arange(6)).unbind(1)
    if form == "nodes":
        tokens = torch.eye(6).double()[:, :, None] * matrices[:, :, None]  # [2, 6, 6, 6]: node, its place, its row
    else:
        order = torch.randperm(36)  # pairs come in any order
        i, j = i[order], j[order]
        tokens = torch.eye(36).double()[6 * i + j] * matrices[:, i, j][..., None]
    tokens = tokens.reshape(2, -1, 36)
    x = torch.cat([torch.ones_like(tokens[..., :1]), tokens], dim=2).flatten(0, 1)
    count = tokens.size(1)
    read = summing_attention(36)(x, torch.arange(2).repeat_interleave(count)) * count
    assert not read[:, 0].any()
    seen = read[:, 1:].reshape(2, count, 6, 6)
    torch.testing.assert_close(seen, matrices[:, None].expand_as(seen), rtol=0, atol=1e-13)
    found = torch.linalg.matrix_power(seen, 3).diagonal(dim1=2, dim2=3).sum(2) / 6
    torch.testing.assert_close(found, torch.tensor([[0.0], [2.0]]).double().expand(2, count))
