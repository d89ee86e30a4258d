"""Encoders of graph attributes, under the names of GraphGPS."""

from pyg_topomask.nn.encoder.base import ComposedNodeEncoder, Encoder, NormalizedEncoder
from pyg_topomask.nn.encoder.features import (
    ASTEdgeEncoder,
    ASTNodeEncoder,
    AtomEncoder,
    BondEncoder,
    CategoricalEncoder,
    ConstantEdgeEncoder,
    ConstantNodeEncoder,
    LinearEdgeEncoder,
    LinearNodeEncoder,
    MLPNodeEncoder,
    TypeDictEdgeEncoder,
    TypeDictNodeEncoder,
)
from pyg_topomask.nn.encoder.laplacian import EquivStableLapPE, LapPE, SignNet
from pyg_topomask.nn.encoder.pair_bias import GraphormerBias, GraphormerDegrees, RelativeWalkBias
from pyg_topomask.nn.encoder.positions import NodePositions
from pyg_topomask.nn.encoder.structural import RWSE, ElstaticSE, HKdiagSE

NODE_ENCODERS: dict[str, type[Encoder]] = {
    "Atom": AtomEncoder,
    "ASTNode": ASTNodeEncoder,
    "PPANode": ConstantNodeEncoder,
    "TypeDictNode": TypeDictNodeEncoder,
    "VOCNode": LinearNodeEncoder,
    "COCONode": LinearNodeEncoder,
    "LinearNode": LinearNodeEncoder,
}
"""Name -> encoder of nodes ``[N, C]``, built as ``cls(channels, …)``."""

EDGE_ENCODERS: dict[str, type[Encoder]] = {
    "Bond": BondEncoder,
    "ASTEdge": ASTEdgeEncoder,
    "PPAEdge": LinearEdgeEncoder,
    "TypeDictEdge": TypeDictEdgeEncoder,
    "VOCEdge": LinearEdgeEncoder,
    "COCOEdge": LinearEdgeEncoder,
    "LinearEdge": LinearEdgeEncoder,
    "DummyEdge": ConstantEdgeEncoder,
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

__all__ = [
    "EDGE_ENCODERS",
    "NODE_ENCODERS",
    "POSITIONAL_ENCODERS",
    "RWSE",
    "ASTEdgeEncoder",
    "ASTNodeEncoder",
    "AtomEncoder",
    "BondEncoder",
    "CategoricalEncoder",
    "ComposedNodeEncoder",
    "ConstantEdgeEncoder",
    "ConstantNodeEncoder",
    "ElstaticSE",
    "Encoder",
    "EquivStableLapPE",
    "GraphormerBias",
    "GraphormerDegrees",
    "HKdiagSE",
    "LapPE",
    "LinearEdgeEncoder",
    "LinearNodeEncoder",
    "MLPNodeEncoder",
    "NodePositions",
    "NormalizedEncoder",
    "RelativeWalkBias",
    "SignNet",
    "TypeDictEdgeEncoder",
    "TypeDictNodeEncoder",
]
