import pytest
import torch

from pyg_topomask.ops import topk_inner_product
from pyg_topomask.ops.topk import backends, blockwise, cpp, triton
from pyg_topomask.ops.topk.search import topk_inner_product_reference
from tests.ops.compare import batch_of
from tests.threads import assert_threads_change_nothing

SIZES = (20, 1, 0, 2, 70)  # graph 2 is empty
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def usable(name, dtype=torch.float32):
    """Whether an engine can serve here at all: Triton through its interpreter, where there is no GPU."""
    x = torch.zeros(1, 1, 4, dtype=dtype)
    return name == "auto" or backends.ENGINES[name].refuses(backends.Problem(x, x, [0, 1], [0, 1], 1)) is None


needs_compiler = pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")


@pytest.fixture(params=backends.BACKENDS)
def backend(request):
    if not usable(request.param):
        pytest.skip(f"{request.param} cannot serve here")
    return request.param


def data(num, heads, dim, dtype=torch.float64, integer=False):
    x = torch.randn(num, heads, dim, dtype=torch.float64)
    return (1.5 * x).round().to(dtype) if integer else x.to(dtype)


def check(q, k, topk, batch_q=None, batch_k=None, backend="auto"):
    """Compare with the float64 reference: pairs exactly where scores are, else pairs of equally good scores."""
    values, index = topk_inner_product(q, k, topk, batch_q, batch_k, backend)
    wanted, wanted_index = topk_inner_product_reference(q.double(), k.double(), topk, batch_q, batch_k)
    exact = q.dtype == torch.float64 or torch.equal(q, q.round())
    tol = {"rtol": 1e-12, "atol": 1e-12} if exact else {"rtol": 1e-5, "atol": 2e-5}
    torch.testing.assert_close(values.double(), wanted, **tol)
    if exact:
        assert torch.equal(index, wanted_index)
    assert torch.equal(index >= 0, wanted_index >= 0)
    assert (values[..., :-1] >= values[..., 1:]).all()
    ties = (values[..., :-1] == values[..., 1:]) & (index[..., 1:] >= 0)
    assert (index[..., :-1] < index[..., 1:])[ties].all()


@pytest.mark.parametrize("integer", [False, True], ids=["tie-free", "ties"])
@each_dtype
def test_equals_the_reference_on_ragged_batches(backend, dtype, integer):
    if not usable(backend, dtype):
        with pytest.raises(ValueError, match=f"cannot be used: .*float32.*{dtype}"):
            topk_inner_product(torch.ones(3, 2, dtype=dtype), torch.ones(3, 2, dtype=dtype), 1, backend=backend)
        return
    slow = backend == "triton"  # each program of its interpreter takes milliseconds
    batch = batch_of((20, 1, 0, 2, 17) if slow else SIZES)
    for heads, topk, dim in [(2, 5, 10)] if slow else [(1, 1, 5), (4, 5, 10), (1, 10, 16), (4, 64, 64)]:
        check(*(data(batch.numel(), heads, dim, dtype, integer) for _ in range(2)), topk, batch, batch, backend)
    batches = batch_of((3, 0, 7, 2, 0)), batch_of((5, 4, 0, 1))  # other queries than keys; graphs that lack either
    q, k = (data(batch.numel(), 2, 6, dtype, integer) for batch in batches)
    check(q, k, 4, *batches, backend)
    check(q, k, 4, backend=backend)


@pytest.mark.parametrize("name", ["cpp", "torch"])
@pytest.mark.parametrize(("num", "dim", "topk"), [(1500, 10, 10), (2600, 3, 33), (1031, 17, 1)])
def test_larger_graphs_of_odd_sizes(name, num, dim, topk, monkeypatch):
    if not usable(name):
        pytest.skip(f"{name} cannot serve here")
    monkeypatch.setattr(blockwise, "_KEYS", 700)  # several blocks of keys, the last one short
    centre = torch.randn(30, dim, dtype=torch.float64)
    k = centre[torch.randint(30, (num,))] + 0.3 * torch.randn(num, dim, dtype=torch.float64)
    q = torch.randn(300, dim, dtype=torch.float64)
    for factor, dtype in ((1, torch.float64), (1, torch.float32), (2, torch.float32)):
        given = ((factor * x).round() if factor > 1 else x for x in (q, k))
        check(*(x.to(dtype) for x in given), topk, backend=name)


@pytest.mark.parametrize("integer", [False, True], ids=["tie-free", "ties"])
def test_small_graphs_are_searched_together(integer, monkeypatch):
    """In several parts of similar sizes, also with other queries than keys; a larger graph is searched alone."""
    monkeypatch.setattr(blockwise, "_AT_ONCE", 900)
    batches = batch_of((20, 3, 0, 31, 70, 2, 5, 30, 1)), batch_of((9, 8, 4, 32, 40, 1, 0, 30, 2))
    q, k = (data(batch.numel(), 2, 6, integer=integer) for batch in batches)
    for topk in (1, 4, 35):
        check(q, k, topk, *batches, "torch")
        check(q, q, topk, batches[0], batches[0], "torch")


def test_all_keys_equal_and_zero_queries(backend):
    whole = torch.randint(-9, 9, (9, 4)).float()  # scores of integers tie exactly, in whatever order a product adds
    for q, k in ((torch.zeros(9, 4), torch.randn(300, 4)), (whole, torch.ones(300, 4))):
        assert torch.equal(topk_inner_product(q, k, 5, backend=backend)[1], torch.arange(5).expand(9, 5))


def test_triton_skips_no_key_that_ties(monkeypatch):
    """Over many tiles of keys, with equal scores and zeros of both signs, and with other graphs beside it."""
    if not usable("triton"):
        pytest.skip("Triton cannot serve here")
    monkeypatch.setattr(triton, "_KEYS", 16)
    batch = batch_of((90, 2, 40))
    q, k = (
        torch.randint(-2, 3, (132, 3)).float() * torch.tensor([1.0, -0.0])[torch.randint(2, (132, 3))] for _ in "qk"
    )
    for topk in (1, 3, 10):
        wanted = topk_inner_product_reference(q, k, topk, batch, batch)
        found = topk_inner_product(q, k, topk, batch, backend="triton")
        assert torch.equal(found[1], wanted[1])
        assert torch.equal(found[0], wanted[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has TF32 of its own")
def test_tf32_hides_no_key(monkeypatch):
    """The least precise TF32 that there may be: numbers lose 13 bits, and those below 2^-126 become zero."""
    if not usable("triton"):
        pytest.skip("triton cannot serve here")
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    dot = interpreter.InterpreterBuilder.create_dot

    def rounded(self, a, b, d, precision, imprecise):
        if "TF32" not in str(precision):
            return dot(self, a, b, d, precision, imprecise)
        a, b = (interpreter.TensorHandle((x.data.view("i4") & -8192).view("f4"), x.dtype) for x in (a, b))
        a.data[abs(a.data) < 2.0**-126] = b.data[abs(b.data) < 2.0**-126] = 0
        found = dot(self, a, b, d, precision, imprecise)
        found.data[abs(found.data) < 2.0**-126] = 0
        return found

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", rounded)
    monkeypatch.setattr(triton, "_KEYS", 16)
    better = 2.0**-12 * torch.arange(80).div(16, rounding_mode="floor") * (torch.arange(80) % 16 == 5)  # in each tile
    for scale, other in ((1.0, 1.0), (2.0**-130, 2.0**100), (2.0**100, 2.0**-130), (2.0**-66, 2.0**-66)):
        q, k = scale * torch.ones(1, 3, 5), other * (1 + better)[None, :, None] * torch.ones(1, 80, 5)
        found = triton.search(backends.Problem(q, k, [0, 3], [0, 80], 2))
        assert found.tolist() == [[[69, 53]] * 3], (scale, other)


def test_a_graph_alone_gives_the_same_bits_as_any_engine(backend):
    """As promised: each pair's score is one inner product of its own, whatever else is in the batch."""
    batch = batch_of(SIZES)
    q, k = (data(batch.numel(), 2, 10, torch.float32) for _ in range(2))
    values, index = topk_inner_product(q, k, 7, batch)
    loud = torch.where((batch == 0)[:, None, None], 1.0, 1e6)
    other = topk_inner_product(q * loud, k * loud, 7, batch, backend=backend)
    alone = topk_inner_product(q[-70:], k[-70:], 7, backend=backend)
    for part, found, offset in ((slice(0, 20), (other[0][:20], other[1][:20]), 0), (slice(-70, None), alone, 23)):
        assert torch.equal(found[0], values[part])
        assert torch.equal(found[1] + offset, index[part])


def test_shapes_and_empty_inputs(backend):
    for num_q, num_k in ((0, 0), (3, 0), (0, 3), (2, 1)):
        values, index = topk_inner_product(torch.randn(num_q, 4), torch.randn(num_k, 4), 2, backend=backend)
        assert values.shape == index.shape == (num_q, 2)
        assert index.dtype == torch.int64
        assert (index[:, num_k:] == -1).all()
        assert (values[:, num_k:] == -torch.inf).all()
    values, index = topk_inner_product(torch.zeros(4, 0), torch.zeros(4, 0), 2)  # keys without numbers tie
    assert (values == 0).all()
    assert torch.equal(index, torch.tensor([0, 1]).expand(4, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_scored_in_float32(dtype):
    q, k = (torch.randn(50, 2, 8).to(dtype) for _ in range(2))
    found, wanted = topk_inner_product(q, k, 5), topk_inner_product(q.float(), k.float(), 5)
    assert found[0].dtype == torch.float32
    assert all(map(torch.equal, found, wanted))


def test_gradients_go_through_the_kept_scores():
    batch = batch_of((4, 1, 3))
    q, k = (data(8, 2, 3).requires_grad_() for _ in range(2))
    weight = torch.randn(8, 2, 2, dtype=torch.float64)

    def present(q, k, search=topk_inner_product):
        values = search(q, k, 2, batch)[0]
        return (values * weight)[values > -torch.inf]

    assert torch.autograd.gradcheck(present, (q, k))
    searches = topk_inner_product, topk_inner_product_reference
    torch.testing.assert_close(*(torch.autograd.grad(present(q, k, s).sum(), (q, k)) for s in searches))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"topk": 0}, ValueError, r"'topk' must be at least 1 \(got 0\)"),
        ({"topk": 2.0}, TypeError, r"got 2.0"),
        ({"k": torch.ones(4, 2)}, ValueError, r"\[4, 1, 2\]"),
        ({"k": torch.ones(4, 3).double()}, TypeError, "floating point, of one dtype"),
        ({"q": torch.tensor([[0.0, 1, 2], [0, torch.nan, 0]])}, ValueError, "'q' holds NaN.*, first in row 1"),
        ({"k": torch.tensor([[0.0, 1, torch.inf]])}, ValueError, "'k' holds NaN.*, first in row 0"),
        ({"q": torch.full((4, 3), 1e20), "k": torch.full((4, 3), 1e20)}, ValueError, "overflow torch.float32"),
        ({"batch_q": torch.tensor([0, 1, 0, 1])}, ValueError, "must be sorted"),
        ({"batch_k": torch.tensor([0, 0, 1, 1])}, ValueError, "'batch_q' is missing"),
        ({"batch_q": torch.zeros(4).long(), "k": torch.ones(5, 3)}, ValueError, "'batch_k' is missing"),
        ({"backend": "fast"}, ValueError, r"one of auto, .*torch \(got 'fast'\)"),
        ({"backend": "triton"}, ValueError, "'triton' cannot be used: it runs on CUDA, and the queries are on cpu"),
        pytest.param(
            {"k": torch.ones(600, 3), "topk": 300, "backend": "cpp"},
            ValueError,
            r"keeps at most 256 keys \(got topk = 300\)",
            marks=needs_compiler,
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, error, message, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(error, match=message):
        topk_inner_product(**{"q": torch.ones(4, 3), "k": torch.ones(4, 3), "topk": 2, **arguments})


def test_auto_takes_another_engine_without_a_compiler(monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    q = torch.randn(600, 3)
    with pytest.raises(ValueError, match="TOPOMASK_NATIVE=0 switches compiled code off"):
        topk_inner_product(q, q, 3, backend="cpp")
    assert torch.equal(topk_inner_product(q, q, 3)[1], topk_inner_product(q, q, 3, backend="torch")[1])


def found_by_a_tree(q, k, topk, max_visit=1.0):
    """The share of the keys that a tree scores; it finds the keys that the search without a tree finds."""
    ends = [0, q.size(0)], [0, k.size(0)]
    flat, everything = cpp.search(q[None], k[None], *ends, topk, None, 1.0)
    pruned, share = cpp.search(q[None], k[None], *ends, topk, 0, max_visit)
    assert torch.equal(pruned, flat)
    assert everything == 1
    return share


def clusters(num, dim, count=30, spread=0.1, dtype=torch.float32):
    centre = torch.randn(count, dim, dtype=dtype)
    return centre[torch.randint(count, (num,))] + spread * torch.randn(num, dim, dtype=dtype)


def far_from_the_origin(dim, dtype):
    """Keys of one leaf differ by less than their scores' rounding, and so do scores and bounds."""
    k = torch.full((3000, dim), 100, dtype=dtype)
    k[:, :2] *= 1 + 4 * torch.finfo(dtype).eps * torch.randn(3000, 2, dtype=dtype)
    return k


KEYS = {
    "few long keys": lambda d: torch.randn(1300, 7, dtype=d) * (torch.rand(1300, 1, dtype=d) + 0.01) ** 8,
    "line": lambda d: torch.linspace(-1, 1, 1300, dtype=d)[:, None] * torch.ones(1, 2, dtype=d),
    "twins": lambda d: torch.randn(13, 4, dtype=d).repeat_interleave(100, dim=0),
    **{f"width {n}": lambda d, n=n: torch.randn(1300, n, dtype=d) for n in (1, 16, 33)},
    **{f"far, width {n}": lambda d, n=n: far_from_the_origin(n, d) for n in (3, 10, 40)},
    **{f"clusters of {n}": lambda d, n=n: clusters(n, 16, dtype=d) for n in (300, 1100, 8200)},
    "tiny": lambda d: clusters(3000, 4, dtype=d) * 1e-30,
    "huge": lambda d: clusters(3000, 4, dtype=d) * 1e20,
}


@needs_compiler
@each_dtype
@pytest.mark.parametrize("name", KEYS)
def test_the_tree_finds_the_same_keys_for_any_width_and_data(name, dtype):
    """Scores are equal bit for bit, since both engines add the products of a pair in one order."""
    k = KEYS[name](dtype)
    q = torch.randn(60, k.size(1), dtype=dtype)
    q[:3] = 0
    for topk in (1, 10, 50, 200):
        assert found_by_a_tree(q, k, topk) <= 1
    found_by_a_tree(q * 1e-24, k, 10)


@needs_compiler
@each_dtype
def test_a_query_starts_from_scores_of_keys_that_exist(dtype):
    """The last vector of keys is padded with zeros, whose scores would exceed all others here."""
    q = -torch.rand(40, 5, dtype=dtype)
    for num in (1, 5, 16, 17, 63, 270, 1100):
        for topk in (1, 3, 33, 256):
            found_by_a_tree(q, torch.rand(num, 5, dtype=dtype), topk)


@needs_compiler
def test_a_tree_skips_most_keys_and_is_left_unused_where_it_skips_few():
    q, k = torch.randn(3000, 48), torch.randn(3000, 48)
    assert found_by_a_tree(q, k, 5) > 0.9
    assert found_by_a_tree(q, k, 5, max_visit=0.6) > 0.6
    for most, k in ((0.4, torch.randn(8000, 10)), (0.08, clusters(8000, 10, 60, 0.2)), (0.3, clusters(3000, 4))):
        assert found_by_a_tree(k, k, 10, max_visit=0.6) < most


@needs_compiler
def test_threads_change_nothing():
    x, ends = torch.randn(1, 2500, 4), [0, 2500]
    for prune in (0, None):
        assert_threads_change_nothing(lambda prune=prune: cpp.search(x, x.flip(1), ends, ends, 9, prune, 1.0)[:1])


@needs_compiler
@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
def test_vector_widths_agree(monkeypatch, capability):
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("needs AVX2")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for dtype in (torch.float64, torch.float32):
        for integer in (False, True):
            q, k = (data(400, 2, 7, dtype, integer) for _ in range(2))
            check(q, k, 6, batch_of((150, 250)), backend="cpp")
