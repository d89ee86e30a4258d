r"""Which graphs a graph transformer can distinguish: the S-SEG-WL test.

A GraphGPS model whose attention reads only node features can distinguish only graphs that this colour refinement
distinguishes (*On k-Maximum-Inner-Product Attention and the Expressive Power of GraphGPS*, Theorem 1; the test is from
Zhu et al., *On Structural Expressive Power of Graph Transformers*, KDD 2023):

.. math::
    c^0_v = f_A(v), \qquad
    c^{t+1}_v = \mathrm{hash}\big(c^t_v, \{\!\!\{(c^t_u, f_R(v, u)) : u \in V\}\!\!\}\big)

:math:`f_A` is the node encoding. :math:`f_R(v, u)` is :math:`(1, [u=v], \text{edge encoding})` if there is an edge from
``u`` to ``v``, and :math:`(0, [u=v], 0)` otherwise. So encodings decide what such a model can distinguish, and this
module shows before any training which encodings help. Node and edge features count as encodings.

Attention that reads the graph through a mask ``M``, as in GKAT and GRF, may distinguish more graphs. It is linear in
the mask, so a node of colour ``c`` reads of the nodes of each colour ``d`` the sum :math:`\sum_{u : c_u = d} M_{vu}`;
with a mask, these sums are part of the hash. Under the exact power series of an adjacency, they are what colour
refinement already knows, so that such a mask adds nothing in expectation. RWGNK with :math:`\alpha = 1` divides by the
norms of its rows, which colour refinement does not know, and does distinguish more.

Colours are integers from one table for all compared graphs, without hashing. All non-edges have the same relation, so
they contribute only the histogram of all colours, which is compared directly. A round sorts the edges from nodes whose
colour changed, at most :math:`O(E \log E)`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_geometric.data import Data

from pyg_topomask.checks import check_integer
from pyg_topomask.expressivity.encodings import Transform, encode, laplacian_invariants
from pyg_topomask.expressivity.mask_rows import Mask
from pyg_topomask.expressivity.refinement import TOLERANCE, classes_of, members_of

__all__ = ["TOLERANCE", "PairReport", "distinguishes", "laplacian_invariants", "pairs"]


def distinguishes(
    data1: Data, data2: Data, transform: Transform | None = None, rounds: int | None = None, *, mask: Mask | None = None
) -> bool:
    r"""Whether the S-SEG-WL test distinguishes two graphs.

    If it does not, no GraphGPS model whose attention reads only node features, and the graph through ``mask``, can.

    Node encodings are ``x`` and every attribute with one row per node that the transform adds or changes. Edge
    encodings are ``edge_attr`` and every attribute with one row per edge that the transform adds or changes. Other
    attributes are ignored, including ``edge_weight`` and the tables of
    :class:`~pyg_topomask.transforms.AddRandomWalks`. The edges are those after the transform. In an edge
    ``edge_index[:, e] = (u, v)``, ``v`` receives from ``u``; duplicate edges count repeatedly.

    Integers are compared exactly. Other numbers are sorted over both graphs, and neighbours in that order have the same
    colour if they differ by at most :data:`TOLERANCE`, so that rounding noise cannot separate equal numbers.
    Eigenvectors from :class:`~torch_geometric.transforms.AddLaplacianEigenvectorPE` depend on sign and basis, and are
    replaced by :func:`laplacian_invariants`. Any other encoding is also computed on relabelled copies of each graph,
    and refused if it is not equivariant. So a relabelled copy is never distinguished.

    Args:
        data1: A homogeneous graph with ``edge_index``; it is not modified.
        data2: Another graph with the same kinds of features.
        transform: Adds the encodings, such as :class:`~torch_geometric.transforms.AddRandomWalkPE`; no further
            encodings if :obj:`None`.
        rounds: Number of refinement rounds, an upper bound for models of as many layers. If :obj:`None`, refine until
            no colour splits.
        mask: What multiplies the weights of attention: a mask module or another function of the graph after the
            transform, which returns an operator or a matrix ``[N, N]`` or ``[H, N, N]``. The sums of its bounding mask,
            by which attention divides, are read, too. A module that needs random walks gets their expectation, with the
            settings of the ``AddRandomWalks`` in ``transform`` or its defaults: sampled walks of one graph differ from
            call to call. Matrices are dense. :obj:`None`: attention without a mask.

    Raises:
        TypeError: If an input is not a single homogeneous graph, ``rounds`` is not an integer, or the mask is not real.
        ValueError: If an encoding or the mask depends on the numbering of nodes or on chance, holds NaN or infinity, is
            missing on one graph, or differs in width; the message names it. Also if ``rounds`` is negative.
    """
    first, second = _classes([data1, data2], transform, rounds, mask)
    return first != second


@dataclass
class PairReport:
    """Number of pairs of graphs that the S-SEG-WL test distinguishes, without and with encodings.

    Pairs that it distinguishes are not isomorphic. Of the others, ``networkx.is_isomorphic`` tells which are.

    Attributes:
        num_graphs: Number of graphs.
        apart_without: Pairs distinguished by the data's own node and edge features.
        apart_with: Pairs distinguished by these, the transform's encodings and the mask.
        classes_without: Classes of two or more graphs that are not distinguished without encodings, by their numbers.
        classes_with: The same classes with encodings and the mask.
    """

    num_graphs: int
    apart_without: int
    apart_with: int
    classes_without: list[list[int]]
    classes_with: list[list[int]]

    @property
    def num_pairs(self) -> int:
        """Number of pairs of graphs."""
        return self.num_graphs * (self.num_graphs - 1) // 2


def pairs(
    dataset: Iterable[Data], transform: Transform | None = None, rounds: int | None = None, *, mask: Mask | None = None
) -> PairReport:
    """Count the pairs of a data set's graphs that are distinguished, without and with encodings and a mask.

    All graphs are refined together, so the work grows with the size of the data set and not with the number of pairs.
    Results are those of :func:`distinguishes` with one exception: numbers are grouped into colours over all graphs that
    agree otherwise, so that a chain of close values can join more of them.

    Args:
        dataset: Graphs, as for :func:`distinguishes`.
        transform: What adds the encodings; graphs are compared without it, and with it.
        rounds: Rounds of refinement; until nothing changes, if :obj:`None`.
        mask: What multiplies the weights of attention, as for :func:`distinguishes`.

    Raises:
        TypeError, ValueError: As for :func:`distinguishes`.
    """
    data = list(dataset)
    count, without = len(data), members_of(_classes(data, None, rounds))
    plain = transform is None and mask is None
    encoded = without if plain else members_of(_classes(data, transform, rounds, mask))
    return PairReport(count, _apart(count, without), _apart(count, encoded), without, encoded)


def _classes(
    data: Sequence[Data], transform: Transform | None, rounds: int | None, mask: Mask | None = None
) -> list[int]:
    if rounds is not None:
        check_integer("rounds", rounds, 0)
    return classes_of(encode(data, transform, mask), rounds)


def _apart(count: int, classes: Sequence[Sequence[int]]) -> int:
    """Number of pairs of graphs that are not in one class."""
    return (count * (count - 1) - sum(len(members) * (len(members) - 1) for members in classes)) // 2
