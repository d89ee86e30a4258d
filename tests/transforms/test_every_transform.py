"""What all transforms have in common: their text, what they add, many graphs at once, seeds, copies and refusals."""

import copy
import inspect
import pickle
from fnmatch import fnmatchcase
from functools import partial

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import AddSelfLoops, Compose

from pyg_topomask import nn, transforms
from pyg_topomask.nn import graph_attributes
from pyg_topomask.testing import GRAPHS, empty_graph, permute
from pyg_topomask.transforms.base import GraphTransform
from tests.transforms.encoding_cases import CASES, added, assert_same, path, random_graph

CLASSES = {name: x for name, x in vars(transforms).items() if inspect.isclass(x) and issubclass(x, GraphTransform)}
SETTINGS = {"steps": [1, 2, 5], "times": [0.5, 7.0], "seed": 0}
each_transform = pytest.mark.parametrize("name", CLASSES)


assert_near = partial(assert_same, atol=1e-6)


def make(name, /, **settings):
    given = SETTINGS | settings
    return CLASSES[name](**{key: given[key] for key in inspect.signature(CLASSES[name]).parameters if key in given})


def graphs_for(name):
    """Graphs without weights and features, so that they can be in one batch."""
    graphs = [GRAPHS["path"], GRAPHS["single"], path(7)] if name == "AddGridShape" else [*CASES.values(), path(9)]
    return [Data(edge_index=data.edge_index, num_nodes=data.num_nodes) for data in graphs]


@each_transform
def test_the_text_names_every_setting(name):
    """PyG compares it to tell whether processed files are stale."""
    transform, parameters = make(name), inspect.signature(CLASSES[name]).parameters
    assert parameters.keys() == {key for key in vars(transform) if not key.startswith("_")}
    assert all(f"{key}={getattr(transform, key)!r}" in repr(transform) for key in parameters)
    assert repr(eval(repr(transform), CLASSES)) == repr(transform)


@each_transform
def test_many_graphs_at_once_and_in_a_batch_give_what_one_does(name):
    transform, graphs = make(name), graphs_for(name)
    keys = [list(graph.keys()) for graph in graphs]
    together = transform(graphs)
    assert [list(graph.keys()) for graph in graphs] == keys
    batch = Batch.from_data_list(together)
    assert transform([]) == []
    for number, (data, found) in enumerate(zip(graphs, together, strict=True)):
        alone, again = added(transform, data), batch.get_example(number)
        assert_near({key: found[key] for key in set(found.keys()) - set(data.keys())}, alone)
        assert_near({key: again[key] for key in alone}, alone)
        for key in alone:
            patterns = [pattern.format(name=getattr(transform, "name", "")) for pattern in transform.adds]
            assert any(fnmatchcase(key, pattern) for pattern in patterns), key
    for key in (key for key in alone if "index" in key):
        assert batch[key].dtype == torch.int32
        assert torch.equal(*batch.batch[batch[key].long()])  # shifted by the nodes of earlier graphs


class Shifting(Data):
    """Data as of users, with an increment of their own."""

    def __inc__(self, key, value, *args, **kwargs):
        return 3 if key == "ring" else super().__inc__(key, value, *args, **kwargs)


class Mixing(Data):
    def __inc__(self, key, value, *args, **kwargs):
        return self.num_nodes if key == "edge_index" else 0


@each_transform
def test_tables_that_the_class_of_a_user_would_not_shift_are_refused(name):
    transform, given = make(name), graphs_for(name)[-1].to_dict()
    found, wanted = transform(Shifting(**given)), transform(Data(**given))
    assert_same(found.to_dict(), wanted.to_dict())
    if any("index" in key for key in added(transform, Data(**given))):
        with pytest.raises(TypeError, match=r"Mixing.__inc__ must return \d+ for '\w+', its number of nodes \(got 0\)"):
            transform(Mixing(**given))


@each_transform
def test_the_default_dtype_may_be_float64(name, request):
    transform, graphs = make(name), graphs_for(name)
    wanted = [added(transform, graph) for graph in graphs]
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(torch.float64)
    for graph, want in zip(graphs, wanted):
        assert added(transform, graph).keys() == want.keys()


@each_transform
def test_a_transform_is_found_by_what_it_adds(name):
    requires = list(added(make(name), graphs_for(name)[0]))
    (found,) = transforms.that_add(requires, **SETTINGS).transforms
    assert repr(found) == repr(make(name))


def test_transforms_are_found_in_order_and_with_names_of_their_own():
    prepare = transforms.that_add(["tree_index", "own", "far_index", "far_diagonal"], name="far", max_length=2, seed=3)
    assert list(map(repr, prepare.transforms)) == [
        repr(transforms.AddTreeOrder()), repr(transforms.AddRandomWalks(name="far", max_length=2, seed=3))
    ]  # fmt: skip
    assert transforms.that_add(["own"]).transforms == []
    with pytest.raises(TypeError, match=r"that_add\(\) takes no 'num_walk': did you mean 'num_walks'"):
        transforms.that_add(["walk_load"], num_walk=3)


@each_transform
def test_the_result_depends_on_the_settings_and_the_graph_alone(name):
    transform, (data, *_, other) = make(name), graphs_for(name)
    wanted, state = added(transform, data), torch.get_rng_state()
    transform(other)
    mixed = data.clone()
    mixed.edge_index = data.edge_index[:, torch.randperm(data.num_edges)]
    for copied in (transform, copy.deepcopy(transform), pickle.loads(pickle.dumps(transform)), make(name)):
        assert repr(copied) == repr(transform)
        state = torch.get_rng_state()
        assert_near(added(copied, data), wanted)
        assert_near(added(copied, mixed), wanted)
        assert torch.equal(torch.get_rng_state(), state)


READERS = [
    (nn.GRFMask(), "walks on this graph were drawn for 7 nodes, but it has 3"),
    (nn.ExphormerAttention(8), "expander edges on this graph were drawn for 7 nodes, but it has 3"),
    (nn.TreeMask(), "spanning trees on this graph were drawn for 7 nodes, but it has 3"),
    (nn.GridHeatMask(), "grids on this graph have 7 nodes, but it has 3"),
]


@pytest.mark.parametrize(("reader", "message"), READERS)
def test_what_was_added_ahead_of_sampling_is_refused(reader, message):
    """PyG's samplers copy it unchanged; in a batch, also where the total is right."""
    prepare = transforms.that_add(reader.requires, **{"seed": 0, **reader.transform_settings})

    def read(graph):
        return reader(torch.ones(graph.num_nodes, 8), graph=graph) if reader.requires[0][0] == "e" else reader(graph)

    whole, other = prepare(path(7)), prepare(path(4))
    part = whole.subgraph(torch.arange(3))
    with pytest.raises(ValueError, match=rf"{message}.*Add Add.* after sampling"):
        read(part)
    read(prepare(path(7).subgraph(torch.arange(3))))
    swapped = Batch.from_data_list([whole, other])
    read(swapped)
    key = reader.requires[-1]
    swapped[key] = swapped[key].flip(0)
    both = Batch.from_data_list([whole, whole])
    for wrong in (swapped, Batch.from_data_list([other, part]), both.subgraph(torch.arange(5, 12))):
        with pytest.raises(ValueError, match="after sampling"):
            read(wrong)


@pytest.mark.parametrize("reader", [nn.GRFMask(), nn.RWGNKMask(), nn.TreeMask(), nn.HopMask()])
def test_nodes_in_another_order_than_when_tables_were_drawn_are_said_once(reader, monkeypatch):
    prepare = transforms.that_add(reader.requires, **reader.transform_settings)
    whole = prepare(random_graph(60, 2.0))
    dropped = whole.edge_subgraph(torch.arange(whole.num_edges) % 4 > 0)
    turned = whole.clone().update({"edge_index": whole.edge_index.flip(0)})
    list(map(reader, [whole, dropped, turned, prepare(empty_graph()), Batch.from_data_list([prepare(path(1)), whole])]))
    other = whole.subgraph(torch.randperm(60, generator=torch.Generator().manual_seed(0)))
    with monkeypatch.context() as large:
        large.setattr(graph_attributes, "_MOST_ENDS", other.edge_index.numel() - 1)
        reader(other)
    with pytest.warns(UserWarning, match="few neighbours in the .* by its edges: .* Add Add.* after that") as said:
        list(map(reader, [other] * 2))
    assert len(said) == 1


@pytest.mark.parametrize("name", ["AddRandomWalks", "AddExpanderEdges"])
def test_a_seed_gives_its_own_draws_and_no_seed_those_of_torch(name):
    def draw(transform, data):
        return tuple(next(iter(added(transform, data).values())).flatten().tolist())

    data, other, free = random_graph(30, 8.0), random_graph(30, 8.0, 1), CLASSES[name]()
    torch.manual_seed(3)
    found = [draw(free, data), draw(free, data)]
    torch.manual_seed(3)
    assert draw(free, data) == found[0]
    found += [draw(make(name), data), draw(make(name), other)]
    found += [draw(make(name, seed=1), data)]
    assert len(set(found)) == 5


@pytest.mark.parametrize("name", [name for name in CLASSES if "name" in inspect.signature(CLASSES[name]).parameters])
def test_names_keep_two_settings_apart(name):
    first, second = make(name), make(name, name="other")
    wanted, found = added(first, CASES["path"]), added(second, CASES["path"])
    assert not wanted.keys() & found.keys()
    assert_near(found, {key.replace(first.name, "other", 1): value for key, value in wanted.items()})
    with pytest.raises(ValueError, match=r"collation reads \(got 'edge'\)"):
        make(name, name="edge")


@pytest.mark.parametrize("name", ["AddRandomWalks", "AddExpanderEdges", "AddTreeOrder", "AddRandomWalkEncoding"])
def test_as_a_pre_transform_in_a_compose(name, tmp_path):
    graphs, transform = [path(2), path(30)], Compose([AddSelfLoops(), make(name)])

    class Stored(InMemoryDataset):
        processed_file_names = "data.pt"

        def process(self):
            self.save([self.pre_transform(graph) for graph in graphs], self.processed_paths[0])

    dataset = Stored(str(tmp_path), pre_transform=transform)
    dataset.load(dataset.processed_paths[0])
    for data, graph in zip(dataset, graphs, strict=True):
        assert_near(data.to_dict(), transform(graph).to_dict())
    both = transforms.AddHops()(make(name)(dataset))
    assert type(both) is Stored
    assert both.num_features == dataset.num_features
    for data, graph in zip(both[torch.tensor([1, 0])], reversed(graphs), strict=True):
        assert_near(data.to_dict(), transforms.AddHops()(transform(graph)).to_dict())
    assert isinstance(make(name)(list(dataset)), list)
    assert "hop_index" not in dataset[0]
    batch = next(iter(DataLoader(dataset, batch_size=2)))
    torch.save(batch, tmp_path / "batch.pt")
    assert_near(torch.load(tmp_path / "batch.pt", weights_only=False).to_dict(), batch.to_dict())


@each_transform
@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")  # PyG's guess before our refusal
def test_wrong_graphs_are_refused(name):
    batch = Batch.from_data_list([path(3), path(4)])
    if name not in ("AddRandomWalks", "AddRandomWalkEncoding", "AddHeatDiagonalEncoding", "AddTreeOrder", "AddHops"):
        match = "is not the grid" if name == "AddGridShape" else f"{name} would read a batch as one graph: apply it to"
        with pytest.raises(ValueError, match=match):
            make(name)(batch)
        make(name)(Batch.from_data_list([path(3)]))
    with pytest.raises(TypeError, match=r"homogeneous graph \(got HeteroData\).*to_homogeneous"):
        make(name)(HeteroData())
    with pytest.raises(ValueError, match="does not say how many nodes"):
        make(name)(Data())
    if name != "AddPositions":  # it reads no edges
        wrong = Data(edge_index=torch.tensor([[0], [5]]), num_nodes=3)
        for data in (wrong, [path(2), wrong]):
            with pytest.raises(ValueError, match="contains node 5, but nodes are 0 to 2"):
                make(name)(data)


@each_transform
def test_graphs_without_edges_and_without_nodes(name):
    sizes = [1] if name == "AddGridShape" else [1, 3]
    graphs = [empty_graph(), *(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=n) for n in sizes)]
    for data in graphs:
        found = added(make(name), data)
        assert all(value.size(1) == 0 for key, value in found.items() if "index" in key and data.num_nodes == 0)
        assert all(value.is_floating_point() <= bool((~value.isinf()).all()) for value in found.values()
                   if isinstance(value, torch.Tensor))  # fmt: skip


@pytest.mark.parametrize(
    "name", [name for name in CLASSES if name.endswith(("Encoding", "Bias")) and name != "AddLaplacianEncoding"]
)
def test_encodings_follow_a_relabelling(name):
    data, perm = CASES["random directed"], torch.randperm(40)
    wanted, moved = added(make(name), data), added(make(name), permute(data, perm))
    for key, value in wanted.items():
        if key.startswith("pair_"):
            value = value.view(40, 40, -1)[perm][:, perm].reshape(moved[key].shape)
        else:
            value = value[perm]
        torch.testing.assert_close(moved[key], value, rtol=0, atol=5e-5)
