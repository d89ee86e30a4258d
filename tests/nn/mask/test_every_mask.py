"""Every mask module in the attention case: all with relu features and with softmax, and one with every kernel."""

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.transforms import BaseTransform

from pyg_topomask.nn import (
    MASK,
    CausalMask,
    ForestMask,
    GridHeatMask,
    HeatMask,
    LowRankMask,
    MaskedAttention,
    PowerSeriesMask,
    ToeplitzMask,
    TreeMask,
)
from pyg_topomask.nn.attention.masked import KERNELS
from pyg_topomask.testing import GRAPHS, AttentionCase
from pyg_topomask.transforms import AddGridShape, AddPositions, AddTreeOrder

# A mask may be so general that softmax attention forms it as a dense array, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:softmax attention forms this mask as a dense array")


class Unchanged(BaseTransform):
    def forward(self, data):
        return data


GRIDS = ("path", "single")  # the paths among the tiny graphs, numbered from one end to the other
MASKS = {
    # name: (module, transform, graphs, whether relabelling nodes permutes the mask)
    "causal": (CausalMask, Unchanged(), AttentionCase.names, False),
    "forest": (lambda: ForestMask(heads=2), AddTreeOrder(), AttentionCase.names, True),
    "grid_heat": (lambda: GridHeatMask(heads=2), AddGridShape(), GRIDS, False),
    "heat": (lambda: HeatMask(heads=2), Unchanged(), AttentionCase.names, True),
    "heat_random_walk": (lambda: HeatMask(laplacian="random_walk"), Unchanged(), AttentionCase.names, True),
    "low_rank": (lambda: LowRankMask(heads=2, num_waves=2, num_features=6), AddPositions(), AttentionCase.names, True),
    "low_rank_stochastic": (
        lambda: LowRankMask(encoding="stochastic", num_waves=2, num_features=6),
        AddPositions(),
        AttentionCase.names,
        True,
    ),
    "power_series": (lambda: PowerSeriesMask(heads=2, max_length=3), Unchanged(), AttentionCase.names, True),
    "power_series_asymmetric": (lambda: PowerSeriesMask(symmetric=False), Unchanged(), AttentionCase.names, True),
    "toeplitz": (lambda: ToeplitzMask((5,), heads=2), AddGridShape(), GRIDS, False),
    "toeplitz_distance": (lambda: ToeplitzMask([4], function="distance"), AddGridShape(), GRIDS, False),
    "tree": (lambda: TreeMask(heads=2, max_hops=3), AddTreeOrder(), AttentionCase.names, True),
}


def case(mask, kernel):
    """A class of tests for one mask and one kernel."""
    module, transform, graphs, equivariant = MASKS[mask]

    def build(self):
        return _moved(MaskedAttention(self.channels, heads=2, kernel=kernel, num_features=12, mask=module()))

    def prepare(self, data):
        return transform(data)

    attributes = {"build": build, "prepare": prepare, "names": graphs, "equivariant": equivariant}
    attributes["gradcheck_channels"] = 2  # enough for two heads
    return type("Case", (AttentionCase,), {**attributes, "transform": type(transform).__name__})


def _moved(attn):
    """Give the mask signed parameters off their start."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in attn.mask.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * noise)
    return attn


PAIRS = {(name, "relu") for name in MASKS} | {(name, "softmax") for name in MASKS if name in MASK}
PAIRS |= {("tree", kernel) for kernel in KERNELS}
for name, kernel in sorted(PAIRS):
    globals()[f"Test_{name}_{kernel}"] = case(name, kernel)


def test_every_mask_of_the_library_is_tested():
    own = {name.partition("_random")[0] for name in MASKS}
    own = {name if name in MASK else name.rpartition("_")[0] for name in own}
    assert own | {"grf", "rwgnk"} == set(MASK)  # these two have tests of their own


@pytest.mark.parametrize("name", MASKS)
def test_reset_and_text(name):
    module, transform, graphs, _ = MASKS[name]
    mask = _moved(type("Attention", (torch.nn.Module,), {"mask": module()})()).mask
    fresh, batch = module(), Batch.from_data_list([transform(GRAPHS[graph].clone()) for graph in graphs])
    moved = mask(batch).to_dense()
    assert moved.shape[-2:] == (batch.num_nodes, batch.num_nodes)
    learnable = any(True for _ in mask.parameters())
    mask.reset_parameters() if learnable else None
    assert torch.equal(mask(batch).to_dense(), fresh(batch).to_dense())
    assert not learnable or not torch.equal(moved, fresh(batch).to_dense())
    assert type(mask).__name__ in repr(mask)
    assert set(mask.requires) <= set(transform(GRAPHS["path"].clone()).keys())
    assert not mask.requires or mask.remedy == f"{type(transform).__name__}()"
