"""What tests of operations share: results with their gradients, and equality bit by bit."""

import torch


def batch_of(sizes):
    """The graph of each node, for graphs of these sizes."""
    return torch.repeat_interleave(torch.tensor(sizes))


def dense(pattern, value):
    """The matrix with these entries at the places of a pattern; entries of one place add up."""
    zeros = value.new_zeros(pattern.num_rows, pattern.num_cols)
    return zeros.index_put((pattern.row.long(), pattern.col.long()), value, accumulate=True)


def with_gradients(out, inputs):
    """The result or all results, and the gradients of a weighted sum."""
    results = [out] if isinstance(out, torch.Tensor) else [*out]
    total = sum((x * torch.linspace(-1, 1, x.numel()).to(x).view(x.shape)).sum() for x in results)
    grads = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True, materialize_grads=True)
    return [*(x.detach() for x in results), *grads]


def assert_bits(found, wanted, name=""):
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        same = torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
        assert same, f"{name}, tensor {number}: differs by {float((a - b).abs().max())}"


def assert_is_the_reference(fast, slow, inputs):
    """In values and gradients in float64, and in values in float32; both are functions of the inputs."""
    wanted = slow(*inputs)
    both = (with_gradients(out, inputs) for out in (fast(*inputs), wanted))
    torch.testing.assert_close(*both, rtol=1e-9, atol=1e-11)
    size = max(1.0, float(wanted.detach().abs().max())) if wanted.numel() else 1.0
    torch.testing.assert_close(fast(*(x.float() for x in inputs)), wanted.float(), rtol=1e-5, atol=1e-6 * size)


def assert_dropout_keeps_the_mean(draw, exact, count, name=""):
    """5 standard errors around the mean of many draws."""
    with torch.no_grad():
        draws = torch.stack([draw() for _ in range(count)])
    assert ((draws.mean(0) - exact).abs() <= 5 * draws.std(0) / count**0.5 + 1e-12).all(), name
    assert (draws[0] != draws[1]).any(), name
