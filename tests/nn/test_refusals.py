"""Arguments that attentions, masks, layers and encoders refuse, and the errors that say why."""

import pytest
import torch
from torch.nn import Linear
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.nn.attention import SGFormerAttention

from pyg_topomask.nn import (
    HEADS,
    NODE_ENCODERS,
    POSITIONAL_ENCODERS,
    BigBirdAttention,
    ExphormerAttention,
    ForestMask,
    FullAttention,
    GatedGCN,
    GKATConv,
    GPSConv,
    GPSLayer,
    GPSModel,
    GPSStack,
    GRFAttention,
    GRFMask,
    HeatMask,
    HopMask,
    KMIPAttention,
    LowRankMask,
    MaskedAttention,
    PerformerAttention,
    PowerSeriesMask,
    PrimphormerAttention,
    RWGNKMask,
    SANAttention,
    ToeplitzMask,
    TreeMask,
    export_model,
)
from pyg_topomask.nn.encoder.features import MLPNodeEncoder
from pyg_topomask.nn.encoder.laplacian import LapPE, SignNet
from pyg_topomask.nn.encoder.pair_bias import RelativeWalkBias
from pyg_topomask.ops import deconvolve
from pyg_topomask.testing import GRAPHS
from pyg_topomask.transforms import AddExpanderEdges, AddGridShape, AddHops, AddRandomWalks
from tests.nn.encoder_cases import encodable
from tests.nn.gps_cases import Conv, batch_of

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer")

X, PATH, STAR = torch.randn(5, 8), GRAPHS["path"], GRAPHS["star"]
WALKED = AddRandomWalks(max_length=4, num_tables=2, seed=0)(STAR.clone())
PLAIN, VIRTUAL = (AddExpanderEdges(1, num_virtual=n, seed=0)(STAR.clone()) for n in (0, 1))
ENCODABLE = encodable(PATH)


def biased(bias):
    return FullAttention(8, heads=2, attn_bias="attn_bias")(X, None, Data(attn_bias=bias))


def virtual(graph, **carry):
    return ExphormerAttention(8, num_virtual=2)(X, None, graph, **carry)


def changed(part, change, size=15):
    """A graph with walks of which one attribute is changed."""
    diagonal = torch.zeros(5, size)
    return WALKED.clone().update({f"walk_{part}": change(WALKED[f"walk_{part}"]), "walk_diagonal": diagonal})


def positioned(*position):
    return Data(position=torch.tensor(position), num_nodes=4)


ATTENTIONS = [
    (lambda: PerformerAttention(8, num_features=0), ValueError, r"'num_features' must be at least 1 \(got 0\)"),
    (lambda: BigBirdAttention(8, block_size=0), ValueError, r"'block_size' must be at least 1 \(got 0\)"),
    (lambda: BigBirdAttention(8, num_random=-1), ValueError, r"'num_random' must be at least 0 \(got -1\)"),
    (lambda: biased(torch.zeros(24, 2)), ValueError, r"shape \[25, 2\].*or \[25, 1\] \(got \[24, 2\]\)"),
    (lambda: biased(torch.zeros(25, 3)), ValueError, r"got \[25, 3\]"),
    (lambda: biased(torch.zeros(5, 5, 2)), ValueError, r"got \[5, 5, 2\]"),
    (lambda: biased(torch.zeros(25, 2).long()), TypeError, "floating point"),
    (lambda: FullAttention(8)(X[None], torch.ones(1, 4)), ValueError, r"\[1, 5\] \(got \[1, 4\], torch.float32\)"),
    (lambda: FullAttention(8)(X[None], torch.ones(1, 4) > 0), ValueError, r"\[1, 5\] \(got \[1, 4\], torch.bool\)"),
    (lambda: MaskedAttention(8)(X, Data(x=X)), ValueError, r"graph of each node, \[N\] \(got Data\)"),
    (lambda: ExphormerAttention(8, num_virtual=-1), ValueError, r"'num_virtual' must be at least 0 \(got -1\)"),
    (lambda: ExphormerAttention(8, edge_dim=3, graph_edges=False), ValueError, "edge_dim=3 needs graph edges"),
    (lambda: virtual(PLAIN, carry=torch.zeros(1, 1, 8)), ValueError, r"'carry' .*shape \[1, 2, 8\].*initial_carry"),
    (lambda: virtual(VIRTUAL), ValueError, "num_virtual=2, but AddExpanderEdges was given another"),
    (lambda: KMIPAttention(8, k=0), ValueError, r"'k' must be at least 1 \(got 0\)"),
    (lambda: KMIPAttention(8, kq_dim=0), ValueError, "'kq_dim' must be at least 1"),
    (lambda: KMIPAttention(8, head_agg="sum"), ValueError, r"one of linear, none \(got 'sum'\)"),
    (lambda: KMIPAttention(8, head_agg="none", val_dim=3), ValueError, "got 3, 1 and 8"),
    (lambda: KMIPAttention(8, backend="gpu"), ValueError, r"one of auto, .*\(got 'gpu'\)"),
    (lambda: MaskedAttention(8, kernel="gauss"), ValueError, r"one of relu, .*softmax \(got 'gauss'\)"),
    (lambda: MaskedAttention(8, path="fast"), ValueError, "got 'fast'"),
    (lambda: MaskedAttention(8, kernel="softmax", path="factored"), ValueError, "never factored"),
    (lambda: MaskedAttention(8, kernel="softmax_rf", num_features=0), ValueError, r"at least 1 \(got 0\)"),
    (lambda: MaskedAttention(4, mask=torch.eye(3)), TypeError, "'mask' must be a module"),
    (lambda: GRFAttention(8)(X[:4], None, WALKED), ValueError, "mask is for 5 nodes, but 'q' has 4 rows"),
    (lambda: GRFAttention(8, 2, table=range(2), path="pairwise")(X, None, WALKED), ValueError, "a sparse support"),
    (lambda: SANAttention(8, gamma=0.0), ValueError, r"must be a positive number \(got 0.0\)"),
    (lambda: SANAttention(8, gamma=float("inf")), ValueError, r"must be a positive number \(got inf\)"),
    (lambda: SANAttention(8, gamma=float("nan")), ValueError, r"must be a positive number \(got nan\)"),
    (lambda: PrimphormerAttention(8, num_virtual=0), ValueError, r"'num_virtual' must be at least 1 \(got 0\)"),
    (lambda: PrimphormerAttention(8, rank=0), ValueError, r"'rank' must be at least 1 \(got 0\)"),
    (lambda: PrimphormerAttention(8)(X, carry=torch.ones(2, 30)), ValueError, r"\[1, 30\].*\(got \[2, 30\]\)"),
    (lambda: GKATConv(0, 4), ValueError, "'in_channels' must be at least 1"),
    (lambda: GKATConv(4, 4, dropout=1.0), ValueError, r"'dropout' must be a probability in \[0, 1\) \(got 1.0\)"),
    (lambda: GKATConv(4, 4, path="factored"), ValueError, "'path' must be one of auto, pairwise, blocks"),
]

NUMBERS = [
    (lambda: AddRandomWalks(2.5), TypeError, "must be an integer"),
    (lambda: AddRandomWalks(True), TypeError, "must be an integer"),
    (lambda: GRFMask(max_length=2.5), TypeError, "must be an integer"),
    (lambda: GKATConv(8, 4.0), TypeError, "must be an integer"),
    (lambda: KMIPAttention(8, 2, k=2.5), TypeError, "must be an integer"),
    (lambda: FullAttention(8.0, 2), TypeError, "must be an integer"),
    (lambda: FullAttention(8, dropout=float("nan")), ValueError, "'dropout' must be a probability.*got nan"),
]

MASKS = [
    (lambda: RWGNKMask(decay=-0.1), ValueError, "'decay' must be a finite number ≥ 0"),
    (lambda: RWGNKMask(alpha=float("inf")), ValueError, "'alpha' must be a finite number ≥ 0"),
    (lambda: RWGNKMask(decay=1e6), ValueError, "'decay' must be at most 2.2e.04 with max_length=4"),
    (lambda: RWGNKMask(decay=0.0, learnable=True), ValueError, "must start above 0"),
    (lambda: GRFMask(initial="linear"), ValueError, "'initial' must be one of exp, geometric, far"),
    (lambda: GRFMask(initial=[1.0] * 6), ValueError, r"must hold 1 to 'max_length' \+ 1 = 5 finite numbers"),
    (lambda: GRFMask(symmetric=False, key_modulation=True), ValueError, "with symmetric=False they have none"),
    (lambda: GRFMask(3, table=(0, 1)), ValueError, r"one number, or one for each of the 3 heads \(got \(0, 1\)\)"),
    (lambda: GRFMask(table=3)(WALKED), ValueError, "needs 'walk_table3_index'.*num_tables=4"),
    (lambda: HeatMask(laplacian="signed"), ValueError, "one of combinatorial, normalized, "),
    (lambda: HeatMask(tol=2.0), ValueError, r"'tol' must be in \[1e-13, 1\)"),
    (lambda: HeatMask()(Data(x=X)), ValueError, "needs the graph's edges"),
    (lambda: HeatMask()(GRAPHS["one_way"]), ValueError, "needs an undirected graph"),
    (lambda: ForestMask(a=0.0), ValueError, "'a' must be a finite number other than 0"),
    (lambda: TreeMask(max_hops=-1), ValueError, "'max_hops' must be at least 0"),
    (lambda: TreeMask(method="fast"), ValueError, "one of auto, histogram, centroid"),
    (lambda: ToeplitzMask(()), ValueError, r"size of each axis, such as \[8, 8\] \(got \(\)\)"),
    (lambda: ToeplitzMask((0, 3)), ValueError, "'grid_shape' must be at least 1"),
    (lambda: ToeplitzMask((3,), function="angle"), ValueError, "one of offset, distance"),
    (lambda: ToeplitzMask((3,))(AddGridShape()(PATH.clone())), ValueError, r"is the grid \[4\].*for grids up to \[3\]"),
    (lambda: PowerSeriesMask(max_length=1, coeffs=[1, 2, 3]), ValueError, r"1 to 'max_length' \+ 1 = 2 finite"),
    (lambda: PowerSeriesMask(coeffs=[-1.0]), ValueError, "first coefficient must be positive"),
    (lambda: LowRankMask(encoding="learned"), ValueError, "one of sinusoidal, stochastic, convolutional"),
    (lambda: LowRankMask(1, "convolutional")(positioned(0, 0.5, 1, 2)), ValueError, "'position' must hold integers"),
    (lambda: LowRankMask(max_period=-1.0), ValueError, r"'max_period' must be positive and finite \(got -1.0\)"),
    (lambda: LowRankMask(num_features=0), ValueError, "'num_features' must be at least 1"),
    (lambda: LowRankMask()(positioned(1.0, 1, 1)), ValueError, r"one position per node, \[4\] \(got \[3\]\)"),
    (lambda: LowRankMask()(positioned(0, 1, torch.nan, 3)), ValueError, "'position' holds NaN or infinity"),
    (lambda: deconvolve(torch.tensor([[0.0, 1.0]])), ValueError, "first coefficient must be positive"),
    (lambda: deconvolve(torch.tensor(1.0)), ValueError, r"\[\*, K \+ 1\]"),
    (lambda: MaskedAttention(8, mask=HopMask(), mask_heads=[2]), ValueError, "divides heads among a list of masks"),
    (lambda: MaskedAttention(8, 2, mask=[None, HopMask()], mask_heads=[1, 2]), ValueError, r"2 heads \(got \[1, 2\]\)"),
    (lambda: MaskedAttention(8, 2, mask=[None, HopMask()], mask_heads=[2]), ValueError, "the 2 masks needs its number"),
    (lambda: MaskedAttention(8, 4, mask=[None, HopMask(2)]), ValueError, "HopMask has 2 heads, but serves 4 .*heads=4"),
    (lambda: MaskedAttention(8, 4, mask=[None, HopMask(4)], mask_heads=[2, 2]), ValueError, "4 heads, but serves 2"),
    (lambda: MaskedAttention(8, mask=[]), ValueError, "at least one part"),
    (lambda: MaskedAttention(8, mask=["hop"]), TypeError, r"a module such as HopMask, or None \(got str\)"),
]

LAYERS = [
    (lambda: GPSLayer(8), ValueError, r"needs 'conv' or 'attn' \(both are None\)"),
    (lambda: GPSLayer(8, [], feed_forward=False), ValueError, r"needs feed_forward=True \(got False\)"),
    (lambda: GPSLayer(8, Conv(), norm="group"), ValueError, r"batch_norm, .*, None, a name .* module \(got 'group'\)"),
    (lambda: GPSLayer(8, GatedGCN(8), pre_norm=True), ValueError, "GatedGCN adds its input.*use pre_norm=False"),
    (lambda: GPSLayer(4, attn=4), TypeError, r"'attn' must be a module or a name such as 'grf' \(got 4\)"),
    (lambda: GPSLayer(4, conv=[4]), TypeError, r"'conv' must be a module or a name such as 'gcn' \(got 4\)"),
    (lambda: GPSLayer(4, "gnc"), ValueError, "no convolution is called 'gnc'; there are agnn, .*, gcn, "),
    (lambda: GPSLayer(8, "appnp"), TypeError, r"APPNP needs more than widths \(.*'K' and 'alpha'\): give a module"),
    (lambda: GPSLayer(8, "GatedGraphConv"), TypeError, "GatedGraphConv needs more .*'num_layers'"),
    (lambda: GPSLayer(8, GATConv(8, 8))(X, EDGES, edge_attr=X), TypeError, "takes 'edge_attr'.* as GATConv.*edge_dim="),
    (lambda: GPSStack(8, 1, "gat", heads=2), ValueError, r"'heads' and .*by name \(got None as 'attn'\)"),
    (lambda: GPSLayer(8, "gat", heads=2), ValueError, r"got None as 'attn'\); a convolution with .* such as GATConv"),
    (lambda: GPSLayer(7, attn=MaskedAttention(9)), ValueError, "MaskedAttention takes 9 channels.* layer has 7"),
    (lambda: GPSLayer(7, GCNConv(7, 9)), ValueError, "GCNConv returns 9 channels, but the layer has 7"),
    (lambda: GPSLayer(8, GATConv(8, 8, 2)), ValueError, "GATConv returns 16 channels, but the layer has 8"),
    (lambda: GPSLayer(8, attn=SGFormerAttention(8)), ValueError, "SGFormerAttention returns 64 channels"),
    (lambda: GPSLayer(8, attn=SGFormerAttention(9)), ValueError, "SGFormerAttention does not take 8 channels"),
    (lambda: GPSStack(8, 1, GCNConv(4, 4)), TypeError, "'conv' must be a name or a function of the layer's number"),
    (lambda: GPSStack(8, 1, attn=MaskedAttention), TypeError, "'attn' must be a name or a function of the layer's"),
    (lambda: GPSStack(8, 1), ValueError, "both are None"),
    (lambda: GPSStack(8, 0, lambda _: Conv()), ValueError, r"'num_layers' must be at least 1 \(got 0\)"),
    (lambda: GPSStack(8, 1, "gcn")(X, PATH.edge_index, PATH), TypeError, r"got Data\): give .* by name, graph="),
    (lambda: GPSModel(8, 8, 2, 1, "gcn")(X, PATH.edge_index, PATH), TypeError, r"of each node, \[N\] \(got Data\)"),
    (lambda: GPSConv(8, None, attn_type="gfr"), ValueError, "no attention is called 'gfr'; there are BigBird, "),
    (lambda: GPSConv(8, None)(X, None), ValueError, r"GRFMask needs the graph.*transform AddRandomWalks\("),
    (lambda: GPSConv(8, None, attn_type=FullAttention(8), attn_kwargs={"bias": False}), ValueError, r"\(got FullAtt"),
    (lambda: GPSLayer(8, attn=FullAttention(8, heads=2), heads=4), ValueError, r"'heads' and .* \(got FullAttention\)"),
    (lambda: HEADS["graph"](8, 3, pool="median"), ValueError, r"mean, add, max \(got 'median'\)"),
    (lambda: HEADS["edge"](8, decoding="bilinear"), ValueError, r"dot, cosine_similarity, concat \(got 'bilinear'\)"),
    (lambda: HEADS["edge"](8)(X, batch_of("star")), ValueError, "needs 'edge_label_index'.*RandomLinkSplit"),
    (lambda: HEADS["san_graph"](3, 2), ValueError, r"'channels' must be at least 4 \(got 3\)"),
    (lambda: LapPE(8, model="GIN"), ValueError, "DeepSet, Transformer"),
    (lambda: LapPE(6, model="Transformer"), ValueError, "divisible by 'heads'"),
    (lambda: LapPE(8, raw_norm="BatchNorm"), ValueError, "'raw_norm' must be one of batch_norm, None"),
    (lambda: MLPNodeEncoder(8, 4, layers=-1), ValueError, r"'layers' must be at least 0 \(got -1\)"),
    (lambda: SignNet(8, model="GIN"), ValueError, "MLP, DeepSet"),
    (lambda: POSITIONAL_ENCODERS["RWSE"](8, 4, model="DeepSet"), ValueError, "linear, mlp"),
    (lambda: LapPE(8)(ENCODABLE), ValueError, r"built for 10 columns in 'laplacian_vectors' \(got \[4, 5\]\)"),
    (lambda: NODE_ENCODERS["LinearNode"](8, 5)(ENCODABLE), ValueError, "built for 5 columns in 'x'"),
    (lambda: RelativeWalkBias(2, 5)(ENCODABLE), ValueError, "built for 5 columns"),
]


X64, EDGES = X.double(), PATH.edge_index
KEYWORDS_AND_DTYPES = [
    (lambda: AddRandomWalks(walks=3), TypeError, "AddRandomWalks takes no 'walks': did you mean 'num_walks'"),
    (lambda: AddHops(hops=3), TypeError, "AddHops takes no 'hops': did you mean 'max_hops'"),
    (lambda: GRFAttention(8, max_lenght=3), TypeError, "GRFAttention takes no 'max_lenght': did you mean 'max_length'"),
    (lambda: HopMask(reach=3), TypeError, "HopMask takes no 'reach': it takes heads, max_hops"),
    (lambda: GPSLayer(8, attn="hop", heads=2), ValueError, r"is a mask .*MaskedAttention\(8, 2, mask=HopMask\(…\)\)"),
    (lambda: GPSLayer(8, attn="HopMask"), ValueError, "'HopMask' is a mask and no attention"),
    (lambda: GPSLayer(8, attn=HopMask(2)), ValueError, r"HopMask\(heads=2\) is a mask .*mask=HopMask"),
    (lambda: GPSLayer(8, conv=HopMask(2)), ValueError, r"HopMask\(heads=2\) is no convolution: .*to an attention"),
    (lambda: GPSLayer(8, conv=FullAttention(8)), ValueError, r"FullAttention.* is no convolution: .* as 'attn'"),
    (lambda: export_model(Linear(8, 8), PATH), TypeError, r"a GPSModel or GPSNetwork \(got Linear\)"),
    (lambda: FullAttention(8)(X64), TypeError, "'x' is torch.float64, but .* of FullAttention are torch.float32"),
    (lambda: PrimphormerAttention(8)(X.bfloat16()), TypeError, "'x' is torch.bfloat16"),
    (lambda: GPSLayer(8, "gcn")(X64, EDGES), TypeError, "'x' is torch.float64, but the parameters of GPSLayer are"),
    (lambda: GPSConv(8, None)(X64, EDGES), TypeError, "'x' is torch.float64, but the parameters of GPSConv are"),
    (lambda: GPSModel(8, 8, 2, 1, "gcn")(X.long(), EDGES), TypeError, r"'x' is torch.int64, .*x.to\(torch.float32\)$"),
    (lambda: GPSLayer(8, "gcn")({"atom": X}, {}), TypeError, r"'x' must be a tensor \(got dict\); for HeteroData"),
    (lambda: GPSConv(8, GCNConv(8, 8))((X, X), EDGES), TypeError, r"'x' must be a tensor \(got tuple\)"),
    (lambda: GPSModel(8, 8, 2, 1, "gcn")({"atom": X}, {}), TypeError, r"'x' must be a tensor \(got dict\)"),
    (lambda: GRFMask()(changed("index", lambda x: x.flip(1))), ValueError, "in the same order"),
    (lambda: RWGNKMask()(changed("index", lambda x: x.flip(1))), ValueError, "in the same order"),
    (lambda: RWGNKMask(learnable=True)(changed("length", lambda x: x.flip(0))), ValueError, "in the same order"),
    (lambda: GRFMask(diagonal="corrected")(changed("load", lambda x: x, size=0)), ValueError, "has no coefficients"),
]


@pytest.mark.parametrize(("build", "error", "message"), [*ATTENTIONS, *NUMBERS, *MASKS, *LAYERS, *KEYWORDS_AND_DTYPES])
def test_bad_arguments_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
