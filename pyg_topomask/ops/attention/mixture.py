"""Attention under a mask that has parts, each of which takes its own engine.

Under a sum of masks, and with :math:`S_{si}` the denominator under part s alone,

.. math:: \\mathrm{out}_i = \\sum_s c_{si} S_{si}\\, \\mathrm{out}_{si} \\Big/ \\sum_s |c_{si}| S_{si}, \\qquad
    M = \\sum_s \\mathrm{diag}(c_s) M_s.

Where :math:`S_{si}` is zero, part s has no gradient in row i, not even that which features of exactly zero would have.
A mask says by ``parts`` whether it is a sum, or has one mask for each group of heads.

For a kernel of features, :math:`S_{si} = \\sum_r |q_{ir}| (B_s |k|)_{ir}`. Compiled engines give it with the outputs;
beside the others, it is one more product of the mask, with R columns.
"""

from dataclasses import replace

import torch
from torch import Tensor

from pyg_topomask.ops.attention import choice
from pyg_topomask.ops.attention.mask import AttentionMask, Part
from pyg_topomask.ops.attention.problem import Problem
from pyg_topomask.ops.numerics import absolute, least_denominator


def solve(problem: Problem, path: str) -> Tensor:
    """The outputs ``[N, H, D]``, by the engines that `choice.choose_engine` chooses for the parts of the mask."""
    parts = problem.mask.parts if path == "auto" and problem.mask is not None else []
    if any(part.heads is not None for part in parts):
        return torch.cat([solve(_of_heads(problem, part), path) for part in parts], dim=1)
    if len(parts) > 1 and problem.kernel.name == "linear" and not problem.signed:
        return _sum(problem.wide)
    return choice.attend(problem, path)


def _of_heads(problem: Problem, part: Part) -> Problem:
    q, k, v = (x[:, part.heads] for x in (problem.q, problem.k, problem.v))
    return _under(replace(problem, q=q, k=k, v=v), part.mask)


def _under(problem: Problem, mask: AttentionMask) -> Problem:
    """The problem under another mask. Ones within each graph are no mask, which additive attention needs, though."""
    ones = mask.parts[0].batch
    if ones is None or problem.kernel.name == "additive":
        return replace(problem, mask=mask)
    return replace(problem, mask=None, batch=ones)


def _sum(problem: Problem) -> Tensor:
    numerator: Tensor | float = 0.0
    total: Tensor | float = 0.0
    for part in problem.mask.parts:
        out, size = _part(_under(problem, part.mask), part.mask)
        if part.scale is not None:
            size = part.scale.to(size.dtype).view(size.size(0), -1, 1) * size
        numerator, total = numerator + size * out, total + absolute(size)
    vanished = total.detach() < least_denominator(problem.v.dtype)  # type: ignore[union-attr]  # a sum has terms
    return torch.where(vanished, 0, numerator) / torch.where(vanished, 1, total)


def _part(problem: Problem, mask: AttentionMask) -> tuple[Tensor, Tensor]:
    """The outputs under a part of a sum, and its :math:`S_i`, ``[N, H, 1]``."""
    if len(mask.parts) > 1:
        out = solve(problem, "auto")
    else:
        engine = choice.ENGINES[choice.choose_engine(problem)]
        if engine.with_size is not None and problem.errors is None:  # it is 0 where S_i is smaller than the error
            out, size = engine.with_size(problem)
            return out, size[..., None]
        out = engine.attend(problem)
    q, k = (absolute(x) if problem.kernel.signed_features else x for x in (problem.q, problem.k))
    bound = mask.bound
    state = bound.product(k.flatten(1) if bound.heads is None else k)
    return out, (q * state.view_as(k)).sum(-1, keepdim=True)
