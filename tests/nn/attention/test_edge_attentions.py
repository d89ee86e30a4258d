"""What attentions along the edges of a graph share: edge features, and checks of the graph."""

import pytest
import torch
from torch.nn import Linear
from torch_geometric.data import Data

from pyg_topomask.nn import ExphormerAttention, SANAttention
from pyg_topomask.testing import GRAPHS

BUILDERS = {
    "Exphormer": lambda **settings: ExphormerAttention(8, heads=2, expander=False, **settings),
    "SAN": lambda **settings: SANAttention(8, heads=2, **settings),
}
pytestmark = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


def test_encoded_edge_features_get_gradients(build):
    data, encoder, x = GRAPHS["one_way"].clone(), Linear(3, 5), torch.randn(5, 8)
    data.edge_attr = encoder(torch.rand(data.num_edges, 3))
    build(edge_dim=5)(x, None, data).square().sum().backward()
    assert (encoder.weight.grad != 0).any()
    data.edge_attr, narrow = torch.rand(data.num_edges, 1), build(edge_dim=1)
    wanted = narrow(x, None, data)
    data.edge_attr = data.edge_attr.flatten()
    assert torch.equal(narrow(x, None, data), wanted)


def test_vectors_of_edges_start_at_one(build):
    """So that scores start as dot products of queries and keys."""
    vectors = [p for name, p in build().named_parameters() if name in ("edge_type", "edge_vector", "absent_vector")]
    assert vectors
    assert all((vector == 1).all() for vector in vectors)


def test_bad_graphs_are_refused(build):
    attn, data, x = build(), GRAPHS["star"].clone(), torch.randn(5, 8)
    with pytest.raises(ValueError, match="Attention needs the graph: give it a Data or Batch"):
        attn(x)
    with pytest.raises(TypeError, match=r"must be a Data or Batch \(got a tensor"):
        attn(x, torch.zeros(5, dtype=torch.long), data.edge_index)
    with pytest.raises(ValueError, match="needs the graph's edges, 'edge_index' or 'adj_t'"):
        attn(x, None, Data(x=x))
    for rows in (4, 6):
        with pytest.raises(ValueError, match=f"graph has 5 nodes, but 'x' has {rows} rows"):
            attn(torch.randn(rows, 8), None, data)
    with pytest.raises(ValueError, match="'edge_index' contains node 4, but nodes are 0 to 3"):
        attn(x[:4], None, Data(edge_index=data.edge_index))
    assert attn(x, None, Data(edge_index=torch.tensor([[0], [1]]))).shape == (5, 8)  # PyG would guess 2 nodes
    with pytest.raises(ValueError, match="edge_dim=3, but the graph has no 'edge_attr'"):
        build(edge_dim=3)(x, None, data)
    data.edge_attr = torch.rand(8, 2)
    with pytest.raises(ValueError, match=r"'edge_attr' must have shape \[8, 3\].*got \[8, 2\]"):
        build(edge_dim=3)(x, None, data)
