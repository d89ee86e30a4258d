"""The public functions of masked attention: arguments, precision, and what holds on every path."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn.functional import leaky_relu

from pyg_topomask import operators, ops
from pyg_topomask.ops.attention.choice import PATHS
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.masked import (
    masked_additive_attention_reference,
    masked_linear_attention_reference,
    masked_softmax_attention_reference,
    problem_of,
)
from pyg_topomask.ops.attention.weights import pair_weights
from tests.ops.attention.cases import MASKS, draw, features
from tests.ops.compare import with_gradients

FUNCTIONS = {
    "linear": ops.masked_linear_attention,
    "softmax": ops.masked_softmax_attention,
    "additive": lambda q, k, *rest, **more: ops.masked_additive_attention(q[..., 0], k[..., 0], *rest, **more),
}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def paths_of(function):
    return [path for path in PATHS if path != "factored" or function is ops.masked_linear_attention]


def masked(name="grf_signed", dtype=torch.float64):
    mask = MASKS[name]
    return mask.make(*(x.to(dtype) for x in mask.parameters))


def test_the_references_are_the_formula():
    """Node by node and head by head."""
    q, k, v = features(Kernel("linear"), 5)
    mask, bound = draw(2, 5, 5), draw(2, 5, 5, positive=True) + 2
    additive = masked_additive_attention_reference
    for attend, kernel in (
        (masked_linear_attention_reference, lambda q, k: q @ k),
        (masked_softmax_attention_reference, lambda q, k: (q @ k / 2).exp()),
        (
            lambda q, k, *x, **y: additive(q[..., 0], k[..., 0], *x, **y),
            lambda q, k: leaky_relu(q[0] + k[0], 0.2).exp(),
        ),
    ):
        for normalizer, divisor in (("bound", bound), ("signed", mask)):
            found = attend(q, k, v, mask, bound=bound, normalizer=normalizer)
            for i, h in product(range(5), range(2)):
                size = torch.stack([kernel(q[i, h], k[j, h]) for j in range(5)])
                wanted = (mask[h, i] * size) @ v[:, h] / (divisor[h, i] @ size)
                torch.testing.assert_close(found[i, h], wanted)


@every_function
@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 2)])  # as many heads as nodes: shapes alone would not tell
def test_a_tensor_is_the_mask_that_an_operator_makes_of_it(function, shape):
    q, matrix = torch.rand(2, 2, 3), torch.randn(shape)
    for normalizer in ("bound", "signed"):
        found, wanted = (
            function(q, q, q, mask, normalizer=normalizer) for mask in (matrix, operators.DenseOperator(matrix))
        )
        torch.testing.assert_close(found, wanted)


def test_the_weights_under_a_tensor_are_those_under_its_operator():
    """For a mask module that returns a tensor."""
    qkv, matrix = features(Kernel("softmax"), 5), draw(2, 5, 5)
    masks = matrix, operators.DenseOperator(matrix)
    found, wanted = (pair_weights(problem_of(Kernel("softmax"), qkv, mask, None, "bound"), [1, 3]) for mask in masks)
    torch.testing.assert_close(found, wanted)


@every_function
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(function, dtype):
    for name in ("grf_signed", "sparse", "toeplitz", "tensor"):
        mask, batch = masked(name, torch.float32), MASKS[name].batch
        half = [x.to(dtype).requires_grad_() for x in features(Kernel("linear"), len(batch))]
        wide = [x.detach().float().requires_grad_() for x in half]
        found, wanted = function(*half, mask, batch), function(*wide, mask, batch).to(dtype)
        assert found.dtype == dtype
        for a, b in zip(with_gradients(found, half), with_gradients(wanted, wide), strict=True):
            assert torch.equal(a, b.to(dtype))


@every_function
def test_a_half_precision_mask_is_read_in_float32(function):
    value = torch.rand(30).bfloat16()
    index = torch.randint(17, (2, 30)).unique(dim=1)
    half, wide = (operators.SparseFactorOperator((index, x[: index.size(1)]), None, 17) for x in (value, value.float()))
    x = [x.float() for x in features(Kernel("linear"), 17)]
    for path in paths_of(function):
        torch.testing.assert_close(function(*x, half, None, path), function(*x, wide, None, path))


@every_function
def test_autocast_is_left(function):
    inputs = [x.float() for x in features(Kernel("linear"), 17)]
    for path in paths_of(function):
        wanted = function(*inputs, masked(dtype=torch.float32), MASKS["grf"].batch, path)
        with torch.autocast("cpu", torch.bfloat16):
            found = function(*inputs, masked(dtype=torch.float32), MASKS["grf"].batch, path)
        assert found.dtype == torch.float32
        assert torch.equal(found, wanted), path


@every_function
def test_without_nodes(function):
    inputs = [torch.rand(0, 2, width, requires_grad=True) for width in (4, 4, 3)]
    for path in ("auto", *paths_of(function)):
        out = function(*inputs, torch.ones(0, 0), torch.zeros(0).long(), path)
        assert out.shape == (0, 2, 3)
        assert all(grad.shape == x.shape for grad, x in zip(torch.autograd.grad(out.sum(), inputs), inputs))


@pytest.mark.parametrize("mask", ["sparse", "heat", "ones"])
@every_function
def test_nan_in_one_graph_stays_there(function, mask):
    """A dense product would add 0 times NaN, even if it is estimated to be the fastest."""
    batch, hub = torch.arange(40) // 8, torch.arange(40) // 8 * 8
    edges = torch.stack([torch.arange(40), hub])[:, torch.arange(40) != hub]
    edges = torch.cat([edges, edges.flip(0)], 1)
    mask = {
        "sparse": lambda: operators.SparseOperator(edges, torch.ones(edges.size(1)), 40),
        "heat": lambda: operators.HeatOperator(edges, 40, 1.0),
        "ones": lambda: operators.OnesOperator(batch),
    }[mask]()
    x = draw(40, 2, 3).index_fill(0, torch.arange(8), torch.nan)
    assert function(x, x, x, mask, batch)[8:].isfinite().all()


@pytest.mark.parametrize("path", PATHS)
def test_features_and_values_without_numbers(path):
    q, v = torch.rand(17, 2, 0), torch.rand(17, 2, 3)
    assert not ops.masked_linear_attention(q, q, v, masked("grf", torch.float32), None, path).any()
    out = ops.masked_linear_attention(v, v, q, masked("grf", torch.float32), None, path)
    assert out.shape == (17, 2, 0)


class WrongBlocks(operators.GridHeatOperator):
    @property
    def dense_blocks(self):
        blocks = super().dense_blocks
        return replace(blocks, make=lambda layout: [block[..., :1, :1] for block in blocks.make(layout)])


X, ONES = torch.ones(4, 2, 3), torch.ones(4, 4)
REFUSED = [
    (ValueError, r"must be \[N, H, R\].*got \[4, 2, 3\], \[4, 2, 2\]", {"k": torch.ones(4, 2, 2)}),
    (ValueError, r"must be \[N, H, R\]", {"q": torch.ones(4, 6), "k": torch.ones(4, 6), "v": torch.ones(4, 6)}),
    (ValueError, r"and \[5, 2, 3\]", {"v": torch.ones(5, 2, 3)}),
    (TypeError, "share one floating dtype", {"v": X.double()}),
    (TypeError, "floating dtype", {"q": X.long(), "k": X.long(), "v": X.long()}),
    (ValueError, "for 5 nodes, but 'q' has 4 rows; is it of another batch", {"mask": torch.ones(5, 5)}),
    (ValueError, "for 4 nodes, but 'q' has 0 rows", {"q": X[:0], "k": X[:0], "v": X[:0]}),
    (ValueError, "the mask has 3 heads, but 'q' has 2: give both", {"mask": torch.ones(3, 4, 4)}),
    (ValueError, r"a dense mask must be \[N, N\] or \[H, N, N\] \(got \[4, 2\]\)", {"mask": torch.ones(4, 2)}),
    (ValueError, "a dense mask must be real and strided", {"mask": ONES.to(torch.complex64)}),
    (ValueError, "a dense mask must be real and strided", {"mask": ONES.to_sparse()}),
    (TypeError, r"'mask' must be a MaskOperator or a tensor \(got list\)", {"mask": [1.0]}),
    (ValueError, r"'normalizer' must be one of bound, signed \(got 'rows'\)", {"normalizer": "rows"}),
    (ValueError, r"'path' must be one of auto, factored, .*got 'fast'", {"path": "fast"}),
    (ValueError, r"'path' must be one of auto, factored, .*got 'fast'", {"path": "fast", "mask": None}),
    (ValueError, "sort", {"batch": torch.tensor([0, 1, 0, 1])}),
    (
        ValueError,
        r"2 graphs of 2 nodes must be \[1 or 2, 1 or 2, 2, 2\] \(got \[1, 1, 1, 1\]",
        {"mask": WrongBlocks((2,), 0.5, num_graphs=2), "batch": torch.tensor([0, 0, 1, 1]), "path": "blocks"},
    ),
]


@pytest.mark.parametrize(("error", "message", "changed"), REFUSED)
def test_what_attention_and_explain_refuse(error, message, changed):
    functions = [ops.masked_linear_attention, ops.masked_softmax_attention]
    for function in functions if "path" in changed else [*functions, ops.explain]:
        with pytest.raises(error, match=message):
            function(**{"q": X, "k": X, "v": X, "mask": ONES} | changed)


FLAT, EMPTY, NO_SHARE = X[..., 0], torch.ones(4, 2, 0), r"'dropout' must be a probability in \[0, 1\)"
SINGLE = [
    (lambda: ops.masked_softmax_attention(EMPTY, EMPTY, X), ValueError, r"one channel per head \(got \[4, 2, 0\]\)"),
    (lambda: ops.masked_softmax_attention(EMPTY, EMPTY, X, ONES), ValueError, "one channel per head"),
    (lambda: ops.explain(EMPTY, EMPTY, X, kernel="softmax"), ValueError, "one channel per head"),
    (lambda: ops.explain(X, X, X, kernel="cosine"), ValueError, "'kernel' must be one of linear, softmax, additive"),
    (lambda: ops.masked_additive_attention(FLAT, FLAT, X, None), TypeError, r"needs a 'mask' \(got None\)"),
    (lambda: ops.masked_additive_attention(X, X, X, ONES), ValueError, r"must be \[N, H\] and 'v' \[N, H, D\]"),
    (lambda: ops.masked_additive_attention(FLAT, FLAT[:, :1], X, ONES), ValueError, r"\(got \[4, 2\], \[4, 1\] and"),
    (lambda: ops.masked_additive_attention(FLAT, FLAT, X, ONES, dropout=-0.5), ValueError, NO_SHARE),
    (lambda: ops.masked_additive_attention(FLAT, FLAT, X, ONES, dropout=float("nan")), ValueError, NO_SHARE),
]


@pytest.mark.parametrize(("call", "error", "message"), SINGLE)
def test_what_single_functions_refuse(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("path", ["auto", "factored", "pairwise", "blocks", "dense"])
@pytest.mark.parametrize(
    "mask", [None, operators.SparseOperator(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), 1)]
)
def test_outputs_vanish_below_the_least_denominator(path, mask):
    for size, wanted in ((2.0**-111, 3.0), (2.0**-113, 0.0)):
        q, one = torch.full((1, 1, 1), size), torch.ones(1, 1, 1)
        assert ops.masked_linear_attention(q, one, 3 * one, mask, path=path).item() == wanted
