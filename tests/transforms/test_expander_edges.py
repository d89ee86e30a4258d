import copy
import math
import pickle

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import AddSelfLoops, Compose

from pyg_topomask.nn import ExphormerAttention
from pyg_topomask.ops.expander import EXPANDERS, random_cycles, spectral_gap
from pyg_topomask.testing import GRAPHS, empty_graph, permute
from pyg_topomask.transforms import AddExpanderEdges, expander_edges


def ring(num_nodes):
    node = torch.arange(num_nodes)
    return Data(edge_index=torch.stack([node, node.roll(1)]), num_nodes=num_nodes)


def expanded(data, **settings):
    return AddExpanderEdges(**{"seed": 0, **settings})(data.clone())


def multiplicity(index, num_nodes):
    counts = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    return counts.index_put_(tuple(index.long()), torch.ones(index.size(1), dtype=torch.float64), accumulate=True)


@pytest.mark.parametrize("degree", [1, 3, 5])
@pytest.mark.parametrize("num_nodes", [12, 13, 40, 250])
def test_regular_symmetric_connected_without_loops(degree, num_nodes):
    data = expanded(ring(num_nodes), degree=degree)
    adj = multiplicity(data.expander_index, num_nodes)
    assert torch.equal(adj, adj.t())
    assert (adj.diagonal() == 0).all()
    assert (adj.sum(0) == 2 * degree).all()
    assert torch.linalg.eigvalsh(torch.diag(adj.sum(0)) - adj)[1] > 1e-9  # in one piece
    key = data.expander_index[0].long() * num_nodes + data.expander_index[1]
    assert torch.equal(key, key.sort()[0])
    assert data.expander_index.dtype == torch.int32
    assert data.expander_size == num_nodes
    assert set(data.keys()) - set(ring(num_nodes).keys()) == {"expander_index", "expander_size"}


@pytest.mark.parametrize("algorithm", ["Random-d", "Random-d-2"])
def test_permutations_join_every_node_to_its_image(algorithm):
    draw, degree = EXPANDERS[algorithm], 4
    for num_nodes in (12, 40):
        adj = multiplicity(draw(num_nodes, degree, torch.Generator().manual_seed(1)), num_nodes)
        assert torch.equal(adj, adj.t())
        assert (adj.diagonal() == 0).all()
        assert (adj.sum(0) <= 2 * degree).all()
    # Chances of fixed points: degree nodes are expected over all permutations, whatever the number of nodes.
    missing = [2 * degree * 30 - draw(30, degree, torch.Generator().manual_seed(i)).size(1) for i in range(400)]
    mean = sum(missing) / len(missing) / 2
    assert abs(mean - degree) < 5 * (degree / len(missing)) ** 0.5  # five standard errors of a Poisson number
    data = expanded(ring(50), degree=degree, algorithm=algorithm)
    adj = multiplicity(data.expander_index, 50)
    assert torch.linalg.eigvalsh(torch.diag(adj.sum(0)) - adj)[1] > 1  # disconnected draws are not taken
    assert not torch.equal(data.expander_index, expanded(ring(50), degree=degree).expander_index)


def test_permutations_are_told_apart():
    one = EXPANDERS["Random-d"](20, 1, torch.Generator().manual_seed(0))
    two = EXPANDERS["Random-d-2"](20, 1, torch.Generator().manual_seed(0))
    assert torch.equal(one, two)  # of one copy both are one permutation
    image = EXPANDERS["Random-d-2"](20, 3, torch.Generator().manual_seed(0))
    first = image[:, : image.size(1) // 2]
    assert (first[1].bincount(minlength=20) == first[0].bincount(minlength=20)).all()  # as many ends as starts
    with pytest.raises(ValueError, match=r"'algorithm' must be one of Hamiltonian, Random-d, Random-d-2 \(got 'x'\)"):
        AddExpanderEdges(algorithm="x")


def test_each_cycle_visits_every_node_once():
    index = random_cycles(20, 3, torch.Generator().manual_seed(0))
    forward, backward = index.split(60, dim=1)
    assert torch.equal(forward, backward.flip(0))
    for cycle in forward.split(20, dim=1):
        after, node, seen = dict(cycle.t().tolist()), 0, set()
        while node not in seen:
            seen.add(node)
            node = after[node]
        assert seen == {*range(20)}


@pytest.mark.parametrize("num_nodes", [0, 1, 2, 3, 7])
def test_small_graphs_are_complete(num_nodes):
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=num_nodes)
    index = expanded(data, degree=3).expander_index
    assert index.shape == (2, num_nodes * (num_nodes - 1))
    assert torch.equal(multiplicity(index, num_nodes), 1 - torch.eye(num_nodes, dtype=torch.float64))


@pytest.mark.parametrize("num_nodes", [20, 150, 400])
def test_measured_gap_is_the_eigenvalue(num_nodes):
    index = random_cycles(num_nodes, 3, torch.Generator().manual_seed(1))
    adj = multiplicity(index, num_nodes)
    wanted = float(torch.linalg.eigvalsh(torch.diag(adj.sum(0)) - adj)[1])
    assert spectral_gap(index, num_nodes) == pytest.approx(wanted, abs=1e-3)


def test_gap_of_irregular_and_unconnected_graphs():
    star = torch.tensor([[0] * 299 + [*range(1, 300)], [*range(1, 300)] + [0] * 299])
    assert spectral_gap(star, 300) == pytest.approx(1, abs=0.3)  # tolerance is relative to the hub's degree
    apart = torch.cat([random_cycles(150, 2), random_cycles(150, 2) + 150], 1)
    assert spectral_gap(apart, 300) == pytest.approx(0, abs=1e-2)
    complete = (1 - torch.eye(250)).nonzero().t()
    assert spectral_gap(complete, 250) == pytest.approx(250, abs=0.1)


def test_every_graph_expands_nearly_as_well_as_can_be():
    transform, bound = AddExpanderEdges(degree=5, seed=3), 10 - 2 * 3 - 0.1
    for num_nodes in (*range(12, 60, 3), 120, 193, 300):
        adj = multiplicity(transform(ring(num_nodes)).expander_index, num_nodes)
        assert torch.linalg.eigvalsh(torch.diag(adj.sum(0)) - adj)[1] >= bound - 1e-3


def test_draws_again_until_the_gap_suffices_and_keeps_the_best(monkeypatch):
    gaps = iter([3.0, 3.6, 3.2, 3.8999, 5.0])
    seen = []

    def gap(index, num_nodes):
        seen.append(index)
        return next(gaps)

    monkeypatch.setattr(expander_edges, "spectral_gap", gap)
    last = expanded(ring(30), max_iters=10)
    assert len(seen) == 5
    assert torch.equal(multiplicity(last.expander_index, 30), multiplicity(seen[4], 30))
    gaps, bound = iter([3.0, 3.6, 3.2]), len(seen)
    best = expanded(ring(30), max_iters=3)
    assert len(seen) == bound + 3
    assert torch.equal(multiplicity(best.expander_index, 30), multiplicity(seen[bound + 1], 30))
    assert all(torch.equal(a, b) for a, b in zip(seen[:3], seen[bound:]))  # the same seed
    assert not torch.equal(seen[0], seen[1])


def test_the_gap_of_huge_graphs_is_not_measured(monkeypatch):
    monkeypatch.setattr(expander_edges, "MAX_CHECKED_NODES", 50)
    monkeypatch.setattr(expander_edges, "spectral_gap", lambda index, num_nodes: pytest.fail("measured"))
    assert (multiplicity(expanded(ring(51)).expander_index, 51).sum(0) == 10).all()


def test_edges_are_a_function_of_seed_and_graph():
    transform = AddExpanderEdges(seed=0)
    first = transform(ring(30)).expander_index
    state = torch.get_rng_state()
    transform(ring(20))
    assert torch.equal(transform(ring(30)).expander_index, first)
    assert torch.equal(expanded(ring(30)).expander_index, first)
    assert torch.equal(torch.get_rng_state(), state)
    mixed = ring(30)
    mixed.edge_index = mixed.edge_index[:, torch.randperm(30)]
    assert torch.equal(expanded(mixed).expander_index, first)
    assert not torch.equal(expanded(ring(30), seed=1).expander_index, first)
    other = ring(30)
    other.edge_index[0, 0] = 5
    assert not torch.equal(expanded(other).expander_index, first)


def test_without_a_seed_every_call_draws_from_torch():
    transform = AddExpanderEdges()
    torch.manual_seed(3)
    first, second = transform(ring(30)), transform(ring(30))
    assert not torch.equal(first.expander_index, second.expander_index)
    torch.manual_seed(3)
    assert torch.equal(transform(ring(30)).expander_index, first.expander_index)


def test_no_edges_at_all_and_a_second_time():
    points = Data(pos=torch.rand(20, 3))
    data = AddExpanderEdges(seed=0, num_virtual=2)(points)
    assert data.expander_index.shape == (2, 200)
    assert data.expander_virtual == 2
    again = AddExpanderEdges(seed=0, degree=2)(data)
    assert again.expander_index.shape == (2, 80)
    assert "expander_virtual" not in again
    assert set(points.keys()) == {"pos"}


def test_collation_shifts_each_graph_and_keeps_its_own_edges():
    parts = [expanded(GRAPHS[name], num_virtual=1) for name in ("path", "single", "isolated", "star")]
    parts += [expanded(empty_graph(), num_virtual=1), expanded(ring(30), num_virtual=1)]
    for part in parts:
        part.x = None
        assert part.num_edges == part.edge_index.size(1)
        assert part.validate()
    batch = Batch.from_data_list(parts)
    assert batch.expander_index.dtype == torch.int32
    shifted = [part.expander_index + int(offset) for part, offset in zip(parts, batch.ptr)]
    assert torch.equal(batch.expander_index, torch.cat(shifted, 1))
    assert torch.equal(*batch.batch[batch.expander_index.long()])
    assert batch.expander_size.tolist() == [4, 1, 4, 5, 0, 30]
    assert batch.expander_virtual.tolist() == [1] * 6
    assert batch.num_edges == sum(part.num_edges for part in parts)
    for number, part in enumerate(parts):
        assert torch.equal(batch.get_example(number).expander_index, part.expander_index)


class Graphs(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 12

    def __getitem__(self, place):
        return self.transform(ring(10 + place))


@pytest.mark.parametrize("seed", [0, None])
def test_loader_workers(seed):
    transform = AddExpanderEdges(seed=seed)
    plain = [batch.expander_index for batch in DataLoader(Graphs(transform), batch_size=5)]
    workers = [batch.expander_index.clone() for batch in DataLoader(Graphs(transform), batch_size=5, num_workers=2)]
    same = all(torch.equal(a, b) for a, b in zip(plain, workers))
    assert same == (seed is not None)


class Stored(InMemoryDataset):
    def __init__(self, root, **kwargs):
        super().__init__(root, **kwargs)
        self.load(self.processed_paths[0])

    @property
    def processed_file_names(self):
        return ["data.pt"]

    def process(self):
        self.save([self.pre_transform(ring(number)) for number in (1, 2, 30)], self.processed_paths[0])


def test_pre_transform_compose_and_save(tmp_path):
    transform = Compose([AddSelfLoops(), AddExpanderEdges(seed=0)])
    dataset = Stored(str(tmp_path), pre_transform=transform)
    for data, number in zip(dataset, (1, 2, 30)):
        assert data.expander_index.dtype == torch.int32
        assert torch.equal(data.expander_index, transform(ring(number)).expander_index)
    batch = next(iter(DataLoader(dataset, batch_size=3)))
    assert batch.expander_size.tolist() == [1, 2, 30]
    ExphormerAttention(4)(torch.randn(33, 4), None, batch)
    torch.save(batch, tmp_path / "batch.pt")
    again = torch.load(tmp_path / "batch.pt", weights_only=False)
    assert torch.equal(again.expander_index, batch.expander_index)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_survives_copies(copied):
    transform = copied(AddExpanderEdges(degree=4, num_virtual=2, seed=0))
    wanted = expanded(ring(40), degree=4).expander_index
    assert torch.equal(transform(ring(40)).expander_index, wanted)
    assert repr(transform) == repr(AddExpanderEdges(degree=4, num_virtual=2, seed=0))


def test_relabelling_moves_the_edges():
    data = expanded(ring(30))
    perm = torch.randperm(30)
    adj = multiplicity(data.expander_index, 30)
    assert torch.equal(multiplicity(permute(data, perm).expander_index, 30), adj[perm][:, perm])


def test_the_graph_of_a_sampler_is_refused_by_the_attention():
    data, attn = expanded(ring(30)), ExphormerAttention(8)
    data.x = torch.randn(30, 8)
    attn(data.x, None, data)
    part = data.subgraph(torch.arange(20))
    with pytest.raises(ValueError, match=r"expander edges .* drawn for 30 nodes, but it has 20.*AddExpanderEdges"):
        attn(part.x, None, part)
    batch = Batch.from_data_list([data, data]).subgraph(torch.arange(5, 50))  # keeps 'ptr' as it was
    with pytest.raises(ValueError, match=r"AddExpanderEdges.*after sampling"):
        attn(batch.x, None, batch)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"degree": 0}, r"'degree' must be at least 1 \(got 0\)"),
        ({"num_virtual": -1}, r"'num_virtual' must be at least 0 \(got -1\)"),
        ({"max_iters": 0}, r"'max_iters' must be at least 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AddExpanderEdges(**settings)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (HeteroData(), TypeError, r"homogeneous graph \(got HeteroData\).*to_homogeneous"),
        (Data(), ValueError, "does not say how many nodes"),
        (Data(edge_index=torch.tensor([[0], [5]]), num_nodes=3), ValueError, "contains node 5, but nodes are 0 to 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")  # PyG's guess before our refusal
def test_bad_graphs_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        AddExpanderEdges()(data)


def test_bound_is_that_of_near_ramanujan_graphs():
    """At degree 5 the check asks for 10 − 2·3 − 0.1; 100 draws without it would miss it at times."""
    assert 10 - 2 * math.sqrt(9) - expander_edges._SLACK == pytest.approx(3.9)
    generator = torch.Generator().manual_seed(0)
    gaps = [spectral_gap(random_cycles(30, 5, generator), 30) for _ in range(400)]
    assert 0 < sum(gap < 3.9 for gap in gaps) < 40


def test_a_batch_is_refused():
    batch = Batch.from_data_list([GRAPHS["path"], GRAPHS["star"]])
    with pytest.raises(ValueError, match="to each graph, before batching"):
        AddExpanderEdges(degree=2)(batch)
    AddExpanderEdges(degree=2)(Batch.from_data_list([GRAPHS["path"].clone()]))
