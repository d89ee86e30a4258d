import math

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.nn import GRFAttention, GRFMask
from pyg_topomask.ops import deconvolve
from pyg_topomask.testing import GRAPHS, AttentionCase, dense_adjacency
from pyg_topomask.transforms import AddRandomWalks

F = [1.2, 0.5, -0.3, 0.25]
K = len(F) - 1
DRAWS = 400


def normalised(data):
    adj = dense_adjacency(data)
    strength = adj.sum(1)
    scale = torch.where(strength > 0, strength, 1).rsqrt()
    return scale[:, None] * adj * scale


def series(data, coeffs):
    w = normalised(data)
    return sum(c * torch.linalg.matrix_power(w, k) for k, c in enumerate(coeffs))


def with_modulation(mask, f):
    with torch.no_grad():
        mask.modulation.copy_(torch.as_tensor(f))
    return mask


def samples(data, draws=DRAWS, independent=True, symmetric=True, num_walks=4):
    mask = GRFMask(max_length=K, independent=independent, symmetric=symmetric).double()
    with_modulation(mask, F)
    transform = AddRandomWalks(num_walks=num_walks, max_length=K, halt_prob=0.3, independent=independent)
    with torch.no_grad():
        return torch.stack([mask(transform(data.clone())).to_dense() for _ in range(draws)])


def error_in_standard_errors(values, wanted):
    error = (values.mean(0) - wanted).abs()
    return error / (values.std(0) / len(values) ** 0.5 + 1e-6)


UNDIRECTED = ["path", "star", "two_parts", "isolated", "single", "weighted"]


@pytest.mark.parametrize("name", UNDIRECTED)
def test_mean_of_many_masks_is_the_power_series_everywhere(name):
    data = GRAPHS[name]
    wanted = series(data, np.convolve(F, F))
    assert error_in_standard_errors(samples(data), wanted).max() <= 5


@pytest.mark.parametrize("name", ["path", "star", "weighted"])
def test_one_table_is_unbiased_off_the_diagonal_only(name):
    data = GRAPHS[name]
    values = samples(data, independent=False)
    away = error_in_standard_errors(values, series(data, np.convolve(F, F)))
    off = ~torch.eye(data.num_nodes, dtype=torch.bool)
    assert away[off].max() <= 5
    assert away.diagonal().max() > 10
    inflated = values.mean(0) - series(data, np.convolve(F, F))
    assert inflated.diagonal().min() > 0


@pytest.mark.parametrize("name", ["one_way", "weighted", "isolated"])
def test_asymmetric_mask_is_the_series_with_f(name):
    data = GRAPHS[name]
    values = samples(data, symmetric=False, independent=False)
    assert error_in_standard_errors(values, series(data, F)).max() <= 5
    transform = AddRandomWalks(num_walks=4, max_length=K, halt_prob=0.3)
    two = with_modulation(GRFMask(max_length=K, symmetric=False).double(), F)(transform(data.clone()))
    assert two.support.count() <= two.num_multiply_adds  # two tables do no harm: only the first is read


def test_directed_graph_with_two_factors_is_phi_phi_transposed():
    data = GRAPHS["one_way"]
    phi = series(data, F)
    assert error_in_standard_errors(samples(data, draws=800), phi @ phi.t()).max() <= 5


def test_starts_as_the_exponential():
    mask = GRFMask(max_length=12)
    f = mask.modulation.detach().double().numpy()
    alpha = np.convolve(f, f)[:13]
    np.testing.assert_allclose(alpha, [1 / math.factorial(k) for k in range(13)], rtol=1e-5, atol=1e-10)
    assert GRFMask(heads=3).modulation.shape == (3, 5)
    assert GRFMask().modulation.shape == (5,)
    w = normalised(GRAPHS["path"])
    exact = torch.linalg.matrix_exp(w)
    torch.testing.assert_close(series(GRAPHS["path"], np.convolve(f, f)), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["path", "weighted", "isolated"])
def test_an_asymmetric_pair_is_the_series_of_its_convolution(name):
    data, g = GRAPHS[name], [0.0, 0.7, -0.4, 0.1]
    mask = with_modulation(GRFMask(max_length=K, key_modulation=True).double(), F)
    with torch.no_grad():
        mask.key_modulation.copy_(torch.tensor(g))
        transform = AddRandomWalks(num_walks=4, max_length=K, halt_prob=0.3)
        values = torch.stack([mask(transform(data.clone())).to_dense() for _ in range(DRAWS)])
    assert error_in_standard_errors(values, series(data, np.convolve(F, g))).max() <= 5


@pytest.mark.parametrize(
    ("initial", "wanted"),
    [
        ("geometric", [1, 1 / 2, 1 / 4, 1 / 8]),
        ([2.0, -1], [2, -1, 0, 0]),
        (deconvolve(torch.tensor([1.0, 1, 1, 1])), [1, 1 / 2, 3 / 8, 5 / 16]),
    ],
)
def test_initial_modulation(initial, wanted):
    mask = GRFMask(2, max_length=3, initial=initial, key_modulation=True)
    for parameter in mask.parameters():
        torch.testing.assert_close(parameter.detach(), torch.tensor([wanted, wanted], dtype=torch.float32))
    mask.modulation.data.zero_()
    mask.reset_parameters()
    assert mask.modulation[0].tolist() == pytest.approx(wanted)


def test_positive_modulation_has_no_negative_entry():
    data = AddRandomWalks(max_length=K, seed=0)(GRAPHS["star"].clone())
    mask = with_modulation(GRFMask(max_length=K, positive=True, key_modulation=True), F)
    with torch.no_grad():
        mask.key_modulation.copy_(-torch.tensor(F))
    op, plain = mask(data), with_modulation(GRFMask(max_length=K), np.abs(F))
    torch.testing.assert_close(op.to_dense(), plain(data).to_dense())
    assert op.bound is op


def test_heads_have_masks_of_their_own():
    data = AddRandomWalks(seed=0)(GRAPHS["star"].clone())
    mask = GRFMask(heads=2)
    f = torch.stack([mask.modulation[0], 0.5 * mask.modulation[1].flip(0)])
    both = with_modulation(mask, f)(data).to_dense()
    assert both.shape == (2, 5, 5)
    for head in range(2):
        torch.testing.assert_close(with_modulation(GRFMask(), f[head])(data).to_dense(), both[head])


def test_changed_walks_are_seen():
    """The remembered structure follows the tensors: changed in place, replaced, another batch."""
    data = AddRandomWalks(seed=0)(GRAPHS["star"].clone())
    mask = GRFMask()
    before = mask(data).to_dense()
    data.walk_load.mul_(2)
    assert torch.allclose(mask(data).to_dense(), 2 * before)
    data.walk_load = data.walk_load / 2
    torch.testing.assert_close(mask(data).to_dense(), before)
    batch = Batch.from_data_list([data, data])
    torch.testing.assert_close(mask(batch).to_dense(), torch.block_diag(before, before))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_modulation_gives_a_float32_mask(dtype):
    data = AddRandomWalks(seed=0)(GRAPHS["star"].clone())
    operator = GRFMask().to(dtype)(data)
    assert operator.dtype == torch.float32
    torch.testing.assert_close(operator.to_dense(), GRFMask()(data).to_dense(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 0}, "'heads' must be at least 1"),
        ({"max_length": -1}, "'max_length' must be at least 0"),
        ({"heads": -2}, "got -2"),
        ({"initial": "linear"}, "'initial' must be one of exp, geometric"),
        ({"initial": [1.0] * 6}, r"'initial' must hold 1 to 'max_length' \+ 1 = 5 finite numbers"),
        ({"initial": [float("nan")]}, "finite numbers"),
        ({"symmetric": False, "key_modulation": True}, "with symmetric=False they have none"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GRFMask(**arguments)


def test_zero_hops_is_the_identity_scaled():
    data = AddRandomWalks(max_length=0, seed=0)(GRAPHS["star"].clone())
    mask = with_modulation(GRFMask(max_length=0), [3.0])
    torch.testing.assert_close(mask(data).to_dense(), 9 * torch.eye(5))


def test_long_walks_start_with_finite_numbers():
    start = GRFMask(max_length=400).modulation
    assert bool(start.isfinite().all())
    torch.testing.assert_close(start[:4].detach(), torch.tensor([1.0, 1 / 2, 1 / 8, 1 / 48]))


class TestGRFAttentionWithKeyModulation(AttentionCase):
    transform = "AddRandomWalks"

    def build(self):
        attn = GRFAttention(self.channels, heads=2, key_modulation=True)
        with torch.no_grad():
            attn.mask.key_modulation.copy_(torch.tensor([[0.3, -0.5, 0.2, 0.1, 0.4], [1.0, 0.5, 0.3, -0.2, 0.1]]))
        return attn

    def prepare(self, data):
        return AddRandomWalks(num_walks=4, seed=0)(data.clone())


def test_attention_under_an_asymmetric_pair_is_the_same_on_every_path():
    batch = Batch.from_data_list([AddRandomWalks(seed=0)(GRAPHS[name]) for name in ("star", "isolated", "path")])
    x, outs = torch.randn(batch.num_nodes, 8, dtype=torch.float64), []
    state = TestGRFAttentionWithKeyModulation().build().state_dict()
    for path in ("dense", "factored", "pairwise", "blocks", "auto"):
        attn = GRFAttention(8, 2, key_modulation=True, path=path)
        attn.load_state_dict(state)
        outs.append(attn.double()(x, None, batch))
        torch.testing.assert_close(outs[-1], outs[0])


@pytest.mark.parametrize("path", ["auto", "pairwise", "factored", "blocks"])
@pytest.mark.parametrize(
    ("attribute", "change", "message"),
    [
        ("walk_index", lambda x: x.index_fill(1, torch.tensor([5]), 10**6), "stored walks name node 1000000"),
        ("walk_key_index", lambda x: x.index_fill(1, torch.tensor([5]), -3), "stored walks name node -3"),
        ("walk_length", lambda x: x.index_fill(0, torch.tensor([5]), -1), "length of -1 hops"),
        ("walk_load", lambda x: x[:10], "index .2, nnz., lengths .nnz. and loads .nnz."),
    ],
)
def test_damaged_tables_are_refused_before_any_path_reads_them(path, attribute, change, message):
    ring = torch.stack([torch.arange(30), torch.arange(30).roll(1)])
    graph = Data(edge_index=torch.cat([ring, ring.flip(0)], dim=1), num_nodes=30)
    graph = AddRandomWalks(4, 3, seed=0)(graph)
    graph[attribute] = change(graph[attribute])
    with pytest.raises(ValueError, match=message):
        GRFAttention(16, 4, max_length=3, path=path)(torch.randn(30, 16), None, graph)
