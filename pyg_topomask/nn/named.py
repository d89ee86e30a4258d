"""Attentions and convolutions that are given by their names, or as modules of PyG and torch."""

import copy
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch_geometric.nn
from torch.nn import Linear, Module, ReLU, Sequential
from torch_geometric.nn import GINConv, GINEConv, MessagePassing
from torch_geometric.resolver import normalize_string

from pyg_topomask.nn.attention import EVERY_ATTENTION
from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.attention.pyg import DENSE, ConvAttention, DenseAttention
from pyg_topomask.nn.conv import GatedGCN
from pyg_topomask.nn.mask import MASK, Mask

_CONVS: dict[str, Any] = {
    normalize_string(cls.__name__).removesuffix("conv"): cls
    for cls in vars(torch_geometric.nn.conv).values()
    if isinstance(cls, type) and issubclass(cls, MessagePassing)
}
_WIDTHS = ("in_channels", "out_channels", "channels", "dim")


def as_attention(
    attn: Any, channels: int, heads: int = 1, attn_kwargs: Mapping[str, Any] | None = None, name: str = "attn"
) -> Module:
    """An attention called as ``attn(x, batch, graph)``.

    Args:
        attn: A name in ``ATTENTION``, in upper or lower case, or of an attention of PyG or torch, such as
            ``"pyg.SGFormer"``; an attention or convolution of PyG or torch; or any other module, which is returned.
        channels: Width ``C``.
        heads: Number of heads of an attention that is given by name.
        attn_kwargs: Its further arguments, copied, so that each attention has a mask of its own.
        name: Name of the argument, for messages.

    Raises:
        TypeError: If it is neither a name nor a module.
        ValueError: If the name is unknown, the width is another one, or there are ``attn_kwargs`` or other ``heads``
            without a name.
    """
    if isinstance(attn, Mask):
        raise ValueError(_is_mask(attn, type(attn).__name__, channels, heads))
    if isinstance(attn, str):
        found = _attention_class(attn)
        masks = {text.lower(): cls.__name__ for key, cls in MASK.items() for text in (key, cls.__name__)}
        if found is None and attn.lower() in masks:
            raise ValueError(_is_mask(attn, masks[attn.lower()], channels, heads))
        if found is None:
            raise ValueError(f"no attention is called {attn!r}; there are {', '.join(EVERY_ATTENTION)}")
        settings: dict[str, Any] = {"heads": heads, **copy.deepcopy(dict(attn_kwargs or {}))}
        return found(channels, **settings)
    check_part(name, attn, channels)
    if attn_kwargs or heads not in (1, getattr(attn, "heads", 1)):
        raise ValueError(f"'heads' and 'attn_kwargs' are for an attention given by name (got {type(attn).__name__})")
    if isinstance(attn, DENSE):
        return DenseAttention(channels, attn)
    return ConvAttention(channels, attn) if isinstance(attn, MessagePassing) else attn


def _attention_class(name: str) -> Any:
    """The class of that name, in upper or lower case; None if there is none."""
    lower = {key.lower(): cls for key, cls in EVERY_ATTENTION.items()}
    return EVERY_ATTENTION.get(name) or lower.get(name.lower())


def takes_seed(attn: Any) -> bool:
    """Whether ``attn`` is the name of an attention that draws with a ``seed``."""
    return isinstance(attn, str) and "seed" in signature(_attention_class(attn) or object).parameters


def _is_mask(given: Any, name: str, channels: int, heads: int) -> str:
    return (
        f"{given!r} is a mask and no attention: give an attention with it, such as MaskedAttention({channels}, "
        f"{heads}, mask={name}(…)), which GPSModel and GPSStack take as lambda layer: …"
    )


def as_conv(conv: Any, channels: int) -> Module:
    """A convolution.

    Args:
        conv: The name of a PyG convolution, such as ``"gcn"`` or ``"GATConv"``, or ``"gatedgcn"``; or a module, which
            is returned.
        channels: Width ``C``.

    Raises:
        TypeError: If it is neither a name nor a module, or a convolution of that name needs more than widths.
        ValueError: If the name is unknown, the width is another one, or it is an attention or a mask.
    """
    if isinstance(conv, Attention | Mask):
        raise ValueError(f"{conv!r} is no convolution: an attention is given as 'attn', and a mask to an attention")
    if not isinstance(conv, str):
        check_part("conv", conv, channels)
        return conv
    key, widths = normalize_string(conv).removesuffix("conv"), (channels, channels)
    if key in ("gin", "gine"):
        mlp = Sequential(Linear(*widths), ReLU(), Linear(*widths))
        return GINConv(mlp) if key == "gin" else GINEConv(mlp)
    if key == "gatedgcn":
        return GatedGCN(channels)
    cls = _CONVS.get(key)
    if cls is None:
        raise ValueError(f"no convolution is called {conv!r}; there are {', '.join(sorted(_CONVS))}")
    try:
        return cls(**{name: channels for name in _WIDTHS if name in signature(cls).parameters})
    except TypeError as error:
        text = f"{cls.__name__} needs more than widths ({error}): give a module instead of {conv!r}"
        raise TypeError(text) from None


def check_part(name: str, part: Any, channels: int) -> None:
    """Refuse a part of a layer that is no module, or whose input or output has another width, as far as it says so.

    Raises:
        TypeError: If it is no module.
        ValueError: If a width differs from ``channels``.
    """
    if not isinstance(part, Module):
        raise TypeError(
            f"'{name}' must be a module or a name such as {'gcn' if name == 'conv' else 'grf'!r} (got {part!r})"
        )
    taken, returned = getattr(part, "channels", getattr(part, "in_channels", None)), getattr(part, "out_channels", None)
    if isinstance(returned, int) and getattr(part, "concat", False):
        returned *= getattr(part, "heads", 1)
    for verb, width in (("takes", taken), ("returns", returned)):
        if isinstance(width, int) and width not in (-1, channels):
            raise ValueError(f"{type(part).__name__} {verb} {width} channels, but the layer has {channels}")
