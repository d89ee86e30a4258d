"""Kernels, masks and problems on which the engines of attention are checked."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch_geometric.data import Batch, Data

from pyg_topomask import nn, operators, transforms
from pyg_topomask.limits import limits
from pyg_topomask.ops.attention.choice import ENGINES
from pyg_topomask.ops.attention.engines import pairs, pairs_cpp, parts
from pyg_topomask.ops.attention.kernels import Kernel
from pyg_topomask.ops.attention.mask import TensorMask
from pyg_topomask.ops.attention.masked import (
    masked_linear_attention_reference,
    masked_softmax_attention_reference,
    normalized_reference,
)
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.native import loader

needs_compiler = pytest.mark.skipif(bool(loader.missing("pairs")), reason="needs a C++ compiler")


class Asked(NamedTuple):
    """What is asked besides the arrays."""

    kernel: Kernel
    signed: bool = False
    dropout: float = 0.0

    def of(self, *arrays: object, **more: object) -> Problem:
        """The problem of these arrays."""
        return Problem(self.kernel, *arrays, signed=self.signed, dropout=self.dropout, **more)


KERNELS = {
    "linear": Asked(Kernel("linear")),
    "linear_signed": Asked(Kernel("linear"), signed=True),
    "features_signed": Asked(Kernel("linear", signed_features=True)),
    "both_signed": Asked(Kernel("linear", signed_features=True), signed=True),
    "softmax": Asked(Kernel("softmax")),
    "softmax_signed": Asked(Kernel("softmax"), signed=True),
    "additive": Asked(Kernel("additive", negative_slope=0.3)),
    "additive_signed": Asked(Kernel("additive"), signed=True),
}
UNSIGNED = [name for name in KERNELS if not name.endswith("_signed") or name == "features_signed"]
HEADS = 2

# Four graphs: a ring, one node, a star with a node on its own, and a path. No node has the number 2.
RAGGED = torch.tensor([0] * 5 + [1] + [3] * 6 + [4] * 5)
LINKS = [*((i, (i + 1) % 5) for i in range(5)), *((6, i) for i in range(7, 11)), *((i, i + 1) for i in range(12, 16))]
EDGES = torch.tensor([*LINKS, *((j, i) for i, j in LINKS)]).t()
LOOPS = torch.cat([EDGES, torch.arange(17).expand(2, -1)], 1)

# Two graphs of 8 nodes, and trees on them.
EQUAL = torch.arange(16) // 8
PARENT = torch.tensor([-1, 0, 0, 1, 1, 2, 2, 3, -1, 8, 8, 9, 9, 10, 10, 11])


class Mask(NamedTuple):
    """A mask, its parameters in float64, and the graph of each node."""

    make: Callable
    parameters: Sequence[Tensor] = ()
    batch: Tensor = RAGGED


def draw(*shape: int, positive: bool = False) -> Tensor:
    """Numbers that float32 has, too."""
    x = torch.rand(*shape) + 0.1 if positive else torch.randn(*shape)
    return x.double()


@cache
def walked(diagonal: str = "independent") -> Batch:
    """The four graphs with random walks."""
    walk = transforms.AddRandomWalks(6, 3, seed=0, diagonal=diagonal)
    graphs = []
    for number in (0, 1, 3, 4):
        node = (number == RAGGED).nonzero().flatten()
        edges = EDGES[:, (RAGGED[EDGES[0]] == number)] - node[0]
        graphs.append(walk(Data(edge_index=edges, num_nodes=len(node))))
    return Batch.from_data_list(graphs)


def grf(*modulation: Tensor, data: Data | None = None, **settings) -> operators.GRFOperator:
    """The GRF operator of the four graphs; a second function is that of the keys."""
    heads = modulation[0].size(0) if modulation[0].dim() == 2 else 1
    mask = nn.GRFMask(heads, 3, key_modulation=len(modulation) == 2, **settings).to(modulation[0].dtype)
    for name, f in zip(("modulation", "key_modulation"), modulation):
        delattr(mask, name)
        setattr(mask, name, f)
    return mask(walked(diagonal=settings.get("diagonal", "independent")) if data is None else data)


def masks() -> dict[str, Mask]:
    """Masks of every kind: positive, with signs, by head, approximate, with shared blocks, without support."""
    torch.manual_seed(0)
    same = (RAGGED[:, None] == RAGGED).double()
    positive = draw(EDGES.size(1), positive=True)
    looped = [draw(LOOPS.size(1)) for _ in range(2)]
    time = torch.tensor(0.5).double()

    def factored(left: Tensor, right: Tensor) -> operators.SparseFactorOperator:
        return operators.SparseFactorOperator((LOOPS, left), (LOOPS, right), 17)

    return {
        "none": Mask(lambda: None),
        "ones": Mask(lambda: operators.OnesOperator(RAGGED)),
        "padding": Mask(lambda: operators.PaddingOperator(torch.arange(17) % 5 > 0, RAGGED)),
        "causal": Mask(lambda: operators.CausalOperator(RAGGED)),
        "sparse": Mask(lambda x: operators.SparseOperator(EDGES, x, 17), [positive]),
        "sparse_heads": Mask(lambda x: operators.SparseOperator(LOOPS, x, 17), [draw(LOOPS.size(1), HEADS)]),
        "factored": Mask(factored, looped),
        "constant": Mask(lambda: operators.ConstantOperator(factored(*(x.detach() for x in looped)))),
        "grf": Mask(grf, [torch.tensor([1.0, 0.5, 0.25, 0.125]).double()]),
        "grf_signed": Mask(grf, [draw(HEADS, 4)]),
        "grf_keys": Mask(grf, [draw(HEADS, 4), draw(HEADS, 4)]),
        "grf_diagonal": Mask(partial(grf, diagonal="corrected"), [torch.tensor([0.5, 1.0, -0.5, 0.25]).double()]),
        "heat": Mask(lambda t: operators.HeatOperator(EDGES, 17, t, tol=1e-12), [time]),
        "series": Mask(lambda x: operators.PowerSeriesOperator(EDGES, 17, x), [draw(HEADS, 3)]),
        "times": Mask(lambda x, y, f: factored(x, y) * grf(f), [*looped, draw(HEADS, 4)]),
        "times_dense": Mask(
            lambda t, x: operators.HeatOperator(EDGES, 17, t, tol=1e-12) * operators.LowRankOperator(x, x, RAGGED),
            [time, draw(17, 3)],
        ),
        "low_rank": Mask(lambda x, y: operators.LowRankOperator(x, y, RAGGED), [draw(17, 3), draw(17, 3)]),
        "tensor": Mask(lambda x: TensorMask(x * same.to(x)), [draw(17, 17)]),
        "tensor_heads": Mask(lambda x: operators.DenseOperator(x * same.to(x)), [draw(HEADS, 17, 17)]),
        "toeplitz": Mask(lambda x: operators.ToeplitzOperator(x, (2, 4), 2), [draw(3, 7)], EQUAL),
        "toeplitz_heads": Mask(lambda x: operators.ToeplitzOperator(x, (8,), 2), [draw(HEADS, 15)], EQUAL),
        "grid_heat": Mask(lambda t: operators.GridHeatOperator((2, 4), t, 2), [time], EQUAL),
        "forest": Mask(
            lambda a: operators.ForestExpOperator(PARENT, torch.ones_like(a).expand(16), a, 0.1), [-time], EQUAL
        ),
        "tree_heads": Mask(lambda x: operators.TreeDistanceOperator(PARENT, x, "centroid"), [draw(HEADS, 4)], EQUAL),
        "kronecker": Mask(
            lambda x: operators.KroneckerOperator(
                operators.DenseOperator(torch.eye(2).to(x)), operators.ToeplitzOperator(x, (8,))
            ),
            [draw(15)],
            EQUAL,
        ),
        "stack": Mask(
            lambda x, t: operators.HeadStackOperator(
                [operators.ToeplitzOperator(x, (8,), 2), operators.GridHeatOperator((2, 4), t, 2)]
            ),
            [draw(15), time],
            EQUAL,
        ),
        "blocks": Mask(
            lambda x, t: operators.BlockDiagonalOperator(
                [operators.ToeplitzOperator(x, (8,)), -1.0 * operators.GridHeatOperator((2, 4), t)]
            ),
            [draw(15), time],
            EQUAL,
        ),
    }


MASKS = masks()


def small_masks() -> dict[str, Mask]:
    """Masks of two graphs of 3 and 2 nodes with few parameters, for numerical derivatives."""
    torch.manual_seed(0)
    batch = torch.tensor([0, 0, 0, 1, 1])
    edges = torch.tensor([[0, 1, 1, 2, 3, 4, 4], [1, 0, 2, 1, 4, 3, 4]])
    return {
        "none": Mask(lambda: None, (), batch),
        "sparse": Mask(lambda x: operators.SparseOperator(edges.to(x.device), x, 5), [draw(7, HEADS)], batch),
        "factored": Mask(lambda x: operators.SparseFactorOperator((edges, x), (edges, x), 5), [draw(7)], batch),
        "low_rank": Mask(lambda x: operators.LowRankOperator(x, x + 0.25, batch), [draw(5, 2)], batch),
        "shared": Mask(
            lambda t: -0.5 * operators.GridHeatOperator((2, 2), t, 2),
            [torch.tensor(0.5).double()],
            torch.arange(8) // 4,
        ),
    }


def features(kernel: Kernel, num_nodes: int, width: int = 4, channels: int = 3, heads: int = HEADS) -> list[Tensor]:
    """Queries, keys and values in float64; numbers that float32 has, too."""
    positive = kernel.name == "linear" and not kernel.signed_features
    q, k = (draw(num_nodes, heads, width, positive=positive) for _ in range(2))
    return [q, k, draw(num_nodes, heads, channels)]


def problem_of(asked: Asked, mask: Mask, dtype: torch.dtype = torch.float64, **settings) -> tuple[Problem, list]:
    """A problem, and the tensors of which it is made: queries, keys, values and the mask's parameters."""
    torch.manual_seed(1)
    given = [*features(asked.kernel, len(mask.batch), **settings), *mask.parameters]
    inputs = [x.to(dtype).requires_grad_() for x in given]
    return remade(asked, mask, *inputs), inputs


def remade(asked: Asked, mask: Mask, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Problem:
    """The problem of these tensors."""
    return asked.of(q, k, v, mask.make(*parameters), mask.batch)


def serving(problem: Problem) -> dict[str, Callable[[Problem], Tensor]]:
    """All engines that serve the problem; those on pairs also for one part of the rows after the other."""
    found = {name: engine.attend for name, engine in ENGINES.items() if engine.refuses(problem) is None}
    for engine in (pairs_cpp, pairs):
        if engine.refuses(replace(problem, rows=(0, 1))) is None:
            found[f"parts of {engine.__name__.split('.')[-1]}"] = partial(in_parts, engine)
    return found


def in_parts(engine: object, problem: Problem) -> Tensor:
    """Attention of an engine in some parts of the rows."""
    at_once = 4 * problem.v.size(1) * max(20, problem.num_terms // 3)
    with pytest.MonkeyPatch.context() as patch, limits.override(pairs_at_once=at_once), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if engine is pairs:
            patch.setenv("TOPOMASK_NATIVE", "0")
        return parts.attend(problem)


def reference(problem: Problem, tolerance: float = 1e-12) -> Tensor:
    """Attention from its definition, with dense arrays."""
    kernel, q, k, v, mask = problem.kernel, problem.q, problem.k, problem.v, problem.mask
    settings = {"normalizer": "signed" if problem.signed else "bound", "tolerance": tolerance}
    graph = q.new_zeros(q.size(0)) if problem.batch is None else problem.batch
    same = (graph[:, None] == graph).to(v)
    dense = same if mask is None else mask.to_dense()
    settings["bound"] = same if mask is None else mask.bound.to_dense()
    if kernel.name == "linear":
        return masked_linear_attention_reference(q, k, v, dense, problem.batch, **settings)
    if kernel.name == "softmax":  # which scales the queries
        return masked_softmax_attention_reference(q * q.size(-1) ** 0.5, k, v, dense, **settings)
    kernel = leaky_relu(torch.einsum("ihr,jhr->hij", q, k), kernel.negative_slope).exp()
    return normalized_reference(kernel, kernel, v, dense, **settings)
