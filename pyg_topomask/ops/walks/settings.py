"""Settings of random walks: the number of walkers, when they stop and which of them are coupled."""

from __future__ import annotations

from typing import NamedTuple

from pyg_topomask.checks import check_choice, check_integer

SCHEMES = ("iid", "antithetic", "repelling")


class WalkSettings(NamedTuple):
    """Checked settings of random walks, see `pyg_topomask.ops.walks.sample.sample_walks`."""

    num_walks: int
    max_length: int
    halt_prob: float
    scheme: str
    block_size: int
    """Number of walkers of one start that are coupled with each other; the last block may have fewer."""

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
    num_walks: int, max_length: int, halt_prob: float, scheme: str = "iid", block_size: int | None = None
) -> WalkSettings:
    """Check settings of random walks.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a setting is out of range, or ``block_size`` is given to a scheme that fixes it.
    """
    num_walks = check_integer("num_walks", num_walks, 1)
    max_length = check_integer("max_length", max_length, 0, "it counts hops")
    if not 0.0 <= halt_prob < 1.0:
        raise ValueError(f"'halt_prob' is a per-step probability in [0, 1) (got {halt_prob})")
    check_choice("scheme", scheme, SCHEMES)
    if block_size is not None and scheme != "repelling":
        raise ValueError(f"'block_size' is for scheme='repelling' (got {block_size} and scheme={scheme!r})")
    if scheme == "repelling":
        size = num_walks if block_size is None else min(check_integer("block_size", block_size, 1), num_walks)
    else:
        size = min({"iid": 1, "antithetic": 2}[scheme], num_walks)
    return WalkSettings(num_walks, max_length, float(halt_prob), scheme, size)


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
