"""Checks that operators and attentions share: forward mode, autocast, threads."""

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

Function = Callable[..., Tensor]


def check_forward_mode(run: Function, inputs: Sequence[Tensor]) -> None:
    """Check that forward-mode derivatives are right, or refused by an error that says "forward mode".

    Both ways are tried, `torch.func.jvp` and `torch.autograd.forward_ad`, and compared with finite differences.

    Args:
        run: Function of tensors in float64.
        inputs: The tensors.
    """
    inputs = [x.detach() for x in inputs]
    tangents, step = [torch.randn_like(x) for x in inputs], 1e-6
    with torch.no_grad():
        ahead, behind = (run(*(x + sign * t for x, t in zip(inputs, tangents))) for sign in (step, -step))
    wanted = (ahead - behind) / (2 * step)
    for derivative in (_by_transform, _by_dual_numbers):
        try:
            found = derivative(run, inputs, tangents)
        except (RuntimeError, NotImplementedError) as error:
            refused = re.search(r"forward (mode|AD)", str(error))  # torch calls it AD
            assert refused, f"{type(error).__name__}: {error}"  # noqa: PT017
            continue
        size = max(float(wanted.abs().max()), 1.0) if wanted.numel() else 1.0
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6 * size)


def _by_transform(run: Function, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
    return torch.func.jvp(run, tuple(inputs), tuple(tangents))[1]


def _by_dual_numbers(run: Function, inputs: Sequence[Tensor], tangents: Sequence[Tensor]) -> Tensor:
    with forward_ad.dual_level():
        value, tangent = forward_ad.unpack_dual(run(*map(forward_ad.make_dual, inputs, tangents)))
        return torch.zeros_like(value) if tangent is None else tangent


def check_reverse_mode(run: Function, inputs: Sequence[Tensor]) -> None:
    """Check that `torch.func.vjp` gives the gradients of a backward pass, and so does one for several gradients.

    Args:
        run: Function of tensors in float64.
        inputs: The tensors.
    """
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = run(*leaves)
    grad = torch.randn_like(out)
    wanted = torch.autograd.grad(out, leaves, grad, allow_unused=True, retain_graph=True)
    value, pull = torch.func.vjp(run, *(x.detach() for x in inputs))[:2]
    torch.testing.assert_close(value, out)
    for x, found, gradient in zip(leaves, pull(grad), wanted):
        torch.testing.assert_close(found, torch.zeros_like(x) if gradient is None else gradient)
    both = torch.stack([grad, -2 * grad])
    mapped = torch.autograd.grad(out, leaves, both, allow_unused=True, is_grads_batched=True)
    for found, gradient in zip(mapped, wanted):
        assert (found is None) == (gradient is None)
        if gradient is not None and found is not None:
            torch.testing.assert_close(found, torch.stack([gradient, -2 * gradient]))


def check_backward_in_autocast(run: Function, inputs: Sequence[Tensor]) -> None:
    """Check that gradients are nearly the same if not only the forward pass runs inside of a region of autocast.

    Args:
        run: Function of tensors in float32.
        inputs: The tensors.
    """

    leaves, gradients = [x.detach().requires_grad_() for x in inputs], []
    for inside in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run(*leaves).float().square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            gradients.append(torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True))
    for wanted, found in zip(*gradients):
        assert (wanted is None) == (found is None)
        if wanted is not None and found is not None:
            assert found.dtype == wanted.dtype
            assert (found - wanted).norm() <= 0.1 * wanted.norm() + 1e-6


def check_threads(run: Function, inputs: Sequence[Tensor]) -> None:
    """Check that two threads give the same result as one up to rounding, and that they repeat themselves bit by bit.

    Products of matrices and sums over all nodes are added up by torch in an order that depends on the number of
    threads and on the processor.

    Args:
        run: Function of tensors.
        inputs: The tensors.
    """
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 2):
            torch.set_num_threads(count)
            leaves = [x.detach().requires_grad_() for x in inputs]
            out = run(*leaves)
            grads = torch.autograd.grad(out, leaves, torch.arange(out.numel()).cos().view_as(out), allow_unused=True)
            results.append([out, *(x for x in grads if x is not None)])
    finally:
        torch.set_num_threads(before)
    for one, two, again in zip(*results):
        assert torch.equal(two, again)
        assert (one - two).norm() <= 1e-4 * one.norm()
