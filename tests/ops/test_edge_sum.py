import pytest
import torch
from torch.autograd import gradcheck
from torch_geometric.data import Batch

from pyg_topomask.ops.edge_sum import gated_sum, incidence, neighbour_sum
from pyg_topomask.testing import GRAPHS

NAMES = [*GRAPHS]
MULTI = torch.tensor([[0, 0, 2, 1, 1, 3], [1, 1, 1, 0, 1, 3]])  # a double edge, self-loops, unsorted


def draw(num_nodes, num_edges, channels=3, dtype=torch.float64):
    torch.manual_seed(0)
    nodes = [torch.randn(num_nodes, channels, dtype=dtype, requires_grad=True) for _ in range(3)]
    edge = torch.randn(num_edges, channels, dtype=dtype, requires_grad=True)
    scale = torch.rand(num_edges, 1, dtype=dtype, requires_grad=True)
    return *nodes, edge, scale


def gated_sum_reference(target, source, value, edge, edge_index, scale=None):
    out, e = [], []
    for number, (j, i) in enumerate(edge_index.t().tolist()):
        e.append(target[i] + source[j] + edge[number])
    for i in range(value.size(0)):
        above, below = torch.zeros_like(value[0]), torch.full_like(value[0], 1e-6)
        for number, (j, to) in enumerate(edge_index.t().tolist()):
            if to == i:
                gate = 1 / (1 + torch.exp(-e[number])) * (1 if scale is None else scale[number])
                above, below = above + gate * value[j], below + gate
        out.append(above / below)
    return torch.stack(out), torch.stack(e) if e else edge


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("edge_index", [*(GRAPHS[name].edge_index for name in NAMES), MULTI], ids=[*NAMES, "multi"])
def test_gated_sum_is_the_formula(edge_index, scaled):
    num_nodes = max([int(edge_index.max()) + 2 if edge_index.numel() else 1])
    *given, scale = draw(num_nodes, edge_index.size(1))
    arguments = (*given, edge_index, scale if scaled else None)
    inputs = [*given, scale] if scaled else given
    grads = []
    for function in (gated_sum, gated_sum_reference):
        out, e = function(*arguments)
        weights = [torch.linspace(-1, 1, part.numel(), dtype=part.dtype).view(part.shape) for part in (out, e)]
        loss = (out * weights[0]).sum() + (e * weights[1]).sum()
        grads.append((out, e, *torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)))
    for mine, wanted in zip(*grads):
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-12)
    single = gated_sum(*(v.detach().float() if torch.is_tensor(v) and v.is_floating_point() else v for v in arguments))
    torch.testing.assert_close(single[0], grads[0][0].float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("part", ["out", "edges", "both"])
def test_gated_sum_gradcheck(part):
    *given, scale = draw(4, MULTI.size(1))

    def run(target, source, value, edge, scale):
        out, e = gated_sum(target, source, value, edge, MULTI, scale)
        return {"out": out, "edges": e, "both": (out, e)}[part]

    assert gradcheck(run, (*given, scale))


def test_neighbour_sum():
    for edge_index in (MULTI, GRAPHS["one_way"].edge_index, GRAPHS["single"].edge_index):
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        wanted = torch.zeros(5, 3, dtype=torch.float64)
        for j, i in edge_index.t().tolist():
            wanted[i] += x[j].detach()
        torch.testing.assert_close(neighbour_sum(x, edge_index), wanted)
        assert gradcheck(lambda value, edges=edge_index: neighbour_sum(value, edges), (x,))


def test_gated_sum_keeps_one_array_per_edge():
    batch = Batch.from_data_list([GRAPHS["star"]] * 8)
    *given, _ = draw(batch.num_nodes, batch.num_edges)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        gated_sum(*given, batch.edge_index)
    assert [shape for shape in kept if shape == (batch.num_edges, 3)] == [(batch.num_edges, 3)]


def test_edges_are_sorted_once_per_batch():
    edge_index = MULTI.clone()
    patterns = incidence(edge_index, 5)
    assert incidence(edge_index, 5) is patterns
    entering, leaving = patterns
    assert entering.col.tolist() == [3, 0, 1, 2, 4, 5]
    assert entering.rowptr.tolist() == [0, 1, 5, 5, 6, 6]
    assert leaving.col.tolist() == [0, 1, 3, 4, 2, 5]
    assert leaving.rowptr.tolist() == [0, 2, 4, 5, 6, 6]
    assert incidence(edge_index, 6) is not patterns


def test_edge_to_a_missing_node_is_refused():
    with pytest.raises(ValueError, match="contains node 3, but nodes are 0 to 2"):
        neighbour_sum(torch.ones(3, 2), MULTI)


def test_half_precision_and_32_bit_indices():
    x = torch.randn(5, 3)
    out = neighbour_sum(x.bfloat16(), MULTI.int())
    torch.testing.assert_close(out.float(), neighbour_sum(x, MULTI), rtol=0.05, atol=0.05)
