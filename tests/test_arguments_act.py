"""Every argument of every public class changes an output or a gradient, or is listed with its reason.

Give a new argument a row in ``ANOTHER``, unless it is a number, true or false.
"""

import copy
import inspect
import zlib

import pytest
import torch
from torch.nn import LayerNorm, Linear, Module
from torch.utils.data import Sampler
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv
from torch_geometric.transforms import BaseTransform

from pyg_topomask import datasets, loader, nn, operators, transforms
from pyg_topomask.nn.encoder.features import LinearEdgeEncoder, LinearNodeEncoder
from pyg_topomask.nn.encoder.laplacian import EquivStableLapPE
from pyg_topomask.nn.encoder.pair_bias import GraphormerBias
from pyg_topomask.nn.encoder.structural import ElstaticSE
from pyg_topomask.nn.graph_token import GraphToken
from pyg_topomask.ops.walks.product import walk_product
from tests.acting import another, differ
from tests.nn.encoder_cases import encodable

N, C = 16, 8
HOMES = nn, transforms, datasets, loader, operators
TABLES = nn.ATTENTION, nn.MASK, nn.NODE_ENCODERS, nn.EDGE_ENCODERS, nn.POSITIONAL_ENCODERS, nn.HEADS
BASES = {"Card", "Attention", "Mask", "MaskOperator"}
"""Texts, and classes whose arguments those below them pass on."""

NODES = torch.arange(N - 1)
PATH, CHORDS = torch.stack([NODES, NODES + 1]), torch.tensor([[0, 5, 3], [7, 12, 9]])
EDGES = torch.cat([PATH, CHORDS, PATH.flip(0), CHORDS.flip(0)], 1)
WEIGHT = torch.linspace(0.5, 2, EDGES.size(1) // 2).repeat(2)
HALVES, TWO = torch.arange(N) // 8, torch.tensor([0.5, 2.0])
MATRIX = torch.rand(N, N, generator=torch.Generator().manual_seed(0))
HEAT = operators.HeatOperator(EDGES, N, 1.0, tol=0.1)
ONE, OTHER = operators.DenseOperator(MATRIX), operators.DenseOperator(MATRIX.T + 1)
PARENT = NODES.new_tensor([-1, *range(N - 1)])


def graph(line=False):
    """A path of nodes with everything that a class reads, and with three more edges unless it must be a grid."""
    data = encodable(Data(edge_index=torch.cat([PATH, PATH.flip(0)], 1) if line else EDGES, num_nodes=N), C, C)
    data.edge_weight, data.edge_type = WEIGHT[: data.num_edges], torch.arange(data.num_edges) % 2
    data.edge_label_index, data.pos, data.attn_bias = EDGES[:, :5], torch.randn(N, 2), torch.randn(N * N, 1)
    data.vel = torch.randn(N, 2)
    data.transition = torch.rand(data.num_edges)
    return data


torch.manual_seed(0)
GRAPH, LINE = graph(), graph(line=True)


def walks(seed):
    """The product of two tables of walks."""
    one = transforms.AddRandomWalks(seed=seed)(GRAPH)
    parts = (one[f"walk{key}_{part}"] for key in ("", "_key") for part in ("index", "length", "load"))
    return walk_product(*parts, N, 4, torch.float32)


def classes():
    """Every public class, or function that builds a head, by its name."""
    found = [getattr(home, name) for home in HOMES for name in home.__all__]
    found = [value for value in found if inspect.isclass(value) and value not in (nn.Plan, GraphToken)]
    found += [v for table in TABLES for v in table.values()]
    return {getattr(cls, "__name__", None) or cls.func.__name__: cls for cls in found}


def arguments(name):
    """Names of the arguments of a class and their defaults; further ones of layers are those of the layer."""
    found = {}
    for key, parameter in inspect.signature(CLASSES[name]).parameters.items():
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            found[key] = parameter.default
        elif name in SETTINGS:
            found |= {inner: value for inner, value in arguments(SETTINGS[name]).items() if inner not in found}
    return found


CLASSES = classes()
SETTINGS = {"GPSModel": "GPSStack", "GPSStack": "GPSLayer"}
"""Classes whose further arguments are those of another one."""

EQUAL = {
    **dict.fromkeys(["path", "backend", "TreeMask.method", "TreeDistanceOperator.method"], "ways to equal results"),
    "checkpoint": "memory for time", "root": "the folder of the files",
    **dict.fromkeys(["GKATAttention.normalizer", "GKATConv.normalizer"], "no entry of the kernel is negative"),
    "HeatOperator.longest": "a bound on the times, which saves a wait for the GPU",
}  # fmt: skip
"""Arguments, of all classes or of one, that change no number, with the reason."""

CATEGORIES = {
    "CategoricalEncoder": 2, "TypeDictNodeEncoder": 1, "TypeDictEdgeEncoder": 1, "AddShortestPathBias": 1,
    "GraphormerBias": 1,
}  # fmt: skip
"""What reads categories, with the number of columns."""

WIDE = "LinearNodeEncoder", "LinearEdgeEncoder", "MLPNodeEncoder", "ElstaticSE"
"""Encoders of as many columns as they are told."""

GATED = nn.GPSStack(C, 1, conv="gatedgcn", attn="transformer")
BIASED = nn.GPSStack(C, 1, attn=lambda layer: nn.FullAttention(C, 2, attn_bias="attn_bias"))
GATE = nn.GPSStack(C, 1, conv=lambda layer: nn.GatedGCN(C, equivariant_stable=True))
STABLE = {"layers": GATE, "pe_encoder": EquivStableLapPE(3)}
GIVEN = {
    "channels": C, "in_channels": C, "out_channels": 3, "num_layers": 2, "num_types": 9, "times": [1.0],
    "steps": [1, 2], "grid_shape": (N,), "motif": "circle", "task": "ring", "force": "springs", "num_parts": 3,
    "left": ONE, "right": OTHER, "operator": ONE, "operators": [ONE, OTHER], "batch": HALVES, "num_nodes": N,
    "edge_index": EDGES, "time": 1.0, "parent": PARENT, "length": WEIGHT[:N], "data": GRAPH, "dim": 4, "a": -0.5,
    "b": 0.1, "index": EDGES, "value": WEIGHT, "values": TWO, "coeffs": TWO, "matrix": MATRIX, "mask_heads": [1, 1],
    "masks": [nn.HopMask(), nn.CausalMask()], "targets": NODES, "walks": walks(0), "heads": 2,
    "modulation": torch.linspace(1, 0.2, 5), "weight": torch.linspace(0, 1, 2 * N - 1), "node_mask": HALVES > 0,
    "base": lambda width: LinearNodeEncoder(width, C), "nn": Linear(C, C), "node_encoder": LinearNodeEncoder(C, C),
    "layers": GATED, "head": nn.HEADS["node"](C, 3), "conv": GATConv(C, C),
    **dict.fromkeys(["LowRankOperator.left", "LowRankOperator.right"], MATRIX[:, :3]),
    **dict.fromkeys(["SparseFactorOperator.left", "SparseFactorOperator.right"], (EDGES, WEIGHT)),
    "ProductMask.left": nn.HopMask(), "ProductMask.right": nn.CausalMask(),
    "HopOperator.length": NODES.new_ones(EDGES.size(1)), "GraphormerBias": {"num_spatial_types": 20},
    "encoder": LinearNodeEncoder(C, C), "PartSampler.length": 9, "EpochSampler.length": 9,
    "PartSampler.seed": 0, "EpochSampler.seed": 0,
    **{name: {"conv": "sage", "attn": "transformer"} for name in ("GPSLayer", "GPSModel", "GPSStack")},
    "GPSConv": {"attn_type": "transformer"}, "GPSNetwork": {"edge_encoder": LinearEdgeEncoder(C, C)},
    **{f"{name}Dataset": {"num_graphs": 3} for name in ("Digits", "InducedCycle", "LongRange", "Motif")},
    "ParticleDataset": {"num_graphs": 2, "num_nodes": 10, "num_frames": 2},
    "WalkNeighborLoader": {"batch_size": 4, "max_nodes": 5},
}  # fmt: skip
"""Values of arguments without a default, of all classes or of one, and what a class is always given."""

RANDOM = {"kernel": "softmax_rf"}
WALKS = {"transform": transforms.AddRandomWalks(seed=0), "attn": lambda layer: nn.GRFAttention(C)}
WALKS_TOO = {"transform": transforms.AddRandomWalks(seed=0), "attn_type": nn.GRFAttention(C)}
ANOTHER = {
    "seed": 1, "name": "other", "pool": "max", "act": "tanh", "norm": "layer_norm", "num_random": 1, "kernel": "elu1",
    "negative_slope": 0.5, "diagonal": "corrected", "initial": "geometric", "stitch": 2, "path": "pairwise",
    "backend": "torch", "normalizer": "signed", "rank": ({"num_processes": 2}, 1), "method": "centroid", "kq_dim": 3,
    "val_dim": 3, "laplacian": "random_walk", "max_hops": 2, "coeffs": [1.0, 0.3], "edge_type": 1, "grid_shape": (20,),
    "function": "distance", "times": [2.0], "steps": [3, 4], "length": "edge_weight", "laplacian_norm": None,
    "eigvec_norm": "L1", "scheme": "antithetic", "transition": "transition", "lengths": "uniform",
    "num_spatial_types": 3, "num_nodes": 20, "motif": "grid", "task": "tree", "force": "repulsion",
    "transform": transforms.AddHops(), "clusters": torch.arange(N) // 4, "targets": NODES[:3], "data": LINE,
    "operators": [OTHER, ONE], "operator": OTHER, "batch": HALVES * 0, "matrix": MATRIX.T, "left": OTHER, "right": ONE,
    "parent": NODES.new_tensor([*range(1, N), -1]), "walks": walks(1), "modulation": TWO.repeat(3)[:5],
    "edge_index": LINE.edge_index, "edge_weight": WEIGHT, "index": 3 * EDGES % N, "value": 2 * WEIGHT,
    "values": 2 * TWO, "node_mask": HALVES < 1, "weight": torch.linspace(1, 0, 2 * N - 1), "model": "MLP",
    "raw_norm": "batch_norm", "sizes": (3, 3), "attribute": "x", "conv": "gat", "attn": "linear", "attn_type": "linear",
    "node_encoder": LinearNodeEncoder(C, C, 0.5), "head": nn.HEADS["node"](C, 2), "nn": Linear(C, C, False),
    "norm_out": LayerNorm(C), "edge_dim": C, "GPSNetwork.layers": nn.GPSStack(C, 2, conv="gatedgcn"),
    "GPSNetwork.edge_encoder": LinearEdgeEncoder(C, C, 0.5), "GPSNetwork.pe_encoder": (STABLE, EquivStableLapPE(4)),
    "GPSNetwork.bias_encoder": ({"layers": BIASED}, GraphormerBias(2, 9)), "GPSNetwork.graph_token": GraphToken(C),
    "GPSNetwork.pool_token": ({"graph_token": GraphToken(C)}, True),
    **dict.fromkeys(["ComposedNodeEncoder.base"], lambda width: LinearNodeEncoder(width, C, 0.5)),
    "ComposedNodeEncoder.positional": [ElstaticSE(3, 8)],
    "ComposedNodeEncoder.added": [lambda width: LinearNodeEncoder(width, C, 0.5)],
    "GPSConv.channels": ({"conv": None}, 16), "GPSModel.transform": (WALKS, transforms.AddRandomWalks(seed=1)),
    "GPSConv.transform": (WALKS_TOO, transforms.AddRandomWalks(seed=1)), "GPSConv.conv": GATConv(C, C, bias=False),
    "attn_kwargs": {"dropout": 0.5}, "act_kwargs": ({"act": "leaky_relu"}, {"negative_slope": 0.5}),
    "norm_kwargs": {"eps": 0.5}, "GKATConv.concat": ({"heads": 2}, False),
    "GPSModel.edge_dim": ({"conv": "gatedgcn", "edge_dim": C}, 6), "BigBirdAttention.block_size": 2,
    "BigBirdAttention.seed": ({"block_size": 1, "num_random": 1}, 2), "GKATAttention.kernel": "relu",
    "FullAttention.attn_bias": "attn_bias",
    **dict.fromkeys([f"{x}.num_features" for x in ("GRFAttention", "MaskedAttention")], (RANDOM, 9)),
    "PrimalAttention.rank": 5, "longest": 3.0, "GRFOperator.key_modulation": TWO.repeat(3)[:5],
    "PrimphormerAttention.rank": 5, "MaskedAttention.normalizer": ({"mask": nn.PowerSeriesMask()}, "signed"),
    "TreeDistanceOperator.parent": PARENT.clamp(max=0), "TreeDistanceOperator.method": "histogram",
    "MaskedAttention.seed": (RANDOM, 1), "KMIPAttention.head_agg": "none", "MaskedAttention.mask": nn.HopMask(),
    "MaskedAttention.mask_heads": ({"heads": 4, "mask": [None, nn.HopMask()]}, [1, 3]),
    "RWGNKMask.heads": ({"learnable": True}, 2), "GPSStack.conv": "gat", "AddShortestPathBias.paths": True,
    "EdgeHead.decoding": "concat", "HeadMasks.masks": [nn.CausalMask(), nn.HopMask()], "HeadMasks.mask_heads": [2, 1],
    "MixtureMask.masks": [nn.HopMask()], "ProductMask.left": nn.CausalMask(), "ProductMask.right": nn.HopMask(),
    "TreeMask.max_hops": 3, "LowRankMask.encoding": "convolutional", "AddExpanderEdges.algorithm": "Random-d",
    "AddExpanderEdges.max_iters": ({"degree": 2, "algorithm": "Random-d", "seed": 2}, 1),
    "DigitsDataset.seed": ({"side": 12}, 1), "AddHops.width": ({"length": "edge_weight"}, 2.0),
    "AddGridShape.grid_shape": (1, N), "ToeplitzOperator.grid_shape": ({"weight": torch.ones(1, 2 * N - 1)}, (1, N)),
    "AddTreeOrder.method": ({"length": "edge_weight"}, "minimum"), "AddTreeOrder.length": "edge_weight",
    "BorderedOperator.num_graphs": 3, "DiagonalScaledOperator.left": WEIGHT[:N],
    "DiagonalScaledOperator.right": WEIGHT[:N],
    "DiagonalScaledOperator.batch": ({"operator": HEAT, "right": WEIGHT[:N]}, HALVES),
    "ForestExpOperator.length": 2 * WEIGHT[:N], "HeadStackOperator.counts": [1, 2],
    "HopOperator.length": NODES.new_zeros(EDGES.size(1)), "PowerSeriesOperator.coeffs": 2 * TWO,
    **dict.fromkeys(["LowRankOperator.left", "LowRankOperator.right"], MATRIX[:, 3:6]), "LowRankOperator.batch": HALVES,
    "PaddingOperator.batch": HALVES,
    **dict.fromkeys(["SparseFactorOperator.left", "SparseFactorOperator.right"], (EDGES, 2 * WEIGHT)),
    "LapPE.heads": ({"model": "Transformer"}, 2), "LapPE.model": "Transformer", "SignNet.model": "DeepSet",
    "GraphormerBias.num_edge_types": 3,
    **dict.fromkeys([f"{x}.layers" for x in ("RWSE", "HKdiagSE", "ElstaticSE")], ({"model": "MLP"}, 3)),
    **{
        f"{head}.{key}": ({"layers": 2}, value)
        for head in ("MLPHead", "EdgeHead", "graph_head")
        for key, value in {"dropout": 0.5, "act": "tanh", "l2_norm": False}.items()
    },
    "MLPHead.in_channels": 5, "EdgeHead.out_channels": ({"decoding": "concat"}, 2),
    "Buckets.step": 1.5, "EpochSampler.length": 8, "PartSampler.length": 8, "EpochSampler.seed": 5,
    "PartSampler.seed": 5, **{f"{name}Sampler.rank": ({"num_processes": 2}, 1) for name in ("Epoch", "Part")},
    "encoder": LinearNodeEncoder(C, C, 0.5), "MLPNodeEncoder.base": LinearNodeEncoder(C, C, 0.5),
}  # fmt: skip
"""Another value of an argument: ``value``, or ``(what it acts with, value)``."""


def numbers(name, given, fill):
    """What an object gives: outputs, and the gradients that are not zero, in training and in evaluation."""
    torch.manual_seed(0)
    made, data = CLASSES[name](**copy.deepcopy(given)), LINE if "grid_shape" in given or "Grid" in name else GRAPH
    if isinstance(made, operators.MaskOperator):
        x = torch.linspace(0, 1, made.num_nodes)[:, None].expand(-1, made.heads or 1)[..., None]
        return [made.to_dense(), made @ x, torch.as_tensor(made.error)]
    if name in CATEGORIES:
        data = copy.copy(data)
        data.x, data.edge_attr = (torch.randint(2, (rows, CATEGORIES[name])) for rows in (N, data.num_edges))
    if isinstance(made, Sampler):
        return [torch.tensor([*made])]
    if not isinstance(made, Module):
        is_loader = hasattr(made, "__iter__")
        found = list(made) if is_loader else [made(data)] if isinstance(made, BaseTransform) else made.dummies([data])
        return [torch.as_tensor(value) for part in found for _, value in sorted(part.to_dict().items())]
    for key, value in made.named_parameters() if fill else ():
        value.data.normal_(0.1, 0.4, generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))
    own = {key: given[key] for key in ("max_length", "name") if key in given} | getattr(made, "transform_settings", {})
    steps, seed = range(1, 1 + given.get("in_channels", 4)), len(given.get("name", ""))
    adding = transforms.that_add(getattr(made, "requires", ()), steps=steps, times=steps, seed=seed, **own)
    batch = Batch.from_data_list([adding(copy.copy(data)), adding(copy.copy(data))])
    for key, value in batch.to_dict().items():
        if key.startswith("other") and value.is_floating_point():  # attributes of another name are others
            batch[key] = 2 * value
    for key in ("x", "edge_attr", "electrostatic") if name in WIDE else ():
        batch[key] = torch.randn(batch[key].size(0), given["in_channels"])
    return [number for training in (True, False) for number in called(made.train(training), given, batch)]


def called(module, given, batch):
    """The outputs of a module for a batch, and the gradients of their sum."""
    torch.manual_seed(1)
    width = C if "nn" in given else given.get("channels", C)
    x = torch.randn(2 * N, given.get("in_channels", width), requires_grad=True)
    offered = {"x": x, "edge_index": batch.edge_index, "batch": batch.batch, "graph": batch}
    offered |= {"pe": torch.randn(2 * N, 3)}
    if isinstance(module, nn.GatedGCN) and module.gate is None:
        del offered["pe"]
    edges = given.get("edge_dim", None if isinstance(module, nn.GPSModel) else width)
    offered |= {"edge_attr": edges and torch.randn(batch.num_edges, edges)}
    taken = {
        *inspect.signature(module.forward).parameters,
        *["edge_attr"] * (hasattr(module, "takes") and module.takes("edge_attr")),
    }
    if given.get("transform"):
        del offered["graph"]
    out = module(**{key: value for key, value in offered.items() if key in taken})
    out = [out.to_dense()] if isinstance(out, operators.MaskOperator) else [*out] if isinstance(out, tuple) else [out]
    loss = sum(part.sin().sum() for part in out) + nn.auxiliary_loss(module)
    grads = torch.autograd.grad(loss, [x, *module.parameters()], allow_unused=True) if loss.requires_grad else []
    return [*out, loss, *(grad for grad in grads if grad is not None and grad.abs().max() > 1e-5)]


def row(table, name, key, default=None):
    """The row of an argument of a class, or else that of all arguments of that name."""
    return table.get(f"{name}.{key}", table.get(key, default))


@pytest.mark.filterwarnings("ignore:.* takes no 'edge_weight'")
@pytest.mark.parametrize("name", [name for name in CLASSES if name not in BASES])
def test_every_argument_acts_or_has_a_reason(name, tmp_path):
    known, found, values = arguments(name), {}, ANOTHER | {"root": str(tmp_path / "other")}
    needed = {key: row(GIVEN, name, key) for key, default in known.items() if default is inspect.Parameter.empty}
    needed |= GIVEN.get(name, {}) | ({"root": str(tmp_path)} if "root" in known else {})
    seen = {}
    for key, default in known.items():
        other = row(values, name, key, another(needed.get(key, default)))
        beside, other = other if isinstance(other, tuple) and isinstance(other[0], dict) else ({}, other)
        first = needed | beside
        for fill in (True, False):  # other initial values are seen where they are not replaced
            if (str(beside), fill) not in seen:
                seen[str(beside), fill] = numbers(name, first, fill)
            if found.get(key) is not True:
                found[key] = differ(seen[str(beside), fill], numbers(name, first | {key: other}, fill))
    wrong = [key for key, acts in found.items() if acts == (row(EQUAL, name, key) is not None)]
    assert not wrong, f"{name}: these act against their reason, or do not act and have none: {wrong}"
