"""Which engines serve a problem, and which one `plan` takes. Only orders that hold on any machine are checked."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from pyg_topomask.limits import limits
from pyg_topomask.nn import GRFMask
from pyg_topomask.operators import DenseOperator, HeadStackOperator, LowRankOperator, OnesOperator, SparseFactorOperator
from pyg_topomask.ops import explain, masked_linear_attention, masked_softmax_attention
from pyg_topomask.ops.attention.choice import ENGINES, PATHS, choose_engine
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.transforms import AddRandomWalks
from pyg_topomask.typing import PerformanceWarning
from tests.ops.attention.cases import KERNELS, MASKS, draw, features, needs_compiler, problem_of

UNMASKED = {"unmasked_cpp", "unmasked", "sdpa"}
PAIRS = {"pairs_cpp", "pairs"}
BLOCKS = {"blocks_cpp", "blocks"}


def serve(problem):
    return {name for name, engine in ENGINES.items() if engine.refuses(problem) is None}


@needs_compiler
@pytest.mark.parametrize(
    ("mask", "kernel", "wanted"),
    [
        ("none", "linear", {"unmasked_cpp", "unmasked"}),
        ("none", "both_signed", {"unmasked"}),
        ("none", "softmax", {"sdpa"}),
        ("grf", "linear", PAIRS | BLOCKS | {"factored", "dense"}),
        ("grf", "linear_signed", {"pairs", "blocks", "factored", "dense"}),
        ("grf", "features_signed", {"pairs", "blocks", "factored", "dense"}),
        ("grf", "softmax", {"pairs_cpp", "pairs", "blocks_cpp", "blocks", "dense"}),
        ("grf", "additive", {"pairs_cpp", "pairs", "blocks", "dense"}),
        ("toeplitz", "linear", BLOCKS | {"factored", "dense"}),
        ("toeplitz", "softmax", {"blocks_cpp", "blocks", "dense"}),
        ("tensor", "linear", {"factored", "dense"}),
        ("tensor", "additive", {"dense"}),
    ],
)
def test_engines_that_serve(mask, kernel, wanted):
    assert serve(problem_of(KERNELS[kernel], MASKS[mask])[0]) == wanted


def test_every_refusal_has_its_reason():
    q, k, v = features(Kernel("linear"), 16)
    reasons = explain(q, k, v, MASKS["toeplitz"].make(draw(3, 7)), MASKS["toeplitz"].batch)
    assert list(reasons) == list(ENGINES)
    assert reasons["unmasked"] == reasons["sdpa"] == "it serves attention without a mask"
    assert reasons["pairs"] == "it needs a sparse support, and ToeplitzOperator has none"
    assert reasons["factored"] > 0
    assert reasons["dense"] > 0
    reasons = explain(q, k, v, torch.ones(16, 16), kernel="softmax")
    assert reasons["blocks"] == "it needs the dense blocks of graphs, and TensorMask has none"
    assert reasons["factored"] == "it multiplies features, and this kernel has none"
    reasons = explain(q - 1, k, v)
    assert reasons["unmasked_cpp"] == "it serves linear kernels of features without signs"
    assert reasons["dense"] == "there is no mask"
    grf = MASKS["grf_signed"].make(*MASKS["grf_signed"].parameters)
    q, k, v = features(Kernel("linear"), 17)
    assert explain(q, k, v, grf)["parts"] == "all pairs can be listed together"
    assert "without signs" in explain(q, k, v, grf, normalizer="signed")["pairs_cpp"]
    assert all("on CUDA (got cpu)" in explain(q, k, v, grf)[f"{name}_triton"] for name in ("pairs", "blocks"))


def test_compiled_code_refuses_what_it_does_not_compute(monkeypatch):
    def reason(name, kernel="linear", mask="grf", **settings):
        return ENGINES[name].refuses(problem_of(KERNELS[kernel], MASKS[mask], **settings)[0])

    assert "more than 256" in reason("pairs_cpp", width=250, channels=7)
    assert "more than 4096 products" in reason("unmasked_cpp", mask="none", width=64, channels=64)
    for name, mask in (("blocks_cpp", "grf"), ("unmasked_cpp", "none"), ("pairs_cpp", "grf")):
        assert ("of no" if name == "pairs_cpp" else "without") in reason(name, mask=mask, width=0)
        monkeypatch.setenv("TOPOMASK_NATIVE", "0")
        assert "TOPOMASK_NATIVE=0" in reason(name, mask=mask)
        monkeypatch.delenv("TOPOMASK_NATIVE")


@pytest.mark.parametrize("path", [path for path in PATHS if path != "auto"])
def test_a_named_path_takes_one_of_its_engines(path):
    problem, _ = problem_of(KERNELS["linear"], MASKS["grf"])
    assert ENGINES[choose_engine(problem, path)].path == path
    assert choose_engine(problem_of(KERNELS["linear"], MASKS["none"])[0], path) in UNMASKED  # they serve every path


@pytest.mark.parametrize("kernel", ["linear", "softmax"])
def test_auto_takes_the_least_estimate(kernel):
    q, k, v = features(Kernel(kernel), 17)
    mask = MASKS["grf"]
    operator = mask.make(*mask.parameters)
    costs = explain(q.abs(), k.abs(), v, operator, mask.batch, kernel)
    costs = {name: cost for name, cost in costs.items() if not isinstance(cost, str)}
    problem = Problem(Kernel(kernel), q.abs(), k.abs(), v, operator, mask.batch)
    costs.pop("dense")  # it would multiply numbers of several graphs
    assert choose_engine(problem) == min(costs, key=costs.get)
    assert choose_engine(problem, "dense") == "dense"


@needs_compiler
def test_blocks_of_many_small_graphs_count_the_entries_that_fill_them():
    node = torch.arange(20)
    ring = torch.stack([node.repeat(2), torch.cat([(node + 1) % 20, (node - 1) % 20])])
    graph = Batch.from_data_list([AddRandomWalks(seed=0)(Data(edge_index=ring, num_nodes=20))] * 32)
    q = torch.rand(640, 4, 16)
    costs = explain(q, q, q, GRFMask(4)(graph), graph.batch)
    assert costs["pairs_cpp"] < costs["blocks_cpp"]


def sparse(num_nodes, num_pairs):
    number = torch.arange(num_pairs)
    index = torch.stack([number % num_nodes, (number + number // num_nodes) % num_nodes])
    return SparseFactorOperator((index, torch.ones(num_pairs)), None, num_nodes)


def test_memory_stays_proportional_to_the_graph():
    """An engine that holds too many numbers is taken only where no other one serves; a hub's pairs are not listed."""
    leaves = torch.arange(1, 301)
    star = torch.stack([torch.cat([leaves, leaves * 0]), torch.cat([leaves * 0, leaves])])
    factor = (star, torch.rand(600))
    q = torch.rand(301, 1, 4)
    problem = Problem(Kernel("linear"), q, q, q, SparseFactorOperator(factor, factor, 301))
    assert problem.num_terms > 300**2
    with limits.override(numbers_held=0, per_stored=1):
        assert choose_engine(problem) == "factored"
        problem = Problem(Kernel("softmax"), q, q, q, problem.mask)
        assert choose_engine(problem, "dense") == "dense"
        assert choose_engine(problem) in ENGINES


@limits.override(dense_nodes=3)
def test_a_large_mask_that_becomes_dense_is_told():
    x = torch.randn(4, 1, 3)
    mask = OnesOperator(torch.tensor([0, 0, 1, 1]))
    with pytest.warns(PerformanceWarning, match="dense"):
        out = masked_softmax_attention(x, x, x, mask)
    torch.testing.assert_close(out, masked_softmax_attention(x, x, x, None, mask.batch))
    masked_softmax_attention(x, x, x, mask, path="dense")  # the suite makes an error of the warning
    masked_softmax_attention(x, x, x, DenseOperator(torch.ones(4, 4)))


JOINED = {
    "tensor": lambda matrix, ones: matrix,
    "operator": lambda matrix, ones: DenseOperator(matrix),
    "sum": lambda matrix, ones: DenseOperator(matrix) + ones,
    "list": lambda matrix, ones: HeadStackOperator([ones, DenseOperator(matrix)], [2, matrix.dim() - 1]),
}


@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize("shape", [(4, 4), (2, 4, 4)])
def test_a_dense_mask_joins_no_graphs(kind, shape):
    q, batch = torch.rand(4, 2 if kind != "list" else 1 + len(shape), 3), torch.tensor([0, 1, 1, 1])
    mask = torch.rand(shape) * (batch[:, None] == batch)
    masked_linear_attention(q, q, q, JOINED[kind](mask, OnesOperator(batch)), batch)
    mask[..., 2, 0] = 1
    with pytest.raises(ValueError, match="the mask joins nodes 2 and 0 of different graphs: multiply it by"):
        masked_softmax_attention(q, q, q, JOINED[kind](mask, OnesOperator(batch)), batch)


def test_a_batch_that_splits_a_graph_has_no_blocks():
    q, k, v = features(Kernel("linear"), 17)
    mask = MASKS["grf_signed"].make(*MASKS["grf_signed"].parameters)
    batch = (torch.arange(17) > 2).long()
    with pytest.raises(ValueError, match=r"joins nodes \d+ and \d+ of different graphs"):
        masked_linear_attention(q, k, v, mask, batch, "blocks")
    factors = [draw(17, 2), draw(17, 2)]
    with pytest.raises(ValueError, match="joins nodes of different graphs"):
        masked_linear_attention(q, k, v, LowRankOperator(*factors), batch, "blocks")
    operator = LowRankOperator(*factors, batch)
    wanted = masked_linear_attention(q, k, v, operator, batch, "factored")
    for graphs in (batch, None):  # the mask tells graphs apart, with attention's batch or without
        torch.testing.assert_close(masked_linear_attention(q, k, v, operator, graphs, "blocks"), wanted)
