import copy
import pickle

import pytest
import torch
from torch_geometric.data import Data

from pyg_topomask.testing import GRAPHS, dense_adjacency
from pyg_topomask.transforms import AddRandomWalks
from tests.transforms.encoding_cases import assert_same, path

KEYS = ("walk_index", "walk_length", "walk_load", "walk_count")
KEY_TABLE = tuple(key.replace("walk", "walk_key") for key in KEYS)


def walked(data, **settings):
    return AddRandomWalks(**{"seed": 0, **settings})(data.clone())


def equal(a, b, keys=KEYS):
    return all(torch.equal(a[key], b[key]) for key in keys)


def test_attributes_are_as_documented():
    data = walked(GRAPHS["star"])
    assert set(data.keys()) - set(GRAPHS["star"].keys()) == {*KEYS, *KEY_TABLE, "walk_size"}
    for name in ("walk", "walk_key"):
        index, length, load, count = (data[f"{name}_{part}"] for part in ("index", "length", "load", "count"))
        assert (index.dtype, length.dtype, load.dtype, count.dtype) == (torch.int32, torch.int8, *[torch.float32] * 2)
        assert index.shape[1:] == length.shape == load.shape == count.shape
        key = ((index[0].long() * 5 + index[1]) * 5 + length).tolist()
        assert key == sorted(set(key))
    assert (data.walk_size, data.num_nodes) == (5, 5)
    assert not equal(data, {key: data[other] for key, other in zip(KEYS, KEY_TABLE)})
    assert "walk_key_index" not in walked(GRAPHS["star"], independent=False)
    assert walked(GRAPHS["path"], max_length=128).walk_length.dtype == torch.int16


def test_an_epoch_has_walks_of_its_own():
    transform, found = AddRandomWalks(seed=0), []
    for epoch in (0, 1, 0):
        transform.set_epoch(epoch)
        found.append(transform(GRAPHS["star"].clone()))
    assert equal(found[0], found[2], (*KEYS, *KEY_TABLE))
    assert not equal(found[0], found[1])


def test_load_of_an_unweighted_graph_is_a_function_of_its_count():
    data = walked(GRAPHS["two_parts"], halt_prob=0.3)
    degree = dense_adjacency(data).sum(1)
    start, visited = data.walk_index.long()
    load = data.walk_count * (degree[start] / degree[visited]).sqrt() / 0.7**data.walk_length
    torch.testing.assert_close(data.walk_load.double(), load, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings", [{}, {"seed": None}, {"importance": False}, {"halt_prob": 0.3, "num_tables": 2}])
def test_compiled_graphs_and_walks_equal_those_of_plain_torch(monkeypatch, request, settings, dtype):
    """Also with equal edges, edges whose weights cancel, and large weights; alone and in a list."""
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(dtype)
    mixed = Data(edge_index=torch.randint(9, (2, 60), dtype=torch.int32), num_nodes=10)
    mixed.edge_weight = torch.randint(1, 9, (60,)) * 1e30
    cancelled = Data(edge_index=torch.tensor([[0, 0, 1, 0], [1, 2, 0, 2]]).t().contiguous().t(), num_nodes=3)
    cancelled.edge_weight = torch.tensor([1.5, 1, 2, -1], requires_grad=True)
    graphs, found = [*GRAPHS.values(), mixed, cancelled], []
    for native in ("1", "0"):
        monkeypatch.setenv("TOPOMASK_NATIVE", native)
        torch.manual_seed(0)
        transform = AddRandomWalks(**{"seed": 3, **settings})
        found.append([*transform(graphs), transform(mixed)])
    for compiled, plain in zip(*found):
        assert list(compiled.keys()) == list(plain.keys())
        for key in (key for key, value in plain if torch.is_tensor(value)):  # torch rounds roots of float64 otherwise
            torch.testing.assert_close(compiled[key], plain[key], rtol=0 if dtype == torch.float32 else 1e-14, atol=0)
    assert found[0][-1].walk_load.dtype == dtype


def test_more_nodes_than_are_walked_together():
    graphs = [path(size) for size in (40_000, 40_000, 500)]
    for found, graph in zip(AddRandomWalks(2, 2, seed=0)(graphs), graphs, strict=True):
        assert equal(found, AddRandomWalks(2, 2, seed=0)(graph))
    assert found.walk_index.untyped_storage().nbytes() <= 2 * found.walk_index.nbytes  # it can be stored alone


def test_a_setting_that_is_changed_later_acts():
    walks, data = AddRandomWalks(seed=0), GRAPHS["star"]
    later = {"num_walks": 5, "max_length": 6, "halt_prob": 0.1, "scheme": "antithetic", "diagonal": "corrected"}
    for key, value in later.items():
        setattr(walks, key, value)
    assert_same(walks(data), AddRandomWalks(seed=0, **later)(data))


def test_tables_of_earlier_walks_are_removed():
    graph = AddRandomWalks(seed=0)(GRAPHS["star"].clone())
    graph = AddRandomWalks(seed=1, independent=False)(graph)
    assert not any(key.startswith("walk_key") for key in graph.to_dict())
    graph = AddRandomWalks(seed=1, diagonal="corrected", num_tables=3)(graph)
    assert "walk_table2_diagonal" in graph
    assert set(AddRandomWalks(seed=1)(graph).to_dict()) == set(walked(GRAPHS["star"]).to_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x])
def test_an_epoch_is_set_in_memory_that_workers_share(copied):
    transform = copied(AddRandomWalks(seed=0))
    epoch = transform._epoch
    transform.set_epoch(3)
    assert epoch.is_shared()
    assert transform._epoch is epoch
    assert epoch == 3


def test_weights_that_are_learned_leave_walks_without_a_gradient():
    weight = torch.ones(2, requires_grad=True)
    data = AddRandomWalks()(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=weight, num_nodes=2))
    assert not data.walk_load.requires_grad


@pytest.mark.parametrize("wrong", [torch.ones(1), torch.ones(2, 1), torch.ones(2, dtype=torch.long), [1.0, 1.0]])
@pytest.mark.parametrize("alone", [True, False])
def test_a_wrong_transition_is_refused_alone_and_in_a_list(wrong, alone):
    edge = torch.tensor([[0, 1], [1, 0]])
    graphs = [Data(edge_index=edge, num_nodes=2, step=wrong), Data(edge_index=edge, num_nodes=2, step=torch.ones(3))]
    with pytest.raises(ValueError, match=r"'transition' must hold one floating-point number per edge, \[2\]"):
        AddRandomWalks(transition="step", seed=0)(graphs[0] if alone else graphs)


def test_a_misspelt_transition_is_refused_and_one_that_is_yet_to_come_is_uniform():
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2, edge_attr=torch.ones(2, 3), step=torch.ones(2))
    with pytest.raises(ValueError, match=r"the graph has no 'stepp' for 'transition': did you mean 'step'\?"):
        AddRandomWalks(transition="stepp")(graph)
    follow, uniform = AddRandomWalks(transition="edge_attn", seed=0), AddRandomWalks(seed=0)
    assert torch.equal(follow(graph).walk_load, uniform(graph).walk_load)


def test_repelling_walkers_take_no_transition():
    with pytest.raises(ValueError, match="takes uniform steps"):
        AddRandomWalks(scheme="repelling", transition="step")
