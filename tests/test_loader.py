import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.transforms import BaseTransform, Compose
from torch_geometric.utils import to_dense_adj, to_undirected

from pyg_topomask.data.graph_parts import GraphParts
from pyg_topomask.loader import EpochSampler, RandomPartitionLoader, WalkNeighborLoader, collate, set_epoch
from pyg_topomask.nn import ExphormerAttention, GRFAttention
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks
from pyg_topomask.transforms.grid_shape import grid_links


def grid(side=6):
    size = side * side
    edges = to_undirected(grid_links((side, side)))
    return Data(x=torch.arange(float(size))[:, None], edge_index=edges, y=torch.arange(size), num_nodes=size)


@pytest.mark.parametrize("epoch", [0, 3])
def test_random_parts_do_not_follow_a_random_split(epoch):
    """A split drawn by ``randperm`` from a small seed must not decide which nodes share a part."""
    parts = GraphParts(Data(edge_index=torch.empty(2, 0).long(), num_nodes=1000), 5, seed=0)
    for seed in range(5):
        counted = torch.zeros(1000, dtype=torch.bool)
        counted[torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[:200]] = True
        shares = [int(counted[parts.dealt(epoch, part)].sum()) for part in range(5)]
        assert all(15 < share < 65 for share in shares), shares  # 40, with a standard deviation of 5


def order(seed, epoch, rank=0, processes=1, size=10, **more):
    sampler = EpochSampler(size, seed, rank, processes, **more)
    sampler.set_epoch(epoch)
    torch.rand(epoch + 1)  # other random draws have no effect
    return list(sampler)


def test_order_depends_on_seed_and_epoch_alone_and_processes_take_turns():
    alone = order(1, 4)
    assert order(1, 4) == alone
    assert sorted(alone) == list(range(10))
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    shares = [order(1, 4, rank, 3) for rank in range(3)]
    together = [item for turn in zip(*shares, strict=True) for item in turn]
    assert together == [*alone, *alone[:2]]  # repeated, so that no process waits for another
    few = order(1, 0, size=2)
    assert [order(1, 0, rank, 5, 2) for rank in range(5)] == [[item] for item in [*few, *few, few[0]]]
    assert [order(7, 3, rank, 2, 5, shuffle=False) for rank in (0, 1)] == [[0, 2, 4], [1, 3, 0]]


def passes(loader, count):
    """Nodes and walks of each part, pass by pass."""
    return [[(part.x.view(-1).tolist(), part.walk_index.tolist()) for part in loader] for _ in range(count)]


def loader_of(seed=0, **options):
    return RandomPartitionLoader(grid(), 4, AddRandomWalks(4, 2, seed=0), seed, **options)


def test_each_pass_deals_out_all_nodes_and_draws_walks_afresh():
    every = passes(loader_of(), 3)
    assert all(sorted(node for nodes, _ in served for node in nodes) == [*range(36)] for served in every)
    assert len({str(sorted(served)) for served in every}) == 3
    whole = RandomPartitionLoader(grid(), 1, AddRandomWalks(4, 2, seed=0))
    assert len({str(served) for served in passes(whole, 3)}) == 3  # one part, other walks


def test_parts_depend_on_seed_and_epoch_alone():
    wanted = passes(loader_of(), 3)
    torch.rand(7)
    state = torch.get_rng_state()
    again = loader_of(num_workers=2, persistent_workers=True)
    assert passes(again, 3) == wanted
    assert torch.equal(torch.get_rng_state(), state)
    again.set_epoch(1)
    assert passes(again, 2) == wanted[1:]
    next(iter(again))  # a pass that is broken off counts
    again.set_epoch(2)
    assert passes(again, 1) == wanted[2:]
    assert passes(loader_of(seed=1), 1) != wanted[:1]


def test_loaders_with_one_transform_do_not_change_each_other():
    transform = AddRandomWalks(4, 2, seed=0)
    first, second = (RandomPartitionLoader(grid(), 4, transform) for _ in range(2))
    wanted = passes(loader_of(), 2)
    second.set_epoch(1)
    pairs = [[passes([part], 1)[0][0] for part in parts] for parts in zip(first, second)]
    assert [[*served] for served in zip(*pairs)] == wanted
    assert int(transform._epoch) == 0  # it stays as it was


class StampEpoch(BaseTransform):
    """A transform of a user, whose epoch reaches the workers through shared memory."""

    def __init__(self):
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch):
        self.epoch.fill_(epoch)

    def forward(self, data):
        data.epoch = int(self.epoch)
        return data


def test_transforms_of_users_keep_their_shared_memory():
    steps = Compose([StampEpoch(), AddRandomWalks(4, 2, seed=0)])
    loader = RandomPartitionLoader(grid(), 4, steps, num_workers=1, persistent_workers=True)
    assert [{part.epoch for part in loader} for _ in range(3)] == [{0}, {1}, {2}]


def test_an_epoch_is_not_set_of_what_is_no_transform():
    with pytest.raises(TypeError, match=r"must be a transform \(got list\)"):
        set_epoch([AddRandomWalks(seed=0)], 1)


def test_several_processes_share_out_the_parts():
    alone = passes(loader_of(shuffle=False), 2)
    shares = [passes(loader_of(shuffle=False, rank=rank, num_processes=2), 2) for rank in (0, 1)]
    for epoch in range(2):
        assert [shares[i % 2][epoch][i // 2] for i in range(4)] == alone[epoch]


def test_parts_have_all_that_attention_reads():
    transform = Compose([AddExpanderEdges(2, seed=0), Compose([AddRandomWalks(4, 2, seed=0)])])
    graph = grid()
    loader = RandomPartitionLoader(graph, 3, transform)
    walks, edges = GRFAttention(8, max_length=2), ExphormerAttention(8)
    served = [[part.walk_index for part in loader] for _ in range(2)]
    assert not any(torch.equal(a, b) for a, b in zip(*served))
    for part in loader:
        x = torch.randn(part.num_nodes, 8)
        assert walks(x, None, part).shape == edges(x, None, part).shape == x.shape
        assert int(part.walk_size) == part.num_nodes
        assert sorted(part.edge_index.T.tolist()) == sorted(graph.subgraph(part.y).edge_index.T.tolist())
    assert set(graph.to_dict()) == set(grid().to_dict())  # the graph itself stays as it was


@pytest.mark.parametrize(
    ("num_parts", "rank", "error", "message"),
    [
        (0, 0, ValueError, "'num_parts'.*0"),
        (37, 0, ValueError, r"'num_parts' must not exceed the number of nodes \(got 37 and 36\)"),
        (2.5, 0, TypeError, "'num_parts'"),
        (3, 5, ValueError, "Invalid rank 5"),
    ],
)
def test_bad_numbers_of_parts_and_processes(num_parts, rank, error, message):
    with pytest.raises(error, match=message):
        RandomPartitionLoader(grid(), num_parts, rank=rank)


def big_graph(num_nodes=400):
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, num_nodes - 1, (2, 1200), generator=draw)  # the last node has none
    return Data(x=torch.arange(num_nodes)[:, None].float(), edge_index=torch.cat([edges, edges.flip(0)], 1))


def neighborhoods(data, targets=None, **settings):
    targets = torch.arange(0, 400, 7) if targets is None else targets
    return WalkNeighborLoader(data, targets, 16, num_walks=8, max_length=3, max_nodes=9, **settings)


def test_a_neighborhood_has_the_target_first_visited_nodes_and_all_edges_between_them():
    data = big_graph()
    near = to_dense_adj(data.edge_index, max_num_nodes=400)[0] + torch.eye(400)
    roots = []
    for batch in neighborhoods(data):
        assert torch.equal(batch.root, batch.ptr[:-1])
        roots += batch.n_id[batch.root].tolist()
        for graph in batch.to_data_list():
            nodes = graph.n_id
            assert 1 <= graph.num_nodes == len(nodes.unique()) <= 9
            assert torch.equal(graph.x.view(-1).long(), nodes)
            assert (torch.linalg.matrix_power(near, 3)[nodes[0], nodes] > 0).all()
            want = data.subgraph(nodes).edge_index.T.tolist()
            assert sorted(graph.edge_index.T.tolist()) == sorted(want)
    assert sorted(roots) == [*range(0, 400, 7)]


def test_neighborhoods_are_a_function_of_seed_epoch_and_target():
    data = big_graph()

    def seen(loader, epoch=0):
        loader.set_epoch(epoch)
        return {int(g.n_id[0]): g.n_id.tolist() for batch in loader for g in batch.to_data_list()}

    first = seen(neighborhoods(data))
    alone = seen(neighborhoods(data, torch.tensor([14, 21]), num_workers=1))
    assert alone == {14: first[14], 21: first[21]}
    mask = torch.zeros(400, dtype=torch.bool)
    mask[::7] = True
    assert seen(neighborhoods(data, mask)) == first
    assert seen(neighborhoods(data), 1) != first != seen(neighborhoods(data, seed=1))


def test_the_most_visited_nodes_are_kept_and_their_visits_are_those_of_walks():
    """Visits of many walks from one node agree with powers of the transition matrix at 5 standard errors."""
    data, walks = big_graph(30), 20_000
    parts = WalkNeighborLoader(data, torch.tensor([3]), 1, walks, max_length=2, max_nodes=5).dataset
    adjacency = to_dense_adj(data.edge_index, max_num_nodes=30)[0].double()
    step = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    visits = (step + step @ step)[3]
    visits[3] = torch.inf
    nodes, group = parts.visited(torch.tensor([3]), 0)
    least = visits[nodes].min()
    others = torch.ones(30, dtype=torch.bool).index_fill(0, nodes, False)
    error = 5 * (2 * visits.clamp(max=2) / walks).sqrt()
    assert (visits[others] - error[others] <= least + error[nodes].max()).all()
    assert nodes[0] == 3
    assert group.tolist() == [0] * 5
    star = Data(edge_index=to_undirected(torch.stack([torch.zeros(20).long(), torch.arange(1, 21)])), num_nodes=21)
    parts = WalkNeighborLoader(star, torch.tensor([1]), 1, 8, max_length=3, max_nodes=5).dataset
    assert parts.visited(torch.tensor([1]), 0)[0][:2].tolist() == [1, 0]  # though the hub has more visits


def test_walks_and_epochs_of_neighborhoods_and_refusals():
    data = big_graph()
    loader = neighborhoods(data, transform=AddRandomWalks(num_walks=4, max_length=2, seed=0))
    batch = next(iter(loader))
    assert batch.walk_size.tolist() == batch.ptr.diff().tolist()
    assert torch.equal(batch.batch[batch.walk_index[0].long()], batch.batch[batch.walk_index[1].long()])
    with pytest.raises(ValueError, match="must be nodes 0 to 399"):
        WalkNeighborLoader(data, torch.tensor([400]))
    for targets in (torch.ones(399, dtype=torch.bool), torch.ones(400), torch.ones(2, 4, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"integers \[T\], or a mask of the 400 nodes"):
            WalkNeighborLoader(data, targets)
    with pytest.raises(ValueError, match="max_nodes"):
        WalkNeighborLoader(data, torch.tensor([4]), max_nodes=0)


def test_clusters_stay_together_and_keep_the_edges_between_those_of_a_part():
    data, clusters = big_graph(), torch.arange(400) // 50
    for epoch in range(2):
        loader = RandomPartitionLoader(data, 4, clusters=clusters)
        loader.set_epoch(epoch)
        parts = list(loader)
        assert sorted(torch.cat([part.x.view(-1) for part in parts]).tolist()) == [*range(400)]
        for part in parts:
            nodes = part.x.view(-1).long()
            assert len(nodes) == 100
            assert clusters[nodes].unique().numel() == 2
            assert part.num_edges == data.subgraph(nodes).num_edges
    with pytest.raises(ValueError, match="number of clusters"):
        RandomPartitionLoader(data, 9, clusters=clusters)
    with pytest.raises(ValueError, match=r"must have 400 numbers \(got 50\)"):
        RandomPartitionLoader(data, 1, clusters=clusters[:50])


class OwnRules(Data):
    def __inc__(self, key, value, *args, **kwargs):
        return 100 if key == "edge_index" else super().__inc__(key, value, *args, **kwargs)


COLLATED = {
    "walks": AddRandomWalks(4, 2, seed=0, diagonal="corrected", num_tables=2),
    "numbers": lambda graph: graph.update({"count": graph.num_nodes, "scale": 0.5, "place_index": 2}),
    "scalars": lambda graph: graph.update({"y": torch.tensor(1.5), "root_index": torch.tensor(1)}),
    "odd indices": lambda graph: graph.update({"index": torch.ones(2) > 0, "float_index": torch.ones(2, 3, 1)}),
    "own batches": lambda graph: graph.update(
        {"sub_batch": graph.y % 3, "ptr": graph.y[:1], "face": torch.ones(3, 1).long()}
    ),
    "bytes": lambda graph: graph.update({"byte_index": torch.full((2, 2), 250, dtype=torch.uint8)}),
    "containers": lambda graph: graph.update({"pair": [graph.x, graph.y], "by": {"x": graph.x}}),
    "sparse": lambda graph: graph.update({"adj_t": torch.eye(graph.num_nodes).to_sparse()}),
    "no nodes": lambda graph: Data(weight=torch.ones(2, 3)),
    "subclass": lambda graph: OwnRules.from_dict(graph.to_dict()),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("sides", [(3,), (2, 4, 1, 3)])
@pytest.mark.parametrize("add", COLLATED.values(), ids=COLLATED)
def test_collate_equals_pyg(add, sides):
    """In values, types, slices, shifts and their order, so that ``to_data_list`` gives the same graphs."""
    graphs = [add(grid(side)) for side in sides]
    batch, wanted = collate(graphs), Batch.from_data_list(graphs)
    assert list(vars(batch)["_store"].keys()) == list(vars(wanted)["_store"].keys())
    assert list(batch._slice_dict) == list(wanted._slice_dict)
    for found, given in [(batch.to_dict(), wanted.to_dict()), *zip(vars(batch).values(), vars(wanted).values())]:
        if isinstance(given, dict):
            torch.testing.assert_close(found, given, rtol=0, atol=0)
    lists = ([], []) if "adj_t" in batch else (batch.to_data_list(), wanted.to_data_list())  # PyG separates no adj_t
    for found, graph in zip(*lists, strict=True):
        torch.testing.assert_close(found.to_dict(), graph.to_dict(), rtol=0, atol=0)


def test_collate_names_what_a_graph_lacks():
    with pytest.raises(KeyError, match="y"):
        collate([grid(2), Data(edge_index=grid(2).edge_index, x=torch.ones(4, 1), num_nodes=4)])
