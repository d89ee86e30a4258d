import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.utils import to_undirected

from pyg_topomask import expressivity, nn, testing, transforms
from pyg_topomask.nn.encoder.features import LinearNodeEncoder
from pyg_topomask.nn.head.mlp import NodeHead
from pyg_topomask.ops import sample_walks

DATA = testing.GRAPHS["one_way"]  # a missed transpose shows on a directed graph
WEIGHT = torch.tensor([0.5, 1.5, 2.0, 0.25, 1.0])
# PyG makes sparse matrices without saying whether torch should check them, which newer torch asks for.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
FORMATS = ["csr", "coo", pytest.param("torch_sparse", marks=pytest.mark.sparse)]


def transposed(kind, weight=None):
    row, col = DATA.edge_index
    if kind == "torch_sparse":
        torch_sparse = pytest.importorskip("torch_sparse")
        return torch_sparse.SparseTensor(row=col, col=row, value=weight, sparse_sizes=(5, 5))
    weight = torch.ones(5) if weight is None else weight
    coo = torch.sparse_coo_tensor(DATA.edge_index.flip(0), weight, (5, 5), check_invariants=False)
    return coo if kind == "coo" else coo.to_sparse_csr()


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("kind", FORMATS)
def test_walks_read_the_transposed_adjacency(kind, weight):
    settings = {"num_walks": 8, "max_length": 3}
    one = sample_walks(transposed(kind, weight), 5, generator=torch.Generator().manual_seed(0), **settings)
    two = sample_walks(DATA.edge_index, 5, edge_weight=weight, generator=torch.Generator().manual_seed(0), **settings)
    for name in ("index", "length", "load", "count"):
        assert torch.equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_given_twice_and_a_graph_token_are_refused(kind):
    with pytest.raises(TypeError, match="already holds values"):
        sample_walks(transposed(kind, WEIGHT), 5, num_walks=1, max_length=1, edge_weight=WEIGHT)
    with pytest.raises(TypeError, match=r"got (torch\.sparse|SparseTensor)"):
        nn.GPSModel(8, 8, 2, 1, attn="transformer", pool="graph_token")(torch.randn(5, 8), transposed(kind))


MODULES = {
    "GRF": lambda: nn.GRFAttention(8),
    "SAN": lambda: nn.SANAttention(8),
    "heat": lambda: nn.MaskedAttention(8, mask=nn.HeatMask()),
    "power series": lambda: nn.MaskedAttention(8, mask=nn.PowerSeriesMask()),
    "hop": lambda: nn.MaskedAttention(8, mask=nn.HopMask()),
    "tree": lambda: nn.MaskedAttention(8, mask=nn.TreeMask()),
}


@pytest.mark.parametrize("store", [ToSparseTensor(), ToSparseTensor(layout=torch.sparse_coo), EdgeIndex])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore:Converting sparse tensor to CSR format")  # by PyG's convolution
def test_layers_and_transforms_take_every_format(name, store):
    layer = nn.GPSLayer(8, GCNConv(8, 8), MODULES[name]()).eval()
    data = Data(x=torch.randn(5, 8), edge_index=to_undirected(DATA.edge_index), num_nodes=5)
    add = transforms.that_add(layer.attn.requires, seed=0)
    plain, other = add(data.clone()), data.clone()
    if store is EdgeIndex:
        other.edge_index = EdgeIndex(other.edge_index, sparse_size=(5, 5))
    else:
        other = store(other)
    other = add(other)
    edges = other.edge_index if store is EdgeIndex else other.adj_t
    torch.testing.assert_close(layer(data.x, edges, None, other), layer(data.x, plain.edge_index, None, plain))
    both = Batch.from_data_list([other, other])
    edges = both.edge_index if store is EdgeIndex else both.adj_t
    torch.testing.assert_close(layer(both.x, edges, None, both)[:5], layer(data.x, plain.edge_index, None, plain))
    model = nn.GPSModel(8, 8, 2, 1, lambda _: GCNConv(8, 8), lambda _: MODULES[name]()).eval()
    torch.testing.assert_close(model(both.x, edges, plan=model.plan(both)), model(both.x, edges, graph=both))
    network = nn.GPSNetwork(LinearNodeEncoder(8, 8), model.layers, NodeHead(8, 2)).eval()
    for plan in (None, network.plan(both)):
        torch.testing.assert_close(network(both, plan=plan)[:5], network(plain))


@pytest.mark.parametrize("store", [ToSparseTensor(), EdgeIndex])
def test_expressivity_reads_every_format(store):
    def stored(name):
        data = testing.GRAPHS[name].clone()
        if store is EdgeIndex:
            data.edge_index = EdgeIndex(data.edge_index, sparse_size=(data.num_nodes, data.num_nodes))
            return data
        return store(data)

    assert expressivity.distinguishes(stored("star"), stored("one_way"))
    assert not expressivity.distinguishes(stored("star"), testing.GRAPHS["star"])
    assert not expressivity.distinguishes(testing.GRAPHS["star"], testing.GRAPHS["star"], transform=ToSparseTensor())
