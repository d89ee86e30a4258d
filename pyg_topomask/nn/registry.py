"""Names for attentions and masks that are written outside of this package."""

from __future__ import annotations

from torch.nn import Module

from pyg_topomask.nn.attention import ATTENTION
from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.mask import MASK, Mask


def register_attention(name: str, cls: type[Attention]) -> None:
    """Make an attention known to configs (``gt.layer_type: GCN+<name>``) and to every ``topomask`` command.

    Call it in a module of yours and start the commands with ``topomask --import <module>``. Import that module before
    :mod:`pyg_topomask.run.graphgym`, too, which registers what it finds.

    Args:
        name: Name of letters, digits and underscores that nothing else has.
        cls: The class; its ``config_keys`` say which keys set its arguments.

    Raises:
        TypeError: If the class is not derived from :class:`Attention`.
        ValueError: If the name is taken or is no name.
    """
    _register(ATTENTION, Attention, name, cls)


def register_mask(name: str, cls: type[Mask]) -> None:
    """Make a mask known to configs: ``topomask.mask: <name>`` beside ``gt.layer_type: GCN+Masked``.

    The arguments of its constructor become the keys of the section ``topomask.mask_<name>``, all but ``name`` and
    ``heads``. The latter is set by the row ``{"heads": "gt.n_heads"}`` in ``config_keys``, unless the mask has an
    argument ``learnable`` and that is false.

    Args:
        name: Name of letters, digits and underscores that nothing else has.
        cls: The class.

    Raises:
        TypeError: If the class is not derived from :class:`~pyg_topomask.nn.mask.Mask`.
        ValueError: If the name is taken or is no name.
    """
    _register(MASK, Mask, name, cls)


def _register(table: dict[str, type], base: type[Module], name: str, cls: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise TypeError(f"{name!r} must be a class derived from {base.__name__} (got {cls!r})")
    if not name.isidentifier() or name.lower() == "none":
        raise ValueError(f"a name consists of letters, digits and underscores and is not 'none' (got {name!r})")
    known = table.get(name, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):  # a reloaded module comes again
        raise ValueError(f"{name!r} is {known.__module__}.{known.__qualname__} already; register under another name")
    table[name] = cls
