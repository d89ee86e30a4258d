"""What a mask module promises."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch_geometric.data import Batch, Data

from pyg_topomask import plan as plans
from pyg_topomask.checks import check_choice, check_integer
from pyg_topomask.nn.card import Described
from pyg_topomask.nn.graph_attributes import PlannedGraph, batch_of, read_attributes
from pyg_topomask.nn.planning import as_learned, for_plan, of_graph
from pyg_topomask.operators import DenseOperator, MaskOperator
from pyg_topomask.plan import Plan


class Mask(Described):
    """A learnable topological mask: builds a :class:`MaskOperator` from a graph, called as ``mask(graph)``.

    Args:
        heads: Number of heads ``H``; 1 if all share the parameters.

    Raises:
        TypeError: If ``heads`` is not an integer.
        ValueError: If it is below 1.
    """

    def __init__(self, heads: int = 1) -> None:
        super().__init__()
        self.heads = check_integer("heads", heads, 1)
        self._starts: list[Tensor] = []

    def learned(self, start: Tensor) -> Parameter:
        """A parameter with these initial values, a tensor on the CPU: ``[*]``, or ``[H, *]`` if there are heads.

        Call it before you make other parameters: `reset_parameters` pairs the first parameters with the initial values.
        """
        self._starts.append(start)
        shape = start.shape if self.heads == 1 else (self.heads, *start.shape)
        return Parameter(torch.empty(shape).copy_(start.expand(shape)))

    def reset_parameters(self) -> None:
        """Set all parameters to their initial values."""
        super().reset_parameters()
        with torch.no_grad():
            for parameter, start in zip(self.parameters(recurse=False), self._starts):
                parameter.copy_(start.expand_as(parameter))

    def forward(self, graph: Data | Batch) -> MaskOperator | Tensor:
        """The mask of a graph or batch; or its matrix, ``[N, N]`` or ``[H, N, N]``, with zeros between graphs."""
        raise NotImplementedError

    def __call__(self, graph: Data | Batch | None = None, *, plan: Plan | None = None) -> MaskOperator:
        """The mask of a graph or batch, or of what :meth:`plan` has found of it."""
        if plan is not None:
            with plans.read(plan):
                return self(PlannedGraph(plan.given, plan.given["batch"].size(0)))
        found = super().__call__(graph)
        if isinstance(found, Tensor):
            return DenseOperator(found if found.is_floating_point() else found.float())
        return found

    @torch.inference_mode(False)
    def plan(self, graph: Data | Batch) -> Plan:
        """What the mask has to know of a graph or batch, without what is learned, for ``mask(plan=plan)``.

        Raises:
            TypeError, ValueError: As in `forward`; also if an attribute of the graph requires a gradient.
        """
        graph = for_plan(graph)
        batch = batch_of(graph)
        plan = Plan(of_graph(graph, batch, self.requires))
        with plans.made(plan), as_learned(self, batch.device):
            self(graph)
        return plan

    def read(self, graph: Any) -> list[Tensor]:
        """The attributes of `requires`, in order.

        Raises:
            TypeError: If ``graph`` is not a homogeneous graph.
            ValueError: If one is missing; the message names the transform to add.
        """
        return read_attributes(self, graph)


def initial_modulation(name: str, initial: str | Sequence[float], max_length: int) -> Tensor:
    r"""Initial modulation function ``f``, ``[K + 1]``, float64: ``"exp"``, :math:`2^{-\ell} / \ell!`; ``"geometric"``,
    :math:`2^{-\ell}`; ``"far"``, :math:`1 / (K + 1)`; or at most ``K + 1`` given numbers, followed by zeros. Messages
    call it ``name``.
    """
    lengths = torch.arange(max_length + 1, dtype=torch.float64, device="cpu")
    if isinstance(initial, str):
        check_choice(name, initial, ("exp", "geometric", "far"))
        if initial == "far":
            return torch.full_like(lengths, 1 / (max_length + 1))
        factorial = torch.lgamma(lengths + 1) if initial == "exp" else 0.0
        return (-lengths * log(2) - factorial).exp()
    given = torch.as_tensor(initial, dtype=torch.float64, device="cpu")
    if given.dim() != 1 or not 0 < given.numel() <= max_length + 1 or not bool(given.isfinite().all()):
        raise ValueError(f"'{name}' must hold 1 to 'max_length' + 1 = {max_length + 1} finite numbers (got {initial})")
    return torch.cat([given, given.new_zeros(max_length + 1 - given.numel())])
