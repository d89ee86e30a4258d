"""Linear attention by products of the mask with features times values, in plain torch."""

import torch
from torch import Tensor

from pyg_topomask import plan as plans
from pyg_topomask.limits import limits
from pyg_topomask.ops.attention.mask import AttentionMask
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.functions import recomputed
from pyg_topomask.ops.numerics import absolute, with_ones

# The fewest columns per product.
_SLICE_COLUMNS = 64


def refuses(problem: Problem) -> str | None:
    """Why the engine cannot serve."""
    if problem.mask is None:
        return "there is no mask"
    return None if problem.kernel.name == "linear" else "it multiplies features, and this kernel has none"


def work(problem: Problem) -> dict[str, float]:
    """Numbers of the intermediate, and multiply-adds of its products with the mask, weighed by their cost."""
    nodes, heads, features, channels = problem.size
    columns, product = heads * features * (channels + 1), problem.mask.product
    return {"call": 1, "number": nodes * columns, "product": product.count() * columns * product.cost}


def attend(problem: Problem) -> Tensor:
    """The outputs. Slices of the features are computed one by one, and again in the backward pass."""
    num_nodes, heads, num_features, channels = problem.size
    kernel, own = problem.kernel, problem.owns_bound and not problem.kernel.signed_features
    values = with_ones(problem.v) if own or problem.signed else problem.v

    def slice_sums(q: Tensor, k: Tensor, values: Tensor, sums: Tensor | None = None) -> Tensor:
        if sums is None:  # [N, H, D + 1 or D + 2]
            state = _multiply(problem.mask, k[..., :, None] * values[..., None, :])  # [N, H, r, D or D + 1]
            sums = (q[..., None] * state).sum(2)  # the gradient of a product of matrices would be slow outer products
        if own and not problem.signed:
            return sums
        q, k = (absolute(q), absolute(k)) if kernel.signed_features else (q, k)
        total = (q * _multiply(problem.bound, k)).sum(-1, keepdim=True)
        return torch.cat([sums, total.detach() if problem.signed else total], dim=-1)

    contracted = problem.mask.product.contract(problem.q, problem.k, values)
    if contracted is not None:
        return problem.finish(slice_sums(problem.q, problem.k, values, contracted), problem.row_norm())
    most = max(_SLICE_COLUMNS, limits.slice_numbers // max(num_nodes, 1))
    # The number of slices is fixed in compiled code, which serves any number of nodes.
    step = max(1, num_features if plans.reading() else most // (heads * (channels + 1)))
    sums: Tensor | float = 0.0
    for a in range(0, num_features, step):
        q, k = (x[..., a : a + step] for x in (problem.q, problem.k))
        sums = sums + recomputed(slice_sums, q, k, values)
    if isinstance(sums, float):  # without features, all outputs are zero
        return torch.zeros_like(problem.v)
    return problem.finish(sums, problem.row_norm())


def _multiply(mask: AttentionMask, x: Tensor) -> Tensor:  # [N, H, r, *]
    return mask.product(x.flatten(2 if mask.heads is not None else 1)).view_as(x)
