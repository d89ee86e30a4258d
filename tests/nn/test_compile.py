import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import ATTENTION
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddExpanderEdges, AddRandomWalks


@pytest.fixture(scope="module")
def batch():
    walks, edges = AddRandomWalks(num_walks=4, seed=0), AddExpanderEdges(degree=2, seed=0)
    return Batch.from_data_list([edges(walks(GRAPHS[name].clone())) for name in ("path", "star", "weighted")])


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in ATTENTION), ("GKAT", {"kernel": "softmax"}), ("GRF", {"kernel": "softmax"})],
)
def test_compiled_attention_is_the_same(name, settings, batch):
    """With the "eager" back end: what may go wrong is the tracing, which all back ends share."""
    torch.manual_seed(0)
    attn, x = ATTENTION[name](8, heads=2, **settings), torch.randn(batch.num_nodes, 8)
    wanted = attn(x, batch.batch, batch)
    torch._dynamo.reset()
    compiled = torch.compile(attn, backend="eager")
    for _ in range(2):
        out = compiled(x, batch.batch, batch)
        torch.testing.assert_close(out, wanted)
    out.sum().backward()
