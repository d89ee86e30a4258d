import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import barabasi_albert_graph

from pyg_topomask.nn import GKATConv, GRFMask, RWGNKMask
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import GRAPHS, OperatorCase, dense_adjacency
from pyg_topomask.transforms import AddRandomWalks, that_add
from tests.expressivity.graphs import cycles

LAMBDA = 0.75  # exact in float32, in which the mask keeps it


def walked(data):
    return AddRandomWalks(6, 3, halt_prob=0.0, independent=False, seed=0)(data.clone())


def frequencies(data, decay):
    """Frequency vectors ``[N, N]`` entry by entry from the stored table."""
    out = torch.zeros(data.num_nodes, data.num_nodes, dtype=torch.float64)
    start, visited = data.walk_index.long()
    for i, u, length, count in zip(start, visited, data.walk_length, data.walk_count):
        out[i, u] += decay ** int(length) * count.double()
    return out


def kernel(data, decay, alpha):
    f = frequencies(data, decay)
    f = f / f.norm(dim=1, keepdim=True) ** alpha
    return f @ f.t()


class TestRWGNKOperator(OperatorCase):
    graphs = {name: walked(data) for name, data in GRAPHS.items()}  # noqa: RUF012

    @pytest.fixture(autouse=True, params=[(LAMBDA, 0.5), ([0.5, 0.875], [1.0, 0.25])], ids=["shared", "heads"])
    def _numbers(self, request):
        self.decay, self.alpha = map(torch.tensor, request.param)

    def build(self, data):
        mask = RWGNKMask(max(1, self.decay.dim() * 2), max_length=3, learnable=self.decay.dim() > 0).double()
        with torch.no_grad():
            mask.decay.copy_(self.decay)
            mask.alpha.copy_(self.alpha)
        return mask(data)

    def reference(self, data):
        heads = [kernel(data, *numbers) for numbers in zip(self.decay.view(-1).tolist(), self.alpha.view(-1).tolist())]
        return torch.stack(heads) if self.decay.dim() else heads[0]


def with_expected_walks(data, adj, max_length, halt_prob):
    """A table of infinitely many walks."""
    step = (1 - halt_prob) * adj / adj.sum(1, keepdim=True)
    count = torch.stack([torch.linalg.matrix_power(step, k) for k in range(max_length + 1)], dim=-1)
    start, visited, length = found = count.nonzero(as_tuple=True)
    table = {"index": torch.stack([start, visited]), "length": length, "count": count[found], "size": data.num_nodes}
    return data.clone().update({f"walk_{part}": column for part, column in table.items()})


@pytest.mark.parametrize("name", ["path", "star", "two_parts", "random"])
@pytest.mark.parametrize("length", [3, 60])
def test_the_expected_kernel_lies_between_two_series_of_the_adjacency(name, length):
    """Theorem 4.2 of GKAT, with coefficients i + 1, and, for walks that are cut after so many steps, 2 length - i + 1.

    The upper series converges for the smallest degree of the graph only where decay is small.
    """
    data = GRAPHS[name] if name in GRAPHS else Data(edge_index=barabasi_albert_graph(12, 3), num_nodes=12)
    adj = dense_adjacency(Data(edge_index=data.edge_index, num_nodes=data.num_nodes))
    mask = RWGNKMask(decay=0.25, alpha=0.0, max_length=length).double()
    found, degree = mask(with_expected_walks(data, adj, length, 0.2)).to_dense(), adj.sum(1)

    def series(step):
        terms = [torch.linalg.matrix_power(step * adj, i) for i in range(2 * length + 1)]
        return sum((min(i, 2 * length - i) + 1) * term for i, term in enumerate(terms))

    rho = (1 - 0.2) * 0.25
    assert (series(rho / degree.max()) <= found + 1e-12).all()
    assert (found <= series(rho / degree.min()) + 1e-12).all()
    assert (series(rho / degree.max()) < found - 1e-9).any() or degree.max() == degree.min()


@pytest.mark.parametrize(
    ("mask", "walks", "message"),
    [
        (RWGNKMask(max_length=8), {"halt_prob": 0.0, "independent": False}, "after 4 hops, .* RWGNKMask .* = 8,"),
        (GRFMask(max_length=8), {}, r"after 4 hops, but GRFMask .*AddRandomWalks\(max_length=8\)"),
        (GRFMask(max_length=8), {"max_length": 1}, "after 1 hops, but GRFMask has 'max_length' = 8"),
        (RWGNKMask(learnable=True), {}, r"these walks halt at random: draw .*halt_prob=0\.0.* topomask.halt_prob: 0"),
    ],
)
def test_walks_that_are_shorter_or_halt_are_said_once(mask, walks, message):
    graph = AddRandomWalks(**walks, seed=0)(cycles(20))
    with pytest.warns(UserWarning, match=message) as caught:
        mask(mask(graph) and graph)
    assert len(caught) == 1


@pytest.mark.parametrize("first", [Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=3), cycles(20)])
def test_walks_of_each_batch_are_read(first):
    """Those of a batch without edges, or of longer walks, say nothing about the next ones."""
    mask, walk = GRFMask(max_length=8), AddRandomWalks(seed=0)
    mask(AddRandomWalks(max_length=8, seed=0)(first.clone()))
    with pytest.warns(UserWarning, match="after 4 hops, but GRFMask"):
        mask(walk(cycles(20)))


def test_the_documented_walks_are_those_of_the_convolution():
    conv = GKATConv(8, 8, max_length=10)
    (walks,) = that_add(conv.requires, **conv.transform_settings).transforms
    assert (walks.max_length, walks.halt_prob, walks.independent) == (10, 0.0, False)


def test_numbers_that_are_not_learned_are_in_the_state():
    assert not list(RWGNKMask().parameters())
    assert set(RWGNKMask().state_dict()) == {"decay", "alpha"}


@pytest.mark.parametrize("sort", [True, False])
def test_compiled_features_are_those_of_plain_torch(monkeypatch, sort):
    data = Batch.from_data_list([walked(GRAPHS[name]) for name in ("star", "isolated", "two_parts")])
    if not sort:
        order = torch.randperm(data.walk_length.numel())
        data.walk_index, data.walk_length, data.walk_count = (
            x[..., order] for x in (data.walk_index, data.walk_length, data.walk_count)
        )
    mask, found = RWGNKMask(decay=LAMBDA, alpha=0.7, max_length=3).double(), []
    for native in "10":
        monkeypatch.setenv("TOPOMASK_NATIVE", native)
        kernel = mask(data.clone())
        pattern, entries = kernel.support.pairs(None)
        found.append([pattern.row, pattern.col, pattern.rowptr, entries, kernel.to_dense()])
    torch.testing.assert_close(*found)


def test_a_constant_kernel_is_computed_once_for_all_layers():
    data = walked(GRAPHS["star"])
    first, second = (RWGNKMask(decay=0.5, max_length=3) for _ in range(2))
    layout = block_layout(torch.zeros(5, dtype=torch.long))
    assert first(data) is second(data)
    assert first(data).dense_blocks.make(layout)[0] is second(data).dense_blocks.make(layout)[0]
    assert first(data).support.pairs(None)[1] is second(data).support.pairs(None)[1]
    with torch.no_grad():
        second.decay.fill_(1.0)  # as loading a state does
    assert not torch.allclose(first(data).to_dense(), second(data).to_dense())
    torch.testing.assert_close(second(data).to_dense(), RWGNKMask(max_length=3)(data).to_dense())
    assert first.double()(data).dtype == torch.float64
