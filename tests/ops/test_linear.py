"""Affine maps by oneDNN, forced on any processor, against those of torch."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import linear as torch_linear

from pyg_topomask.nn.linear import Linear
from pyg_topomask.ops import linear as linear_ops
from pyg_topomask.ops.linear import linear, transposed_product

has_onednn = hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
onednn = pytest.mark.skipif(not has_onednn, reason="this torch has no oneDNN")


@pytest.fixture
def calls(monkeypatch):
    """Products of any size are oneDNN's; they are counted."""
    made = []
    monkeypatch.setattr(linear_ops, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(linear_ops, "onednn_is_faster", lambda: made.append(1) or True)
    return made


def numbers(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


@onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("rows", "width", "out"), [(1, 1, 1), (5, 7, 3), (300, 96, 192), (150, 48, 8), (0, 48, 8), (0, 4, 2)]
)
def test_equals_torch(calls, rows, width, out, bias):
    x = numbers(rows, 2 * width)[:, ::2]  # has gaps
    inputs = [x, numbers(out, width), *([numbers(out)] if bias else [])]
    found, wanted = linear(*inputs), torch_linear(*inputs)
    assert calls
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    weight = torch.randn(rows, out)
    grads = [torch.autograd.grad((y * weight).sum(), inputs) for y in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    # The gradient of a sum is one number, expanded.
    torch.testing.assert_close(*(torch.autograd.grad(f(*inputs).sum(), inputs) for f in (linear, torch_linear)))


@onednn
@pytest.mark.filterwarnings("ignore:Input #")  # of gradcheck: single precision
@pytest.mark.usefixtures("calls")
def test_first_and_second_derivatives():
    inputs = [numbers(4, 3), numbers(2, 3), numbers(2)]
    tolerance = {"eps": 1e-2, "atol": 1e-2, "rtol": 1e-2}  # exact up to rounding: the map is bilinear
    assert gradcheck(linear, inputs, **tolerance)
    assert gradgradcheck(linear, inputs, **tolerance)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_default_dtype_has_no_effect(default, dtype):
    a, b = torch.randn(20, 8, dtype=dtype), torch.randn(20, 48, dtype=dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = transposed_product(a, b)
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(found, a.t() @ b)


@pytest.mark.skipif(isinstance(linear_ops.load(), str), reason="needs a C++ compiler")
def test_threads_do_not_change_the_gradient_of_a_weight(monkeypatch):
    monkeypatch.setattr(linear_ops, "_WORK_PER_THREAD", 1)
    a, b, threads, found = torch.randn(300, 16), torch.randn(144, 300).t(), torch.get_num_threads(), []
    try:
        for num in (1, 2, 5):
            torch.set_num_threads(num)
            found.append(transposed_product(a, b))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0].double(), a.double().t() @ b.double(), rtol=1e-4, atol=1e-4)
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    torch.testing.assert_close(transposed_product(a, b), found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["double", "three dimensions", "autocast", "small"])
def test_the_rest_is_left_to_torch(calls, monkeypatch, kind):
    dtype = torch.float64 if kind == "double" else torch.float32
    x = numbers(*((2, 4, 3) if kind == "three dimensions" else (4, 3)), dtype=dtype)
    weight = numbers(2, 3, dtype=dtype)
    if kind == "small":
        monkeypatch.setattr(linear_ops, "_LEAST_PRODUCTS", 25)
    with torch.autocast("cpu", enabled=kind == "autocast"):
        found = linear(x, weight)
        torch.testing.assert_close(found, torch_linear(x, weight), rtol=0, atol=0)
    assert not calls


def test_the_module_is_torchs_linear():
    torch.manual_seed(1)
    own = Linear(3, 2)
    torch.manual_seed(1)
    wanted, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    wanted.load_state_dict(own.state_dict())
    torch.testing.assert_close(own(x), wanted(x))
    assert isinstance(own, torch.nn.Linear)
    traced = torch.compile(own, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(x), wanted(x))


@pytest.mark.parametrize("kind", ["expanded", "strided", "column", "one number"])
def test_any_bias_gives_the_result_of_torch(kind):
    """A product large enough for oneDNN, which reads a bias as if it had no gaps."""
    x, weight = torch.randn(8192, 96), torch.randn(96, 96)
    bias = {
        "expanded": torch.randn(1).expand(96),
        "strided": torch.randn(192)[::2],
        "column": torch.randn(96, 4)[:, 1],
        "one number": torch.randn(1),
    }[kind]
    torch.testing.assert_close(
        linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias), atol=1e-4, rtol=1e-4
    )


def test_function_transforms_take_large_products():
    x, weight = torch.randn(8192, 96), torch.randn(96, 96)
    found = torch.func.grad(lambda weight: linear(x, weight).sum())(weight)
    torch.testing.assert_close(found, x.sum(0).expand(96, 96), atol=1e-2, rtol=1e-4)


@onednn
@pytest.mark.parametrize("dims", [(0, None, None), (None, 1, 0), (0, 0, None)], ids=str)
def test_vmap_takes_large_products(calls, dims):
    """Maps of several inputs, and of several weights as in an ensemble, with their gradients."""

    def loss(function):
        return lambda x, weight, bias: function(x, weight, bias).square().sum()

    inputs = [numbers(6, 16), numbers(48, 16), numbers(48)]
    stacked = [x if d is None else torch.stack([x, 2 * x, -x], d) for x, d in zip(inputs, dims)]
    torch.testing.assert_close(*(torch.vmap(f, dims)(*stacked) for f in (linear, torch_linear)), rtol=1e-5, atol=1e-4)
    grads = [torch.vmap(torch.func.grad(loss(f), (0, 1, 2)), dims)(*stacked) for f in (linear, torch_linear)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-3)
    assert calls


@onednn
@pytest.mark.usefixtures("calls")
def test_vectorised_jacobians_take_large_products():
    """These apply vmap to the backward pass alone."""
    inputs = tuple(numbers(*shape) for shape in ((3, 16), (48, 16)))
    jacobians = [torch.autograd.functional.jacobian(f, inputs, vectorize=True) for f in (linear, torch_linear)]
    torch.testing.assert_close(*jacobians, rtol=1e-4, atol=1e-4)


def test_wrong_widths_are_named_by_torch():
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        linear(torch.randn(8192, 96), torch.randn(96, 97))


@onednn
@pytest.mark.parametrize("bias", [True, False])
def test_compiled_code_calls_large_products(monkeypatch, calls, bias):
    """As one node, whose gradients are such nodes; a small product is traced."""
    inputs = [numbers(10, 16), numbers(48, 16), *([numbers(48)] if bias else [])]
    nodes = []

    def backend(graph, _):
        nodes.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compile(linear, backend=backend, fullgraph=True, dynamic=True)(*inputs)
    assert "topomask.linear.default" in nodes
    found = torch.compile(linear, backend="aot_eager", fullgraph=True)(*inputs)
    wanted, weight = torch_linear(*inputs), torch.randn(10, 48)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad((y * weight).sum(), inputs) for y in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert calls
    monkeypatch.setattr(linear_ops, "_LEAST_PRODUCTS", 2**30)
    nodes.clear()
    torch._dynamo.reset()
    torch.compile(linear, backend=backend, fullgraph=True)(*inputs)
    assert "topomask.linear.default" not in nodes


@onednn
@pytest.mark.usefixtures("calls")
def test_compiled_function_transforms_are_left_to_torch():
    weight, x = torch.randn(3, 48, 16), torch.randn(6, 16)
    found, wanted = (
        torch.vmap(torch.func.grad(lambda weight, x, f=f: f(x, weight).square().sum()), (0, None))
        for f in (linear, torch_linear)
    )
    traced = torch.compile(found, backend="aot_eager")
    torch.testing.assert_close(traced(weight, x), wanted(weight, x), rtol=1e-4, atol=1e-3)
