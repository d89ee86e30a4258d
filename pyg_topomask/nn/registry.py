"""Registration of attentions and masks that are defined outside this package."""

from torch.nn import Module

from pyg_topomask.nn.attention import ATTENTION
from pyg_topomask.nn.attention.base import Attention
from pyg_topomask.nn.mask import MASK, Mask


def register_attention(name: str, cls: type[Attention]) -> None:
    """Make an attention available to configs (``gt.layer_type: GCN+<name>``) and to every ``topomask`` command.

    Call this function in a module of your own and start commands with ``topomask --import <module>``. In a GraphGym
    program, import your module before :mod:`pyg_topomask.run.graphgym`, which registers the attentions known by then.

    Args:
        name: A new name of letters, digits and underscores.
        cls: The class. Its ``config_keys`` map constructor arguments to keys of the config.

    Raises:
        TypeError: If the class is not derived from :class:`Attention`.
        ValueError: If the name is taken or not valid.
    """
    _register(ATTENTION, Attention, name, cls)


def register_mask(name: str, cls: type[Mask]) -> None:
    """Make a mask available to configs: ``topomask.mask: <name>`` with ``gt.layer_type: GCN+Masked``.

    The constructor's arguments other than ``heads``, ``name`` and ``table`` become the keys of the section
    ``topomask.mask_<name>``, if YAML can express their values. The entry ``{"heads": "gt.n_heads"}`` in ``config_keys``
    sets ``heads``, unless the mask has an argument ``learnable`` and that is false.

    Args:
        name: A new name of letters, digits and underscores.
        cls: The class.

    Raises:
        TypeError: If the class is not derived from :class:`~pyg_topomask.nn.mask.Mask`.
        ValueError: If the name is taken or not valid.
    """
    _register(MASK, Mask, name, cls)


def _register(table: dict[str, type], base: type[Module], name: str, cls: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise TypeError(f"{name!r} must be a class derived from {base.__name__} (got {cls!r})")
    if not name.isidentifier() or name.lower() == "none":
        raise ValueError(f"a name consists of letters, digits and underscores and is not 'none' (got {name!r})")
    known = table.get(name, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):  # allow reloading a module
        raise ValueError(f"{name!r} is {known.__module__}.{known.__qualname__} already; register under another name")
    table[name] = cls
