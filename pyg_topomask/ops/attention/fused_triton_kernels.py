"""The Triton kernels of ``fused_triton.py``; this module can only be used with Triton installed.

A program works on one row of the pattern, or on one column, and on ``HEADS`` heads, whose numbers are side by side in
memory. It reads ``PAIRS`` pairs at a time. All terms of a row or a column are summed by one program, so there are no
atomic additions, and the order of the terms is always the same.

Arguments that several kernels share:

- ``row_ptr``, ``order``, ``row_of_pair``, ``col``: the pattern and its transposed order;
- ``<array>_row``, ``<array>_head``, ``<array>_pair``: strides;
- ``HEADS``, ``WIDTH``, ``CHANNELS``: powers of two, at least as large as their names in small letters;
- ``KERNEL``: number of the kernel, as in ``native/pairs/packed.h``;
- ``HAS_DENOMINATOR``, ``HAS_SIZE``: which columns follow the ``channels`` of the sums, ``columns`` in total;
- ``num_pairs``: number of pairs of the pattern;
- ``DROPPED``, ``SCALE``: draws below ``DROPPED`` are zeroed, others are scaled; no dropout if ``DROPPED`` is 0.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from pyg_topomask.ops.attention.fused_triton_functions import (
    SIGNED_LINEAR,
    SOFTMAX,
    absolute,
    exponentials,
    finite,
    jit,
    keep_factors,
    largest,
    numbers,
    pair_gradients,
    row_gradients,
    scores,
    sign,
    sizes,
    store_numbers,
    store_vector,
    tl,
    vectors,
)


@jit
def forward(
    q, k, v, entry, bound, row_ptr, col, sums,
    q_row, q_head, k_row, k_head, v_row, v_head, entry_pair, entry_head, bound_pair, bound_head,
    heads, width, channels, columns, num_pairs, seed,
    KERNEL: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, HAS_SIZE: tl.constexpr,
    SLOPE: tl.constexpr, DROPPED: tl.constexpr, SCALE: tl.constexpr,
    PAIRS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sums of one row, ``[heads, columns]``; exponentials are relative to the largest score so far."""
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    own, own_there = row + tl.zeros((1,), tl.int64), (head < heads)[None, :]
    query = vectors(q, own, q_row, head, q_head, own_there, width, WIDTH)
    top = tl.full((HEADS,), -float("inf"), query.dtype)
    numerator = tl.zeros((HEADS, CHANNELS), query.dtype)
    denominator, size = tl.zeros((HEADS,), query.dtype), tl.zeros((HEADS,), query.dtype)
    for start in range(tl.load(row_ptr + row), tl.load(row_ptr + row + 1), PAIRS):
        pair = (start + tl.arange(0, PAIRS)).to(tl.int64)
        inside = pair < tl.load(row_ptr + row + 1)
        there = inside[:, None] & own_there
        sender = tl.load(col + pair, mask=inside, other=0).to(tl.int64)
        key = vectors(k, sender, k_row, head, k_head, there, width, WIDTH)
        entries = numbers(entry, pair, entry_pair, head, entry_head, there)
        bounds = numbers(bound, pair, bound_pair, head, bound_head, there)
        kernel = scores(query, key, SLOPE, KERNEL)
        if KERNEL >= SOFTMAX:
            before, top = top, tl.maximum(top, largest(kernel, bounds, there))
            kernel = exponentials(kernel, top[None, :])
            shrink = tl.exp(before - finite(top))
            numerator, denominator, size = numerator * shrink[:, None], denominator * shrink, size * shrink
        weight = entries * kernel
        denominator += tl.sum(weight, axis=0)
        if HAS_SIZE:
            size += tl.sum(bounds * sizes(query, key, kernel, KERNEL), axis=0)
        weight *= keep_factors(pair, head, heads, seed, weight, DROPPED, SCALE)
        value = vectors(v, sender, v_row, head, v_head, there, channels, CHANNELS)
        numerator += tl.sum(weight[:, :, None] * value, axis=0)
    lane = tl.arange(0, CHANNELS)
    target = sums + (row * heads + head) * columns
    there = head < heads
    tl.store(target[:, None] + lane[None, :], numerator, mask=there[:, None] & (lane < channels)[None, :])
    if HAS_DENOMINATOR:
        tl.store(target + channels, denominator, mask=there)
    if HAS_SIZE:
        tl.store(target + columns - 1, size, mask=there)


@jit
def backward_rows(
    q, k, v, entry, bound, row_ptr, col, grad, tops, grad_q, grad_entry, grad_bound,
    q_row, q_head, k_row, k_head, v_row, v_head, entry_pair, entry_head, bound_pair, bound_head,
    heads, width, channels, columns, num_pairs, seed,
    HAS_BOUND: tl.constexpr, SHARED_ENTRY: tl.constexpr, SHARED_BOUND: tl.constexpr,
    KERNEL: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, SLOPE: tl.constexpr, DROPPED: tl.constexpr,
    SCALE: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradients of one row's query, and of the entries and bounds of its pairs; stores the row's largest scores."""
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    own, own_there = row + tl.zeros((1,), tl.int64), (head < heads)[None, :]
    first, last = tl.load(row_ptr + row), tl.load(row_ptr + row + 1)
    query = vectors(q, own, q_row, head, q_head, own_there, width, WIDTH)
    of_sum, of_denominator, of_size = row_gradients(
        grad, own, head, own_there, heads, channels, columns, CHANNELS, HAS_DENOMINATOR
    )
    top = tl.full((HEADS,), -float("inf"), query.dtype)
    if KERNEL >= SOFTMAX:
        for start in range(first, last, PAIRS):
            pair = (start + tl.arange(0, PAIRS)).to(tl.int64)
            there = (pair < last)[:, None] & own_there
            sender = tl.load(col + pair, mask=pair < last, other=0).to(tl.int64)
            key = vectors(k, sender, k_row, head, k_head, there, width, WIDTH)
            bounds = numbers(bound, pair, bound_pair, head, bound_head, there)
            top = tl.maximum(top, largest(scores(query, key, SLOPE, KERNEL), bounds, there))
        tl.store(tops + row * heads + head, top, mask=head < heads)
    of_query = tl.zeros((HEADS, WIDTH), query.dtype)
    for start in range(first, last, PAIRS):
        pair = (start + tl.arange(0, PAIRS)).to(tl.int64)
        there = (pair < last)[:, None] & own_there
        sender = tl.load(col + pair, mask=pair < last, other=0).to(tl.int64)
        key = vectors(k, sender, k_row, head, k_head, there, width, WIDTH)
        value = vectors(v, sender, v_row, head, v_head, there, channels, CHANNELS)
        entries = numbers(entry, pair, entry_pair, head, entry_head, there)
        bounds = numbers(bound, pair, bound_pair, head, bound_head, there)
        kept = keep_factors(pair, head, heads, seed, entries, DROPPED, SCALE)
        kernel, size, of_weight, of_product = pair_gradients(
            query, key, value, of_sum, of_denominator, of_size, top[None, :], entries, bounds, kept, SLOPE, KERNEL
        )
        of_query += tl.sum(of_product[:, :, None] * key, axis=0)
        if KERNEL == SIGNED_LINEAR:
            of_query += tl.sum((of_size * bounds)[:, :, None] * absolute(key) * sign(query), axis=0)
        if grad_entry is not None:
            of_entry = kernel * of_weight
            if not HAS_BOUND:
                of_entry += of_size * size
            store_numbers(grad_entry, of_entry, pair, entry_pair, head, entry_head, there, num_pairs, SHARED_ENTRY)
        if grad_bound is not None:
            of_bound = of_size * size
            store_numbers(grad_bound, of_bound, pair, bound_pair, head, bound_head, there, num_pairs, SHARED_BOUND)
    store_vector(grad_q, row, head, heads, of_query, width, WIDTH)


@jit
def backward_columns(
    q, k, v, entry, bound, column_ptr, order, row_of_pair, grad, tops, grad_k, grad_v,
    q_row, q_head, k_row, k_head, v_row, v_head, entry_pair, entry_head, bound_pair, bound_head,
    heads, width, channels, columns, num_pairs, seed,
    KERNEL: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, SLOPE: tl.constexpr, DROPPED: tl.constexpr,
    SCALE: tl.constexpr, PAIRS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradients of the key and the value of one column, whose pairs are ``order[column_ptr[j]:column_ptr[j + 1]]``."""
    column = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    own, own_there = column + tl.zeros((1,), tl.int64), (head < heads)[None, :]
    last = tl.load(column_ptr + column + 1)
    key = vectors(k, own, k_row, head, k_head, own_there, width, WIDTH)
    value = vectors(v, own, v_row, head, v_head, own_there, channels, CHANNELS)
    of_key, of_value = tl.zeros((HEADS, WIDTH), key.dtype), tl.zeros((HEADS, CHANNELS), key.dtype)
    for start in range(tl.load(column_ptr + column), last, PAIRS):
        place = start + tl.arange(0, PAIRS)
        there = (place < last)[:, None] & own_there
        pair = tl.load(order + place, mask=place < last, other=0).to(tl.int64)
        receiver = tl.load(row_of_pair + pair, mask=place < last, other=0).to(tl.int64)
        query = vectors(q, receiver, q_row, head, q_head, there, width, WIDTH)
        of_sum, of_denominator, of_size = row_gradients(
            grad, receiver, head, there, heads, channels, columns, CHANNELS, HAS_DENOMINATOR
        )
        top = numbers(tops, receiver, heads, head, 1, there)
        entries = numbers(entry, pair, entry_pair, head, entry_head, there)
        bounds = numbers(bound, pair, bound_pair, head, bound_head, there)
        kept = keep_factors(pair, head, heads, seed, entries, DROPPED, SCALE)
        kernel, _, _, of_product = pair_gradients(
            query, key, value, of_sum, of_denominator, of_size, top, entries, bounds, kept, SLOPE, KERNEL
        )
        of_key += tl.sum(of_product[:, :, None] * query, axis=0)
        if KERNEL == SIGNED_LINEAR:
            of_key += tl.sum((of_size * bounds)[:, :, None] * absolute(query) * sign(key), axis=0)
        of_value += tl.sum((entries * kernel * kept)[:, :, None] * of_sum, axis=0)
    store_vector(grad_k, column, head, heads, of_key, width, WIDTH)
    store_vector(grad_v, column, head, heads, of_value, channels, CHANNELS)
