import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import ToSparseTensor

from pyg_topomask.nn import GPSLayer, GRFAttention
from pyg_topomask.ops import sample_walks
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddRandomWalks

torch_sparse = pytest.importorskip("torch_sparse")
pytestmark = pytest.mark.sparse

DATA = GRAPHS["one_way"]  # a missed transpose shows on a directed graph
WEIGHT = torch.tensor([0.5, 1.5, 2.0, 0.25, 1.0])


def transposed(weight=None):
    row, col = DATA.edge_index
    return torch_sparse.SparseTensor(row=col, col=row, value=weight, sparse_sizes=(5, 5))


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_walks_read_the_transposed_adjacency(weight):
    settings = {"num_walks": 8, "max_length": 3}
    one = sample_walks(transposed(weight), 5, generator=torch.Generator().manual_seed(0), **settings)
    two = sample_walks(DATA.edge_index, 5, edge_weight=weight, generator=torch.Generator().manual_seed(0), **settings)
    for name in ("index", "length", "load", "count"):
        assert torch.equal(getattr(one, name), getattr(two, name))


def test_weights_given_twice_are_refused():
    with pytest.raises(TypeError, match="already holds values"):
        sample_walks(transposed(WEIGHT), 5, num_walks=1, max_length=1, edge_weight=WEIGHT)


@pytest.mark.parametrize("attr", [None, "edge_weight"])
def test_transform_after_to_sparse_tensor(attr):
    data = Data(x=torch.randn(5, 4), edge_index=DATA.edge_index, num_nodes=5)
    if attr is not None:
        data.edge_weight = WEIGHT
    plain = AddRandomWalks(seed=0)(data.clone())
    stored = AddRandomWalks(seed=0)(ToSparseTensor(attr=attr)(data.clone()))
    assert "edge_index" not in stored
    for name in ("walk_index", "walk_length", "walk_load", "walk_key_index", "walk_key_load"):
        assert torch.equal(stored[name], plain[name])


def test_layer_takes_the_sparse_tensor():
    data = AddRandomWalks(seed=0)(Data(x=torch.randn(5, 8), edge_index=DATA.edge_index, num_nodes=5))
    layer = GPSLayer(8, GCNConv(8, 8), GRFAttention(8)).eval()
    stored = ToSparseTensor()(data.clone())
    torch.testing.assert_close(layer(data.x, stored.adj_t, None, stored), layer(data.x, data.edge_index, None, data))
