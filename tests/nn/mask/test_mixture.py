"""Sums of masks and masks for groups of heads: attention computes them part by part, as their algebra says."""

from math import exp

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask import nn, operators, ops, testing
from pyg_topomask.ops.attention.choice import watched
from pyg_topomask.ops.attention.mask import _sums_by_row, row_sums
from pyg_topomask.ops.attention.masked import (
    masked_additive_attention_reference,
    masked_linear_attention_reference,
    masked_softmax_attention_reference,
)
from pyg_topomask.transforms import that_add

MASKS = {
    "ones + hop": lambda: nn.MixtureMask([None, nn.HopMask(4, 3)], 4),
    "grf + signed hop + ones": lambda: nn.MixtureMask([nn.GRFMask(4, 3), nn.HopMask(1, 3, positive=False), None]),
    "ones, hop, grf by head": lambda: nn.HeadMasks([None, nn.HopMask(2, 3), nn.GRFMask(1, 3)], [1, 2, 1]),
    "grf times hop": lambda: nn.ProductMask(nn.GRFMask(4, 3), nn.HopMask(1, 3)),
}
NAMES = ["two_parts", "isolated", "single", "star", "path"]


def batch_for(module):
    settings = {"seed": 0, "num_walks": 8, "max_hops": 3, "max_length": 3}
    return Batch.from_data_list([that_add(module.requires, **settings)(testing.GRAPHS[name].clone()) for name in NAMES])


@pytest.fixture(params=MASKS)
def mask(request):
    torch.manual_seed(1)
    module = MASKS[request.param]().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module


@pytest.mark.parametrize("kernel", ["linear", "signed features", "softmax"])
@pytest.mark.parametrize("normalizer", ["bound", "signed"])
def test_equals_the_algebra_with_all_gradients(mask, kernel, normalizer):
    graph = batch_for(mask)
    q, k, v = (torch.rand(graph.num_nodes, 4, width, dtype=torch.float64) for width in (5, 5, 3))
    q = q - 0.4 if kernel == "signed features" else q
    inputs = [x.requires_grad_() for x in (q, k, v, *mask.parameters())]
    attend, reference = ops.masked_linear_attention, masked_linear_attention_reference
    if kernel == "softmax":
        attend, reference = ops.masked_softmax_attention, masked_softmax_attention_reference
    out = attend(q, k, v, mask(graph), graph.batch, normalizer=normalizer)
    operator = mask(graph)
    dense, bound = operator.to_dense(), operator.bound.to_dense()
    tolerance = 1e-13 if normalizer == "signed" else 0.0
    wanted = reference(q, k, v, dense, bound=bound, normalizer=normalizer, tolerance=tolerance)
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)
    if normalizer == "bound":
        grads = [torch.autograd.grad(x.sin().sum(), inputs, retain_graph=True) for x in (out, wanted)]
        for found, right in zip(*grads):
            torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-9)


def test_a_product_multiplies_the_left_mask_by_the_right_one():
    mask = nn.ProductMask(nn.GRFMask(4, 3), nn.HopMask(4, 3)).double()
    graph = batch_for(mask)
    left, right = (part(graph).to_dense() for part in mask.masks)
    torch.testing.assert_close(mask(graph).to_dense(), left @ right)
    assert not torch.allclose(left @ right, right @ left)


def test_scales_of_any_sign_and_queries_without_features():
    q, k, v = (torch.rand(5, 2, width, dtype=torch.float64) for width in (4, 4, 3))
    q[2] = 0
    scale = torch.tensor([1.0, -2, 0.5, -1, 3], dtype=torch.float64)
    dense = operators.DenseOperator(torch.rand(5, 5, dtype=torch.float64))
    mask = operators.SumOperator(
        operators.DiagonalScaledOperator(dense, scale), operators.OnesOperator(torch.zeros(5, dtype=torch.long))
    )
    wanted = masked_linear_attention_reference(q, k, v, mask.to_dense(), bound=mask.bound.to_dense())
    found = ops.masked_linear_attention(q, k, v, mask)
    torch.testing.assert_close(found, wanted)
    assert (found[2] == 0).all()


def test_additive_attention_under_masks_for_groups_of_heads():
    ones, dense = (
        operators.OnesOperator(torch.zeros(4, dtype=torch.long)),
        operators.DenseOperator(torch.rand(4, 4).double()),
    )
    given = [torch.randn(4, 2, dtype=torch.float64) for _ in range(2)] + [torch.randn(4, 2, 3, dtype=torch.float64)]
    mask = operators.HeadStackOperator([ones, dense])
    wanted = masked_additive_attention_reference(*given, mask.to_dense())
    torch.testing.assert_close(ops.masked_additive_attention(*given, mask), wanted)


class OneEdge(torch.nn.Module):
    """A user's mask, which has nothing to initialise, and rows without entries."""

    def forward(self, graph):
        return operators.SparseOperator(torch.tensor([[0], [1]]), torch.tensor([3.0]), graph.num_nodes)


def test_weights_are_shares_of_a_row_at_the_start():
    mask = nn.MixtureMask([None, nn.HopMask(1, 3)])
    graph = batch_for(mask)
    sums = [operator @ torch.ones(graph.num_nodes, 1) for operator in mask(graph).operators]
    torch.testing.assert_close(torch.cat(sums, 1), torch.ones(graph.num_nodes, 2))
    mask.log_weights.data.fill_(-3)  # weights stay positive
    total = mask(graph) @ torch.ones(graph.num_nodes, 1)
    torch.testing.assert_close(total, torch.full_like(total, 2 * exp(-3)))
    edge, _ = nn.MixtureMask([OneEdge(), None])(graph).operators
    assert (edge @ torch.ones(graph.num_nodes, 1)).flatten().tolist() == [1.0] + [0.0] * (graph.num_nodes - 1)


@pytest.mark.parametrize("name", [name for name in MASKS if "+" in name])
def test_row_sums_have_gradients(name):
    mask = MASKS[name]().double()
    for parameter in mask.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    graph = batch_for(mask)
    shares = [x.to_dense() / x.bound.to_dense().sum(-1, keepdim=True) for x in (part(graph) for part in mask.masks)]
    wanted = sum(weight.exp()[:, None, None] * share for weight, share in zip(mask.log_weights, shares))
    found = mask(graph).to_dense()
    grads = [torch.autograd.grad(x.sin().sum(), list(mask.parameters())) for x in (found, wanted.view_as(found))]
    torch.testing.assert_close(*grads)


def test_parts_of_parts_have_engines_of_their_own():
    graph, planned = batch_for(MASKS["ones + hop"]()), []
    hop, ones = nn.HopMask(2, 3)(graph), operators.OnesOperator(graph.batch)
    with watched(planned.append):
        q = torch.rand(graph.num_nodes, 4, 3)
        ops.masked_linear_attention(
            q, q, q, nn.HopMask(4, 3)(graph) + operators.HeadStackOperator([ones, hop], [2, 2]), graph.batch
        )
    assert [type(problem.mask).__name__ for problem in planned] == ["HopOperator", "NoneType", "HopOperator"]


def test_row_sums_of_half_precision_are_summed_in_float32():
    index = torch.stack([torch.zeros(3000, dtype=torch.long), torch.arange(3000)])
    mask = operators.HopOperator(index, torch.ones(3000, dtype=torch.long), torch.tensor([1.0, 0.5]).bfloat16(), 3000)
    assert row_sums(mask)[:2].flatten().tolist() == [1500.0, 0.0]


def test_row_sums_of_a_single_pair_read_its_own_coefficients():
    """The strides of an axis of size 1 say nothing about where numbers lie."""
    coeffs = torch.arange(9.0).view(3, 3)[:1]  # the only node of a graph, beside numbers of others
    assert _sums_by_row(coeffs, torch.tensor([0, 1])).tolist() == [[0.0, 1.0, 2.0]]


def test_a_part_within_its_error_counts_alike_with_and_without_compiled_code(monkeypatch):
    """Entry (0, 7) of the heat kernel, 8e-7, is smaller than its error; the part's numerator is then zero."""
    path = torch.stack([torch.arange(11), torch.arange(1, 12)])
    graph = Batch.from_data_list([Data(edge_index=torch.cat([path, path.flip(0)], 1), num_nodes=12)] * 40)
    q, k, v = torch.zeros(3, graph.num_nodes, 4, 16)
    q[..., 0] = k[7::12, :, 0] = v[7::12] = 1.0
    k[11::12, :, 0], v[11::12] = 0.1, -1.0
    graph, found = that_add(nn.HeatMask().requires)(graph), []
    for native in ("1", "0"):
        monkeypatch.setenv("TOPOMASK_NATIVE", native)
        mask = nn.HeatMask()(graph) + operators.OnesOperator(graph.batch) * 1e-5
        found.append(ops.masked_linear_attention(q, k, v, mask, graph.batch))
    torch.testing.assert_close(*found)


def test_the_attention_builds_mixtures_and_groups_of_heads():
    assert isinstance(nn.MaskedAttention(8, 2, mask=[None, nn.HopMask(2)]).mask, nn.MixtureMask)
    with pytest.raises(TypeError, match=r"such as GRFMask\(\) \(got 'hop'\)"):
        nn.MaskedAttention(8, 2, mask="hop")
    divided = nn.MaskedAttention(8, 2, mask=[None, nn.HopMask()], mask_heads=[1, 1])
    assert isinstance(divided.mask, nn.HeadMasks)
    assert divided.requires == ("hop_index", "hop_length", "hop_size")
    assert divided.transform_settings == {"max_hops": 8}
    before = {name: value.clone() for name, value in divided.mask.state_dict().items()}
    with torch.no_grad():
        divided.mask.masks[1].values.add_(1.0)
    with pytest.raises(ValueError, match=r"HeadMasks needs the graph.*AddHops\(\)"):
        divided(torch.zeros(3, 8))
    divided.mask.reset_parameters()
    assert all(torch.equal(before[name], value) for name, value in divided.mask.state_dict().items())


def test_parameters_of_masks_are_a_group_of_their_own():
    attn = nn.MaskedAttention(8, 2, mask=[None, nn.HopMask(2)])
    model, masks = nn.parameter_groups(attn, 1e-3, weight_decay=0.1)
    assert (model["lr"], model["weight_decay"], masks["lr"], masks["weight_decay"]) == (1e-3, 0.1, 25e-3, 0.0)
    assert {id(p) for p in masks["params"]} == {id(p) for p in attn.mask.parameters()}
    assert {id(p) for p in model["params"] + masks["params"]} == {id(p) for p in attn.parameters()}
    torch.optim.AdamW([model, masks])
    assert len(nn.parameter_groups(torch.nn.Linear(2, 2), 1e-3)) == 1
    with pytest.raises(TypeError, match=r"give the model, .* not its parameters \(got list\)"):
        nn.parameter_groups(list(attn.parameters()), 1e-3)


class Near(nn.Mask):
    """A mask of one's own that returns a matrix."""

    def forward(self, graph):
        same = graph.batch[:, None] == graph.batch
        return torch.exp(-torch.cdist(graph.x, graph.x)) * same


def test_a_mask_that_returns_a_matrix_is_a_part_like_any_other():
    graph = Batch.from_data_list([testing.GRAPHS["star"], testing.GRAPHS["path"]])
    dense = Near()(graph).to_dense()
    torch.testing.assert_close(dense, Near.forward(None, graph))
    summed = nn.MixtureMask([Near(), None])(graph).to_dense()
    ones = (graph.batch[:, None] == graph.batch).double()
    torch.testing.assert_close(summed, dense / dense.sum(1, keepdim=True) + ones / ones.sum(1, keepdim=True))
    model = nn.GPSModel(4, 8, 2, 1, attn=lambda _: nn.MaskedAttention(8, mask=Near()), pool="graph_token").double()
    assert model(graph.x, graph.edge_index, graph=graph).shape == (2, 2)
