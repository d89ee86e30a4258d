"""Norms of nodes and edges that accept zero rows or one row, and activations."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch_geometric.nn
from torch import Tensor
from torch.nn import BatchNorm1d, Module
from torch.nn import LayerNorm as NodeLayerNorm
from torch.nn.functional import batch_norm
from torch_geometric.nn import GraphNorm, LayerNorm
from torch_geometric.nn.resolver import activation_resolver
from torch_geometric.resolver import normalize_string

from pyg_topomask import plan as plans
from pyg_topomask.ops.numerics import at_least_float32

NORMS: dict[str, type[Module]] = {
    "batch_norm": BatchNorm1d,
    "layer_norm": LayerNorm,
    "node_layer_norm": NodeLayerNorm,
    "graph_norm": GraphNorm,
}

_PYG = {name: getattr(torch_geometric.nn.norm, name) for name in torch_geometric.nn.norm.__all__}
_BY_NAME: dict[str, Any] = {normalize_string(name): cls for name, cls in {**_PYG, **NORMS}.items()}

# Names of the arguments of each class of modules; None if it accepts all.
_ARGUMENTS: dict[type[Module], frozenset[str] | None] = {}


def accepts(module: Module, name: str) -> bool:
    """Whether a module's ``forward`` has an argument of that name; ``torch.compile`` needs an earlier call of this.

    A convolution of PyG whose ``edge_dim`` is None has an argument ``edge_attr``, but reads no edge features:
    ``GATConv`` ignores them, and others fail.
    """
    if name == "edge_attr" and getattr(module, "edge_dim", 0) is None:
        return False
    kind: type[Any] = type(getattr(module, "_orig_mod", module))  # that of a module from torch.compile
    if kind not in _ARGUMENTS:
        parameters = inspect.signature(kind.forward).parameters
        any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        _ARGUMENTS[kind] = None if any_name else frozenset(parameters)
    names = _ARGUMENTS[kind]
    return names is None or name in names


def build_norm(norm: str | Module | None, channels: int, norm_kwargs: Mapping[str, Any] | None = None) -> Module | None:
    """A norm for rows of width ``channels``.

    Args:
        norm: A name in `NORMS` or of a norm of PyG; a module, which is copied; or :obj:`None` for no norm.
        channels: Width ``C``.
        norm_kwargs: Further arguments of a norm that is given by name.

    Raises:
        ValueError: If the name is unknown, or there are ``norm_kwargs`` without a name.
    """
    if norm is None or isinstance(norm, Module):
        _refuse_settings("norm", norm, norm_kwargs)
        built = copy.deepcopy(norm)
    else:
        key = normalize_string(str(norm))
        cls = _BY_NAME.get(key) or _BY_NAME.get(f"{key}norm")
        if cls is None:
            known = f"{', '.join(NORMS)}, None, a name of PyG or a module"
            raise ValueError(f"'norm' must be one of {known} (got {norm!r})")
        has_width = cls in NORMS.values() or "in_channels" in inspect.signature(cls).parameters
        built = cls(*[channels] * has_width, **(norm_kwargs or {}))
    if built is not None:
        accepts(built, "batch")
    return built


def build_act(act: str | Module, act_kwargs: Mapping[str, Any] | None = None) -> Any:
    """The activation of that name in PyG, with its arguments ``act_kwargs``; a module is copied. Raises ValueError."""
    _refuse_settings("act", act, act_kwargs)
    return activation_resolver(copy.deepcopy(act), **(act_kwargs or {}))


def _refuse_settings(name: str, part: Any, given: Mapping[str, Any] | None) -> None:
    """Refuse further arguments of a module, which has its own already, and of none. Raises ValueError."""
    if given and (part is None or isinstance(part, Module)):
        raise ValueError(f"'{name}_kwargs' are for '{name}' given by name (got {type(part).__name__} and {given})")


def apply_norm(norm: Module | None, x: Tensor, batch: Tensor | None = None, node: Tensor | None = None) -> Tensor:
    """Apply a norm to the rows ``x [N, C]`` of the graphs in ``batch``; return ``x`` if the norm is :obj:`None`.

    The dummy graphs of a padded batch have no part in it. ``node [N]`` is a node of each row if rows are not the nodes.

    Raises:
        ValueError: If the batch is padded, and the norm has statistics of all rows.
    """
    if norm is None or x.size(0) == 0:
        return x
    real = plans.real_rows(x.size(0), batch, node)
    if real is not None:
        if isinstance(norm, BatchNorm1d) and (norm.training or norm.running_mean is None):
            return _batch_norm_of(norm, x, real)
        if not _is_by_graph(norm):
            raise ValueError(f"{type(norm).__name__} has statistics of all rows, with those of Buckets: use batch_norm")
    if not isinstance(norm, BatchNorm1d):
        count = plans.num_graphs()
        sizes = {"batch_size": count} if count is not None and accepts(norm, "batch_size") else {}
        batch = None if batch is None else batch.long()  # as PyTorch's scatter wants it before 2.8
        return norm(x, batch=batch, **sizes) if accepts(norm, "batch") else norm(x)
    if norm.training and x.size(0) == 1:
        # A single row has no variance: normalise it by the running statistics.
        return batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    return norm(x)


def _is_by_graph(norm: Module) -> bool:
    """Whether a row of the result depends on its graph alone."""
    by_graph = accepts(norm, "batch") and not getattr(norm, "track_running_stats", False)
    return isinstance(norm, BatchNorm1d | NodeLayerNorm) or by_graph


def _batch_norm_of(norm: Any, x: Tensor, real: Tensor) -> Tensor:
    """Batch norm with the statistics of the ``real`` rows, ``[N]``; those of the module if it is one row."""
    if x.dim() == 3:  # [N, C, L] has N L rows
        out = _batch_norm_of(norm, x.transpose(1, 2).flatten(0, 1), real.repeat_interleave(x.size(2)))
        return out.view(x.size(0), x.size(2), -1).transpose(1, 2)
    (wide,), real, count = at_least_float32(x), real[:, None], real.sum()
    several, least = count > 1, count.clamp(min=1)
    mean = torch.where(real, wide, 0).sum(0) / least
    var = torch.where(real, (wide - mean).square(), 0).sum(0) / least
    if norm.running_mean is not None:
        with torch.no_grad():
            norm.num_batches_tracked += several
            rate = 1 / norm.num_batches_tracked.clamp(min=1) if norm.momentum is None else norm.momentum
            rate = several.to(norm.running_mean) * rate
            norm.running_mean.lerp_(mean.to(rate), rate)
            norm.running_var.lerp_((var * least / (least - 1).clamp(min=1)).to(rate), rate)
        mean, var = torch.where(several, mean, norm.running_mean), torch.where(several, var, norm.running_var)
    out = (wide - mean) * (var + norm.eps).rsqrt()
    return (out if norm.weight is None else out * norm.weight + norm.bias).to(x.dtype)
