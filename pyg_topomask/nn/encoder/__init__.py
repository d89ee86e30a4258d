"""Encoders of graph attributes, under the names of GraphGPS."""

from collections.abc import Callable

from pyg_topomask.nn.encoder import features
from pyg_topomask.nn.encoder.base import Encoder
from pyg_topomask.nn.encoder.laplacian import EquivStableLapPE, LapPE, SignNet
from pyg_topomask.nn.encoder.pair_bias import GraphormerBias, RelativeWalkBias
from pyg_topomask.nn.encoder.structural import RWSE, ElstaticSE, HKdiagSE

NODE_ENCODERS: dict[str, Callable[..., Encoder]] = {
    "Atom": features.AtomEncoder,
    "ASTNode": features.ASTNodeEncoder,
    "PPANode": features.ConstantNodeEncoder,
    "TypeDictNode": features.TypeDictNodeEncoder,
    "VOCNode": features.LinearNodeEncoder,
    "COCONode": features.LinearNodeEncoder,
    "LinearNode": features.LinearNodeEncoder,
}
"""Name -> encoder of nodes ``[N, C]``, built as ``cls(channels, …)``."""

EDGE_ENCODERS: dict[str, Callable[..., Encoder]] = {
    "Bond": features.BondEncoder,
    "ASTEdge": features.ASTEdgeEncoder,
    "PPAEdge": features.LinearEdgeEncoder,
    "TypeDictEdge": features.TypeDictEdgeEncoder,
    "VOCEdge": features.LinearEdgeEncoder,
    "COCOEdge": features.LinearEdgeEncoder,
    "LinearEdge": features.LinearEdgeEncoder,
    "DummyEdge": features.ConstantEdgeEncoder,
}
"""Name -> encoder of edges ``[E, C]``, built as ``cls(channels, …)``."""

POSITIONAL_ENCODERS: dict[str, type[Encoder]] = {
    "LapPE": LapPE,
    "SignNet": SignNet,
    "RWSE": RWSE,
    "HKdiagSE": HKdiagSE,
    "ElstaticSE": ElstaticSE,
    "EquivStableLapPE": EquivStableLapPE,
    "GraphormerBias": GraphormerBias,
    "RRWP": RelativeWalkBias,
}
"""Name -> encoding. `ComposedNodeEncoder` concatenates the first five to node features. Convolutions read
`EquivStableLapPE` as ``pe``. The last two are biases of attention; `GraphormerBias` is used together with
`GraphormerDegrees`, which is added to the nodes."""
