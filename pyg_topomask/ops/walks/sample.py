"""Random walks, all walkers at once: the one table that graph random features and RWGNK share.

Reference: Reid et al., *Linear Transformer Topological Masking with Graph Random Features*, 2024, arXiv:2410.03462,
Section 3 and Eqs. 9 and 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_topomask.checks import check_integer
from pyg_topomask.ops.csr import CSR, check_edges, drop_zeros, edge_tensors, to_csr
from pyg_topomask.ops.hashing import GOLDEN, LOW_32, MIX_1, below, mix, wrap
from pyg_topomask.typing import Adj

SCHEMES = ("iid",)

# Walkers that are moved together. Their few work arrays then fit a CPU's second-level cache; a GPU wants more at once.
_WALKERS_PER_BLOCK = {"cpu": 2**17, "cuda": 2**22}


@dataclass(frozen=True)
class Walks:
    """Visits of random walks, merged over equal (start, visited, length) and sorted by them."""

    index: Tensor
    """Start and visited node, shape ``[2, nnz]``, int64."""
    length: Tensor
    """Hops from the start, shape ``[nnz]``, int64. The entry of length 0 of every start is there."""
    load: Tensor
    """Importance weight of the visits divided by ``num_walks``, shape ``[nnz]``: its expectation is the entry
    (start, visited) of ``W ** length``."""
    count: Tensor
    """Number of visits divided by ``num_walks``, shape ``[nnz]``: its expectation is the entry of
    ``((1 - halt_prob) P) ** length``, ``P`` the uniform walk."""


def sample_walks(
    edge_index: Adj,
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
) -> Walks:
    r"""Walk from every node, depositing an importance-weighted load at every visit.

    A walker moves to a uniform out-neighbour, or as ``transition`` says. Before each step it halts with probability
    ``halt_prob``; it also ends where there is no neighbour to go to, and after ``max_length`` hops, which biases
    nothing up to that length. Having made the hops :math:`v_0, …, v_\ell` it deposits
    :math:`\prod_{t<\ell} W_{v_t v_{t+1}} \deg(v_t) / (1 - p_{halt})`
    at :math:`(v_0, v_\ell, \ell)`, whose expectation is :math:`(W^\ell)_{v_0 v_\ell}`; with ``transition``, the
    inverse of the step's probability takes the place of the degree.

    Every draw is a hash of (a 64-bit seed taken once from ``generator``, start node, walk, step). So walks do not
    depend on the device, on how the nodes are split over calls by ``start``, or on the order of the edges.

    Reference: Reid et al. 2024, arXiv:2410.03462, Eqs. 9 and 10 (the product has as many factors as the walk has hops).
    Cost: :math:`O(N n \min(K, 1/p_{halt}))` steps, all walkers at a time; memory of the result plus one block.

    Args:
        edge_index: Edges ``i → j`` as columns, shape ``[2, E]``, or a ``torch_sparse.SparseTensor`` (``adj_t``).
        num_nodes: Number of nodes ``N``.
        num_walks: Walks from each node, ``n``.
        max_length: Longest walk in hops.
        halt_prob: Probability of halting before each step, in ``[0, 1)``. The default walks ``max_length`` hops.
        edge_weight: ``W`` of the load, shape ``[E]``; one per edge if :obj:`None`. Equal edges add up, and where they
            add up to 0 there is no edge to walk along.
        scheme: How the walkers of one start depend on each other; ``"iid"`` is independent walkers.
        generator: Source of the seed; torch's default generator if :obj:`None`.
        start: Nodes to start from, shape ``[S]``; every node if :obj:`None`.
        transition: What the probability of a step along each edge is proportional to, among the edges that leave its
            node, shape ``[E]``, ≥ 0; equal edges add up. Loads are unbiased where every edge of nonzero ``W`` has a
            positive one. Uniform if :obj:`None`.

    Returns:
        The visits as :class:`Walks`; ``load`` and ``count`` have the dtype of ``edge_weight``, or torch's default.

    Raises:
        TypeError: If indices or counts are not integers, or weights are not floating point.
        ValueError: If an argument is out of range.
    """
    edge_index, edge_weight = edge_tensors(edge_index, edge_weight)
    check_edges(edge_index, num_nodes, edge_weight)
    num_walks, max_length = check_walk_settings(num_walks, max_length, halt_prob, scheme)
    csr = drop_zeros(to_csr(edge_index, num_nodes, edge_weight))
    steps = None if transition is None else step_table(csr, edge_index, transition)
    if start is not None:
        start = _check_start(start, num_nodes)
    return walk_tables(csr, draw_seed(generator), 1, num_walks, max_length, halt_prob, start, steps)[0]


class StepTable(NamedTuple):
    """How a walker picks the next edge where that is not uniform."""

    bound: Tensor
    """Where each edge's interval ends: that of edge ``e`` of node ``i`` lies between ``i 2^32`` and ``(i + 1) 2^32``,
    as long as its probability; shape ``[E']``, int64."""
    prob: Tensor
    """Probability of each edge, shape ``[E']``, float64; rounded as the intervals are, so that loads are unbiased."""


def step_table(csr: CSR, edge_index: Tensor, transition: Tensor) -> StepTable:
    """Table of steps along the edges of ``csr`` with probabilities in proportion to ``transition`` ``[E]``.

    Weights become integers, for then their sums do not depend on the device or on the order of the edges; a weight
    counts at least 2^-24 of the largest of its node. Probabilities are multiples of 2^-32.

    Raises:
        ValueError: If ``transition`` is not one finite number ≥ 0 per edge, or all edges of a node have 0.
    """
    if transition.shape != edge_index.shape[1:] or not transition.is_floating_point():
        raise ValueError(
            f"'transition' must hold one floating-point number per edge, [{edge_index.size(1)}] "
            f"(got {transition.dtype}, shape {list(transition.shape)})"
        )
    num_nodes, row = csr.rowptr.numel() - 1, csr.row
    given = to_csr(edge_index, num_nodes, transition.detach().double())  # it has the edges of csr, and perhaps more
    weight = given.weight[torch.searchsorted(given.row * num_nodes + given.col, row * num_nodes + csr.col)]
    if weight.numel() and not bool(((weight >= 0) & (weight < torch.inf)).all()):
        raise ValueError("'transition' must be finite and ≥ 0; is it a softmax over each node's edges?")
    top = weight.new_zeros(num_nodes).scatter_reduce(0, row, weight, "amax")
    if bool(((top == 0) & (csr.degree > 0)).any()):
        node = int(((top == 0) & (csr.degree > 0)).nonzero()[0])
        raise ValueError(f"'transition' is 0 on all edges of node {node}, which could go nowhere")
    level = torch.where(weight > 0, (weight / top[row] * 2**24).round().clamp(min=1), 0).long()
    total = level.cumsum(0)
    before = torch.cat([total.new_zeros(1), total])[csr.rowptr]  # [N + 1], the sum of all earlier rows
    of_row = before.diff()[row]
    bound = ((total - before[row]).double() / of_row.double() * 2**32).round().long()
    first = torch.arange(row.numel(), device=row.device) == csr.rowptr[row]
    width = torch.where(first, bound, bound - bound.roll(1))
    return StepTable(row * 2**32 + bound, width.double() / 2**32)


def check_walk_settings(num_walks: int, max_length: int, halt_prob: float, scheme: str) -> tuple[int, int]:
    """Number and length as integers; settings that describe no walk are refused. Raises TypeError and ValueError."""
    num_walks = check_integer("num_walks", num_walks, 1)
    max_length = check_integer("max_length", max_length, 0, "it counts hops")
    if not 0.0 <= halt_prob < 1.0:
        raise ValueError(f"'halt_prob' is a per-step probability in [0, 1) (got {halt_prob})")
    if scheme not in SCHEMES:
        raise ValueError(f"'scheme' must be one of {', '.join(SCHEMES)} (got {scheme!r})")
    return num_walks, max_length


def draw_seed(generator: torch.Generator | None) -> int:
    """Take one 64-bit seed from ``generator``, or from torch's default generator."""
    device = "cpu" if generator is None else generator.device
    high, low = torch.randint(2**32, (2,), generator=generator, device=device).tolist()
    return (high << 32 | low) - 2**63


def hash_graph(csr: CSR, seed: int, epoch: int) -> int:
    """64-bit seed that is a function of (seed, epoch, graph) alone, and of no order of the edges."""
    num_nodes = csr.rowptr.numel() - 1
    edges = mix((csr.row * num_nodes + csr.col + 1) * GOLDEN).sum()  # wraps
    state = edges.new_tensor([wrap(seed), epoch, num_nodes])
    for value in state:
        edges = mix(edges * MIX_1 + value + GOLDEN)
    return int(edges)


def walk_tables(
    csr: CSR,
    seed: int,
    num_tables: int,
    num_walks: int,
    max_length: int,
    halt_prob: float,
    start: Tensor | None = None,
    steps: StepTable | None = None,
) -> list[Walks]:
    """Sample ``num_tables`` independent tables of checked settings in one pass; the first is that of `sample_walks`."""
    num_nodes, device = csr.rowptr.numel() - 1, csr.col.device
    start = torch.arange(num_nodes, device=device) if start is None else start
    block = max(1, _WALKERS_PER_BLOCK.get(device.type, 2**17) // (num_tables * num_walks))
    chance = csr.degree[csr.row] if steps is None else torch.where(steps.prob > 0, 1 / steps.prob, 0)
    factor = csr.weight * (chance / (1 - halt_prob)).to(csr.weight.dtype)  # load gained on each edge
    blocks = []
    for nodes in start.split(block) or (start,):
        visits = _walk_block(csr, factor, steps, nodes, seed, num_tables, num_walks, max_length, halt_prob)
        blocks.append(_merge_visits(visits, nodes, num_nodes, num_tables, num_walks))
    return [_concatenate(list(tables)) for tables in zip(*blocks)]


def _walk_block(
    csr: CSR,
    factor: Tensor,
    steps: StepTable | None,
    nodes: Tensor,
    seed: int,
    num_tables: int,
    num_walks: int,
    max_length: int,
    halt_prob: float,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Visits ``(row, node, load)`` at each length from 0, row ``t * S + s`` being start ``nodes[s]`` in table ``t``."""
    degrees = csr.degree
    may_end = halt_prob > 0 or bool((degrees == 0).any())
    halt_below = round(halt_prob * 2**32)
    state = mix(nodes * GOLDEN + wrap(seed + GOLDEN))  # [S]
    walks = torch.arange(1, num_tables * num_walks + 1, device=nodes.device)
    state = mix(state + (walks * GOLDEN)[:, None]).flatten()  # a hash per walker: tables outermost, starts innermost
    rows = torch.arange(num_tables * nodes.numel(), device=nodes.device)
    row = rows.view(num_tables, 1, -1).expand(-1, num_walks, -1).flatten()
    node = nodes.repeat(num_tables * num_walks)
    load = factor.new_ones(node.numel())
    visits = [(rows, nodes.repeat(num_tables), load[: rows.numel()])]  # one visit for all walks of a start
    for length in range(1, max_length + 1):
        draw = mix(state + wrap(length * GOLDEN))
        degree = degrees.index_select(0, node)
        if may_end:
            keep = (((draw >> 32) & LOW_32) >= halt_below) & (degree > 0)
            alive = keep.nonzero().squeeze(1)
            row, state, node, load, draw, degree = (
                column.index_select(0, alive) for column in (row, state, node, load, draw, degree)
            )
        if steps is None:
            edge = csr.rowptr.index_select(0, node) + below(draw, degree)
        else:
            edge = torch.searchsorted(steps.bound, node * 2**32 + (draw & LOW_32), right=True)
        node = csr.col.index_select(0, edge)
        load = load * factor.index_select(0, edge)
        visits.append((row, node, load))
    return visits


def _merge_visits(
    visits: list[tuple[Tensor, Tensor, Tensor]],
    nodes: Tensor,
    num_nodes: int,
    num_tables: int,
    num_walks: int,
) -> list[Walks]:
    """Sort the visits of one block by (table, start, visited, length) and add up equal ones."""
    num_starts, num_lengths = nodes.numel(), len(visits)
    keys = [(row * num_nodes + node) * num_lengths + length for length, (row, node, _) in enumerate(visits)]
    key, order = torch.cat(keys).sort(stable=True)
    key, slot, hits = torch.unique_consecutive(key, return_inverse=True, return_counts=True)
    load = torch.cat([load for _, _, load in visits]).index_select(0, order)
    total = torch.zeros(key.numel(), dtype=torch.float64, device=key.device).index_add_(0, slot, load.double())
    place, length = key // num_lengths, key % num_lengths
    row, visited = place // max(num_nodes, 1), place % max(num_nodes, 1)
    at_start = length == 0
    total = torch.where(at_start, 1, total / num_walks).to(load.dtype)
    count = torch.where(at_start, 1, hits.double() / num_walks).to(load.dtype)
    index = torch.stack([nodes[row % num_starts], visited])
    bounds = torch.searchsorted(row, torch.arange(num_tables + 1, device=key.device) * num_starts).tolist()
    return [Walks(index[:, a:b], length[a:b], total[a:b], count[a:b]) for a, b in pairwise(bounds)]


def _concatenate(tables: list[Walks]) -> Walks:
    if len(tables) == 1:
        return tables[0]
    return Walks(
        torch.cat([table.index for table in tables], dim=1),
        torch.cat([table.length for table in tables]),
        torch.cat([table.load for table in tables]),
        torch.cat([table.count for table in tables]),
    )


def _check_start(start: Tensor, num_nodes: int) -> Tensor:
    if start.dim() != 1 or start.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"'start' must be a 1-D integer tensor (got {start.dtype}, shape {list(start.shape)})")
    if start.numel() > 0 and (int(start.min()) < 0 or int(start.max()) >= num_nodes):
        raise ValueError(f"'start' must name nodes 0 to {num_nodes - 1} (got {int(start.min())} to {int(start.max())})")
    return start.long().unique()
