"""Softmax attention without a mask, by compiled code or torch's fused kernel."""

from torch import Tensor

from pyg_topomask.ops.attention.full_softmax import segment_softmax_attention
from pyg_topomask.ops.attention.problem import Problem


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if problem.mask is not None:
        return "it serves attention without a mask"
    return None if problem.kernel.name == "softmax" else "it serves the softmax kernel"


def work(problem: Problem) -> dict[str, float]:
    """Pairs of nodes in the same graph, heads and numbers."""
    _, heads, features, channels = problem.size
    pairs = sum(n * n for n in problem.groups.num_nodes)
    return {"call": 1, "size": len(problem.groups.graphs), "number": pairs * heads * (features + channels)}


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    q, k, v, batch = problem.q, problem.k, problem.v, problem.batch
    return segment_softmax_attention(q, k, v, batch, dropout=problem.dropout, scale=1.0)
