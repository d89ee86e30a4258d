"""The Triton kernels of ``triton.py`` and ``means.py``; they can only be used with Triton installed."""

# mypy: disable-error-code="no-untyped-def"

from pyg_topomask.ops.attention.triton_blocks import vectors
from pyg_topomask.ops.attention.triton_kernels import jit, keep_factors, piece, store_sum, tl


@jit
def search_block(
    q,
    k,
    out,
    blocks,
    key_size,
    num_queries,
    num_keys,
    dim,
    topk,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Best keys of one block of queries in one head; ``blocks`` contains its first and last query and key.

    Most tiles have no key for any query. TF32 scores, which differ from those of float32 by less than ``margin``, tell
    whether one may be above ``least``, the score of the worst kept key. Only then are the scores computed in float32,
    and packed. One that equals ``least`` is that of a later key, and loses. While ``least`` is NaN, and for a score
    that is, keys enter. ``key_size`` is the largest absolute number of the keys of each head.

    TF32 keeps 10 of 23 bits, so that a product of two numbers is wrong by less than 2^-9 of its size, and some more for
    rounding of sums. The other terms are for numbers that it may take as 0.
    """
    block = blocks + 4 * tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    row = tl.load(block) + tl.arange(0, QUERIES)
    row_there = row < tl.load(block + 1)
    first, last = tl.load(block + 2), tl.load(block + 3)
    column = tl.arange(0, DIM)
    lane = tl.arange(0, KEYS)
    nothing = tl.full((QUERIES, KEYS), -(2**63), tl.int64)
    queries = tl.load(
        q + (head * num_queries + row[:, None]) * dim + column[None, :],
        mask=row_there[:, None] & (column < dim)[None, :],
        other=0.0,
    )
    best = tl.full((QUERIES, WIDTH), -(2**63), tl.int64)
    best = tl.where(tl.arange(0, WIDTH)[None, :] < topk, best, 2**63 - 1)  # slots beyond topk accept no key
    margin = 1.25 * 2.0**-9 * (tl.sum(tl.abs(queries), axis=1) + 2.0**-100)
    margin = margin * (tl.load(key_size + head) + 2.0**-100) + 2.0**-118
    below = tl.where(row_there, float("nan"), float("inf"))  # `least` without the margin
    for start in range(first, last, KEYS):
        key = start + lane
        keys = tl.load(
            k + (head * num_keys + key[None, :]) * dim + column[:, None],
            mask=(key < last)[None, :] & (column < dim)[:, None],
            other=0.0,
        )
        near = tl.dot(queries, keys, input_precision="tf32")
        if tl.max((~(near <= below[:, None])).to(tl.int32)) > 0:
            score = tl.dot(queries, keys, input_precision="ieee")
            score = tl.where(score == 0.0, 0.0, score)  # one zero
            bits = score.to(tl.int32, bitcast=True)
            bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
            number = (bits << 32) | (0x7FFFFFFF - key).to(tl.int64)[None, :]
            number = tl.where(row_there[:, None] & (key < last)[None, :], number, nothing)
            worst = tl.min(best, axis=1)
            largest = tl.max(number, axis=1)
            while tl.max((largest > worst).to(tl.int32), axis=0) > 0:
                enters = (largest > worst)[:, None]
                slot = tl.argmin(best, axis=1)[:, None] == tl.arange(0, WIDTH)[None, :]
                best = tl.where(enters & slot, largest[:, None], best)
                number = tl.where(number == largest[:, None], nothing, number)
                worst = tl.min(best, axis=1)
                largest = tl.max(number, axis=1)
            high = (worst >> 32).to(tl.int32)
            kept = tl.where(high < 0, high ^ 0x7FFFFFFF, high).to(tl.float32, bitcast=True)
            full = row_there & (worst > -(2**63))
            below = tl.where(full, kept - margin, below)
    target = out + (head * num_queries + row) * topk
    for rank in range(topk):  # extract the kept keys, best first
        current = tl.where(tl.arange(0, WIDTH)[None, :] < topk, best, -(2**63))
        largest = tl.max(current, axis=1)
        found = 0x7FFFFFFF - (largest & 0x7FFFFFFF)
        tl.store(target + rank, tl.where(largest > -(2**63), found, -1), mask=row_there)
        taken = current == largest[:, None]
        best = tl.where(taken, -(2**63), best)


@jit
def attend(
    q, k, v, index, seed, out, grad, grad_q, used, of_score, column,
    q_row, q_head, k_row, k_head, v_row, v_head, rows, heads, width, channels, topk, scale,
    DROPPED: tl.constexpr, SCALE: tl.constexpr, TOPK: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Mean of the values of one query's keys in one head; or, if it has a gradient, that of the query.

    In the backward pass, each place gets what `backward_keys` reads: the weight with dropout (``used``), the gradient
    of the product, and the number of the key in all heads. A missing key has weight 0, and counts as the query's own.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, lane, channel = tl.arange(0, TOPK), tl.arange(0, WIDTH), tl.arange(0, CHANNELS)
    own, place = row * heads + head, (head * rows + row) * topk + slot
    key = tl.load(index + place, mask=slot < topk, other=-1)
    there = key >= 0
    query = tl.load(q + row * q_row + head * q_head + lane, mask=lane < width, other=0.0)
    keys = vectors(k + head * k_head, key, k_row, there, width, WIDTH)
    values = vectors(v + head * v_head, key, v_row, there, channels, CHANNELS)
    score = tl.where(there, tl.sum(query[None, :] * keys, axis=1) * scale, -float("inf"))
    weight = tl.exp(score - tl.max(score, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    no_head = tl.zeros((1,), tl.int64)
    kept = tl.sum(keep_factors(place, no_head, 1, seed, weight[:, None], DROPPED, SCALE), axis=1)
    if grad is None:
        mean = tl.sum((weight * kept)[:, None] * values, axis=0)
        tl.store(out + own * channels + channel, mean, mask=channel < channels)
    else:
        of_mean = tl.load(grad + own * channels + channel, mask=channel < channels, other=0.0)
        of_weight = tl.sum(of_mean[None, :] * values, axis=1) * kept
        of_product = weight * (of_weight - tl.sum(weight * of_weight, axis=0)) * scale
        tl.store(used + place, tl.where(there, weight * kept, 0.0), mask=slot < topk)
        tl.store(of_score + place, tl.where(there, of_product, 0.0), mask=slot < topk)
        tl.store(column + place, tl.where(there, key, row) * heads + head, mask=slot < topk)
        tl.store(grad_q + own * width + lane, tl.sum(of_product[:, None] * keys, axis=0), mask=lane < width)


@jit
def backward_keys(
    q, grad, used, of_score, column_ptr, column_of_place, order, grad_k, parts_k, grad_v, parts_v,
    q_row, q_head, rows, heads, width, channels, topk, columns, cuts,
    CUT: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradients of one key and its value in one head, from what `attend` has stored."""
    column, first, last, part = piece(column_ptr, column_of_place, columns, cuts, CUT)
    head, one = column % heads, tl.zeros((1,), tl.int64)
    of_key, of_value = tl.zeros((WIDTH,), used.dtype.element_ty), tl.zeros((CHANNELS,), used.dtype.element_ty)
    for start in range(first, last, PAIRS):
        place = start + tl.arange(0, PAIRS)
        there = place < last
        pair = tl.load(order + place, mask=there, other=0)
        row = pair // topk % rows
        of_product = tl.load(of_score + pair, mask=there, other=0.0)
        weight = tl.load(used + pair, mask=there, other=0.0)
        of_key += tl.sum(of_product[:, None] * vectors(q + head * q_head, row, q_row, there, width, WIDTH), axis=0)
        of_mean = vectors(grad + head * channels, row, heads * channels, there, channels, CHANNELS)
        of_value += tl.sum(weight[:, None] * of_mean, axis=0)
    store_sum(grad_k, parts_k, column, part, one, 1, of_key[None, :], width, WIDTH)
    store_sum(grad_v, parts_v, column, part, one, 1, of_value[None, :], channels, CHANNELS)
