"""Random walks, with all walkers sampled in parallel: the table shared by graph random features and RWGNK.

Reference: Reid et al., *Linear Transformer Topological Masking with Graph Random Features*, 2024, arXiv:2410.03462,
Section 3 and Eqs. 9 and 10.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_topomask.ops.csr import CSR, check_edges, drop_zeros, edge_tensors, to_csr
from pyg_topomask.ops.hashing import GOLDEN, draw_seeds, mix
from pyg_topomask.ops.walks import compiled
from pyg_topomask.ops.walks.merge import merge_visits, own_products, revisits
from pyg_topomask.ops.walks.settings import Lengths, WalkSettings, walk_settings
from pyg_topomask.ops.walks.transition import step_table
from pyg_topomask.ops.walks.walkers import WalkGraph, move_walkers, walk_graph
from pyg_topomask.typing import Adj

# Walkers that move together in plain torch. Their few arrays then fit a CPU's second-level cache; a GPU needs more.
_WALKERS_PER_BLOCK = {"cpu": 2**17, "cuda": 2**22}


@dataclass(frozen=True)
class Walks:
    """Visits of random walks, sorted by (start, visited, length), with equal visits merged."""

    index: Tensor
    """Start and visited node, shape ``[2, nnz]``, int64."""
    length: Tensor
    """Hops from the start, shape ``[nnz]``, int64. Every start has an entry of length 0."""
    load: Tensor
    """Sum of the visits' importance weights divided by ``num_walks``, shape ``[nnz]``. Its expectation is the entry
    (start, visited) of ``W ** length``.
    """
    count: Tensor
    """Number of visits divided by ``num_walks``, shape ``[nnz]``. Its expectation is the entry of
    ``((1 - halt_prob) P) ** length``, where ``P`` is the transition matrix of one step; with ``lengths``, of
    ``P ** length`` times the probability of at least so many hops.
    """
    own: Tensor | None = None
    r"""Contribution of products of coupled or identical walkers to the squared norm of each start's features:
    :math:`\sum_b (n_b / n)^2 \langle \Phi^b_i, \Phi^b_i \rangle` over the blocks ``b`` of ``n_b`` walkers, as
    coefficients of ``f_a f_b`` in the order of `pyg_topomask.ops.walks.merge.monomial`; shape ``[S, Q]`` for ``S``
    starts, ``Q = (K + 1)(K + 2) / 2``. This contribution biases the diagonal of :math:`\Phi \Phi^\top`.
    """


def sample_walks(
    edge_index: Adj | CSR,
    num_nodes: int,
    *,
    num_walks: int,
    max_length: int,
    halt_prob: float = 0.0,
    edge_weight: Tensor | None = None,
    scheme: str = "iid",
    generator: torch.Generator | None = None,
    start: Tensor | None = None,
    transition: Tensor | None = None,
    block_size: int | None = None,
    importance: bool = True,
    lengths: Lengths = None,
) -> Walks:
    r"""Walk from every node and deposit an importance-weighted load at every visit.

    A walker moves to a uniformly random out-neighbour, or to one drawn by ``transition``. Before each step it halts
    with probability ``halt_prob``. It also ends at a node without neighbours, and after ``max_length`` hops; neither
    biases the loads of walks up to that length. After the hops :math:`v_0, \dots, v_\ell` it deposits
    :math:`\prod_{t<\ell} W_{v_t v_{t+1}} \deg(v_t) / (1 - p_{halt})` at :math:`(v_0, v_\ell, \ell)`, whose expectation
    is :math:`(W^\ell)_{v_0 v_\ell}`. With ``lengths``, the probability of at least :math:`\ell` hops replaces
    :math:`(1 - p_{halt})^\ell`. With ``transition``, the inverse of the step's probability replaces the degree.

    Every random draw is a hash of (a 64-bit seed drawn once from ``generator``, start node, walk, step). Walks
    therefore do not depend on the device, on how ``start`` splits the nodes over calls, or on the order of the edges.

    Walkers of different starts are independent. The ``scheme`` decides how those of one start depend on each other:

    - ``"iid"``: independent;
    - ``"antithetic"``: independent pairs. Both walkers of a pair use one uniform number to halt, which is shifted by
      1/2 for the second, so that they rarely (for ``halt_prob ≤ 0.5``: never) halt at the same step;
    - ``"repelling"``: independent blocks of ``block_size`` walkers. Walkers of a block that leave the same node at the
      same step take distinct neighbours, uniformly without replacement, until all neighbours have been taken.

    Each walker alone has the same distribution as under ``"iid"``, so loads have the same expectation under each
    scheme.

    Reference: Reid et al. 2024, arXiv:2410.03462, Eqs. 9 and 10 (the product has as many factors as the walk has hops).
    General lengths: Choromanski et al., *GRFs++*, 2025, arXiv:2510.07716. Antithetic halting: Reid et al., *Quasi-Monte
    Carlo Graph Random Features*, NeurIPS 2023, arXiv:2305.12470. Repelling walks: Reid et al., *Repelling Random
    Walks*, ICLR 2024, arXiv:2310.04854.
    Cost: :math:`O(N n \min(K, 1/p_{halt}))` steps, with all walkers in parallel; memory of the result plus one block.

    Args:
        edge_index: Edges ``i → j`` as columns, shape ``[2, E]``, or a sparse ``adj_t``. A `CSR`, made by ``to_csr`` of
            `pyg_topomask.ops.csr`, is not sorted again; it has its own weights.
        num_nodes: Number of nodes ``N``.
        num_walks: Walks from each node, ``n``.
        max_length: Longest walk in hops.
        halt_prob: Probability of halting before each step, in ``[0, 1)``. By default, walks have ``max_length`` hops.
        edge_weight: ``W`` of the load, shape ``[E]``; one per edge if :obj:`None`. Equal edges add up. If they add up
            to 0, walkers do not take the edge.
        scheme: How the walkers of one start depend on each other, see above.
        generator: Source of the seed; torch's default generator if :obj:`None`.
        start: Nodes to start from, shape ``[S]``; every node if :obj:`None`.
        transition: Weight of each edge, shape ``[E]``, ≥ 0; among the edges that leave a node, the probability of a
            step is proportional to it. Equal edges add up. Loads are unbiased if every edge with nonzero ``W`` has a
            positive weight. Uniform if :obj:`None`.
        block_size: Number of walkers of one start that repel each other; all of them if :obj:`None`.
        importance: Whether loads are weighted as above. If false, each visit has load 1 (Eq. 21 of the paper, an
            ablation), and ``load`` equals ``count``.
        lengths: Distribution of the length of a walk, in place of ``halt_prob``: the probabilities of 0, 1, …
            ``max_length`` hops, which add up to 1, or ``"uniform"``: all are equally likely. The last one must be
            positive. Halting with ``halt_prob`` if :obj:`None`.

    Returns:
        The visits as :class:`Walks`; ``load`` and ``count`` have the dtype of ``edge_weight``, or torch's default
        dtype.

    Raises:
        TypeError: If indices or counts are not integers, or weights are not floating point.
        ValueError: If an argument is out of range, or two of them exclude each other: ``lengths`` and ``halt_prob``, or
            ``transition`` and the scheme ``"repelling"``.
    """
    edge_index, edge_weight = edge_tensors(edge_index, edge_weight)
    check_edges(edge_index, num_nodes, edge_weight)
    halting = halt_prob, scheme, block_size, lengths, importance
    settings = walk_settings(num_walks, max_length, *halting, has_transition=transition is not None)
    csr = drop_zeros(to_csr(edge_index, num_nodes, edge_weight))
    steps = None if transition is None else step_table(csr, edge_index, transition)
    nodes = torch.arange(num_nodes) if start is None else _check_start(start, num_nodes)
    nodes = nodes.to(edge_index.device)
    stream = start_stream(nodes, draw_seeds(1, generator).to(nodes.device))
    graph = walk_graph(csr, settings, steps)
    return walk_tables(graph, nodes, stream, 1, settings, own=True)[0]


def walk_tables(
    graph: WalkGraph, nodes: Tensor, stream: Tensor, num_tables: int, settings: WalkSettings, own: bool = False
) -> list[Walks]:
    """Sample ``num_tables`` independent tables in one pass; the first one equals the table of `sample_walks`.

    Args:
        graph: Checked graph, or the disjoint union of several.
        nodes: Nodes to start from, ascending, shape ``[S]``.
        stream: Hash of each start from which its draws are derived (`start_stream`), shape ``[S]``.
        num_tables: Number of tables.
        settings: Checked settings.
        own: Whether `Walks.own` is computed.
    """
    if not graph.in_place and compiled.refuses(graph.factor) is None:  # compiled code copies the edges
        return [Walks(*columns) for columns in compiled.walk_tables(graph, nodes, stream, num_tables, settings, own)]
    per_block = _WALKERS_PER_BLOCK.get(nodes.device.type, 2**17) // (num_tables * settings.num_walks)
    starts = zip(nodes.split(max(1, per_block)), stream.split(max(1, per_block)))
    blocks = [_tables_of_block(graph, *start, num_tables, settings, own) for start in starts]
    return [_concatenate(tables) for tables in zip(*blocks)]


def _tables_of_block(
    graph: WalkGraph, nodes: Tensor, stream: Tensor, num_tables: int, settings: WalkSettings, own: bool
) -> list[tuple[Tensor | None, ...]]:
    """`walk_tables` in plain torch, as the columns of each table; all walkers move together."""
    visits = move_walkers(graph, nodes, stream, num_tables, settings)
    merged = merge_visits(visits, nodes, graph.num_nodes, num_tables, settings)
    products: list[Tensor | None] = [None] * num_tables
    if own:
        products = [*own_products(visits, graph.num_nodes, nodes.numel(), num_tables, settings)]
    return [(*columns, product) for columns, product in zip(merged, products)]


def corrected_diagonal(walks: Walks, settings: WalkSettings) -> Tensor:
    r"""Coefficients in ``f_a f_b`` of an unbiased diagonal of :math:`\Phi \Phi^\top` from one table, ``[S, Q]``.

    .. math:: \frac{n^2 \langle \Phi_i, \Phi_i \rangle - \sum_b n_b^2 \langle \Phi^b_i, \Phi^b_i \rangle}
        {n^2 - \sum_b n_b^2}

    over blocks ``b`` of ``n_b`` coupled walkers. Only products of independent walkers remain.

    Args:
        walks: Walks from ``S`` consecutive nodes, with `Walks.own`.
        settings: Settings with more than one block.
    """
    assert walks.own is not None
    start, visited = walks.index
    start = start - start[:1]
    pair = start * (int(visited.max()) + 1 if visited.numel() else 1) + visited
    squares = revisits(start, pair, walks.length, walks.load.double(), walks.own.size(0), settings.max_length)
    found = (squares - walks.own.double()) / (1 - settings.coupled_share)
    rounding = 8 * torch.finfo(walks.load.dtype).eps * squares.abs()  # of what was subtracted, where nothing is left
    return torch.where(found.abs() <= rounding, 0, found).to(walks.load.dtype)


def start_stream(local: Tensor, seed: Tensor) -> Tensor:
    """Hash of each start, shape ``[S]``, computed from its number within its graph and that graph's seed."""
    return mix(local * GOLDEN + seed + GOLDEN)


def _concatenate(tables: Iterable[tuple[Any, ...]]) -> Walks:
    """The table of all starts, from the columns of those of consecutive starts."""
    index, *columns = zip(*tables)
    joined: list[Any] = [None if column[0] is None else torch.cat(column) for column in columns]
    return Walks(torch.cat(index, dim=1), *joined)


def _check_start(start: Tensor, num_nodes: int) -> Tensor:
    if start.dim() != 1 or start.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"'start' must be a 1-D integer tensor (got {start.dtype}, shape {list(start.shape)})")
    if start.numel() > 0 and (int(start.min()) < 0 or int(start.max()) >= num_nodes):
        raise ValueError(f"'start' must hold nodes 0 to {num_nodes - 1} (got {int(start.min())} to {int(start.max())})")
    return start.long().unique()
