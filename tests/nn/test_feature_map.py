import pytest
import torch

from pyg_topomask.nn.feature_map import FEATURE_MAP, ExpFeatures, SoftmaxFeatures
from pyg_topomask.ops import masked_linear_attention

BATCH = torch.tensor([0, 0, 0, 1, 1, 3])


def gram(feature_map, q, k, batch=None):
    """Kernel matrix of the features, [H, N, N]."""
    q, k = feature_map(q, k, batch)
    return torch.einsum("ihr,jhr->hij", q, k)


def test_exponential_features_up_to_what_cancels():
    q, k, v = (torch.randn(6, 2, 3).double() for _ in range(3))
    same = (BATCH[:, None] == BATCH).double()
    plain = masked_linear_attention(q.exp(), k.exp(), v, None, BATCH)
    torch.testing.assert_close(masked_linear_attention(*ExpFeatures()(q, k, BATCH), v, None, BATCH), plain)
    ratio = gram(ExpFeatures(), q, k, BATCH) / torch.einsum("ihr,jhr->hij", q.exp(), k.exp())
    for graph in range(4):  # one factor for each query of a graph, whatever the key
        part = ratio[:, graph == BATCH][:, :, graph == BATCH]
        torch.testing.assert_close(part, part[..., :1].expand_as(part))
    assert same.sum() == 14


def test_softmax_features_are_unbiased():
    draws, n, d = 3000, 3, 4
    q, k = 0.7 * torch.randn(n, 1, d).double(), 0.7 * torch.randn(n, 1, d).double()
    features, generator = SoftmaxFeatures(d, 6), torch.Generator().manual_seed(1)
    samples = []
    for _ in range(draws):
        features.redraw(generator)
        # the scale that cancels in attention is undone here: by the row's and the graph's largest exponent
        low_q, low_k = (features._exponents(x)[:, 0] for x in (q, k))
        scale = low_q.amax(1)[:, None] + low_k.amax()
        samples.append(gram(features, q, k)[0] * scale.exp())
    samples = torch.stack(samples)
    wanted = (q[:, 0] @ k[:, 0].t() / d**0.5).exp()
    error = (samples.mean(0) - wanted).abs()
    assert (error <= 5 * samples.std(0) / draws**0.5).all()
    assert (samples.std(0) > 0).all()


@pytest.mark.parametrize(("channels", "num_features"), [(4, 8), (4, 10), (5, 3), (1, 7)])
def test_projection_is_orthogonal_in_blocks_with_gaussian_norms(channels, num_features):
    projection = SoftmaxFeatures(channels, num_features).projection.double()
    assert projection.shape == (num_features, channels)
    for block in projection.split(channels):
        product = block @ block.t()
        torch.testing.assert_close(product, product.diagonal().diag(), rtol=1e-5, atol=1e-4)
    many = SoftmaxFeatures(channels, 4000).projection.double()
    mean_square = many.square().sum(1)  # chi-square with ``channels`` degrees of freedom
    assert abs(mean_square.mean() - channels) <= 5 * (2 * channels / 4000) ** 0.5
    assert (many.mean(0).abs() <= 5 / 4000**0.5).all()


def test_projection_is_a_function_of_the_seed():
    torch.manual_seed(1)
    first = SoftmaxFeatures(4, 8).projection
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(SoftmaxFeatures(4, 8).projection, first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(SoftmaxFeatures(4, 8, seed=1).projection, first)
    assert "projection" in SoftmaxFeatures(4, 8).state_dict()
    features = SoftmaxFeatures(4, 8)
    features.redraw()
    assert not torch.equal(features.projection, first)


def test_scale_of_each_graph_cancels_and_graphs_do_not_meet():
    features = SoftmaxFeatures(3, 32)
    q, k, v = (torch.randn(6, 2, 3).double() for _ in range(3))
    together = masked_linear_attention(*features(q, k, BATCH), v, None, BATCH)
    for graph in (0, 1, 3):
        mine = graph == BATCH
        alone = masked_linear_attention(*features(q[mine], k[mine]), v[mine])
        torch.testing.assert_close(alone, together[mine])
    loud = torch.where((BATCH == 0)[:, None, None], k, k + 50)
    again = masked_linear_attention(*features(q, loud, BATCH), v, None, BATCH)
    assert torch.equal(again[BATCH == 0], together[BATCH == 0])


@pytest.mark.parametrize("name", FEATURE_MAP)
def test_features_have_gradients_and_are_not_negative(name):
    features = SoftmaxFeatures(3, 5).double() if name == "softmax_rf" else FEATURE_MAP[name]()
    q, k = (torch.randn(4, 2, 3).double().requires_grad_() for _ in range(2))
    assert all((side >= 0).all() for side in features(q, k, BATCH[:4]))
    v = torch.randn(4, 2, 2).double()

    def run(q, k):  # what cancels is detached: the gradient is right only for the attention
        return masked_linear_attention(*features(q, k, BATCH[:4]), v, None, BATCH[:4])

    assert torch.autograd.gradcheck(run, (q, k))


def test_no_nodes():
    empty = torch.ones(0, 2, 3)
    for name in FEATURE_MAP:
        features = SoftmaxFeatures(3, 5) if name == "softmax_rf" else FEATURE_MAP[name]()
        for batch in (None, BATCH[:0]):
            q, k = features(empty, empty, batch)
            assert q.shape[:2] == k.shape[:2] == (0, 2)
