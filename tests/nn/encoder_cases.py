"""Every encoder with small settings, and graphs that carry what it reads."""

import torch
from torch_geometric.data import Data

from pyg_topomask.nn.encoder import EDGE_ENCODERS, NODE_ENCODERS, POSITIONAL_ENCODERS
from pyg_topomask.nn.encoder.features import AST_SIZES, ATOM_SIZES, BOND_SIZES, MLPNodeEncoder
from pyg_topomask.nn.encoder.pair_bias import GraphormerDegrees

K = 5  # eigenvectors: more than the smallest graphs have
NODES = {
    "Atom": ({}, ATOM_SIZES),
    "ASTNode": ({}, AST_SIZES),
    "PPANode": ({}, 1),
    "TypeDictNode": ({"num_types": 28}, (28,)),
    "LinearNode": ({"in_channels": 3}, 3),
}
EDGES = {
    "Bond": ({}, BOND_SIZES),
    "ASTEdge": ({}, (2, 2)),
    "TypeDictEdge": ({"num_types": 4}, (4,)),
    "LinearEdge": ({"in_channels": 1}, 1),
    "DummyEdge": ({}, 1),
}
POSITIONAL = {
    "LapPE": {"max_freqs": K, "raw_norm": "batch_norm", "post_layers": 2},
    "LapPE-Transformer": {"max_freqs": K, "model": "Transformer"},
    "SignNet": {"max_freqs": K, "layers": 3, "phi_hidden_dim": 6},
    "SignNet-DeepSet": {"max_freqs": K, "model": "DeepSet", "layers": 2, "post_layers": 3, "phi_hidden_dim": 6},
    "RWSE": {"in_channels": 4, "raw_norm": "batch_norm"},
    "HKdiagSE": {"in_channels": 4, "model": "MLP", "layers": 3},
    "ElstaticSE": {"in_channels": 8},
    "EquivStableLapPE": {"max_freqs": K},
    "GraphormerBias": {"num_spatial_types": 4, "num_edge_types": 3},
    "RRWP": {"in_channels": 4},
}
CASES = {
    **{name: (NODE_ENCODERS[name], options, {"nodes": columns}) for name, (options, columns) in NODES.items()},
    **{name: (EDGE_ENCODERS[name], options, {"edges": columns}) for name, (options, columns) in EDGES.items()},
    **{name: (POSITIONAL_ENCODERS[name.split("-")[0]], options, {}) for name, options in POSITIONAL.items()},
    "GraphormerDegrees": (GraphormerDegrees, {}, {}),
    "MLPNode": (MLPNodeEncoder, {"in_channels": 3, "layers": 2}, {}),
}
"""Name -> class, arguments, and columns of the features: so many numbers, or categories of such sizes."""


def features(rows, columns):
    if isinstance(columns, int):
        return torch.randn(rows, columns)
    return torch.stack([torch.randint(size, (rows,)) for size in columns], dim=1)


def encodable(data, nodes=3, edges=1, num_pairs=None):
    """A graph with everything that any encoder reads; rows of pairs are n² unless their number is given."""
    n, pairs = data.num_nodes, data.num_nodes**2 if num_pairs is None else num_pairs
    graph = Data(x=features(n, nodes), edge_index=data.edge_index, num_nodes=n)
    graph.edge_attr = features(data.num_edges, edges)
    graph.laplacian_vectors, graph.laplacian_values = torch.randn(2, n, K)
    if n < K:
        graph.laplacian_vectors[:, n:] = graph.laplacian_values[:, n:] = torch.nan
    graph.random_walk_diagonal, graph.heat_diagonal = torch.rand(2, n, 4)
    graph.electrostatic = torch.rand(n, 8)
    graph.shortest_path_in_degree, graph.shortest_path_out_degree = torch.randint(80, (2, n))
    graph.pair_shortest_path = torch.randint(5, (pairs,)).to(torch.int16)
    graph.pair_shortest_path_types = torch.randint(-1, 3, (pairs, 4)).to(torch.int16)
    graph.pair_relative_walk = torch.rand(pairs, 4)
    return graph
