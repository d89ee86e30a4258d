"""Gradients of attention if all nodes have equal features, so that outputs are the largest value."""

import networkx as nx
import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import from_networkx

from pyg_topomask.nn import MASK, MaskedAttention
from pyg_topomask.testing import examples, prepared

CHANNELS = 8
PATHS = [nx.path_graph(9)] * 3
GRAPHS = [nx.cycle_graph(9), nx.star_graph(5), nx.random_regular_graph(3, 12, seed=0), nx.path_graph(17)]
MASKS = examples(MASK, (9,))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1), (torch.float32, 1e4), (torch.float64, 1)])
@pytest.mark.parametrize("kernel", ["elu1", "softmax"])
@pytest.mark.parametrize("name", {name.split()[0]: name for name in reversed(MASKS)}.values())
def test_gradient_is_that_of_central_differences_on_every_path(name, kernel, dtype, size):
    torch.manual_seed(0)
    mask = MASKS[name]()
    kinds = map(from_networkx, PATHS if mask.card.graphs == "grids" else GRAPHS)
    plain = [Data(edge_index=one.edge_index, num_nodes=one.num_nodes) for one in kinds]
    graph = Batch.from_data_list(prepared(mask, plain, num_walks=8))
    attn = MaskedAttention(CHANNELS, 2, kernel=kernel, mask=mask).to(dtype)
    x, values = torch.full((graph.num_nodes, CHANNELS), size, dtype=dtype), attn.qkv.weight[2 * CHANNELS :]
    direction = torch.randn(values.shape, dtype=dtype)
    for path in paths(mask(graph), kernel):
        attn.path = path
        attn.zero_grad()
        attn(x, graph=graph).sum().backward()
        slope = (attn.qkv.weight.grad[2 * CHANNELS :] * direction).sum()
        torch.testing.assert_close(slope, difference(attn, x, graph, direction), rtol=2e-3, atol=1e-3 * size, msg=path)


def paths(op, kernel):
    return [
        "auto",
        "dense",
        *(["factored"] if kernel != "softmax" else []),
        *(["pairwise"] if op.support is not None else []),
        *(["blocks"] if op.dense_blocks is not None else []),
    ]


@torch.no_grad()
def difference(attn, x, graph, direction):
    """Change of the summed output along a direction of the values' projection; the output is linear in it."""
    values = attn.qkv.weight[2 * CHANNELS :]
    outputs = []
    for step in (0.5, -1.0):
        values += step * direction
        outputs.append(attn(x, graph=graph).sum())
    values += 0.5 * direction
    return outputs[0] - outputs[1]
