import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.ops.edges.edge_softmax import typed_edges
from pyg_topomask.testing import GRAPHS, empty_graph
from pyg_topomask.transforms import AddExpanderEdges


def edges_of(*names, num_virtual=2, expander=True):
    """A batch, and the arguments of `typed_edges`."""
    parts = [empty_graph() if name == "empty" else GRAPHS[name].clone() for name in names]
    batch = Batch.from_data_list([AddExpanderEdges(1, seed=0)(part) for part in parts])
    index = batch.expander_index if expander else None
    return batch, (batch.edge_index, index, batch.batch, batch.num_nodes, batch.num_graphs, num_virtual)


@pytest.mark.parametrize("num_virtual", [0, 1, 3])
@pytest.mark.parametrize("expander", [True, False])
def test_every_edge_is_there_once_under_its_type(num_virtual, expander):
    batch, where = edges_of("star", "empty", "one_way", "single", num_virtual=num_virtual, expander=expander)
    edges, n = typed_edges(*where), batch.num_nodes
    types = [batch.edge_index.tolist()]
    if expander:
        types.append(batch.expander_index.tolist())
    wanted = [(i, j, kind) for kind, (source, target) in enumerate(types) for j, i in zip(source, target)]
    for node, graph in enumerate(batch.batch.tolist()):
        for virtual in range(n + graph * num_virtual, n + (graph + 1) * num_virtual):
            wanted += [(virtual, node, len(types)), (node, virtual, len(types) + 1)]
    order = torch.arange(edges.pattern.num_rows) if edges.pattern.order is None else edges.pattern.order
    row, col = (order[x.long()] for x in (edges.pattern.row, edges.pattern.col))
    assert sorted(zip(row.tolist(), col.tolist(), edges.kind.tolist())) == sorted(wanted)
    graph = torch.cat([batch.batch, torch.arange(4).repeat_interleave(num_virtual)])[order]
    assert (graph.diff() >= 0).all()  # edges of a graph lie together
    own = edges.number < batch.num_edges
    assert torch.equal(torch.stack([col[own], row[own]]), batch.edge_index[:, edges.number[own]])


def test_edges_of_nodes_that_are_not_there_are_refused():
    batch, _ = edges_of("star", "path")
    with pytest.raises(ValueError, match="'edge_index' contains node 8, but nodes are 0 to 7"):
        typed_edges(batch.edge_index, None, None, 8, 1, 0)
    with pytest.raises(ValueError, match="'expander_index' contains node 8"):
        typed_edges(batch.edge_index[:, :4], batch.expander_index, None, 8, 1, 0)
