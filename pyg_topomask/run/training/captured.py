"""Training steps as CUDA graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch_geometric.data import Data

from pyg_topomask.nn import Plan, auxiliary_loss
from pyg_topomask.run.errors import RunError


class Captured:
    """Calls a model in training by CUDA graphs, one for each size of batches: Python launches two graphs a step.

    ``torch.cuda.make_graphed_callables`` captures forward and backward pass of the first batch of each size. Further
    batches are copied into its memory. Loss and optimiser run as they are.

    Args:
        model: The model, with an argument ``plan``.
        call: Calls a model with a batch.
    """

    def __init__(self, model: Module, call: Callable[[Module, Data], Tensor]) -> None:
        self.model, self.call = model, call
        self.graphs: dict[Any, Any] = {}
        self.auxiliary: Tensor = torch.zeros(())
        """The auxiliary loss of the last call."""

    def __call__(self, data: Data, plan: Plan) -> Tensor:
        """Predictions for a batch. Raises RunError if the model cannot be captured."""
        given = {name: value for name, value in data.to_dict().items() if isinstance(value, Tensor)}
        leaves, spec = tree_flatten((given, plan))
        key = (repr(spec), *((leaf.shape, leaf.dtype) for leaf in leaves))
        if key not in self.graphs:
            self.graphs[key] = self._capture(leaves, spec)
        prediction, self.auxiliary = self.graphs[key](*leaves)
        return prediction

    def _capture(self, leaves: list[Tensor], spec: Any) -> Any:
        before = [buffer.clone() for buffer in self.model.buffers()]
        step: Any = _Step(self.model, self.call, spec)
        try:
            graph = torch.cuda.make_graphed_callables(step, tuple(leaves), allow_unused_input=True)
        except RuntimeError as error:
            reason = str(error).strip().partition("\n")[0]
            raise RunError(f"train.cuda_graphs: the model cannot be captured ({reason}); set it to false") from error
        with torch.no_grad():  # the calls before the capture have changed running statistics
            for buffer, old in zip(self.model.buffers(), before):
                buffer.copy_(old)
        return graph


class _Step(Module):
    """A model and its auxiliary loss as a function of the tensors of a batch and its plan.

    The plan is made of them in each call, because it keeps what a run derives from them, which differs between batches.
    """

    def __init__(self, model: Module, call: Callable[[Module, Data], Tensor], spec: Any) -> None:
        super().__init__()
        self.model, self.call, self.spec = model, call, spec

    def forward(self, *leaves: Tensor) -> tuple[Tensor, Tensor]:
        given, plan = tree_unflatten(leaves, self.spec)
        data = Data()
        for name, value in given.items():
            data[name] = value
        planned: Any = partial(self.model, plan=plan)
        return self.call(planned, data), auxiliary_loss(self.model)
