import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_topomask.ops import segment
from tests.ops.compare import assert_is_the_reference, batch_of

TOL = {"rtol": 1e-10, "atol": 1e-10}


def by_definition(q, k, v, batch):
    return torch.einsum("ij,ihr,jhr,jhd->ihd", (batch[:, None] == batch).to(v), q, k, v)


@pytest.mark.parametrize("widths", [(3, 5), (70, 60)])  # wide heads are multiplied graph by graph
@pytest.mark.parametrize("sizes", [[1], [32], [33], [1, 31, 32, 33, 64, 100], [5, 0, 0, 3], [0, 4], [3, 2, 3, 2, 0, 2]])
def test_sums_of_ragged_graphs(sizes, widths):
    batch, n = batch_of(sizes), sum(sizes)
    q, k, v = (torch.randn(n, 2, c, dtype=torch.float64, requires_grad=True) for c in (widths[0], *widths))
    functions = segment.segment_linear_attention, by_definition
    assert_is_the_reference(*(lambda *x, f=f: f(*x, batch) for f in functions), (q, k, v))


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 70), min_size=1, max_size=6).filter(sum), seed=st.integers(0, 99))
def test_random_ragged_batches(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    batch = batch_of(sizes)
    q, k, v = (torch.randn(2, 2, sum(sizes), generator=generator).double().permute(2, 1, 0) for _ in range(3))
    torch.testing.assert_close(segment.segment_linear_attention(q, k, v, batch), by_definition(q, k, v, batch), **TOL)
    x = v.flatten(1)
    filled = int(batch[-1]) + 1  # a batch vector does not tell of empty graphs after its last
    parts = x.split(sizes[:filled])
    means = [part.mean(0) if len(part) else part.sum(0) for part in parts]
    torch.testing.assert_close(segment.segment_mean(x, batch, len(parts)), torch.stack(means), **TOL)
    torch.testing.assert_close(segment.segment_mean(parts[0], None, 1)[0], means[0], **TOL)
    assert torch.equal(segment.segment_mean(x[:0], None, 1), torch.zeros(1, *x.shape[1:], dtype=x.dtype))
    torch.testing.assert_close(segment.segment_sum(x, batch), torch.stack([part.sum(0) for part in parts]), **TOL)
    largest = [part.amax(0) if len(part) else torch.full((4,), -torch.inf).double() for part in parts]
    assert torch.equal(segment.segment_max(x, batch), torch.stack(largest))


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 600)), min_size=1, max_size=12).filter(sum))
def test_groups_of_similar_size(sizes):
    """They are few, padding at most doubles the pairs of graphs that are not small, and nothing is lost."""
    batch = batch_of(sizes)
    groups = segment.size_groups(batch)
    listed = [graph for graphs in groups.graphs for graph in graphs]
    assert sorted(listed) == [graph for graph, size in enumerate(groups.num_nodes) if size]
    assert len(groups.graphs) <= 8
    for graphs, (_, width), inside in zip(groups.graphs, groups.shapes, groups.inside, strict=True):
        own = [sizes[graph] for graph in graphs]
        assert width == max(own)
        assert width <= 32 or width**2 <= max(2 * min(own) ** 2, 2 * 32**2, max(sizes) ** 2 / 2**6)
        assert (min(own) == width) if inside is None else (inside.sum((1, 2)).tolist() == [n * n for n in own])
    x = torch.randn(batch.numel(), 2)
    assert torch.equal(groups.join(groups.split(x)), x)


def test_one_graph_without_a_batch_vector():
    q, k, v = (torch.randn(9, 2, 3, dtype=torch.float64) for _ in range(3))
    torch.testing.assert_close(
        segment.segment_linear_attention(q, k, v, None), by_definition(q, k, v, torch.zeros(9)), **TOL
    )


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (torch.tensor([0, 1, 0]), ValueError, "must be sorted"),
        (torch.tensor([-1, 0, 0]), ValueError, "must be sorted"),
        (torch.tensor([0, 0]), ValueError, r"shape \[3\].*got \[2\]"),
        (torch.tensor([[0, 0, 0]]), ValueError, r"shape \[3\].*got \[1, 3\]"),
        (torch.zeros(3), TypeError, "integer graph of each node.*float32"),
        (torch.zeros(3, dtype=torch.bool), TypeError, "torch.bool"),
    ],
)
def test_bad_batch_vectors_are_refused(batch, error, message):
    with pytest.raises(error, match=message):
        segment.check_batch(batch, 3)


def test_a_huge_number_in_a_batch_vector_asks_for_no_memory():
    with pytest.raises(ValueError, match=f"names graph {2**40}, but there are 3 nodes"):
        segment.segments(torch.tensor([0, 0, 2**40]))


def test_a_batch_vector_changed_in_place_is_checked_again():
    """The check is remembered for a batch vector as it is."""
    batch = torch.tensor([0, 0, 1])
    segment.check_batch(batch, 3)
    batch[0] = 2
    with pytest.raises(ValueError, match="must be sorted"):
        segment.check_batch(batch, 3)
