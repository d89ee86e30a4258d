"""What the documentation, the benchmarks and the tests say of a mask or an attention and read from its class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, Literal

from pyg_topomask.checks import check_keywords
from pyg_topomask.nn.graph_attributes import one_line
from pyg_topomask.nn.reset import Resettable

Reach = Literal["far", "hops", "order"]
Graphs = Literal["any", "grids", "sequences"]

_USUAL = {"heads": "gt.n_heads", "dropout": "gt.attn_dropout", "seed": "seed"}


@dataclass(frozen=True)
class Card:
    """A mask or an attention in a few words. ``docs/masks.md`` and ``docs/methods/index.md`` print it.

    Args:
        formula: The entry M_ij of a mask, or what a node attends to.
        learns: What is learned, per head.
        cost: Work of a product for one column, or what the time of an attention grows with.
        when: When to use it.
        reach: ``"far"``: a node may see all nodes of its graph; ``"hops"``: nodes within a number of hops;
            ``"order"``: what it sees depends on the order of the nodes, so that relabelling them changes the result.
        graphs: Kind of graphs that it is for: ``"any"``, ``"grids"`` or ``"sequences"``.
        time: Exponent of the number of nodes in the time; a logarithm counts as 0.1.
        memory: The same of memory.
        most: The same of both on graphs where a few hops reach nearly all nodes, if it is larger there.
        examples: Constructor settings for tests; the picture of all masks shows the first ones.
    """

    formula: str
    learns: str
    cost: str
    when: str
    reach: Reach
    graphs: Graphs = "any"
    time: float = 1.0
    memory: float = 1.0
    most: float = 0.0
    examples: tuple[dict[str, Any], ...] = ({},)


def keys_of(*arguments: str, **others: str) -> dict[str, str]:
    """The key of each constructor argument.

    Args:
        *arguments: Arguments with the usual key: ``heads``, ``dropout``, ``seed``, and those with the name of a key in
            the section ``topomask``.
        **others: Argument → key, for all other arguments.
    """
    return {argument: _USUAL.get(argument, f"topomask.{argument}") for argument in arguments} | others


class Described(Resettable):
    """A mask or an attention: what tables, configs and graphs have to know of it."""

    _made_with: dict[str, Any]
    """The arguments of the constructor."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "__init__" not in vars(cls):
            return
        make: Callable[..., None] = cls.__init__
        _, *names = signature(make).parameters

        @wraps(make)
        def record(self: "Described", *given: Any, **named: Any) -> None:
            check_keywords(make, type(self).__name__, named)
            make(self, *given, **named)
            self._made_with = dict(zip(names, given)) | named  # the constructor of the subclass is the last to do so

        cls.__init__ = record  # type: ignore[method-assign, assignment]

    card: ClassVar[Card]
    """The module in a few words, for tables. Every mask and attention has its own."""
    config_keys: ClassVar[Mapping[str, str]] = {}
    """Constructor argument → key of a config that sets it, such as ``{"heads": "gt.n_heads"}``. Arguments of a mask
    other than ``heads``, ``name`` and ``table`` also have a key in ``topomask.mask_<name>``, without a row here."""
    requires: tuple[str, ...] = ()
    """Attributes that the graph must carry."""
    transform_settings: Mapping[str, Any] = {}
    """Settings of the transform that adds them, where they must be those of the module."""

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Constructor settings for tests."""
        return [dict(settings) for settings in cls.card.examples]

    def extra_repr(self) -> str:
        """The arguments of the constructor that differ from their defaults."""
        known = signature(type(self)).parameters
        default = {name: one_line(known[name].default) for name in self._made_with if name in known}
        texts = {name: one_line(value) for name, value in self._made_with.items()}
        return ", ".join(f"{name}={text}" for name, text in texts.items() if text != default.get(name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"
