"""Data sets of users, by the names that configs give them."""

import re
from collections.abc import Callable
from typing import Any

REGISTERED: dict[str, Callable[..., Any]] = {}
"""Functions that load data sets, by name."""


def register_dataset(name: str, load: Callable[..., Any]) -> None:
    """Make a data set available to configs: ``dataset: {format: Registered, name: <name>}``.

    Call this function in a module of your own and start commands with ``topomask --import <module>``. The keys
    ``dataset.task`` (``graph``, ``node`` or ``edge``) and ``dataset.task_type`` say what is predicted. Targets are
    ``y``, or ``edge_label`` of the pairs ``edge_label_index``. A single graph may have the masks ``train_mask``,
    ``val_mask`` and ``test_mask``; without a split of its own, a data set needs ``dataset.split_mode: random``.

    Args:
        name: A new name of letters, digits, dots, hyphens and underscores.
        load: Function without arguments, or of the folder ``dataset.dir`` (:obj:`None` if it is not given). It returns
            a PyG data set, a list of ``Data``, a single ``Data``, or a tuple of three of them: for training, validation
            and test.

    Raises:
        TypeError: If ``load`` is no function.
        ValueError: If the name is taken or not valid.
    """
    if not callable(load):
        raise TypeError(f"'load' must be a function that returns graphs (got {type(load).__name__})")
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"a name consists of letters, digits, dots, hyphens and underscores (got {name!r})")
    known = REGISTERED.get(name, load)
    if getattr(known, "__qualname__", known) != getattr(load, "__qualname__", load):  # allow reloading a module
        raise ValueError(f"{name!r} is {known!r} already; register under another name")
    REGISTERED[name] = load
