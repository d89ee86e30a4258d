"""The keys of a config that set the arguments of a class."""

from __future__ import annotations

_USUAL = {"heads": "gt.n_heads", "dropout": "gt.attn_dropout", "seed": "seed"}


def keys_of(*arguments: str, **others: str) -> dict[str, str]:
    """The key of each constructor argument.

    Args:
        *arguments: Arguments with the usual key: ``heads``, ``dropout``, ``seed``, and those with the name of a key in
            the section ``topomask``.
        **others: Argument → key, for all other arguments.
    """
    return {argument: _USUAL.get(argument, f"topomask.{argument}") for argument in arguments} | others
