"""Limits of memory and of threads, which a program or a test may change; the defaults suit most machines."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Limits:
    """All limits, in one object.

    .. code-block:: python

        from pyg_topomask.limits import limits

        with limits.override(pairs_at_once=2**20):
            loss(model(batch)).backward()

    They hold for the whole process, and for the backward pass as well as for the forward pass.
    """

    pairs_at_once: int = 2**23
    """Pairs of nodes that attention lists together. A pair takes 50 to 200 bytes."""
    per_stored: int = 64
    """Numbers for each number that a mask stores, which may always be held: memory stays proportional to the mask."""
    numbers_held: int = 2**25
    """Numbers, such as weights of pairs, which may always be held, however few numbers the mask stores."""
    slice_numbers: int = 2**24
    """Numbers in one slice of an array that is never held as a whole."""
    dense_nodes: int = 2**10
    """Nodes, above which a user is warned that attention forms the whole mask as a dense array."""
    entries: int = 2**31 - 1
    """Largest number of entries, rows or columns of a sparse matrix, whose positions are int32."""
    thread_work: float = 1.0
    """Factor of the work that is worth one more thread of compiled code; with 0, all threads of torch are used."""

    @contextmanager
    def override(self, **values: float) -> Iterator[None]:
        """Change limits until the ``with`` statement ends.

        Raises:
            TypeError: If there is no such limit.
        """
        unknown = values.keys() - vars(self).keys()
        if unknown:
            raise TypeError(f"there is no limit {', '.join(sorted(unknown))}; there are {', '.join(vars(self))}")
        before = vars(self).copy()
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


limits = Limits()
"""The limits of this process."""

__all__ = ["Limits", "limits"]
