"""Checks of settings, made once where they enter the library."""

from __future__ import annotations

from numbers import Integral


def check_integer(name: str, value: int, least: int | None = None, reason: str = "") -> None:
    """Refuse a setting that is no integer, or smaller than allowed.

    Args:
        name: Name of the setting, for the message.
        value: Its value; NumPy's integers count, booleans do not.
        least: Smallest value allowed; none if :obj:`None`.
        reason: Why, for the message.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"'{name}' must be an integer (got {value!r})")
    if least is not None and value < least:
        raise ValueError(f"'{name}' must be at least {least}{reason and f': {reason}'} (got {value})")


def check_dropout(dropout: float) -> None:
    """Refuse a probability of dropout that is not in [0, 1). Raises ValueError."""
    if not 0 <= dropout < 1:  # neither is NaN
        raise ValueError(f"'dropout' must be a probability in [0, 1) (got {dropout})")


def check_heads(channels: int, heads: int) -> None:
    """Refuse a width that heads do not divide. Raises TypeError and ValueError."""
    check_integer("channels", channels, 1)
    check_integer("heads", heads, 1)
    if channels % heads != 0:
        raise ValueError(f"'channels' must be divisible by 'heads' (got {channels} and {heads})")
