"""Random draws as hashes of their purpose, so that they do not depend on order, device or batch.

SplitMix64 (Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014) on int64 tensors,
whose arithmetic wraps.
"""

import torch
from torch import Tensor

from pyg_topomask.ops.csr import CSR

# The constants of SplitMix64, written as signed 64-bit integers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64
LOW_32 = 2**32 - 1


def mix(z: Tensor) -> Tensor:
    """The last step of SplitMix64 in int64 arithmetic, which wraps around; masks clear copies of the sign in shifts."""
    z = (z ^ ((z >> 30) & (2**34 - 1))) * MIX_1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * MIX_2
    return z ^ ((z >> 31) & (2**33 - 1))


def wrap(value: int) -> int:
    """``value`` modulo 2^64 as a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63


def below(draw: Tensor, bound: Tensor) -> Tensor:
    """Map hashes to ``0 … bound − 1`` by their low 32 bits; ``bound`` must be positive."""
    return ((draw & LOW_32) * bound) >> 32


def keep_factors(probability: float, seed: Tensor, number: Tensor) -> Tensor:
    """Factors of dropout: 0 with the given probability, otherwise ``1 / (1 − probability)``; float64.

    Args:
        probability: Probability of 0.
        seed: Seed of all draws, int64, shape ``[1]``.
        number: Number of each draw, int64, any shape.
    """
    dropped = (mix(number * GOLDEN + seed) & LOW_32) < int(probability * 2**32)
    return dropped.logical_not().double() / max(1 - probability, torch.finfo(torch.float64).tiny)


def draw_seeds(number: int, generator: torch.Generator | None = None, device: torch.device | str = "cpu") -> Tensor:
    """Take 64-bit seeds from ``generator``, or torch's default one of the device: shape ``[number]``, int64.

    On CUDA, nothing waits for them, and each replay of a captured graph draws new ones.
    """
    of = device if generator is None else generator.device
    high, low = torch.randint(2**32, (number, 2), generator=generator, device=of).to(device).unbind(1)
    return high * 2**32 + low - 2**63


def hash_graphs(csr: CSR, ptr: Tensor, seed: int, epoch: int) -> Tensor:
    """64-bit seeds that depend only on (seed, epoch, graph), and not on the order of the edges.

    Args:
        csr: Edges of the disjoint union of several graphs.
        ptr: First node of each graph, followed by the number of nodes, shape ``[B + 1]``.
        seed: Seed shared by all graphs.
        epoch: Epoch.

    Returns:
        Shape ``[B]``, int64.
    """
    size = ptr.diff()
    row = csr.row
    graph = torch.repeat_interleave(size)[row]
    row, col = row - ptr[graph], csr.col - ptr[graph]
    seeds = torch.zeros_like(size).index_add_(0, graph, hash_edges(row, col, size[graph]))  # wraps
    return finish_graphs(seeds, size, seed, epoch)


def hash_edges(row: Tensor, col: Tensor, size: Tensor | int) -> Tensor:
    """Hashes of edges ``[E]`` of a graph of ``size`` nodes; their sum is that of the graph."""
    return mix((row * size + col + 1) * GOLDEN)


def finish_graphs(sums: Tensor, size: Tensor, seed: int, epoch: int) -> Tensor:
    """The result of `hash_graphs`, from the sum of `hash_edges` and the number of nodes of each graph."""
    for value in (wrap(seed), epoch, size):
        sums = mix(sums * MIX_1 + value + GOLDEN)
    return sums
