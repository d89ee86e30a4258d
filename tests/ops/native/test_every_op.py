"""What every compiled operation must do, on the examples that each one gives."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import pyg_topomask.nn  # noqa: F401  (imports all modules with operations)
from pyg_topomask.ops.attention.engines import pairs_cpp
from pyg_topomask.ops.native import loader
from pyg_topomask.ops.native.op import OPS
from pyg_topomask.ops.sparse import Pattern
from pyg_topomask.testing.checks import check_forward_mode, check_reverse_mode
from tests.ops.compare import assert_bits
from tests.threads import assert_threads_change_nothing

CASES = [(name, number) for name, op in OPS.items() for number, _ in enumerate(op.examples())]
IDS = [f"{name}-{number}" for name, number in CASES]
EXACT = {"rtol": 1e-9, "atol": 1e-11}
FEW = 100  # numbers of an example whose derivatives are checked numerically
needs_library = pytest.mark.skipif(
    any(loader.missing(op.library) for op in OPS.values()), reason="needs a C++ compiler"
)

pytestmark = [
    needs_library,
    # torch.export, while it traces
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


def example(name, number, dtype=torch.float64):
    """The operation, and its inputs; those that have a gradient require it."""
    torch.manual_seed(0)
    op = OPS[name]
    inputs = [x.to(dtype) if is_float(x) else x for x in list(op.examples())[number]]
    return op, [x.clone().requires_grad_() if is_moving(op, i, x) else x for i, x in enumerate(inputs)]


def is_float(x):
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def is_moving(op, number, x):
    return number < op.differentiable and x is not None


def moving(op, inputs):
    return [x for i, x in enumerate(inputs) if is_moving(op, i, x)]


def replaced(op, inputs, others):
    """The inputs with others instead of those that have a gradient."""
    others = iter(others)
    return [next(others) if is_moving(op, i, x) else x for i, x in enumerate(inputs)]


def outputs(op, output, inputs):
    """Those results that have a gradient."""
    results = (output,) if isinstance(output, torch.Tensor) else output
    return results[: len(results) - op.constant(*inputs)]


def everything(op, function, inputs, **settings):
    """All results, and the gradients of a sum of them with weights."""
    output = function(*inputs)
    results = (output,) if isinstance(output, torch.Tensor) else output
    total = sum((x * torch.linspace(-1, 1, x.numel()).to(x).view(x.shape)).sum() for x in outputs(op, output, inputs))
    return [*results, *torch.autograd.grad(total, moving(op, inputs), **settings)]


def small(name, number):
    """An example for numerical derivatives."""
    op, inputs = example(name, number)
    if not 0 < sum(x.numel() for x in moving(op, inputs)) <= FEW:
        pytest.skip("too many numbers")
    return op, inputs


every_case = pytest.mark.parametrize(("name", "number"), CASES, ids=IDS)
every_op = pytest.mark.parametrize("name", OPS)


@every_op
def test_examples_are_enough(name):
    op = OPS[name]
    assert op.refuses(*example(name, 0)[1]) is None
    sizes = [[x.numel() for x in moving(op, example(name, n)[1])] for n, _ in enumerate(op.examples())]
    assert any(0 in some for some in sizes)
    assert any(0 < sum(some) <= FEW for some in sizes)
    assert any(sum(some) > 1000 for some in sizes)


@every_case
def test_equals_the_twin(name, number):
    op, inputs = example(name, number)
    wanted = everything(op, op.twin, inputs)
    torch.testing.assert_close(everything(op, op, inputs), wanted, **EXACT)
    op, inputs = example(name, number, torch.float32)
    for one, other in zip(everything(op, op, inputs), wanted, strict=True):
        size = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one, other.float(), rtol=1e-3, atol=2e-4 * size)


@every_case
def test_first_and_second_derivatives(name, number):
    op, inputs = small(name, number)
    torch.manual_seed(1)

    def run(*others):
        return outputs(op, op(*replaced(op, inputs, others)), inputs)

    assert gradcheck(run, moving(op, inputs))
    assert gradgradcheck(run, moving(op, inputs))


@every_case
def test_gradients_that_are_differentiated_again_are_the_same(name, number):
    """Also inside of a region of autocast."""
    op, inputs = example(name, number)
    wanted = everything(op, op, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = everything(op, op, inputs, create_graph=True)
    torch.testing.assert_close(found, wanted, **EXACT)


@every_case
def test_checkpoints(name, number):
    op, inputs = example(name, number)

    def again(*inputs):
        return checkpoint(op, *inputs, use_reentrant=False)

    assert_bits(everything(op, again, inputs), everything(op, op, inputs))


@every_case
def test_only_some_gradients(name, number):
    """Inputs without a gradient, and results that nobody uses."""
    op, inputs = example(name, number)
    wanted = everything(op, op, inputs)
    count = len(moving(op, inputs))
    for place in range(count):
        given = [x.detach().requires_grad_(i == place) for i, x in enumerate(moving(op, inputs))]
        output = op(*replaced(op, inputs, given))
        parts = outputs(op, output, inputs)
        total = sum((x * torch.linspace(-1, 1, x.numel()).to(x).view(x.shape)).sum() for x in parts if x.requires_grad)
        torch.testing.assert_close(torch.autograd.grad(total, given[place])[0], wanted[place - count], **EXACT)
    for again in (False, True):
        both = [
            torch.autograd.grad(results[0].sum(), moving(op, inputs), allow_unused=True, create_graph=again)
            for results in (outputs(op, function(*inputs), inputs) for function in (op, op.twin))
        ]
        for one, other, x in zip(*both, moving(op, inputs), strict=True):
            filled = [torch.zeros_like(x) if grad is None else grad for grad in (one, other)]
            torch.testing.assert_close(*filled, **EXACT)


@every_case
def test_inputs_with_gaps(name, number):
    op, inputs = example(name, number)
    wanted = everything(op, op, inputs)
    wide = [torch.stack([x, x + 1], -1).detach()[..., 0].requires_grad_() for x in moving(op, inputs)]
    turned = [x.detach().mT.contiguous().mT.requires_grad_() if x.dim() > 1 else x for x in moving(op, inputs)]
    padded = [torch.cat([x, x], -1).detach()[..., : x.size(-1)].requires_grad_() for x in moving(op, inputs)]
    for others in (wide, turned, padded):
        assert_bits(everything(op, op, replaced(op, inputs, others)), wanted)


@every_case
def test_nan_is_where_it_is_in_plain_torch(name, number):
    op, inputs = example(name, number)
    for place, x in enumerate(moving(op, inputs)):
        if x.numel():
            spoilt = x.detach().clone()
            spoilt.view(-1)[x.numel() // 2] = torch.nan
            others = [spoilt if i == place else other for i, other in enumerate(moving(op, inputs))]
            with torch.no_grad():
                found, wanted = (f(*replaced(op, inputs, others)) for f in (op, op.twin))
            for one, other in zip(outputs(op, found, inputs), outputs(op, wanted, inputs), strict=True):
                assert torch.equal(one.isnan(), other.isnan())


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_change_nothing(name, number, dtype):
    op, inputs = example(name, number, dtype)
    assert_threads_change_nothing(lambda: everything(op, op, inputs))


@every_case
def test_forward_mode_and_transforms_of_torch_func(name, number):
    op, inputs = small(name, number)
    given = [x.detach() for x in moving(op, inputs)]

    def run(*others):
        return torch.cat([x.flatten() for x in outputs(op, op(*replaced(op, inputs, others)), inputs)])

    check_forward_mode(run, given)
    check_reverse_mode(run, given)
    many = [torch.stack([x, 2 * x]) for x in given]
    torch.testing.assert_close(torch.vmap(run)(*many)[1], run(*(2 * x for x in given)), **EXACT)


@pytest.mark.slow
@every_case
@pytest.mark.filterwarnings("ignore")
def test_compiled_code_is_one_graph_and_gives_the_same(name, number):
    torch._dynamo.reset()
    op, inputs = example(name, number)
    compiled = torch.compile(lambda *x: op(*x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(everything(op, compiled, inputs), everything(op, op, inputs), **EXACT)


def test_what_is_kept_of_a_pattern_changes_no_bit(monkeypatch):
    cases = [example("pair_means", number) for name, number in CASES if name == "pair_means"]
    wanted = [everything(op, op, inputs) for op, inputs in cases]
    monkeypatch.setattr(pairs_cpp, "_KEPT_FROM", 0)
    for (op, inputs), before in zip(cases, wanted):
        assert_bits(everything(op, op, inputs), before)
    there = torch.rand(50, 40) < 0.05
    pattern = Pattern(*there.nonzero().t(), 50, 40)
    low, high = pairs_cpp._reach(pattern.rowptr, pattern.col)
    columns = [row.nonzero().flatten().tolist() for row in there]
    assert low.tolist() == [min(row, default=2**31 - 1) for row in columns]
    assert high.tolist() == [max(row, default=-1) for row in columns]


@every_op
def test_refusals(name, monkeypatch):
    op, inputs = example(name, 0)
    first, rest = inputs[0], inputs[1:]
    assert "on CPU only" in op.refuses(first.to("meta"), *rest)
    assert "float32 or float64" in op.refuses(first.half(), *rest)
    assert "negated" in op.refuses(torch._neg_view(first), *rest)
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    assert "TOPOMASK_NATIVE=0" in op.refuses(*inputs)
    torch.testing.assert_close(op(*inputs), op.twin(*inputs), **EXACT)


@every_op
def test_an_array_that_does_not_fit_is_named(name):
    """The compiled function checks what it reads, whatever Python hands to it."""
    op, inputs = example(name, 0)
    given = list(op.prepare(*inputs))
    count = len(op._entry.arrays) - len(op.results)
    arrays = given[: len(given) - len(op._entry.numbers)]
    results = [inputs[0].new_empty(shape) for shape in op.shapes(*inputs)]
    numbers = given[len(arrays) :]
    padding = [None] * (count - len(arrays))
    for place, array in enumerate(arrays):
        if array is not None:
            spoilt = [x if i != place else x[..., None] for i, x in enumerate(arrays)]
            with pytest.raises(RuntimeError, match=f"array '{op._entry.arrays[place]}' does not fit"):
                op._entry([*spoilt, *results, *padding], *numbers)


def test_errors_of_a_graph_of_two_tiles():
    """The largest scores are in the second tile, so that the norms of the first are scaled."""
    q, k = torch.rand(2, 67, 3, 17, dtype=torch.float64)
    k[64:] *= 2
    v, entry, errors = torch.randn(67, 3, 9).double(), torch.rand(1, 67**2).double(), 8 * torch.rand(67, 1).double()
    inputs = (q, k, v, entry, None, errors, torch.tensor([[0, 67, 0, 67]]), True, 0.7, 0)
    found, wanted = OPS["block_means"](*inputs), OPS["block_means"].twin(*inputs)
    torch.testing.assert_close(found, wanted, **EXACT)
    assert 0 < (wanted[1] == 0).sum() < wanted[1].numel()
