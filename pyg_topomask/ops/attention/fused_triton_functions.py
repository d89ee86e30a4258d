"""Functions of the Triton kernels in ``fused_triton_kernels.py``, which documents their arguments."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from pyg_topomask.ops import hashing

try:
    import triton.language as tl
    from triton import jit

    constant = tl.constexpr
except ImportError:
    tl, jit, constant = None, lambda function: function, int

SIGNED_LINEAR, SOFTMAX, ADDITIVE = constant(1), constant(2), constant(3)  # from SOFTMAX on, exponentials of scores
GOLDEN, MIX_1, MIX_2 = constant(hashing.GOLDEN), constant(hashing.MIX_1), constant(hashing.MIX_2)


@jit
def vectors(array, row, by_row, head, by_head, there, size, SIZE: tl.constexpr):
    """Vectors of rows ``[n]`` and heads ``[HEADS]``: ``[n, HEADS, SIZE]``, zero where ``there [n, HEADS]`` is false."""
    lane = tl.arange(0, SIZE)
    at = row[:, None, None] * by_row + head[None, :, None] * by_head + lane[None, None, :]
    return tl.load(array + at, mask=there[:, :, None] & (lane < size)[None, None, :], other=0.0)


@jit
def numbers(array, row, by_row, head, by_head, there):
    """One number for each row ``[n]`` and head ``[HEADS]``: ``[n, HEADS]``, zero where ``there`` is false."""
    return tl.load(array + row[:, None] * by_row + head[None, :] * by_head, mask=there, other=0.0)


@jit
def store_vector(array, row, head, heads, sum, size, SIZE: tl.constexpr):
    """Store ``sum [HEADS, SIZE]`` in a row of an array without gaps, ``[rows, heads, size]``."""
    lane = tl.arange(0, SIZE)
    at = (row * heads + head[:, None]) * size + lane[None, :]
    tl.store(array + at, sum, mask=(head < heads)[:, None] & (lane < size)[None, :])


@jit
def store_numbers(array, x, pair, by_pair, head, by_head, there, num_pairs, SHARED: tl.constexpr):
    """Store ``x [n, HEADS]``, or its sums over these heads if all heads share the numbers."""
    if SHARED:
        here = tl.max(there.to(tl.int32), axis=1) > 0
        tl.store(array + tl.program_id(1) * num_pairs + pair, tl.sum(tl.where(there, x, 0.0), axis=1), mask=here)
    else:
        tl.store(array + pair[:, None] * by_pair + head[None, :] * by_head, x, mask=there)


@jit
def absolute(x):
    return tl.where(x < 0, -x, x)


@jit
def bent(score, SLOPE: tl.constexpr):
    """Slope of the leaky ReLU at each score."""
    one = tl.full(score.shape, 1, score.dtype)
    return tl.where(score > 0, one, one * SLOPE)


@jit
def scores(query, key, SLOPE: tl.constexpr, KERNEL: tl.constexpr):
    """Scores ``[n, HEADS]`` of queries and keys ``[n or 1, HEADS, WIDTH]``."""
    score = tl.sum(query * key, axis=2)
    if KERNEL == ADDITIVE:
        score *= bent(score, SLOPE)
    return score


@jit
def finite(top):
    """The largest score of a row without pairs, −inf, counts as 0."""
    return tl.where(top == -float("inf"), 0.0, top)


@jit
def exponentials(score, top):
    """``exp(score − top)``; NaN stays. Scores beyond the top have bound 0, and only their finiteness matters."""
    below = score - finite(top)
    return tl.exp(tl.where(below > 20.0, 20.0, below))


@jit
def largest(score, bound, there):
    """Largest score of each head among pairs with a non-zero bound, ``[HEADS]``."""
    return tl.max(tl.where(there & (bound != 0), score, -float("inf")), axis=0)


@jit
def sizes(query, key, kernel, KERNEL: tl.constexpr):
    """The size of the kernel, ``[n, HEADS]``."""
    if KERNEL == SIGNED_LINEAR:
        kernel = tl.sum(absolute(query) * absolute(key), axis=2)
    return kernel


@jit
def keep_factors(pair, head, heads, seed, like, DROPPED: tl.constexpr, SCALE: tl.constexpr):
    """The factors of ``hashing.keep_factors`` for the numbers ``pair * heads + head``, with the type of ``like``."""
    kept = tl.full(like.shape, 1, like.dtype)
    if DROPPED:
        z = (pair[:, None] * heads + head[None, :]) * GOLDEN + seed
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX_1
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MIX_2
        z = z ^ ((z >> 31) & 0x1FFFFFFFF)
        kept = ((z & 0xFFFFFFFF) >= DROPPED).to(like.dtype) * SCALE
    return kept


@jit
def row_gradients(
    grad, row, head, there, heads, channels, columns, CHANNELS: tl.constexpr, HAS_DENOMINATOR: tl.constexpr
):
    """Gradients of rows ``[n]``: of the numerator ``[n, HEADS, CHANNELS]``, the denominator and the size.

    The size is a constant if there is a denominator.
    """
    of_sum = vectors(grad, row, heads * columns, head, columns, there, channels, CHANNELS)
    of_denominator = numbers(grad + channels, row, heads * columns, head, columns, there)
    of_size = tl.zeros_like(of_denominator)
    if not HAS_DENOMINATOR:
        of_denominator, of_size = of_size, of_denominator
    return of_sum, of_denominator, of_size


@jit
def pair_gradients(
    query,
    key,
    value,
    grad,
    of_denominator,
    of_size,
    top,
    entry,
    bound,
    kept,
    SLOPE: tl.constexpr,
    KERNEL: tl.constexpr,
):
    """Kernel of pairs, its size, and the gradients of weights and of inner products, all ``[n, HEADS]``.

    The arguments have the shape ``[n or 1, HEADS]``, and vectors ``[n or 1, HEADS, *]``.
    """
    product = tl.sum(query * key, axis=2)
    kernel = product
    if KERNEL == ADDITIVE:
        kernel *= bent(product, SLOPE)
    if KERNEL >= SOFTMAX:
        kernel = exponentials(kernel, top)
    of_weight = tl.sum(grad * value, axis=2) * kept + of_denominator
    of_product = entry * of_weight
    if KERNEL != SIGNED_LINEAR:
        of_product += bound * of_size
    if KERNEL >= SOFTMAX:
        of_product *= kernel
    if KERNEL == ADDITIVE:
        of_product *= bent(product, SLOPE)
    return kernel, sizes(query, key, kernel, KERNEL), of_weight, of_product


@jit
def sign(x):
    """Derivative of ``absolute``."""
    one = tl.full(x.shape, 1, x.dtype)
    return tl.where(x < 0, -one, one)
