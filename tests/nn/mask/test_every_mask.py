"""Every mask with each of its examples, in attention with relu features and softmax; one with every kernel."""

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import MASK, MaskedAttention
from pyg_topomask.nn.attention.masked import KERNELS
from pyg_topomask.testing import GRAPHS, AttentionCase, examples, prepared

# A mask may be so general that softmax attention forms it as a dense array, and warns.
pytestmark = pytest.mark.filterwarnings("ignore:softmax attention forms this mask as a dense array")

MASKS = examples(MASK)
GRIDS = ("path", "single")  # the paths among the tiny graphs, numbered from one end to the other
CASES = [*((name, kernel) for name in MASKS for kernel in ("relu", "softmax"))]
CASES += [("tree max_hops=8", kernel) for kernel in KERNELS if kernel not in ("relu", "softmax")]


def moved(module):
    """Give a mask signed parameters off their start."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module


def graphs_for(card):
    return GRIDS if card.graphs == "grids" else AttentionCase.names


class TestEveryMask(AttentionCase):
    gradcheck_channels = 2  # enough for two heads

    @pytest.fixture(autouse=True, params=CASES, ids=lambda case: f"{case[0]}, {case[1]}")
    def _case(self, request):
        name, self.kernel = request.param
        self.mask, card = MASKS[name], MASKS[name].func.card
        self.names, self.equivariant = graphs_for(card), card.reach != "order"

    def build(self):
        return MaskedAttention(self.channels, 2, self.kernel, moved(self.mask()), num_features=12)


@pytest.mark.parametrize("name", MASKS)
def test_reset_and_text(name):
    mask, fresh = moved(MASKS[name]()), MASKS[name]()
    batch = Batch.from_data_list(prepared(mask, [GRAPHS[graph] for graph in graphs_for(mask.card)]))
    before = mask(batch).to_dense()
    assert before.shape[-2:] == (batch.num_nodes, batch.num_nodes)
    learns = any(True for _ in mask.parameters())
    assert learns == (mask.card.learns != "none") or name == "rwgnk"
    if learns:
        mask.reset_parameters()
        assert not torch.equal(before, fresh(batch).to_dense())
    assert torch.equal(mask(batch).to_dense(), fresh(batch).to_dense())
    assert type(mask).__name__ in repr(mask)


@pytest.mark.parametrize("name", MASK)
def test_every_mask_has_a_card_of_its_own(name):
    assert "card" in vars(MASK[name])
