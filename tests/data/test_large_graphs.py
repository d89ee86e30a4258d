"""Graphs on disk and behind stores: each gives the parts of the `Data` that it holds."""

import copy
import json
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.testing import MyFeatureStore, MyGraphStore
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_undirected

from pyg_topomask.data import DiskGraph, GraphSource, partition, read_edges, save_edges, save_graph
from pyg_topomask.data.disk import _write_header, pointers, with_arrays
from pyg_topomask.data.graph_parts import WalkNeighborhoods
from pyg_topomask.data.partition import _best_parts, _within_capacity
from pyg_topomask.data.source import mapped
from pyg_topomask.loader import RandomPartitionLoader, WalkNeighborLoader
from pyg_topomask.nn import TreeMask
from pyg_topomask.transforms import AddRandomWalks, AddTreeOrder

NODES = 60


def graph_of():
    """A graph with equal edges, loops, and nodes without edges at the end."""
    draw = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, NODES - 3, (2, 200), generator=draw)
    return Data(
        x=torch.randn(NODES, 3, generator=draw),
        edge_index=edge_index,
        edge_attr=torch.randn(200, 2, generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.5,
        name="a graph",
        num_nodes=NODES,
    )


def stores_of(data):
    features, graph = MyFeatureStore(), MyGraphStore()
    for name in ("x", "train_mask"):
        features.put_tensor(data[name], group_name=None, attr_name=name, index=None)
    size = (data.num_nodes, data.num_nodes)
    graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=size)
    return features, graph


KINDS = {
    "data": lambda data, folder: data,
    "disk": lambda data, folder: save_graph(folder / "graph", data),
    "stores": lambda data, folder: stores_of(data),
}


def sorted_edges(data, *names):
    order = (data.edge_index[0] * data.num_nodes + data.edge_index[1]).argsort(stable=True)
    return [data.edge_index[:, order], *(data[name][order] for name in names)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [[], [4], [59], list(range(0, NODES, 3)), list(range(NODES))])
def test_a_part_equals_pygs_subgraph(kind, nodes, tmp_path):
    data, nodes = graph_of(), torch.tensor(nodes, dtype=torch.int64)
    part, want = GraphSource(KINDS[kind](data, tmp_path)).subgraph(nodes), data.subgraph(nodes)
    names = ["edge_attr"] if kind != "stores" else []
    for found, expected in zip(sorted_edges(part, *names), sorted_edges(want, *names)):
        assert torch.equal(found, expected)
    assert torch.equal(part.x, want.x)
    assert torch.equal(part.train_mask, want.train_mask)
    assert part.num_nodes == len(nodes)
    if kind == "data":  # with the order of the edges, and attributes of the graph
        assert torch.equal(part.edge_index, want.edge_index)
        assert torch.equal(part.edge_attr, want.edge_attr)
        assert part.name == "a graph"


@pytest.mark.parametrize("layout", ["coo", "csc"])
def test_stores_and_folders_give_the_same_batches(layout, tmp_path):
    """Also where the store holds its edges in another order."""
    data, walks = graph_of(), AddRandomWalks(num_walks=4, seed=0)
    data.edge_attr = None
    row, col = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    stores, size = stores_of(data), (NODES, NODES)
    if layout == "csc":
        stores[1].store.clear()
        stores[1].put_edge_index((row, pointers(col, NODES)), edge_type=None, layout="csc", size=size)
    disk = save_graph(tmp_path / "g", data)
    for make in (
        lambda graph: WalkNeighborLoader(graph, torch.arange(NODES), 16, 8, max_nodes=9, transform=walks),
        lambda graph: RandomPartitionLoader(graph, 3, transform=walks),
    ):
        for found, want in zip(make(stores), make(disk), strict=True):
            found, want = found.to_dict(), want.to_dict()
            assert found.keys() == want.keys()
            for key, value in want.items():
                assert torch.equal(found[key], value) if torch.is_tensor(value) else found[key] == value, key


@pytest.mark.parametrize("kind", KINDS)
def test_32_bit_edges_of_many_nodes_are_sorted(kind, tmp_path):
    """The square of the number of nodes is beyond 32 bits."""
    edges = torch.randint(0, 60_000, (2, 500), generator=torch.Generator().manual_seed(0))
    data = Data(x=torch.arange(60_000), edge_index=edges.int(), train_mask=torch.zeros(60_000))
    source = GraphSource(KINDS[kind](data, tmp_path))
    row, place = source.edges_from(torch.arange(60_000))
    assert sorted(zip(row.tolist(), source.index[place].tolist())) == sorted(zip(*edges.tolist()))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("kind", ["data", "disk"])
def test_a_sparse_adjacency_is_read_with_its_weights(kind, remove, layout, tmp_path):
    """Its size is that of the graph, which has no edges at its last nodes."""
    edges = graph_of().edge_index.unique(dim=1)
    data = Data(edge_index=edges, edge_weight=torch.rand(edges.size(1)), num_nodes=NODES)
    adj = ToSparseTensor(layout=layout, remove_edge_index=remove)(data.clone())
    adj.num_nodes = None if remove else NODES
    nodes = torch.arange(0, NODES, 3)
    found, want = (
        GraphSource(KINDS[kind](graph, tmp_path / str(n))).subgraph(nodes) for n, graph in enumerate((adj, data))
    )
    for one, other in zip(sorted_edges(found, "edge_weight"), sorted_edges(want, "edge_weight"), strict=True):
        assert torch.equal(one, other)
    assert "adj_t" not in found


def test_lists_and_arrays_with_a_row_for_each_node_or_edge_are_cut():
    """Such as the names in a graph of NetworkX; a dense matrix ``adj`` is an attribute of nodes."""
    data = graph_of()
    data.names, data.numbers = [f"node {i}" for i in range(NODES)], np.arange(NODES)
    data.kinds, data.adj = [f"edge {i}" for i in range(data.num_edges)], torch.eye(NODES)
    part = GraphSource(data).subgraph(torch.tensor([4, 2]))
    assert part.names == ["node 4", "node 2"]
    assert part.numbers.tolist() == [4, 2]
    assert len(part.kinds) == part.num_edges
    batch = next(iter(WalkNeighborLoader(data, [4, 2], 2, shuffle=False)))
    for graph in batch.to_data_list():
        assert graph.names == [f"node {i}" for i in graph.n_id.tolist()]
        assert graph.numbers.tolist() == graph.n_id.tolist()
        assert len(graph.kinds) == graph.num_edges


@pytest.mark.parametrize("kind", ["data", "disk"])
def test_tables_of_the_whole_graph_may_be_there(kind, tmp_path):
    """The tree has as many columns as there are nodes, and the pairs as many as there are edges."""
    data, trees = AddTreeOrder()(graph_of()), AddTreeOrder()
    data.pair_index = data.edge_index.flip(0)
    graph = KINDS[kind](data, tmp_path)
    for part in RandomPartitionLoader(graph, 2, transform=trees):
        assert torch.equal(part.tree_index, trees(Data(edge_index=part.edge_index, num_nodes=30)).tree_index)
    for batch in WalkNeighborLoader(graph, torch.arange(4), 2, transform=trees):
        assert batch.tree_size.tolist() == batch.ptr.diff().tolist()
    if kind == "data":
        with pytest.raises(ValueError, match="were drawn for 60 nodes"):
            TreeMask()(GraphSource(graph).subgraph(torch.arange(5)))


def test_drawn_neighbors_depend_on_the_seed():
    source = GraphSource(graph_of())
    drawn = [source.draw_neighbors(torch.arange(NODES), 1, seed).tolist() for seed in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]


def test_walks_of_an_epoch_are_not_those_of_another_seed():
    drawn = [WalkNeighborhoods(graph_of(), torch.arange(NODES), 16, seed=seed) for seed in (0, 1)]
    first, second = drawn[0].visited(torch.arange(16), 1), drawn[1].visited(torch.arange(16), 0)
    assert first[0].tolist() != second[0].tolist()


def test_edges_among_groups_stay_within_their_group():
    data, draw = graph_of(), torch.Generator().manual_seed(1)
    nodes = torch.cat([torch.randperm(NODES, generator=draw)[:20] for _ in range(3)])
    group = torch.arange(3).repeat_interleave(20)
    edge_index, _ = GraphSource(data).edges_among(nodes, group)
    for number in range(3):
        own = edge_index[:, group[edge_index[0]] == number] - 20 * number
        want = data.subgraph(nodes[group == number]).edge_index
        assert sorted(own.T.tolist()) == sorted(want.T.tolist())


@pytest.mark.parametrize("suffix", ["npy", "csv", "txt"])
@pytest.mark.parametrize("undirected", [False, True])
def test_streamed_edges_equal_those_of_the_whole(suffix, undirected, tmp_path):
    data, path = graph_of(), tmp_path / f"edges.{suffix}"
    if suffix == "npy":
        np.save(path, data.edge_index.numpy())
    else:
        lines = (("," if suffix == "csv" else " ").join(map(str, pair)) for pair in data.edge_index.T.tolist())
        path.write_text("\n".join(["# source target", *lines]) + "\n")
    graph = save_edges(tmp_path / "g", read_edges(path, 7), NODES, {"x": data.x.split(11)}, undirected)
    edges = torch.cat([data.edge_index, data.edge_index.flip(0)], 1) if undirected else data.edge_index
    found = GraphSource(graph).subgraph(torch.arange(NODES))
    assert torch.equal(found.edge_index, edges.unique(dim=1))
    assert torch.equal(found.x, data.x)


@pytest.mark.parametrize("array", [[[0.0, 1.5], [1.0, 2.0], [2.0, 0.0]], [0, 1]])
def test_files_that_are_no_edges_are_refused(array, tmp_path):
    np.save(tmp_path / "e.npy", array)
    with pytest.raises(ValueError, match="must have integers"):
        next(read_edges(tmp_path / "e.npy"))


@pytest.mark.parametrize(("rows", "keys"), [(8, 2**20), (NODES, 7), (8, 3)])
def test_edges_of_many_files_are_sorted(rows, keys, tmp_path, monkeypatch):
    """Also where a file has too many edges to be sorted at once."""
    monkeypatch.setattr("pyg_topomask.data.disk.ROWS_TOGETHER", rows)
    monkeypatch.setattr("pyg_topomask.data.disk._KEYS_TOGETHER", keys)
    data = graph_of()
    data.edge_index[0, :60] = 5  # a hub
    graph = save_edges(tmp_path / "g", data.edge_index.int().split(50, 1), NODES)
    assert torch.equal(GraphSource(graph).subgraph(torch.arange(NODES)).edge_index, data.edge_index.unique(dim=1))
    assert {path.suffix for path in graph.folder.iterdir()} == {".bin", ".json"}


def test_the_row_of_a_hub_is_read_once_for_all_groups(monkeypatch):
    data, read = Data(edge_index=to_undirected(torch.stack([torch.zeros(50).long(), torch.arange(1, 51)]))), []
    data.num_nodes = 51
    source, edges_from = GraphSource(data), GraphSource.edges_from
    monkeypatch.setattr(GraphSource, "edges_from", lambda self, nodes: read.append(nodes) or edges_from(self, nodes))
    nodes = torch.tensor([0, 1, 7, 0, 7, 8, 0])
    edge_index, place = source.edges_among(nodes, torch.tensor([0, 0, 0, 1, 1, 1, 2]))
    assert sorted(edge_index.T.tolist()) == [[0, 1], [0, 2], [1, 0], [2, 0], [3, 4], [3, 5], [4, 3], [5, 3]]
    assert torch.equal(source.index[place], nodes[edge_index[1]])
    assert torch.cat(read).tolist() == [0, 1, 7, 8]


def test_new_arrays_replace_those_of_their_name_in_the_new_folder_alone(tmp_path):
    one = save_graph(tmp_path / "one", graph_of())
    two = with_arrays(tmp_path / "two", one, {"x": torch.ones(NODES, 1), "part": torch.zeros(NODES)})
    assert torch.equal(two.arrays["x"], torch.ones(NODES, 1))
    assert torch.equal(one.arrays["x"], graph_of().x)
    assert torch.equal(two.arrays["index"], one.arrays["index"])
    for level, rows in (("node", NODES + 1), ("edge", NODES), ("nodes", NODES)):
        with pytest.raises(ValueError, match=r"must have .* rows|'level' must be one of node, edge"):
            with_arrays(tmp_path / "three", one, {"part": torch.zeros(rows)}, level)
    assert not (tmp_path / "three").exists()


def test_a_copy_is_the_name_of_the_folder_and_nothing_can_be_written(tmp_path):
    graph = save_graph(tmp_path / "g", graph_of())
    assert max(len(pickle.dumps(x)) for x in (graph, GraphSource(graph), GraphSource((graph, graph)))) < 500
    assert torch.equal(pickle.loads(pickle.dumps(graph)).arrays["x"], graph.arrays["x"])
    graph.arrays["x"].zero_()
    assert DiskGraph(graph.folder).arrays["x"].abs().sum() > 0
    with pytest.raises(TypeError, match="read-only"):
        graph.put_tensor(torch.zeros(NODES), group_name=None, attr_name="y", index=None)
    with pytest.raises(FileExistsError, match="exists"):
        save_graph(graph.folder, graph_of())


def test_a_copy_of_a_mapped_graph_maps_its_arrays_again(tmp_path):
    data = mapped(save_graph(tmp_path / "g", graph_of()))
    data.counted, data.drawn, data.train_mask = data.train_mask.view(NODES, -1)[:, 0], data.x + 1, None
    loader = RandomPartitionLoader(data, 2, num_workers=1, multiprocessing_context="spawn")
    message = ForkingPickler.dumps(loader.dataset)
    copied = pickle.loads(message).graph
    assert all(torch.equal(copied[key], data[key]) for key in ("x", "counted", "drawn", "edge_attr"))
    files = {key: copied[key].untyped_storage().filename for key in ("x", "counted", "drawn", "edge_attr")}
    assert files == {key: data[key].untyped_storage().filename for key in files}
    assert (files["drawn"], "train_mask" in copied) == (None, False)


def damage_header(folder):
    content = json.loads((folder / "graph.json").read_text())
    content["arrays"]["x"]["shape"][0] = 1
    (folder / "graph.json").write_text(json.dumps(content))


def rewrite(folder, **changed):
    """Arrays without one of their keys, or with another value, under a right checksum."""
    arrays = json.loads((folder / "graph.json").read_text())["arrays"]
    for name, values in changed.items():
        arrays[name] = {key: value for key, value in (arrays[name] | values).items() if value is not None}
    _write_header(folder, {name: array for name, array in arrays.items() if array})


DESCRIBED = ("dtype", "shape", "level", "crc32")
DAMAGES = {
    "header": (damage_header, ValueError, "damaged"),
    "no header": (lambda folder: (folder / "graph.json").unlink(), FileNotFoundError, "save_graph"),
    "text": (lambda folder: (folder / "graph.json").write_text("[]"), ValueError, "damaged"),
    "short": (lambda folder: (folder / "x.bin").write_bytes(b"1234"), ValueError, "4 bytes instead of 720"),
    "zeros": (lambda folder: (folder / "indptr.bin").write_bytes(bytes(488)), ValueError, "from edge 0 to 0 instead"),
    "no level": (lambda folder: rewrite(folder, x={"level": None}), ValueError, "damaged"),
    "no index": (lambda folder: rewrite(folder, index=dict.fromkeys(DESCRIBED)), ValueError, "damaged"),
    "dtype": (lambda folder: rewrite(folder, x={"dtype": "object"}), ValueError, "damaged"),
    "negative": (lambda folder: rewrite(folder, x={"shape": [-60, -3]}), ValueError, "damaged"),
    "petabytes": (lambda folder: rewrite(folder, x={"shape": [2**60, 3]}), ValueError, "720 bytes instead of"),
    "nested": (lambda folder: (folder / "graph.json").write_text("[" * 10**5), ValueError, "damaged"),
    "missing": (lambda folder: (folder / "index.bin").unlink(), FileNotFoundError, "index.bin is missing"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_folders_are_refused(kind, tmp_path):
    change, error, message = DAMAGES[kind]
    folder = save_graph(tmp_path / "g", graph_of()).folder
    change(folder)
    with pytest.raises(error, match=message):
        DiskGraph(folder)


@pytest.mark.parametrize("make", [save_graph, lambda folder, data: save_edges(folder, [data.edge_index], NODES)])
def test_a_flipped_bit_is_found_and_asks_for_no_memory(make, tmp_path):
    with_arrays(tmp_path / "g", make(tmp_path / "first", graph_of()), {"y": torch.zeros(NODES)})
    graph = DiskGraph(tmp_path / "g")
    graph.verify()
    for name in graph.arrays:
        path = graph.folder / f"{name}.bin"
        whole = path.read_bytes()
        path.unlink()  # it is linked from the first folder
        path.write_bytes(whole[:15] + bytes([whole[15] ^ 0x40]) + whole[16:])
        with pytest.raises(ValueError, match=f"{name}.bin is damaged: it has another checksum"):
            DiskGraph(graph.folder).verify()
        if name == "indptr":
            with pytest.raises(ValueError, match=r"the rows of .* are damaged"):
                GraphSource(DiskGraph(graph.folder)).subgraph(torch.arange(NODES))
        path.write_bytes(whole)
    rewrite(graph.folder, **{name: {"crc32": None} for name in graph.arrays})  # as earlier versions wrote it
    DiskGraph(graph.folder).verify()


NO_COMPLEX = "'x' has dtype torch.complex64, which a folder cannot hold: use int64, "


@pytest.mark.parametrize(
    ("block", "arrays", "error", "message"),
    [
        ([[0], [60]], {}, ValueError, "names node 60; nodes are 0 to 59"),
        ([[0, 1], [1, 2], [2, 3]], {}, ValueError, r"must be integers \[2, n\] \(got torch.int64 \[3, 2\]\)"),
        ([[0.0], [1.0]], {}, ValueError, "got torch.float32"),
        ([[0], [1]], {"x": torch.zeros(59)}, ValueError, "'x' must have 60 rows"),
        ([[0], [1]], {"x": 1j * torch.zeros(60)}, TypeError, NO_COMPLEX),
        ([[0], [1]], {"index": torch.zeros(60)}, ValueError, "can't be called 'index'"),
        ([[0], [1]], {"../x": torch.zeros(60)}, ValueError, "can't be called '../x'"),
    ],
)
def test_nothing_is_left_of_a_graph_that_cannot_be_written(block, arrays, error, message, tmp_path):
    with pytest.raises(error, match=message):
        save_edges(tmp_path / "g", [torch.tensor(block)], 60, arrays)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3), (graph_of(), 3)])
def test_what_is_no_graph_is_refused(wrong):
    with pytest.raises(TypeError, match="must be a Data, a DiskGraph"):
        GraphSource(wrong)


def blocks_of_nodes(num_blocks=8, size=64):
    """Dense blocks on a ring, with nodes in random order."""
    draw = torch.Generator().manual_seed(0)
    inside = torch.randint(0, size, (2, 8 * num_blocks * size), generator=draw)
    block = torch.randint(0, num_blocks, (inside.size(1),), generator=draw)
    ring = torch.arange(num_blocks) * size
    edges = torch.cat([inside + block * size, torch.stack([ring, ring.roll(1)])], 1)
    names = torch.randperm(num_blocks * size, generator=draw)
    edges = names[torch.cat([edges, edges.flip(0)], 1)]
    return Data(edge_index=edges[:, edges[0] != edges[1]], num_nodes=num_blocks * size)


@pytest.mark.parametrize("method", ["metis", "stream"])
def test_parts_are_of_equal_size_and_cut_few_edges(method):
    if method == "metis":
        pytest.importorskip("pymetis", reason="pymetis is not installed")
    data = blocks_of_nodes()
    part = partition(GraphSource(data), 8, method)
    assert part.bincount(minlength=8).max() <= 1.06 * data.num_nodes / 8 + 1
    cut = (part[data.edge_index[0]] != part[data.edge_index[1]]).float().mean()
    assert cut < (0.02 if method == "metis" else 0.4)  # 0.875 of a random partition
    assert torch.equal(part, partition(data, 8, method))


def test_nodes_that_all_want_one_part_fill_it_and_then_the_emptiest():
    part = _within_capacity(torch.zeros(9, dtype=torch.int64), torch.tensor([1.0, 4.0, 0.0]), 5.0)
    assert part.bincount(minlength=3).tolist() == [4, 0, 5]


def test_the_best_part_is_that_of_all_scores():
    seen, room = torch.randint(0, 5, (50, 4)), torch.tensor([0.9, 0.0, 0.3, 0.5, 0.0])
    seen[0] = 1  # of which there is no room
    score = (torch.nn.functional.one_hot(seen, 5).sum(1) + 1e-3) * room
    found = _best_parts((torch.arange(50)[:, None] * 5 + seen).flatten(), 50, room)
    assert torch.equal(found, score.argmax(1))


@pytest.mark.parametrize(("parts", "method"), [(0, "auto"), (513, "auto"), (2, "spectral")])
def test_partitions_that_cannot_be_are_refused(parts, method):
    with pytest.raises(ValueError, match="num_parts"):
        partition(GraphSource(blocks_of_nodes()), parts, method)
    with pytest.raises(ValueError, match="'passes' must be"):
        partition(GraphSource(blocks_of_nodes()), 2, "stream", 0)


@pytest.mark.parametrize("method", ["metis", "stream"])
def test_edges_that_no_partition_can_read_are_refused(method, tmp_path):
    """In a process of its own, METIS would die of them."""
    for node in (-1, NODES):
        data = graph_of()
        data.edge_index[1, 7] = node
        for read in (
            GraphSource,
            lambda data: save_graph(tmp_path / "g", data),
            lambda data: GraphSource(stores_of(data)),
        ):
            with pytest.raises(ValueError, match=f"contains node {node}, but nodes are 0 to 59"):
                read(data)
    source = GraphSource(graph_of())
    for array, place, wrong, message in (
        ("index", 9, -1, "'index' contains node -1"),
        ("index", 9, 60, "'index' contains node 60"),
        ("indptr", 3, 2**40, "the rows of the graph must ascend from edge 0 to 200"),
        ("indptr", -1, 100, "the rows of the graph must ascend"),
    ):
        changed = copy.copy(source)
        setattr(changed, array, getattr(source, array).clone())
        getattr(changed, array)[place] = wrong
        with pytest.raises(ValueError, match=message):
            partition(changed, 2, method)


def test_metis_gets_both_directions_of_edges():
    pytest.importorskip("pymetis", reason="pymetis is not installed")
    data = blocks_of_nodes()
    one_way = data.edge_index[:, data.edge_index[0] < data.edge_index[1]].unique(dim=1)
    want = Data(edge_index=to_undirected(one_way), num_nodes=data.num_nodes)
    found = partition(GraphSource(Data(edge_index=one_way, num_nodes=data.num_nodes)), 8, "metis")
    assert torch.equal(found, partition(GraphSource(want), 8, "metis"))
    star = Data(edge_index=torch.stack([torch.zeros(50).long(), torch.arange(50)]), num_nodes=300)
    assert partition(GraphSource(star), 7, "metis").unique().numel() == 7
