"""Settings of random walks: the number of walkers, when they stop and which of them are coupled."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from pyg_topomask.checks import check_choice, check_integer

SCHEMES = ("iid", "antithetic", "repelling")
Lengths = Sequence[float] | str | None
"""Distribution of the lengths of walks: the probability of each one, or a name; :obj:`None`: constant halting."""


class WalkSettings(NamedTuple):
    """Checked settings of random walks, see `pyg_topomask.ops.walks.sample.sample_walks`."""

    num_walks: int
    max_length: int
    halt_prob: float
    scheme: str
    block_size: int
    """Number of walkers of one start that are coupled with each other; the last block may have fewer."""
    lengths: tuple[float, ...] | None = None
    """Probability of each length; walkers halt with `halt_prob` before each step if :obj:`None`."""
    importance: bool = True
    """Whether loads are weighted; they stay 1 otherwise."""

    @property
    def tail(self) -> list[float]:
        """Probability that a walker does not halt before 0, 1, … `max_length` hops."""
        if self.lengths is None:
            return [(1 - self.halt_prob) ** hops for hops in range(self.max_length + 1)]
        return [*accumulate(reversed(self.lengths))][::-1]

    @property
    def halts_below(self) -> list[int]:
        """How many of the 2^32 values of a draw make a walker halt before step 1, 2, … `max_length`."""
        if self.lengths is None:
            return [round(self.halt_prob * 2**32)] * self.max_length
        return [min(round((1 - after / before) * 2**32), 2**32 - 1) for before, after in pairwise(self.tail)]

    @property
    def gains(self) -> list[float]:
        """Factor of the load at each step that makes up for `lengths`; that for `halt_prob` is on the edges."""
        if self.lengths is None or not self.importance:
            return [1.0] * self.max_length
        return [2**32 / (2**32 - below) for below in self.halts_below]

    @property
    def num_blocks(self) -> int:
        """Number of blocks of walkers of one start; blocks are independent of each other."""
        return -(-self.num_walks // self.block_size)

    @property
    def coupled_share(self) -> float:
        r"""Share of the pairs of walkers of one start that are in the same block: :math:`\sum_b n_b^2 / n^2`."""
        full, rest = divmod(self.num_walks, self.block_size)
        return (full * self.block_size**2 + rest**2) / self.num_walks**2


def walk_settings(
    num_walks: int,
    max_length: int,
    halt_prob: float,
    scheme: str = "iid",
    block_size: int | None = None,
    lengths: Lengths = None,
    importance: bool = True,
    has_transition: bool = False,
) -> WalkSettings:
    """Check settings of random walks.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a setting is out of range, ``block_size`` is given to a scheme that fixes it, or there is a
            transition and the scheme takes uniform steps.
    """
    num_walks = check_integer("num_walks", num_walks, 1)
    max_length = check_integer("max_length", max_length, 0, "it counts hops")
    if not 0.0 <= halt_prob < 1.0:
        raise ValueError(f"'halt_prob' is a per-step probability in [0, 1) (got {halt_prob})")
    if lengths is not None and halt_prob != 0:
        raise ValueError(f"'lengths' replaces 'halt_prob'; pass only one of them (got {lengths} and {halt_prob})")
    check_choice("scheme", scheme, SCHEMES)
    if block_size is not None and scheme != "repelling":
        raise ValueError(f"'block_size' is for scheme='repelling' (got {block_size} and scheme={scheme!r})")
    if has_transition and scheme == "repelling":
        raise ValueError("scheme='repelling' takes uniform steps; omit 'transition' or choose another scheme")
    if scheme == "repelling":
        size = num_walks if block_size is None else min(check_integer("block_size", block_size, 1), num_walks)
    else:
        size = min({"iid": 1, "antithetic": 2}[scheme], num_walks)
    probs = None if lengths is None else _probabilities(lengths, max_length)
    return WalkSettings(num_walks, max_length, 0.0 if probs else float(halt_prob), scheme, size, probs, importance)


def _probabilities(lengths: Sequence[float] | str, max_length: int) -> tuple[float, ...]:
    """Checked probability of each length."""
    if isinstance(lengths, str):
        check_choice("lengths", lengths, ("uniform",))
        return (1 / (max_length + 1),) * (max_length + 1)
    found = tuple(map(float, lengths))
    if len(found) != max_length + 1 or not (min(found) >= 0 and abs(sum(found) - 1) < 1e-6 and found[-1] > 0):
        raise ValueError(
            f"'lengths' must be 'uniform' or the probabilities of 0, 1, … 'max_length' = {max_length} hops; they add "
            f"up to 1, and the last one is positive, because some walks must be that long (got {lengths})"
        )
    return tuple(prob / sum(found) for prob in found)


def table_name(name: str, number: int) -> str:
    """Prefix of the attributes of one of several tables that :class:`~pyg_topomask.transforms.AddRandomWalks` adds."""
    return name if number == 0 else f"{name}_table{number}"


DIAGONALS = ("independent", "corrected", "shared")


def diagonal_of(independent: bool, diagonal: str | None) -> str:
    """How the diagonal of a mask is estimated: ``diagonal``, or by default what ``independent`` means. Raises
    ValueError.
    """
    if diagonal is not None:
        check_choice("diagonal", diagonal, DIAGONALS)
    return diagonal or ("independent" if independent else "shared")
