import copy
import pickle
import warnings

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from pyg_topomask.nn import GRFAttention, GRFMask, RWGNKMask
from pyg_topomask.testing import GRAPHS, dense_adjacency
from pyg_topomask.transforms import AddRandomWalks
from tests.transforms.encoding_cases import path

KEYS = ("walk_index", "walk_length", "walk_load", "walk_count")
KEY_TABLE = tuple(key.replace("walk", "walk_key") for key in KEYS)


def walked(data, **settings):
    return AddRandomWalks(**{"seed": 0, **settings})(data.clone())


def equal(a, b, keys=KEYS):
    return all(torch.equal(a[key], b[key]) for key in keys)


def test_attributes_are_as_documented():
    data = walked(GRAPHS["star"])
    added = set(data.keys()) - set(GRAPHS["star"].keys())
    assert added == {*KEYS, *KEY_TABLE, "walk_size", "walk_max_length"}
    for name in ("walk", "walk_key"):
        index, length = data[f"{name}_index"], data[f"{name}_length"]
        assert index.dtype == torch.int32
        assert length.dtype == torch.int8
        assert index.shape == (2, length.numel())
        assert data[f"{name}_load"].shape == data[f"{name}_count"].shape == length.shape
        assert data[f"{name}_load"].dtype == data[f"{name}_count"].dtype == torch.float32
        key = ((index[0].long() * 5 + index[1]) * 5 + length).tolist()
        assert key == sorted(set(key))
    assert (data.walk_size, data.walk_max_length) == (5, 4)
    assert not equal(data, {key: data[other] for key, other in zip(KEYS, KEY_TABLE)})
    assert "walk_key_index" not in walked(GRAPHS["star"], independent=False)
    assert walked(GRAPHS["path"], max_length=127).walk_length.dtype == torch.int8
    assert walked(GRAPHS["path"], max_length=128).walk_length.dtype == torch.int16
    assert data.num_nodes == 5
    assert data.validate()
    assert AddRandomWalks()(GRAPHS["star"].clone()).walk_load.numel() > 0


@pytest.mark.parametrize("name", ["star", "weighted", "isolated"])
def test_expected_load_is_the_normalised_adjacency(name):
    data, draws = GRAPHS[name], 400
    adj = dense_adjacency(data)
    strength = adj.sum(1)
    scale = torch.where(strength > 0, strength, 1).rsqrt()
    wanted = scale[:, None] * adj * scale
    transform = AddRandomWalks(num_walks=16, max_length=2, halt_prob=0.3)
    for key in ("walk", "walk_key"):
        samples = torch.zeros(draws, 3, data.num_nodes, data.num_nodes, dtype=torch.float64)
        for sample in samples:
            graph = transform(data.clone())
            place = (graph[f"{key}_length"].long(), *graph[f"{key}_index"].long())
            sample.index_put_(place, graph[f"{key}_load"].double())
        error = samples.mean(0) - torch.stack([torch.linalg.matrix_power(wanted, k) for k in range(3)])
        assert (error.abs() <= 5 * samples.std(0) / draws**0.5 + 1e-6).all()


def test_load_of_an_unweighted_graph_is_a_function_of_its_count():
    data = walked(GRAPHS["two_parts"], halt_prob=0.3)
    degree = dense_adjacency(data).sum(1)
    start, visited = data.walk_index.long()
    load = data.walk_count * (degree[start] / degree[visited]).sqrt() / 0.7**data.walk_length
    torch.testing.assert_close(data.walk_load.double(), load, rtol=1e-5, atol=1e-6)


def test_walks_are_a_function_of_seed_epoch_and_graph():
    transform = AddRandomWalks(seed=0)
    first = transform(GRAPHS["star"].clone())
    transform(GRAPHS["path"].clone())
    assert equal(transform(GRAPHS["star"].clone()), first, (*KEYS, *KEY_TABLE))
    assert equal(walked(GRAPHS["star"]), first, (*KEYS, *KEY_TABLE))
    assert not equal(walked(GRAPHS["star"], seed=1), first)
    transform.set_epoch(1)
    second = transform(GRAPHS["star"].clone())
    assert not equal(second, first)
    transform.set_epoch(0)
    assert equal(transform(GRAPHS["star"].clone()), first)
    state = torch.get_rng_state()
    transform(GRAPHS["star"].clone())
    assert torch.equal(torch.get_rng_state(), state)


def test_edge_order_does_not_change_the_walks_and_another_graph_does():
    data = GRAPHS["two_parts"].clone()
    mixed = data.clone()
    mixed.edge_index = data.edge_index[:, torch.randperm(data.num_edges)]
    assert equal(walked(mixed), walked(data))
    # Same nodes and edge count, one edge elsewhere: node 0's surroundings are the same, its draws are not.
    other = data.clone()
    other.edge_index = torch.cat([data.edge_index[:, :-2], torch.tensor([[3, 5], [5, 3]])], 1)
    a, b = (walked(graph, num_walks=64) for graph in (data, other))
    near = [graph.walk_count[graph.walk_index[0] == 0] for graph in (a, b)]
    assert near[0].shape != near[1].shape or not torch.equal(*near)
    larger = data.clone()
    larger.num_nodes, larger.x = 7, None
    c = walked(larger, num_walks=64)
    near.append(c.walk_count[c.walk_index[0] == 0])
    assert near[0].shape != near[2].shape or not torch.equal(near[0], near[2])


class Graphs(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform, self.names = transform, [*GRAPHS] * 2

    def __len__(self):
        return len(self.names)

    def __getitem__(self, place):
        data = GRAPHS[self.names[place]].clone()
        data.edge_weight = None
        return self.transform(data)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.slow
@pytest.mark.parametrize(("seed", "num_workers"), [(0, 2), (None, 2)])
def test_loader_workers(seed, num_workers):
    transform = AddRandomWalks(seed=seed)
    plain = DataLoader(Graphs(transform), batch_size=5)
    workers = DataLoader(Graphs(transform), batch_size=5, num_workers=num_workers, persistent_workers=True)

    def epoch(loader):
        return [(batch.walk_index.clone(), batch.walk_load.clone()) for batch in loader]

    def alike(a, b):
        return all(torch.equal(x, y) for one, two in zip(a, b) for x, y in zip(one, two))

    first = epoch(workers)
    if seed is None:
        assert not alike(epoch(workers), first)
        return
    assert alike(epoch(plain), first)
    assert alike(epoch(workers), first)
    transform.set_epoch(1)  # the workers run already
    second = epoch(workers)
    assert not alike(second, first)
    assert alike(epoch(plain), second)


def test_more_nodes_than_are_walked_together():
    graphs = [path(size) for size in (40_000, 40_000, 500)]
    for found, graph in zip(AddRandomWalks(2, 2, seed=0)(graphs), graphs, strict=True):
        assert equal(found, AddRandomWalks(2, 2, seed=0)(graph))
    assert found.walk_index.untyped_storage().nbytes() <= 2 * found.walk_index.nbytes  # it can be stored alone


def test_two_settings_on_one_graph():
    data = AddRandomWalks(max_length=2, seed=0, name="far", num_walks=3)(walked(GRAPHS["star"]))
    alone = walked(GRAPHS["star"])
    assert equal(data, alone)
    assert data.far_size == data.walk_size == 5
    assert data.far_length.max() <= 2
    batch = Batch.from_data_list([data, data])
    assert torch.equal(batch.far_index[:, data.far_index.size(1) :], data.far_index + 5)
    x = torch.randn(10, 8)
    wide, far = GRFAttention(8), GRFAttention(8, max_length=2, name="far")
    far.load_state_dict({**wide.state_dict(), "mask.modulation": far.mask.modulation})
    assert not torch.allclose(wide(x, None, batch), far(x, None, batch))


def test_the_graph_of_a_sampler_is_refused_by_the_mask():
    data, attn = walked(GRAPHS["two_parts"]), GRFAttention(8)
    data.x = torch.randn(6, 8)
    attn(data.x, None, data)
    part = data.subgraph(torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"drawn for 6 nodes, but it has 3.*AddRandomWalks.*after sampling"):
        attn(part.x, None, part)
    del part.x
    batch = Batch.from_data_list([walked(Data(edge_index=GRAPHS["path"].edge_index, num_nodes=4)), part])
    with pytest.raises(ValueError, match=r"AddRandomWalks.*after sampling"):
        attn(torch.randn(7, 8), None, batch)
    swapped = Batch.from_data_list([walked(GRAPHS["two_parts"]), walked(GRAPHS["path"])])
    swapped.walk_size = swapped.walk_size.flip(0)  # the total is right, the graphs are not
    with pytest.raises(ValueError, match="after sampling"):
        attn(torch.randn(10, 8), None, swapped)
    again = AddRandomWalks(seed=0)(part)
    assert attn(torch.randn(3, 8), None, again).shape == (3, 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_walks": 0}, "at least 1"),
        ({"max_length": -1}, "'max_length' must be at least 0"),
        ({"max_length": 2**15}, r"'max_length' must be at most 32,767.*\(got 32768\)"),
        ({"halt_prob": 1.0}, "per-step probability"),
        ({"scheme": "levy"}, "got 'levy'"),
        ({"name": "edge_walk"}, "PyG's collation reads.*'edge_walk'"),
        ({"name": "my walk"}, "identifier"),
        ({"name": "walk_key"}, "must not end in .*walk_key"),
        ({"name": "walk_table2"}, "must not end in .*walk_table2"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AddRandomWalks(**settings)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (Data(x=torch.ones(3, 1)), ValueError, "no edges; it needs 'edge_index' or 'adj_t'"),
        (Data(adj_t=torch.eye(3).to_sparse_csr(), num_nodes=3), TypeError, r"layout torch\.sparse_csr; use ToSparse"),
        (Data(edge_index=torch.tensor([[0.0], [1.0]]), num_nodes=3), TypeError, "must hold integers"),
        (
            Data(edge_index=torch.tensor([[0], [1]]), edge_weight=torch.tensor([torch.nan]), num_nodes=3),
            ValueError,
            "'edge_weight' holds NaN",
        ),
        (
            Data(edge_index=torch.tensor([[0], [1]]), edge_weight=torch.tensor([-1.0]), num_nodes=3),
            ValueError,
            "strengths ≥ 0.*negative",
        ),
        (
            Data(edge_index=torch.tensor([[0], [1]]), edge_weight=torch.ones(2), num_nodes=3),
            ValueError,
            r"one number per edge, \[1\]",
        ),
    ],
)
def test_bad_graphs_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        AddRandomWalks()(data)


def test_tables_of_earlier_walks_are_removed():
    graph = AddRandomWalks(seed=0)(GRAPHS["star"].clone())
    graph = AddRandomWalks(seed=1, independent=False)(graph)
    assert not any(key.startswith("walk_key") for key in graph.to_dict())
    graph = AddRandomWalks(seed=1, diagonal="corrected", num_tables=3)(graph)
    assert "walk_table2_diagonal" in graph
    assert set(AddRandomWalks(seed=1)(graph).to_dict()) == set(walked(GRAPHS["star"]).to_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_shares_its_epoch_with_workers(copied):
    assert copied(AddRandomWalks(seed=0))._epoch.is_shared()


@pytest.mark.parametrize("weight", [[1.0, 2.0], torch.ones(2, dtype=torch.complex64)])
def test_weights_that_are_no_real_tensor_are_refused(weight):
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=weight, num_nodes=2)
    with pytest.raises(TypeError, match="real numbers"):
        AddRandomWalks()(data)


def test_weights_that_are_learned_leave_walks_without_a_gradient():
    weight = torch.ones(2, requires_grad=True)
    data = AddRandomWalks()(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=weight, num_nodes=2))
    assert not data.walk_load.requires_grad


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("mask", [GRFMask, RWGNKMask])
def test_shorter_walks_than_the_mask_covers_are_warned_of_once(mask, batched):
    long, short = (walked(GRAPHS["star"], max_length=length) for length in (4, 2))
    graph, mask = Batch.from_data_list([short, short]) if batched else short, mask(max_length=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mask(long)
        mask(walked(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=3)))  # no walk is as long as allowed
    with pytest.warns(UserWarning, match=r"stored up to 'max_length' = 2 hops, but the mask covers 4") as seen:
        [mask(graph) for _ in range(3)]
    assert len(seen) == 1


@pytest.mark.parametrize("wrong", [torch.ones(1), torch.ones(2, 1), torch.ones(2, dtype=torch.long), [1.0, 1.0]])
@pytest.mark.parametrize("alone", [True, False])
def test_a_wrong_transition_is_refused_alone_and_in_a_list(wrong, alone):
    edge = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(edge_index=edge, num_nodes=2, step=wrong), Data(edge_index=edge, num_nodes=2, step=torch.ones(3))]
    with pytest.raises(ValueError, match=r"'transition' must hold one floating-point number per edge, \[2\]"):
        AddRandomWalks(transition="step", seed=0)(graphs[0] if alone else graphs)


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_graph_without_nodes_has_all_tables(monkeypatch, native):
    monkeypatch.setenv("TOPOMASK_NATIVE", native)
    data = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=0)
    data = AddRandomWalks(seed=1, diagonal="corrected", num_tables=3)(data)
    tables = [name for name in data.to_dict() if name.endswith("_load")]
    assert len(tables) == 3
