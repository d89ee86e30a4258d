import pytest
import torch
from torch.autograd import gradcheck

from pyg_topomask.ops.edge_sum import incidence, neighbour_sum
from pyg_topomask.testing import GRAPHS

MULTI = torch.tensor([[0, 0, 2, 1, 1, 3], [1, 1, 1, 0, 1, 3]])  # a double edge, self-loops, unsorted


def test_neighbour_sum():
    for edge_index in (MULTI, GRAPHS["one_way"].edge_index, GRAPHS["single"].edge_index):
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        wanted = torch.zeros(5, 3, dtype=torch.float64)
        for j, i in edge_index.t().tolist():
            wanted[i] += x[j].detach()
        torch.testing.assert_close(neighbour_sum(x, edge_index), wanted)
        assert gradcheck(lambda value, edges=edge_index: neighbour_sum(value, edges), (x,))


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


@pytest.mark.slow
def test_compiled_code_refuses_nodes_that_do_not_exist():
    called = torch.compile(lambda edges: incidence(edges, 3)[0].rowptr, backend="eager", fullgraph=True)
    edges = torch.tensor([[0, 2], [1, 1]])
    assert called(edges).tolist() == incidence(edges, 3)[0].rowptr.tolist()
    with pytest.raises(RuntimeError, match="a node that does not exist"):
        called(edges + 1)


@pytest.mark.slow
def test_compiled_code_has_the_gradient():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    called = torch.compile(neighbour_sum, backend="aot_eager")
    found, wanted = (torch.autograd.grad(run(x, MULTI).square().sum(), x) for run in (called, neighbour_sum))
    torch.testing.assert_close(found, wanted)
