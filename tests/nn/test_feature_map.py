import pytest
import torch

from pyg_topomask.nn.feature_map import SoftmaxFeatures


def test_softmax_features_are_unbiased():
    draws, n, d = 3000, 3, 4
    q, k = 0.7 * torch.randn(n, 1, d).double(), 0.7 * torch.randn(n, 1, d).double()
    features, generator = SoftmaxFeatures(d, 6), torch.Generator().manual_seed(1)
    samples = []
    for _ in range(draws):
        features.redraw(generator)
        # the scale that cancels in attention is undone here: by the row's and the graph's largest exponent
        short = (x[:, 0] * d**-0.25 for x in (q, k))
        low_q, low_k = (x @ features.projection.double().t() - x.square().sum(1, keepdim=True) / 2 for x in short)
        scale = low_q.amax(1, keepdim=True) + low_k.amax()
        ours, theirs = (side[:, 0] for side in features(q, k, None))
        assert min(ours.min(), theirs.min()) >= 0
        samples.append(ours @ theirs.t() * scale.exp())
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
