import copy
import pickle
import warnings

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import AddSelfLoops, Compose

from pyg_topomask.nn import GRFAttention, GRFMask, RWGNKMask
from pyg_topomask.ops import sample_walks
from pyg_topomask.testing import GRAPHS, dense_adjacency, permute
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.transforms import random_walks as module

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


def test_input_is_not_modified():
    data = GRAPHS["weighted"].clone()
    before = copy.deepcopy(data)
    out = AddRandomWalks(seed=0)(data)
    assert out is not data
    assert set(data.keys()) == set(before.keys())
    assert equal(data, before, ("x", "edge_index", "edge_weight"))


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


def test_collation_is_a_graph_with_walks():
    parts = [walked(GRAPHS[name]) for name in ("path", "single", "isolated", "star")]
    batch = Batch.from_data_list(parts)
    assert batch.walk_index.dtype == torch.int32
    assert batch.walk_length.dtype == torch.int8
    for key in ("walk_index", "walk_key_index"):
        shifted = [part[key] + int(offset) for part, offset in zip(parts, batch.ptr)]
        assert torch.equal(batch[key], torch.cat(shifted, 1))
        assert (batch.batch[batch[key][0].long()] == batch.batch[batch[key][1].long()]).all()
    assert batch.walk_size.tolist() == [4, 1, 4, 5]
    for number, part in enumerate(parts):
        back = batch.get_example(number)
        assert equal(back, part, (*KEYS, *KEY_TABLE))


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


def test_without_a_seed_every_call_draws_from_torch():
    transform = AddRandomWalks()
    torch.manual_seed(3)
    first, second = transform(GRAPHS["star"].clone()), transform(GRAPHS["star"].clone())
    assert not equal(first, second)
    torch.manual_seed(3)
    assert equal(transform(GRAPHS["star"].clone()), first, (*KEYS, *KEY_TABLE))


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
@pytest.mark.parametrize(("seed", "num_workers"), [(0, 1), (0, 4), (None, 2)])
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


class Stored(InMemoryDataset):
    def __init__(self, root, **kwargs):
        super().__init__(root, **kwargs)
        self.load(self.processed_paths[0])

    @property
    def processed_file_names(self):
        return ["data.pt"]

    def process(self):
        graphs = [GRAPHS[name].clone() for name in ("path", "isolated", "star")]
        self.save([self.pre_transform(graph) for graph in graphs], self.processed_paths[0])


def test_pre_transform_and_compose(tmp_path):
    transform = Compose([AddSelfLoops(), AddRandomWalks(seed=0)])
    dataset = Stored(str(tmp_path), pre_transform=transform)
    for data, name in zip(dataset, ("path", "isolated", "star")):
        assert data.walk_index.dtype == torch.int32
        assert equal(data, transform(GRAPHS[name].clone()), (*KEYS, *KEY_TABLE))
        assert (data.walk_index[0] == data.walk_index[1])[data.walk_length == 1].any()  # self loops were walked
    batch = next(iter(DataLoader(dataset, batch_size=3)))
    assert batch.walk_size.tolist() == [4, 4, 5]
    GRFAttention(4)(batch.x.float(), None, batch)


def test_survives_pickle():
    transform = AddRandomWalks(seed=0)
    transform.set_epoch(2)
    again = pickle.loads(pickle.dumps(transform))
    assert equal(again(GRAPHS["star"].clone()), transform(GRAPHS["star"].clone()))
    assert repr(again) == repr(transform)


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


def test_walks_of_an_empty_batch_member_and_graphs_without_edges():
    lonely = Data(x=torch.ones(3, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
    data = walked(lonely)
    assert data.walk_index.tolist() == [[0, 1, 2]] * 2
    nothing = walked(Data(x=torch.ones(0, 1), edge_index=torch.empty(2, 0, dtype=torch.long)))
    assert nothing.walk_index.shape == (2, 0)
    assert nothing.walk_key_index.shape == (2, 0)
    batch = Batch.from_data_list([data, walked(lonely)])
    assert batch.walk_index.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_same_walks_as_the_bare_function_up_to_the_seed():
    """The transform's table is one that `sample_walks` can give: same support rules, counts in units of 1 / n."""
    data = walked(GRAPHS["star"], num_walks=8)
    table = sample_walks(data.edge_index, 5, num_walks=8, max_length=4, halt_prob=0.5)
    for count in (data.walk_count, table.count):
        torch.testing.assert_close(count * 8, (count * 8).round())
    relabelled = permute(data, torch.tensor([4, 3, 2, 1, 0]))
    assert torch.equal(relabelled.walk_index, 4 - data.walk_index)


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
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AddRandomWalks(**settings)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (HeteroData(), TypeError, r"homogeneous graph \(got HeteroData\).*to_homogeneous"),
        (Data(x=torch.ones(3, 1)), ValueError, "no edges; it needs 'edge_index' or 'adj_t'"),
        (Data(edge_index=torch.tensor([[0], [5]]), num_nodes=3), ValueError, "contains node 5, but nodes are 0 to 2"),
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


def test_hetero_data_is_refused_by_the_attention():
    with pytest.raises(TypeError, match=r"takes a Data or Batch \(got HeteroData\)"):
        GRFAttention(8)(torch.ones(3, 8), torch.zeros(3, dtype=torch.long), HeteroData())


def test_a_batch_cut_after_batching_is_refused():
    batch = Batch.from_data_list([walked(GRAPHS["two_parts"]), walked(GRAPHS["star"])])
    part = batch.subgraph(torch.tensor([0, 1, 2, 6, 7]))  # keeps 'ptr' as it was
    with pytest.raises(ValueError, match=r"AddRandomWalks.*after sampling"):
        GRFAttention(4)(part.x.float(), None, part)


def test_tables_of_earlier_walks_are_removed():
    graph = AddRandomWalks(seed=0)(GRAPHS["star"].clone())
    graph = AddRandomWalks(seed=1, independent=False)(graph)
    assert not any(key.startswith("walk_key") for key in graph.to_dict())
    graph = AddRandomWalks(seed=1, diagonal="corrected", num_tables=3)(graph)
    assert "walk_table2_diagonal" in graph
    assert set(AddRandomWalks(seed=1)(graph).to_dict()) == set(walked(GRAPHS["star"]).to_dict())


@pytest.mark.parametrize("name", ["walk_key", "walk_table2"])
def test_names_of_other_tables_are_refused(name):
    with pytest.raises(ValueError, match=f"must not end in .*{name}"):
        AddRandomWalks(name=name)


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


def test_a_list_or_a_data_set_is_transformed_graph_by_graph(tmp_path):
    transform, graphs = AddRandomWalks(seed=0), [GRAPHS[name] for name in ("path", "star", "single")]
    wanted = [transform(graph) for graph in graphs]
    stored = Stored(str(tmp_path), pre_transform=AddSelfLoops())
    for several in (graphs, tuple(graphs)):
        found = transform(several)
        assert isinstance(found, list)
        assert all(equal(a, b, (*KEYS, *KEY_TABLE)) for a, b in zip(found, wanted, strict=True))
    assert all("walk_index" not in graph for graph in graphs)
    found = transform(stored)
    assert all(equal(a, transform(b)) for a, b in zip(found, stored, strict=True))
    assert transform([]) == []


@pytest.mark.parametrize("seed", [0, None])
def test_graphs_together_have_the_walks_of_each_alone(seed, monkeypatch):
    graphs = [*GRAPHS.values(), Data(x=torch.ones(0, 1), edge_index=torch.empty(2, 0, dtype=torch.long))]
    graphs[1] = graphs[1].clone()
    graphs[1].step = torch.rand(graphs[1].num_edges) + 0.1
    transform = AddRandomWalks(seed=seed, transition="step", max_length=3)
    keys = (*KEYS, *KEY_TABLE, "walk_size", "walk_max_length")
    torch.manual_seed(7)
    alone = [transform(graph) for graph in graphs]
    for together in (2**16, 9):
        monkeypatch.setattr(module, "_NODES_TOGETHER", together)
        torch.manual_seed(7)
        found = transform.apply(graphs)
        for one, other in zip(found, alone, strict=True):
            assert one.keys() == other.keys()
            for key in keys:
                if isinstance(one[key], torch.Tensor):
                    assert torch.equal(one[key], other[key]), key
                    assert one[key].dtype == other[key].dtype
                else:
                    assert one[key] == other[key]
    assert found[0].walk_index.untyped_storage().nbytes() <= 2 * found[0].walk_index.nbytes  # it can be stored alone


def test_a_graph_of_many_that_is_wrong_is_refused():
    bad = Data(edge_index=torch.tensor([[0], [5]]), num_nodes=3)
    with pytest.raises(ValueError, match="contains node 5, but nodes are 0 to 2"):
        AddRandomWalks()([GRAPHS["star"], bad])


@pytest.mark.parametrize("wrong", [torch.ones(1), torch.ones(2, 1), torch.ones(2, dtype=torch.long), [1.0, 1.0]])
@pytest.mark.parametrize("alone", [True, False])
def test_a_wrong_transition_is_refused_alone_and_in_a_list(wrong, alone):
    edge = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(edge_index=edge, num_nodes=2, step=wrong), Data(edge_index=edge, num_nodes=2, step=torch.ones(3))]
    with pytest.raises(ValueError, match=r"'transition' must hold one floating-point number per edge, \[2\]"):
        AddRandomWalks(transition="step", seed=0)(graphs[0] if alone else graphs)


@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_coo"])
def test_edges_in_a_sparse_layout_of_torch_are_refused_by_its_name(layout):
    adj = getattr(torch.eye(3), layout)()
    with pytest.raises(TypeError, match=rf"got Tensor of the layout torch\.{layout[3:]}; use ToSparseTensor"):
        AddRandomWalks(2, 2, seed=0)(Data(adj_t=adj, num_nodes=3))


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_graph_without_nodes_has_all_tables(monkeypatch, native):
    monkeypatch.setenv("TOPOMASK_NATIVE", native)
    data = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=0)
    data = AddRandomWalks(seed=1, diagonal="corrected", num_tables=3)(data)
    tables = [name for name in data.to_dict() if name.endswith("_load")]
    assert len(tables) == 3
