"""Attentions by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyg_topomask.nn.attention import ATTENTION, Attention


def attention_named(name: str) -> type[Attention]:
    """The attention of that name in ``ATTENTION``, in upper or lower case.

    Raises:
        ValueError: If there is none.
    """
    known: Mapping[str, type[Attention]] = ATTENTION
    found = known.get(name) or {key.lower(): cls for key, cls in known.items()}.get(name.lower())
    if found is None:
        raise ValueError(f"no attention is called {name!r}; there are {', '.join(known)}")
    return found


def build_attention(
    name: str, channels: int, heads: int = 1, attn_kwargs: Mapping[str, Any] | None = None
) -> Attention:
    """The attention of that name, with its further arguments ``attn_kwargs``. Raises as its class."""
    return attention_named(name)(channels, **{"heads": heads, **(attn_kwargs or {})})
