"""Linear attention without a mask, in plain torch: one small state per graph and head."""

import torch
from torch import Tensor

from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.numerics import absolute, with_ones
from pyg_topomask.ops.segment import segment_linear_attention


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if problem.mask is not None:
        return "it serves attention without a mask"
    return None if problem.kernel.name == "linear" else "it serves linear kernels"


def work(problem: Problem) -> dict[str, float]:
    """Numbers of the states, for each node."""
    nodes, heads, features, channels = problem.size
    return {"call": 1, "number": nodes * heads * features * (channels + 1)}


def attend(problem: Problem) -> Tensor:
    """The outputs."""
    q, k, v, batch, kernel = problem.q, problem.k, problem.v, problem.batch, problem.kernel
    if not kernel.signed_features:
        return problem.finish(segment_linear_attention(q, k, with_ones(v), batch))
    size = segment_linear_attention(absolute(q), absolute(k), torch.ones_like(v[..., :1]), batch)
    sums = segment_linear_attention(q, k, with_ones(v) if problem.signed else v, batch)
    return problem.finish(torch.cat([sums, size.detach() if problem.signed else size], dim=-1))
