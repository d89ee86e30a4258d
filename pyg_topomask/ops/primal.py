"""The map of queries and keys to the output of attention in its primal representation, in linear time.

On CPU, one compiled function (``native/primal/``) computes it without an array of scores. Plain torch does so on other
devices, in other dtypes, without a compiler, and for second derivatives.
"""

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.dropout import LEVELS, dropout, dropout_reference
from pyg_topomask.ops.hashing import draw_seeds
from pyg_topomask.ops.native.op import CompiledOp

# Norm below which a query or key counts as zero, as in torch.nn.functional.normalize.
_ZERO_NORM = 1e-12


def primal_map(
    qk: Tensor, update: Tensor, weight: Tensor, out_weight: Tensor, p: float = 0.0, training: bool = True
) -> tuple[Tensor, Tensor]:
    r"""Map queries and keys to the output of each head, by scores that depend on the graph.

    For the query and the key :math:`a` of each head :math:`h`, with :math:`\phi(x) = x / \|x\|`:

    .. math::
        z_{ia} &= W_a^\top \phi(x_{ia}) + \big(w_a^\top \phi(x_{ia})\big) u_i \in \mathbb{R}^s, \qquad
        \mathrm{out}_{ih} = \sum_{a} M_a^\top\, \mathrm{Dropout}(z_{ia}) \in \mathbb{R}^D, \qquad
        \mathrm{squares}_a = \sum_i z_{ia}^2

    Reference: *Primphormer: Leveraging Primal Representation for Graph Transformers* (the submission), equations 2.5
    and 2.8; :class:`~pyg_topomask.nn.PrimphormerAttention` says what each tensor is in the paper.
    Cost: :math:`O(N H D s)` operations. Compiled code stores no scores, plain torch stores ``[2 H, N, s]``.

    Args:
        qk: Queries of all heads, then keys, shape ``[N, 2 H, D]``.
        update: Vectors :math:`u_i`, shape ``[N, s]``.
        weight: Matrices :math:`W_a`, and :math:`w_a` as their last column, shape ``[2 H, D, s + 1]``.
        out_weight: The two matrices :math:`M`, for queries and for keys, shape ``[2, s, D]``.
        p: Probability of dropout.
        training: Whether there is dropout.

    Returns:
        ``(out [N, H, D], squares [2 H, s])``, differentiable in all tensors. The dtype is that of ``qk``, which all
        tensors must have.
    """
    dropped = round(float(p) * LEVELS) if training else 0
    if dropped and (dropped == LEVELS or _primal.refuses(qk, update, weight, out_weight, None)):
        return map_scores(primal_scores(qk, update, weight), out_weight, lambda z: dropout(z, p, training))
    return _primal(qk, update, weight, out_weight, draw_seeds(1) if dropped else None, dropped)


def unit_features(qk: Tensor) -> Tensor:
    """Queries and keys of unit length with heads first, ``[N, 2 H, D] → [2 H, N, D]``; zero below the norm 1e-12."""
    norm = torch.linalg.vector_norm(qk, dim=-1, keepdim=True)
    return (qk / torch.where(norm > _ZERO_NORM, norm, torch.inf)).transpose(0, 1)


def primal_scores(qk: Tensor, update: Tensor, weight: Tensor) -> Tensor:
    """The scores :math:`z` of `primal_map`, ``[2 H, N, s]``."""
    scores, factor = (unit_features(qk) @ weight).split([weight.size(2) - 1, 1], dim=2)
    return torch.addcmul(scores, factor.contiguous(), update)


def sums_of_squares(scores: Tensor) -> Tensor:
    """Sums over the nodes of the squares of scores, ``[2 H, N, s] → [2 H, s]``."""
    return scores.square().sum(1)


def joined_scores(scores: Tensor) -> Tensor:
    """Scores of the query and the key of each head side by side, ``[2 H, N, s] → [N, H, 2 s]``."""
    return scores.unflatten(0, (2, scores.size(0) // 2)).permute(2, 1, 0, 3).flatten(2)


def map_scores(scores: Tensor, out_weight: Tensor, drop: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The results of `primal_map` for scores ``[2 H, N, s]``, of which ``drop`` zeroes some."""
    return joined_scores(drop(scores)) @ out_weight.flatten(0, 1), sums_of_squares(scores)


class _PrimalMap(CompiledOp):
    library, name = "primal", "primal_map"
    arrays, numbers = ("qk", "update", "weight", "out_weight", "seed?"), MappingProxyType({"dropped": int})
    results = ("out", "squares")
    differentiable = 4
    reads, reads_numbers = arrays[:4], MappingProxyType({"seed": int, "dropped": int})
    with_gaps = ("qk",)
    work_per_thread = 2**20  # scores

    def shapes(self, qk: Tensor, update: Tensor, *rest: Any) -> list[tuple[int, ...]]:
        num_nodes, features, width = qk.shape
        return [(num_nodes, features // 2, width), (features, update.size(1))]

    def prepare(self, *inputs: Any) -> tuple[Any, ...]:
        *tensors, seed, dropped = inputs
        return *tensors, 0 if seed is None else int(seed), dropped

    def work(self, qk: Tensor, update: Tensor, *rest: Any) -> int:
        return qk.size(0) * qk.size(1) * update.size(1)

    def twin(
        self, qk: Tensor, update: Tensor, weight: Tensor, out_weight: Tensor, seed: Tensor | None, dropped: int
    ) -> tuple[Tensor, Tensor]:
        def drop(scores: Tensor) -> Tensor:
            return scores if seed is None else dropout_reference(scores, int(seed), dropped)

        return map_scores(primal_scores(qk, update, weight), out_weight, drop)

    def examples(self) -> Iterator[tuple[Any, ...]]:
        for n, heads, width, rank, dropped in (
            (4, 1, 3, 2, 0),
            (4, 1, 3, 2, 20_000),
            (0, 1, 3, 2, 0),
            (1500, 2, 17, 15, 9),
        ):
            shapes = (n, 2 * heads, width), (n, rank), (2 * heads, width, rank + 1), (2, rank, width)
            tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
            tensors[0][: n // 2] *= 1.0 if n < 9 else 1e-4  # short queries and keys have a direction, too
            yield *tensors, draw_seeds(1) if dropped else None, dropped


_primal = _PrimalMap()
