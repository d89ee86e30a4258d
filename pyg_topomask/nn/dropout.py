"""Dropout as a module."""

import torch
from torch import Tensor
from torch.nn import Module, ReLU
from torch.nn.modules.module import _has_any_global_hook

from pyg_topomask.ops.dropout import dropout


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout` with the random numbers of `pyg_topomask.ops.dropout`, which are cheap on CPU."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Dropout of ``x``, plus ``residual``."""
        return dropout(x, self.p, self.training, residual=residual)

    def after(self, act: Module, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Dropout of ``act(x)``, plus ``residual``; in one pass over the memory if ``act`` is a ReLU."""
        if type(act) is ReLU and not has_hooks(act) and not has_hooks(self):
            return dropout(x, self.p, self.training, relu=True, residual=residual)
        return self(act(x), residual)


def has_hooks(module: Module) -> bool:
    """Whether a call of the module would run hooks or a ``forward`` of its own, so that it must not be bypassed."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module) or bool(_has_any_global_hook())
