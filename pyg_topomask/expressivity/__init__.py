r"""Which graphs a graph transformer can tell apart: the S-SEG-WL test.

A GraphGPS model whose attention reads node features alone can tell apart only graphs that colour refinement tells
apart (*k-MIP attention and the expressive power of GraphGPS*, Theorem 1; the test is from Zhu et al., *On Structural
Expressive Power of Graph Transformers*, KDD 2023):

.. math::
    c^0_v = f_A(v), \qquad
    c^{t+1}_v = \mathrm{hash}\big(c^t_v, \{\!\!\{(c^t_u, f_R(v, u)) : u \in V\}\!\!\}\big)

with the node encoding :math:`f_A` and :math:`f_R(v, u) = (1, [u=v], \text{edge encoding})` where there is an edge from
``u`` to ``v``, :math:`(0, [u=v], 0)` where there is none. What helps is therefore the encodings, and this module says
which of them do, before anything is trained. Node and edge features count as encodings.

Attention that reads the graph through a mask, as GKAT and GRF do, may tell apart more. It is covered where the mask's
entries are part of :math:`f_R`: see ``mask``. A test that tells two graphs apart says that some model may, not that a
given one does: attention normalised by its row under an exact power series of the adjacency sees no more than the test
without its mask, for colour refinement fixes the row sums of every power.

Colours are whole numbers from one table for all graphs compared; nothing is hashed. Pairs without an edge all carry
the same relation, so they add only the histogram of all colours, which is compared directly. A round sorts the edges
out of nodes whose colour changed, :math:`O(E \log E)` at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch_geometric.data import Data

from pyg_topomask.expressivity.encodings import Transform, encode, laplacian_invariants
from pyg_topomask.expressivity.isomorphism import isomorphic_pairs
from pyg_topomask.expressivity.mask_entries import Mask
from pyg_topomask.expressivity.refinement import TOLERANCE, classes_of, members_of

__all__ = ["TOLERANCE", "PairReport", "distinguishes", "laplacian_invariants", "pairs"]


def distinguishes(
    data1: Data,
    data2: Data,
    transform: Transform | None = None,
    rounds: int | None = None,
    *,
    tolerance: float = TOLERANCE,
    mask: Mask | None = None,
) -> bool:
    r"""Whether the S-SEG-WL test tells two graphs apart.

    If not, no GraphGPS model whose attention reads node features alone can; with ``mask``, none whose attention also
    reads the graph through that mask. Fewer layers than ``rounds`` see less.

    Node encodings are ``x`` and every attribute with one row per node that the transform adds or changes; edge
    encodings are ``edge_attr`` and every attribute with one row per edge that the transform adds or changes. Other
    attributes, also ``edge_weight``, and the tables of :class:`~pyg_topomask.transforms.AddRandomWalks` count for
    nothing. Edges are those that the transform leaves; ``edge_index[:, e] = (u, v)`` gives ``u`` to ``v``, and equal
    edges count as often as they are there.

    Whole numbers are compared exactly. Other numbers are sorted, over both graphs, and fall into one colour as long as
    neighbours in that order are within the tolerance, so rounding noise cannot split equal ones. Eigenvectors of
    :class:`~torch_geometric.transforms.AddLaplacianEigenvectorPE` depend on sign and basis, and are replaced by
    :func:`laplacian_invariants`. Any other encoding is computed on relabelled copies of each graph, too, and refused
    if it does not follow the relabelling, so a relabelled copy is never told apart.

    Args:
        data1: A homogeneous graph with ``edge_index``; not modified.
        data2: Another one, with the same kinds of features.
        transform: Adds the encodings, such as :class:`~torch_geometric.transforms.AddRandomWalkPE`; none if
            :obj:`None`.
        rounds: Compare colours :math:`c^0, …, c^{rounds}` only: what a model of as many layers can do at best. Until
            no colour splits any more if :obj:`None`.
        tolerance: Numbers closer than this, times their size where that is above 1, count as equal.
        mask: A function that gives the mask of a graph, with the transform's attributes, as an operator or a matrix
            ``[N, N]`` or ``[H, N, N]``, such as a mask module. Row i weighs what node i sees. The entry :math:`M_{vu}`
            becomes part of :math:`f_R(v, u)`, for pairs without an edge, too. The mask of sampled walks depends on
            chance and is refused: give its expectation. It takes :math:`O(N^2)` memory.

    Raises:
        TypeError: If an input is not a single homogeneous graph.
        ValueError: If an encoding or the mask depends on the numbering of nodes or on chance, holds NaN or infinity, or
            is missing or of another width on one graph; the message names it.
    """
    _check_settings(rounds, tolerance)
    graphs = encode([data1, data2], transform, tolerance, mask)
    first, second = classes_of(graphs, rounds, tolerance)
    return first != second


@dataclass
class PairReport:
    """How many pairs of graphs the S-SEG-WL test tells apart, without and with encodings.

    A pair that is told apart is not isomorphic; the other pairs are tested exactly, as far as the size limit goes.

    Attributes:
        num_graphs: Graphs compared.
        apart_without: Pairs told apart by the data's own node and edge features alone.
        apart_with: Pairs told apart with the transform's encodings and the mask's entries, too.
        isomorphic: Pairs that are isomorphic, features included: no model should tell them apart.
        undecided: Pairs not told apart and too large, or too regular, for the exact test.
        classes_without: Numbers of graphs that cannot be told apart, each class of two or more, without encodings.
        classes_with: The same with encodings.
    """

    num_graphs: int
    apart_without: int
    apart_with: int
    isomorphic: int
    undecided: int
    classes_without: list[list[int]] = field(default_factory=list)
    classes_with: list[list[int]] = field(default_factory=list)

    @property
    def num_pairs(self) -> int:
        """Pairs of graphs."""
        return self.num_graphs * (self.num_graphs - 1) // 2

    @property
    def non_isomorphic(self) -> int:
        """Pairs known not to be isomorphic."""
        return self.num_pairs - self.isomorphic - self.undecided


def pairs(
    dataset: Iterable[Data],
    transform: Transform | None = None,
    rounds: int | None = None,
    *,
    tolerance: float = TOLERANCE,
    max_nodes: int = 100,
    mask: Mask | None = None,
) -> PairReport:
    """Count the pairs of a data set's graphs that are told apart, without and with encodings and a mask.

    All graphs are refined together, so the work grows with the data set and not with the number of pairs. Verdicts
    are those of :func:`distinguishes`, save that numbers are put into colours over all graphs that agree otherwise,
    where a chain of close values can join more of them.

    Isomorphism, features and edge features included, is decided by refining colours, giving one node of the first
    graph and one of the second a colour of their own, and so on with backtracking.

    Args:
        dataset: Graphs, as for :func:`distinguishes`.
        transform: Adds the encodings; none if :obj:`None`.
        rounds: Rounds of refinement; until no colour splits if :obj:`None`.
        tolerance: As for :func:`distinguishes`.
        max_nodes: Largest graph on which the search for an isomorphism backtracks; larger ones count as undecided
            where refinement alone does not decide.
        mask: As for :func:`distinguishes`.

    Raises:
        TypeError: If an entry is not a single homogeneous graph.
        ValueError: As for :func:`distinguishes`.
    """
    _check_settings(rounds, tolerance)
    data = list(dataset)
    plain = encode(data, None, tolerance)
    without = classes_of(plain, rounds, tolerance)
    encoded = without
    if transform is not None or mask is not None:
        encoded = classes_of(encode(data, transform, tolerance, mask), rounds, tolerance)
    isomorphic = undecided = 0
    for members in members_of(list(zip(without, encoded))):
        same, unknown = isomorphic_pairs([plain[i] for i in members], tolerance, max_nodes)
        isomorphic, undecided = isomorphic + same, undecided + unknown
    return PairReport(
        len(data),
        _apart(without),
        _apart(encoded),
        isomorphic,
        undecided,
        members_of(without),
        members_of(encoded),
    )


def _check_settings(rounds: int | None, tolerance: float) -> None:
    if rounds is not None and rounds < 0:
        raise ValueError(f"'rounds' must not be negative (got {rounds})")
    if not 0 < tolerance < 1:
        raise ValueError(f"'tolerance' must lie between 0 and 1 (got {tolerance})")


def _apart(classes: Sequence[object]) -> int:
    return (len(classes) * (len(classes) - 1) - sum(len(m) * (len(m) - 1) for m in members_of(classes))) // 2
