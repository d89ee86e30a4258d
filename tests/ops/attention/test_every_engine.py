"""What every engine of masked attention must do, on the same problems: see `cases`."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks

from pyg_topomask.limits import limits
from pyg_topomask.operators import CausalOperator, DenseOperator, MaskOperator, SparseFactorOperator, SparseOperator
from pyg_topomask.ops.attention import full_softmax
from pyg_topomask.ops.attention.choice import ENGINES
from pyg_topomask.ops.attention.engines import pairs
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.testing.checks import check_backward_in_autocast, check_forward_mode, check_reverse_mode
from pyg_topomask.typing import PerformanceWarning
from tests.ops.attention.cases import (
    KERNELS,
    MASKS,
    RAGGED,
    UNSIGNED,
    draw,
    features,
    needs_compiler,
    problem_of,
    reference,
    remade,
    serving,
    small_masks,
)
from tests.ops.compare import assert_bits, assert_dropout_keeps_the_mean, with_gradients
from tests.threads import assert_repeats, assert_threads_change_nothing

SMALL = small_masks()
NO_MASK = ("linear", "linear_signed", "features_signed", "both_signed", "softmax")
pytestmark = needs_compiler


def of_every_kernel(masks, kernels=KERNELS):
    cases = [(mask, kernel) for mask in masks for kernel in kernels if mask != "none" or kernel in NO_MASK]
    return pytest.mark.parametrize(("mask", "kernel"), cases, ids=["-".join(case) for case in cases])


def assert_near(found, wanted, tolerance, engine):
    """The largest difference of each tensor is small beside its largest number, or beside 1."""
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        size = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(
            a.to(b), b, rtol=0, atol=tolerance * size, msg=lambda text, n=number: f"{engine}, tensor {n}: {text}"
        )


@of_every_kernel(MASKS)
def test_equals_the_definition(mask, kernel):
    """In values and all gradients."""
    problem, inputs = problem_of(KERNELS[kernel], MASKS[mask])
    wanted = with_gradients(reference(problem), inputs)
    for name, attend in serving(problem).items():
        assert_near(with_gradients(attend(problem), inputs), wanted, 1e-9, name)
    if kernel in UNSIGNED:
        problem, inputs = problem_of(KERNELS[kernel], MASKS[mask], torch.float32)
        for name, attend in serving(problem).items():
            assert_near(with_gradients(attend(problem), inputs), wanted, 1e-5, name)


def test_all_engines_are_checked():
    """Triton's has its own file, and `parts` serves only masks with hubs."""
    problems = [problem_of(KERNELS[kernel], mask)[0] for kernel in NO_MASK for mask in MASKS.values()]
    found = set().union(*(serving(problem) for problem in problems))
    assert found == {*ENGINES, "parts of pairs_cpp", "parts of pairs"} - {"parts", "pairs_triton", "blocks_triton"}


@of_every_kernel(SMALL)
def test_first_and_second_derivatives(mask, kernel):
    """Also with dropout on pairs, if the seed is the same: in blocks, torch's draws depend on the order in memory that
    is another one without gradients."""
    problem, inputs = problem_of(KERNELS[kernel], SMALL[mask], width=2, channels=2)
    for name, attend in serving(problem).items():
        dropout = 0.4 if problem.kernel.name == "additive" and "pairs" in name else 0.0

        def run(*inputs, attend=attend, dropout=dropout):
            torch.manual_seed(0)
            return attend(remade(KERNELS[kernel]._replace(dropout=dropout), SMALL[mask], *inputs))

        assert gradcheck(run, inputs, fast_mode=True), name
        assert gradgradcheck(run, inputs, fast_mode=True), name


def test_second_derivatives_of_torchs_fused_softmax_are_refused(monkeypatch):
    """It serves graphs that compiled code leaves to it."""
    monkeypatch.setattr(full_softmax, "_MOST_COMPILED", 0)
    problem, inputs = problem_of(KERNELS["softmax"], SMALL["none"], width=2, channels=2)
    grads = torch.autograd.grad(ENGINES["sdpa"].attend(problem).sin().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match=r"derivative for .*scaled_dot_product.* is not implemented"):
        torch.autograd.grad(grads[0].sum(), inputs)


@pytest.mark.parametrize("spoil", [1e6, torch.nan])
@of_every_kernel(["none", "sparse_heads", "factored", "grf_signed", "heat", "low_rank", "tensor", "toeplitz"], UNSIGNED)
def test_graphs_in_a_batch_do_not_mix(mask, kernel, spoil):
    """Bit for bit. Products with whole matrices are 0 times NaN for NaN in another graph."""
    problem, inputs = problem_of(KERNELS[kernel], MASKS[mask])
    last = problem.batch == problem.batch.max()
    spoilt = [torch.where(last[:, None, None], x * spoil, x).detach().requires_grad_() for x in inputs[:3]]
    other = remade(KERNELS[kernel], MASKS[mask], *spoilt, *inputs[3:])
    for name, attend in serving(problem).items():
        if spoil == spoil or not (name == "dense" or (name == "factored" and mask in ("tensor", "low_rank"))):
            found = []
            for each, given in ((problem, inputs[:3]), (other, spoilt)):
                out = attend(each)
                grads = torch.autograd.grad(out[~last].square().sum(), given, retain_graph=True)
                assert all((grad[last] == 0).all() for grad in grads if spoil == spoil)
                found.append([x[~last] for x in (out, *grads)])
            assert_bits(*found, name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_graph_is_the_same_in_every_batch(kernel):
    """No bit differs in compiled code. In plain torch, a padded product may add its terms in another order."""
    problem, inputs = problem_of(KERNELS[kernel], MASKS["causal"], torch.float32)
    for name in ("blocks_cpp", "blocks"):
        if ENGINES[name].refuses(problem) is not None:
            continue
        for graph in RAGGED.unique():
            own = graph == RAGGED
            alone = [x[own].detach().requires_grad_() for x in inputs]
            other = KERNELS[kernel].of(*alone, CausalOperator(torch.zeros_like(RAGGED[own])))
            found = [ENGINES[name].attend(each) for each in (problem, other)]
            found[0] = found[0][own]
            grads = (
                torch.autograd.grad(found[0].square().sum(), inputs),
                torch.autograd.grad(found[1].square().sum(), alone),
            )
            pair = [found[0], *(x[own] for x in grads[0])], [found[1], *grads[1]]
            assert_bits(*pair, name) if name == "blocks_cpp" else assert_near(*pair, 1e-6, name)


@of_every_kernel(["sparse", "grf", "toeplitz", "none"], UNSIGNED)
def test_a_number_that_is_nan_is_not_hidden(mask, kernel):
    problem, inputs = problem_of(KERNELS[kernel], MASKS[mask])
    for place, node in ((0, 2), (1, 3), (2, 3)):  # of the first graph
        spoilt = [x.detach().clone() for x in inputs]
        spoilt[place][node] = torch.nan
        other = remade(KERNELS[kernel], MASKS[mask], *spoilt)
        for name, attend in serving(problem).items():
            assert attend(other)[2].isnan().all(), name  # node 2 reads itself or node 3


@of_every_kernel(MASKS, UNSIGNED)
def test_no_output_exceeds_the_largest_value_of_its_graph(mask, kernel):
    """Features that are equal, and features of one node alone, under masks with signs, in float32."""
    problem, _ = problem_of(KERNELS[kernel], MASKS[mask], torch.float32)
    batch, own = problem.batch, torch.eye(len(problem.batch))[:, None].expand(-1, 2, -1)
    largest = torch.stack([problem.v[batch == graph].detach().abs().amax(0) for graph in batch])
    for q in (torch.ones_like(problem.q), problem.q, own if problem.kernel.name == "linear" else problem.q):
        other = replace(problem, q=q, k=q)
        for name, attend in serving(other).items():
            assert (attend(other).abs() <= (1 + 1e-5) * largest).all(), name


def sparse_mask(matrix):
    """An operator on the entries of a matrix that are not zero, with all paths."""
    index = matrix.detach().nonzero().t()
    return SparseFactorOperator((index, matrix[index[0], index[1]]), None, matrix.size(0))


def vanishing():
    """Queries, keys, a matrix, and the rows that must be zero, by name."""
    q, k, matrix = draw(5, 2, 3, positive=True), draw(5, 2, 3, positive=True), draw(5, 5, positive=True)
    zero, rounding, hollow, equal = q.clone(), matrix.clone(), matrix.clone(), k.clone()
    zero[2] = hollow[4] = rounding[1] = 0
    rounding[1, 2:] = torch.tensor([0.1, 0.2, -0.3]).double()  # they sum to 7e-9, or in float64 to 5.6e-17
    rounding[1, 4] = -(rounding[1, 2] + rounding[1, 3])
    equal[2:] = equal[2]
    return {
        "zero_query": (zero, k, matrix, [2]),
        "zero_keys": (q, torch.zeros_like(k), matrix, [0, 1, 2, 3, 4]),
        "empty_row": (q, k, hollow, [4]),
        "cancelling": (q, equal, rounding, [1]),
        "tiny_row": (q, k, torch.where(torch.arange(5)[:, None] == 3, 1e-306, matrix), [3]),
    }


@pytest.mark.parametrize("kernel", ["linear", "linear_signed", "softmax", "additive"])
@pytest.mark.parametrize("case", ["zero_query", "zero_keys", "empty_row", "cancelling", "tiny_row"])
def test_rows_whose_denominator_vanishes_are_zero(case, kernel):
    """Set to zero, not computed: they have no gradient, and others are the definition."""
    q, k, matrix, rows = vanishing()[case]
    asked = KERNELS[kernel]
    if (asked.kernel.name != "linear" and case.startswith("zero")) or (case == "cancelling" and not asked.signed):
        rows = []
    inputs = [x.clone().requires_grad_() for x in (q, k, draw(5, 2, 2), matrix)]
    problems = [asked.of(*inputs[:3], sparse_mask(inputs[3]))]
    problems += [asked.of(*inputs[:3])] * (asked.kernel.name == "linear" and case.startswith("zero"))
    others = [i for i in range(5) if i not in rows]
    for name, attend, each in ((*engine, problem) for problem in problems for engine in serving(problem).items()):
        out = attend(each)
        assert (out[rows] == 0).all(), name
        assert (out[others] != 0).all(), name
        assert all(grad.isfinite().all() for grad in with_gradients(out, inputs)), name
        assert all((grad == 0).all() for grad in with_gradients(out[rows], inputs)), name
        if case != "tiny_row":
            torch.testing.assert_close(out[others], reference(each)[others], rtol=1e-9, atol=1e-12)


def test_a_mask_of_float32_numbers_cancels_up_to_their_precision_in_float64():
    value = torch.tensor([0.1, 0.2, -0.3, 1, 1])
    mask = SparseOperator(torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 1, 2]]), value, 3)
    q, v = torch.ones(3, 1, 2).double(), draw(3, 1, 2)
    problem = KERNELS["linear_signed"].of(q, q, v, mask)
    for name, attend in serving(problem).items():
        out = attend(problem)
        assert (out[0] == 0).all(), name
        torch.testing.assert_close(out[1:], v[1:])


def test_what_counts_as_zero_depends_on_the_graph_and_not_on_its_batch():
    """Terms of three nodes that cancel up to 2e-6 are more than rounding, also beside a graph of 300 nodes."""
    batch = torch.tensor([0] * 3 + [1] * 300)
    matrix = torch.eye(303)
    matrix[0, :3] = torch.tensor([0.5, 0.5, -1 + 4e-6])
    q, v = torch.ones(303, 1, 2), torch.randn(303, 1, 2)
    problem = KERNELS["linear_signed"].of(q, q, v, sparse_mask(matrix), batch)
    for name, attend in serving(problem).items():
        out = attend(problem)
        assert (out[0] != 0).all(), name
        torch.testing.assert_close(out[1:], v[1:])


class Rough(MaskOperator):
    """A positive mask whose products are off by its error, as those by a transform are."""

    T = bound = property(lambda self: self)
    error = property(lambda self: self.off)

    def __init__(self, matrix, error):
        self.matrix, self.num_nodes, self.dtype, self.off = matrix, matrix.size(0), matrix.dtype, error

    def _matmul(self, x):
        noise = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)).clamp(-0.3, 0.3)
        return self.matrix @ x + self.off * x.norm(dim=0) * noise


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
@pytest.mark.parametrize("per_row", [False, True])
def test_denominators_within_the_error_of_products_vanish(kernel, per_row):
    matrix, error = torch.rand(30, 30).double(), 1e-3
    matrix[:10] *= 1e-9  # rows of noise alone
    mask = Rough(matrix, torch.full((30, 1), error) if per_row else error)
    q, k, _ = features(Kernel("linear"), 30)
    v = 1 + 1e-6 * draw(30, 2, 3, positive=True)  # nearly equal, so that noise alone takes means beyond them
    problem = KERNELS[kernel].of(q, k, v, mask)
    for name, attend in serving(problem).items():
        out = attend(problem)
        assert (out.abs() <= v.abs().amax(0)).all(), name
        assert (out[:10] == 0).all(), name
        assert ((out - reference(replace(problem, mask=DenseOperator(matrix))))[10:].abs() <= 0.02).all(), name


EDGES_OF_RANGE = [
    (1e4, 1, 1, 1),
    (1e-4, 1, 1, 1),
    (1, 1e4, 1e4, 1),
    (1, 1, 1, 1e6),
    (1, 1, 1, 1e-6),
    (1e4, 1e4, 1e4, 1e6),
]


@pytest.mark.parametrize("scales", EDGES_OF_RANGE)
@of_every_kernel(["grf_signed", "sparse", "tensor", "none"], UNSIGNED)
def test_the_largest_and_smallest_numbers_that_are_supported(mask, kernel, scales):
    """Features, values and weights in float32, beside float64."""
    exact, given = problem_of(KERNELS[kernel], MASKS[mask])
    q, k, values, weights = scales
    if exact.kernel.name != "linear":  # scores of 1e8 have no digit after the point: features of 4, instead of 1e4
        q, k = min(q, 4), min(k, 4)
    weights = weights**0.5 if mask == "grf_signed" else weights
    scaled = [x.detach() * s for x, s in zip(given, (q, k, values, *[weights] * (len(given) - 3)))]
    single = [x.float().requires_grad_() for x in scaled]
    double = [x.detach().double().requires_grad_() for x in single]
    wanted = with_gradients(reference(remade(KERNELS[kernel], MASKS[mask], *double), 0.0), double)
    problem = remade(KERNELS[kernel], MASKS[mask], *single)
    for name, attend in serving(problem).items():
        for a, b in zip(with_gradients(attend(problem), single), wanted, strict=True):
            assert (a - b).abs().max() <= 3e-4 * b.abs().max(), name


def test_scores_of_any_size_and_stored_zeros():
    """Pairs with entry 0 do not count, however large their score is; their entry has a gradient."""
    index = torch.ones(6, 6).nonzero().t()
    value = torch.where(torch.rand(36) < 0.5, 0, torch.rand(36)).double()
    q, k, v = (x.requires_grad_() for x in (1e3 * draw(6, 2, 3), draw(6, 2, 3), draw(6, 2, 2)))
    value.requires_grad_()
    problem = KERNELS["softmax"].of(q, k, v, SparseOperator(index, value, 6))
    inputs, dense = [q, k, v, value], value.view(6, 6)
    score = torch.einsum("ihr,jhr->hij", q, k)
    weight = dense * (score - score.masked_fill(dense == 0, -torch.inf).amax(-1, keepdim=True)).clamp(max=20).exp()
    wanted = (weight / weight.sum(-1, keepdim=True)) @ v.transpose(0, 1)
    wanted = with_gradients(wanted.transpose(0, 1), inputs)
    assert (wanted[-1][value == 0] != 0).any()
    for name, attend in serving(problem).items():
        found = with_gradients(attend(problem), inputs)
        assert all(x.isfinite().all() for x in found)
        assert_near(found[:4], wanted[:4], 1e-9, name)


DROPPED = [kernel for kernel in KERNELS if kernel.startswith("additive")] + ["softmax"]


@of_every_kernel(["none", "sparse_heads", "toeplitz"], DROPPED)
def test_dropout_keeps_the_mean(mask, kernel):
    """And the same seed gives the same."""
    problem, _ = problem_of(KERNELS[kernel]._replace(dropout=0.4), MASKS[mask])
    wanted = reference(problem).detach()
    for name, attend in serving(problem).items():
        assert_dropout_keeps_the_mean(lambda attend=attend: attend(problem), wanted, 100, name)
        again = [torch.manual_seed(5) and attend(problem) for _ in range(2)]
        assert torch.equal(*again), name


@of_every_kernel(MASKS, ["linear", "softmax"])
def test_repeats_bit_for_bit(mask, kernel):
    """Compiled engines on any number of threads."""
    problem, inputs = problem_of(KERNELS[kernel], MASKS[mask], torch.float32)
    for name, attend in serving(problem).items():

        def run(attend=attend):  # with nothing that a call before has kept
            return with_gradients(attend(remade(KERNELS[kernel], MASKS[mask], *inputs)), inputs)

        assert_threads_change_nothing(run) if name.endswith("_cpp") else assert_repeats(run)


@of_every_kernel(["none", "sparse_heads", "factored", "toeplitz", "low_rank"], UNSIGNED)
def test_forward_mode_transforms_and_autocast(mask, kernel):
    """Right, or refused."""
    problem, inputs = problem_of(KERNELS[kernel], MASKS[mask])
    for attend in serving(problem).values():

        @torch.autocast("cpu", enabled=False)  # as the public functions do
        def run(*inputs, attend=attend):
            return attend(remade(KERNELS[kernel], MASKS[mask], *inputs))

        check_forward_mode(run, inputs)
        check_reverse_mode(run, inputs)
        check_backward_in_autocast(run, [x.float() for x in inputs])


# Masks with hubs.


@limits.override(pairs_at_once=40, per_stored=0)
def test_parts_serve_what_others_refuse_and_say_so_once():
    problem, _ = problem_of(KERNELS["softmax"], MASKS["factored"])
    for name in ("pairs_cpp", "pairs_triton", "pairs"):
        assert "pairs, too many to be listed together" in ENGINES[name].refuses(problem)
    assert ENGINES["parts"].refuses(problem) is None
    with pytest.warns(PerformanceWarning, match=r"has up to \d+ pairs of nodes.*in \d+ parts"):
        found = ENGINES["parts"].attend(problem)
    ENGINES["parts"].attend(problem)  # the suite makes an error of the warning
    assert_near([found], [reference(problem)], 1e-9, "parts")


def test_pairs_that_32_bits_cannot_count_are_listed_in_parts():
    problem, _ = problem_of(KERNELS["softmax"], MASKS["factored"])
    assert not problem.has_hubs
    with limits.override(entries=40):  # instead of 2^31 - 1
        assert problem.has_hubs is False  # it was asked before
        assert replace(problem).has_hubs


@pytest.mark.parametrize("kernel", UNSIGNED)
def test_heads_computed_again_give_the_same(kernel):
    problem, inputs = problem_of(KERNELS[kernel], MASKS["factored"])
    found, kept = [], []
    for values in ({}, {"pairs_at_once": 0, "per_stored": 0}):
        held = []
        hooks = saved_tensors_hooks(lambda x, held=held: held.append(x.numel()) or x, lambda x: x)
        with limits.override(**values), hooks:
            out = pairs.attend(problem)
        found.append(with_gradients(out, inputs))
        kept.append(sum(held))
    assert_bits(*found, "pairs")
    assert kept[1] < kept[0]


def test_heads_are_not_computed_again_by_torch_func():
    """It has no rules for checkpoints."""
    problem, inputs = problem_of(KERNELS["softmax"], MASKS["factored"])
    wanted = torch.autograd.grad(pairs.attend(problem).sum(), inputs[0])
    with limits.override(pairs_at_once=0, per_stored=0):
        found = torch.func.grad(lambda q: pairs.attend(replace(problem, q=q)).sum())(problem.q.detach())
    torch.testing.assert_close(found, *wanted)
