import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pyg_topomask.ops import topk_inner_product
from pyg_topomask.ops.topk import backends, cpp
from pyg_topomask.ops.topk.blockwise import best_keys
from pyg_topomask.ops.topk.search import topk_inner_product_reference

ALWAYS = ["auto", "dense", "torch"]
COMPILED = ["pruned", "cpp"]
SIZES = (20, 1, 0, 2, 130)  # graph 2 is empty


def usable(name, dtype=torch.float32):
    """Whether an engine can serve here at all: Triton through its interpreter, where there is no GPU."""
    problem = backends.Problem(torch.zeros(1, 1, 4, dtype=dtype), torch.zeros(1, 1, 4, dtype=dtype), [0, 1], [0, 1], 1)
    return name == "auto" or backends.ENGINES[name].refuses(problem) is None


@pytest.fixture(params=[*ALWAYS, *COMPILED, "triton"])
def backend(request):
    if not usable(request.param):
        pytest.skip(f"{request.param} cannot serve here")
    return request.param


def batch_of(sizes):
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


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


@pytest.mark.parametrize("integer", [False, True], ids=["tie-free", "ties"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_reference_on_ragged_batches(backend, dtype, integer):
    if not usable(backend, dtype):
        with pytest.raises(ValueError, match=f"cannot be used: .*float32.*{dtype}"):
            topk_inner_product(torch.ones(3, 2, dtype=dtype), torch.ones(3, 2, dtype=dtype), 1, backend=backend)
        return
    slow = backend == "triton"
    cases = [(1, 1, 5), (4, 5, 10), (1, 10, 16), (4, 64, 64), (1, 64, 5), (4, 1, 16)]
    for heads, topk, dim in cases[:: 3 if slow else 1]:
        batch = batch_of((20, 1, 0, 2, 40) if slow else SIZES)
        q, k = (data(batch.numel(), heads, dim, dtype, integer) for _ in range(2))
        check(q, k, topk, batch, batch, backend)


@pytest.mark.parametrize("integer", [False, True], ids=["tie-free", "ties"])
def test_other_queries_than_keys_and_graphs_that_lack_either(backend, integer):
    batch_q, batch_k = batch_of((3, 0, 7, 2, 0)), batch_of((5, 4, 0, 1))
    q, k = data(12, 2, 6, torch.float32, integer), data(10, 2, 6, torch.float32, integer)
    check(q, k, 4, batch_q, batch_k, backend)
    check(q, k, 4, backend=backend)


@pytest.mark.parametrize("name", ["cpp", "pruned", "torch"])
@pytest.mark.parametrize(("num", "dim", "topk"), [(1500, 10, 10), (2600, 3, 33), (1031, 17, 1)])
def test_larger_graphs_of_odd_sizes(name, num, dim, topk):
    if not usable(name):
        pytest.skip(f"{name} cannot serve here")
    centre = torch.randn(30, dim, dtype=torch.float64)
    k = centre[torch.randint(30, (num,))] + 0.3 * torch.randn(num, dim, dtype=torch.float64)
    q = torch.randn(777, dim, dtype=torch.float64)
    check(q, k, topk, backend=name)
    check(q.float(), k.float(), topk, backend=name)
    check((2 * q).round().float(), (2 * k).round().float(), topk, backend=name)


@pytest.mark.parametrize("name", [*COMPILED, "torch", "dense"])
def test_all_keys_equal_and_zero_queries(name):
    if not usable(name):
        pytest.skip(f"{name} cannot serve here")
    whole = torch.randint(-9, 9, (9, 4)).float()  # scores of integers tie exactly, in whatever order a product adds
    for q, k in ((torch.zeros(9, 4), torch.randn(300, 4)), (whole, torch.ones(300, 4))):
        assert torch.equal(topk_inner_product(q, k, 5, backend=name)[1], torch.arange(5).expand(9, 5))


def test_torch_search_across_blocks_of_keys(monkeypatch):
    monkeypatch.setattr("pyg_topomask.ops.topk.blockwise._KEYS", 700)
    monkeypatch.setattr("pyg_topomask.ops.topk.blockwise._QUERIES", 9)
    for integer in (False, True):
        q, k = data(20, 1, 3, integer=integer)[:, 0], data(2000, 1, 3, integer=integer)[:, 0]
        index = torch.full((20, 6), -1)
        best_keys(q, k, index)
        assert torch.equal(index, topk_inner_product_reference(q, k, 6)[1])


def test_engines_return_the_same_pairs_and_bits_in_float32():
    """The bits are equal because one product scores the kept pairs, whichever engine has found them."""
    batch = batch_of(SIZES)
    q, k = (data(batch.numel(), 2, 10, torch.float32) for _ in range(2))
    values, index = topk_inner_product(q, k, 7, batch)
    for name in filter(usable, [*ALWAYS, *COMPILED]):
        other, other_index = topk_inner_product(q, k, 7, batch, backend=name)
        assert torch.equal(other_index, index)
        assert torch.equal(other, values)


def test_a_graph_alone_gives_the_same_bits(backend):
    """As promised: each pair's score is one inner product of its own, whatever else is in the batch."""
    sizes = (20, 1, 0, 2, 70)
    q, k = (data(sum(sizes), 2, 10, torch.float32) for _ in range(2))
    values, index = topk_inner_product(q, k, 7, batch_of(sizes), backend=backend)
    loud = torch.where((batch_of(sizes) == 0)[:, None, None], 1.0, 1e6)
    other = topk_inner_product(q * loud, k * loud, 7, batch_of(sizes), backend=backend)
    assert torch.equal(other[0][:20], values[:20])
    assert torch.equal(other[1][:20], index[:20])
    alone = topk_inner_product(q[-70:], k[-70:], 7, backend=backend)
    assert torch.equal(alone[0], values[-70:])
    assert torch.equal(alone[1] + 23, index[-70:])


def test_keys_without_numbers_tie():
    values, index = topk_inner_product(torch.zeros(4, 0), torch.zeros(4, 0), 2)
    assert (values == 0).all()
    assert torch.equal(index, torch.tensor([0, 1]).expand(4, 2))


def test_shapes_and_empty_inputs(backend):
    for num_q, num_k in ((0, 0), (3, 0), (0, 3), (2, 1)):
        values, index = topk_inner_product(torch.randn(num_q, 4), torch.randn(num_k, 4), 2, backend=backend)
        assert values.shape == index.shape == (num_q, 2)
        assert index.dtype == torch.int64
        if num_q and num_k < 2:
            assert (index[:, num_k:] == -1).all()
            assert (values[:, num_k:] == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_scored_in_float32(dtype):
    q, k = (torch.randn(50, 2, 8).to(dtype) for _ in range(2))
    values, index = topk_inner_product(q, k, 5)
    wanted = topk_inner_product(q.float(), k.float(), 5)
    assert values.dtype == torch.float32
    assert torch.equal(values, wanted[0])
    assert torch.equal(index, wanted[1])


def test_gradients_go_through_the_kept_scores():
    batch = batch_of((4, 1, 3))
    q, k = (data(8, 2, 3).requires_grad_() for _ in range(2))

    def present(q, k):
        values = topk_inner_product(q, k, 2, batch)[0]
        return values[values > -torch.inf]

    assert torch.autograd.gradcheck(present, (q, k))
    weight = torch.randn(8, 2, 2, dtype=torch.float64)
    grads = []
    for function in (topk_inner_product, topk_inner_product_reference):
        values = function(q, k, 2, batch)[0]
        grads.append(torch.autograd.grad((values * weight)[values > -torch.inf].sum(), (q, k)))
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure memory")
def test_ties_everywhere_take_no_quadratic_memory():
    code = """
import torch, pathlib
from pyg_topomask.ops import topk_inner_product
from pyg_topomask.ops.topk import blockwise
blockwise._QUERIES, blockwise._KEYS = 16, 500
def kib(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))
torch.set_num_threads(1)
q, k = torch.ones(2000, 2), torch.ones(3000, 2)  # all scores: 23 MiB
topk_inner_product(q[:9], k[:99], 5, backend="torch")
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = kib("VmRSS")
assert (topk_inner_product(q, k, 5, backend="torch")[1] == torch.arange(5)).all()
print((kib("VmHWM") - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 10  # MiB


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
    ],
)
def test_bad_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        topk_inner_product(**{"q": torch.ones(4, 3), "k": torch.ones(4, 3), "topk": 2, **arguments})


def problem_of(num, topk=2, dtype=torch.float32):
    x = torch.randn(1, num, 3, dtype=dtype)
    return backends.Problem(x, x, [0, num], [0, num], topk)


def test_a_named_backend_that_cannot_serve_says_why(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(600, 3)
    with pytest.raises(ValueError, match=r"'dense' cannot be used: .*600 keys; the limit is 512; backend='auto'"):
        topk_inner_product(x, x, 2, backend="dense")
    with pytest.raises(ValueError, match=r"'triton' cannot be used: it runs on CUDA, and the queries are on cpu"):
        topk_inner_product(x, x, 2, backend="triton")
    if usable("cpp"):
        with pytest.raises(ValueError, match=r"keeps at most 256 keys \(got topk = 300\)"):
            topk_inner_product(x, x, 300, backend="cpp")


def test_auto_takes_the_first_engine_that_can_and_pays():
    reasons = backends.explain(problem_of(600))
    assert "largest graph has 600" in reasons["pruned"]
    assert reasons["torch"] is None
    reasons = backends.explain(problem_of(20_000))
    assert reasons["pruned"] is None or not usable("pruned")
    assert backends.explain(problem_of(600, topk=500))["torch"] is None


@pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")
def test_the_tree_is_left_unused_where_it_skips_little():
    q, k = torch.randn(1, 3000, 48), torch.randn(1, 3000, 48)
    flat, share = cpp.search(q, k, [0, 3000], [0, 3000], 5, None, 1.0)
    assert share == 1
    forced, share = cpp.search(q, k, [0, 3000], [0, 3000], 5, 0, 1.0)
    assert share > 0.9
    again, sampled = cpp.search(q, k, [0, 3000], [0, 3000], 5, 0, 0.6)
    assert sampled > 0.6
    assert torch.equal(forced, flat)
    assert torch.equal(again, flat)
    k = torch.randn(30, 4)[torch.randint(30, (1, 3000))] + 0.05 * torch.randn(1, 3000, 4)  # clusters
    q = k.clone()
    flat, _ = cpp.search(q, k, [0, 3000], [0, 3000], 5, None, 1.0)
    pruned, share = cpp.search(q, k, [0, 3000], [0, 3000], 5, 0, 0.6)
    assert share < 0.3
    assert torch.equal(pruned, flat)


@pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold_where_rounding_decides(dtype):
    """Far from the origin, keys of one leaf differ by less than their scores' rounding, and so do scores and bounds.

    Both engines add the products of a pair in one order, so that even these scores are equal bit for bit.
    """
    spread = 4 * torch.finfo(dtype).eps
    for dim in (3, 10, 40):
        q, k = torch.randn(1, 300, dim, dtype=dtype), torch.full((1, 3000, dim), 100, dtype=dtype)
        k[..., :2] *= 1 + spread * torch.randn(1, 3000, 2, dtype=dtype)
        flat, pruned = (cpp.search(q, k, [0, 300], [0, 3000], 5, start, 1.0)[0] for start in (None, 0))
        assert torch.equal(pruned, flat)


@pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_starts_from_scores_of_keys_that_exist(dtype):
    """The last vector of keys is padded with zeros, whose scores would exceed all others here."""
    q = -torch.rand(1, 40, 5, dtype=dtype)
    for num in (1, 5, 16, 17, 63, 270, 1100):
        k = torch.rand(1, num, 5, dtype=dtype)
        for topk in (1, 3, 16, 33, 256):
            flat, pruned = (cpp.search(q, k, [0, 40], [0, num], topk, start, 1.0)[0] for start in (None, 0))
            assert torch.equal(pruned, flat)


@pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tree_finds_the_same_keys_for_any_width_and_data(dtype):
    num = 1300
    rare = torch.randn(1, num, 7, dtype=dtype) * (torch.rand(1, num, 1, dtype=dtype) + 0.01) ** 8  # a few long keys
    line = torch.linspace(-1, 1, num, dtype=dtype)[:, None] * torch.ones(1, 1, 2, dtype=dtype)
    twins = torch.randn(1, 13, 4, dtype=dtype).repeat_interleave(100, dim=1)
    cases = [rare, line, twins, *(torch.randn(1, num, dim, dtype=dtype) for dim in (1, 16, 33))]
    for k in cases:
        q = torch.randn(1, 90, k.size(-1), dtype=dtype)
        q[:, :3] = 0
        for topk in (1, 10, 60):
            flat, pruned = (cpp.search(q, k, [0, 90], [0, num], topk, start, 1.0)[0] for start in (None, 0))
            assert torch.equal(pruned, flat)


@pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")
def test_few_leaves_are_visited():
    k = torch.randn(1, 8000, 10)
    assert cpp.search(k, k, [0, 8000], [0, 8000], 10, 0, 1.0)[1] < 0.4
    k = torch.randn(60, 10)[torch.randint(60, (1, 8000))] + 0.2 * torch.randn(1, 8000, 10)
    assert cpp.search(k, k, [0, 8000], [0, 8000], 10, 0, 1.0)[1] < 0.08


@pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")
def test_threads_change_nothing():
    q, k = torch.randn(1, 2500, 4), torch.randn(1, 2500, 4)
    threads = torch.get_num_threads()
    try:
        found = []
        for num in (1, 3):
            torch.set_num_threads(num)
            found += [cpp.search(q, k, [0, 2500], [0, 2500], 9, prune, 1.0)[0] for prune in (0, None)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(other, found[0]) for other in found)


def test_without_compiled_code(monkeypatch):
    monkeypatch.setenv("TOPOMASK_NATIVE", "0")
    problem = problem_of(600)
    assert backends.explain(problem)["cpp"] == "TOPOMASK_NATIVE=0 switches compiled code off"
    q = problem.q[0]
    assert torch.equal(topk_inner_product(q, q, 3)[1], topk_inner_product(q, q, 3, backend="torch")[1])
    with pytest.raises(ValueError, match="'pruned' cannot be used: TOPOMASK_NATIVE=0"):
        topk_inner_product(q, q, 3, backend="pruned")


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
def test_vector_widths_agree(monkeypatch, capability):
    if not usable("cpp") or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("needs a C++ compiler and AVX2")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    batch = batch_of((150, 250))
    for dtype in (torch.float64, torch.float32):
        for integer in (False, True):
            q, k = (data(400, 2, 7, dtype, integer) for _ in range(2))
            check(q, k, 6, batch, backend="cpp")
            check(q, k, 6, batch, backend="pruned")


@pytest.mark.parametrize("scale", [1e-24, 1e20])
def test_numbers_that_a_tree_cannot_square(scale):
    torch.manual_seed(0)
    q, k = torch.randn(12_000, 4), torch.randn(12_000, 4) * scale
    q[:100] = 0
    got = topk_inner_product(q, k, 3)[1]
    assert torch.equal(got, topk_inner_product(q, k, 3, backend="cpp" if usable("cpp") else "torch")[1])
    assert bool((got >= 0).all())
    if usable("cpp"):
        with pytest.raises(ValueError, match="square numbers"):
            topk_inner_product(q, k, 3, backend="pruned")


@pytest.mark.skipif(not usable("cpp"), reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("num_keys", "dim", "topk"), [(300, 8, 200), (1100, 16, 150), (8200, 16, 50)])
def test_leaves_that_fill_up_a_vector_are_not_visited(num_keys, dim, topk, dtype):
    """No floor is known at first, since promising leaves hold too few keys; what fills up has no keys in memory."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 60, dim, generator=generator, dtype=dtype)
    centers = torch.randn(30, dim, generator=generator, dtype=dtype)
    keys = centers[torch.randint(30, (1, num_keys), generator=generator)]
    keys += 0.1 * torch.randn(keys.shape, generator=generator, dtype=dtype)
    found, share = cpp.search(q, keys, [0, 60], [0, num_keys], topk, 0, 2.0)
    assert share <= 1
    assert torch.equal(found, cpp.search(q, keys, [0, 60], [0, num_keys], topk, None, 1.0)[0])


def test_sums_of_squares_that_overflow_are_left_to_another_backend():
    keys = torch.where(torch.rand(300, 400) < 0.5, -1e18, 1e18)
    with pytest.raises(ValueError, match="its bounds square numbers"):
        topk_inner_product(torch.rand(3, 400), keys, 4, backend="pruned")
