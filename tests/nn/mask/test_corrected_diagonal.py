"""One table of walks whose diagonal is unbiased, from the transform to the mask."""

import pytest
import torch
from torch_geometric.data import Batch

from pyg_topomask.nn import GRFAttention, GRFMask
from pyg_topomask.ops.blocks import block_layout
from pyg_topomask.testing import GRAPHS, AttentionCase, dense_adjacency
from pyg_topomask.transforms import AddRandomWalks

F = torch.tensor([1.0, 0.5, -0.25])
SCHEMES = ("iid", "antithetic", "repelling")


def corrected(data, **settings):
    return AddRandomWalks(**{"num_walks": 4, "max_length": 2, "seed": 0, "diagonal": "corrected", **settings})(data)


def mask_of(**settings):
    mask = GRFMask(**{"max_length": 2, "diagonal": "corrected", **settings})
    with torch.no_grad():
        mask.modulation.copy_(F)
    return mask


@pytest.mark.parametrize(
    ("diagonal", "halt_prob"), [("corrected", 0.3), ("corrected", 0.0), ("independent", 0.3), ("independent", 0.0)]
)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["isolated", "weighted"])
def test_the_mask_is_unbiased_everywhere(name, scheme, diagonal, halt_prob):
    """Also with walks of a fixed length, which never halt."""
    data, draws, mask = GRAPHS[name], 500, mask_of(diagonal=diagonal)
    adj = dense_adjacency(data)
    scale = torch.where(adj.sum(1) > 0, adj.sum(1), 1).rsqrt()
    step = scale[:, None] * adj * scale
    features = sum(f * torch.linalg.matrix_power(step, k) for k, f in enumerate(F.double()))
    batch = Batch.from_data_list(
        corrected([data] * draws, scheme=scheme, diagonal=diagonal, halt_prob=halt_prob, seed=None)
    )
    with torch.no_grad():
        dense = mask(batch).to_dense().double().view(draws, data.num_nodes, draws, data.num_nodes)
    samples = dense[torch.arange(draws), :, torch.arange(draws)]
    error = (samples.mean(0) - features @ features.t()).abs()
    assert (error <= 5 * samples.std(0) / draws**0.5 + 1e-6).all()  # five standard errors


def test_every_form_of_the_mask_has_the_corrected_diagonal():
    data = corrected(GRAPHS["weighted"])
    op = mask_of()(data)
    products = torch.stack([F[a] * F[b] for b in range(3) for a in range(b + 1)])
    wanted = data.walk_diagonal @ products
    torch.testing.assert_close(op.to_dense().diagonal(), wanted)
    pattern, entries = op.support.pairs(None)
    torch.testing.assert_close(entries.values[pattern.row == pattern.col], wanted)
    shared = GRFMask(max_length=2, diagonal="shared")
    shared.load_state_dict(mask_of().state_dict())
    off = ~torch.eye(5, dtype=torch.bool)
    torch.testing.assert_close(op.to_dense()[off], shared(data).to_dense()[off])
    assert (shared(data).to_dense().diagonal() > wanted).any()


def test_the_diagonal_of_an_asymmetric_pair_is_corrected_in_every_form():
    f, g = F.double(), torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    mask = mask_of(key_modulation=True).double()
    with torch.no_grad():
        mask.key_modulation.copy_(g)
    data = corrected(GRAPHS["weighted"])
    op, places = mask(data), [(a, b) for b in range(3) for a in range(b + 1)]
    wanted = data.walk_diagonal.double() @ torch.stack([(f[a] * g[b] + f[b] * g[a]) / 2 for a, b in places])
    torch.testing.assert_close(op.to_dense().diagonal(), wanted)
    for rows in (None, (0, 5)):
        pattern, value = op.support.pairs(rows)
        torch.testing.assert_close(value[pattern.row == pattern.col], wanted)
    (block,) = op.dense_blocks.make(block_layout(torch.zeros(5, dtype=torch.long)))
    torch.testing.assert_close(block[0].T, op.to_dense())


@pytest.mark.parametrize("path", ["factored", "pairwise", "blocks"])
class TestPaths:
    def test_attention_is_the_same_on_every_path(self, path):
        batch = Batch.from_data_list([corrected(GRAPHS[name]) for name in ("star", "isolated", "path")])
        torch.manual_seed(0)
        attn = GRFAttention(8, 2, max_length=2, diagonal="corrected", path=path).double()
        with torch.no_grad():
            attn.mask.modulation.copy_(torch.stack([F, F.flip(0)]))
        other = GRFAttention(8, 2, max_length=2, diagonal="corrected", path="dense").double()
        other.load_state_dict(attn.state_dict())
        x = torch.randn(13, 8, dtype=torch.float64)
        torch.testing.assert_close(attn(x, None, batch), other(x, None, batch))


class TestCorrectedGRFAttention(AttentionCase):
    transform = "AddRandomWalks"

    def build(self):
        return GRFAttention(self.channels, heads=2, diagonal="corrected")

    def prepare(self, data):
        return AddRandomWalks(num_walks=4, seed=0, diagonal="corrected")(data.clone())


def test_walks_of_other_lengths():
    short = mask_of()(corrected(GRAPHS["star"]))
    longer = GRFMask(max_length=3, diagonal="corrected")
    with torch.no_grad():
        longer.modulation.copy_(torch.tensor([*F, 5.0]))
    with pytest.warns(UserWarning, match="stored up to"):
        op = longer(corrected(GRAPHS["star"]))
    torch.testing.assert_close(op.to_dense(), short.to_dense())
    with pytest.raises(ValueError, match="the stored diagonal has 15 coefficients"):
        mask_of()(corrected(GRAPHS["isolated"], max_length=4, halt_prob=0.999))


def test_settings_that_have_no_unbiased_diagonal_are_refused():
    for settings in (
        {"num_walks": 1},
        {"num_walks": 2, "scheme": "antithetic"},
        {"num_walks": 1, "scheme": "repelling"},
    ):
        with pytest.raises(ValueError, match=r"diagonal='corrected' needs walkers.*independent of each other"):
            AddRandomWalks(diagonal="corrected", **settings)
    with pytest.raises(ValueError, match="'diagonal' must be one of independent, corrected, shared"):
        AddRandomWalks(diagonal="both")


def test_one_setting_follows_another():
    data = corrected(AddRandomWalks(num_walks=4, max_length=2, seed=0)(GRAPHS["star"]))
    assert "walk_key_index" not in data
    assert "walk_diagonal" not in AddRandomWalks(seed=0)(data)
    unweighted = AddRandomWalks(seed=0, importance=False)(GRAPHS["star"])
    assert torch.equal(unweighted.walk_load, unweighted.walk_count)
