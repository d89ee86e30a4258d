"""The Triton kernels of ``engines/pairs_triton.py``; they do what ``native/pairs/`` does on CPU.

A program works on one row of the pattern, or on one column, and on ``HEADS`` heads, whose numbers are side by side in
memory. It reads ``PAIRS`` pairs at a time. Rows and columns of more than ``CUT`` pairs are cut at the places that are
multiples of ``CUT`` (there are ``cuts``, or 0: then none is cut), because one program would work on those of a hub for
long. More programs sum the pieces, and `combine` adds the pieces of a row in their order. There are no atomic
additions, and the order of the terms is always the same.

Arguments that several kernels share:

- ``row_ptr``, ``row_of_pair``, ``col``: the pattern; ``column_ptr``, ``column_of_place``, ``order``: its transposed
  order, in which pair ``order[i]`` has the place ``i``;
- ``edge``, ``of_pair``: vectors ``[*, heads, width]`` that multiply keys, and that of each pair; or nothing;
- ``seed``: of the dropout, or nothing;
- ``parts``: sums of pieces, ``[2 * cuts, heads, *]``, in the precision of sums; see `piece`;
- ``<array>_row``, ``<array>_head``, ``<array>_pair``: strides;
- ``HEADS``, ``WIDTH``, ``CHANNELS``: powers of two, at least as large as their names in small letters;
- ``KERNEL``: number of the kernel, as in ``native/pairs/packed.h``;
- ``num_pairs``: number of pairs of the pattern;
- ``DROPPED``, ``SCALE``: draws below ``DROPPED`` are zeroed, others are scaled; no dropout if ``DROPPED`` is 0.
"""

# mypy: disable-error-code="no-untyped-def"

from pyg_topomask.ops import hashing

try:
    import triton.language as tl
    from triton import jit

    constant = tl.constexpr
    # Otherwise, each kernel is compiled again for numbers that are 1, that are multiples of 16, and for others.
    launched = jit(do_not_specialize=("num_pairs", "rows", "columns", "cuts"))
except ImportError:
    tl, constant = None, int
    jit = launched = lambda function: function

SOFTMAX, ADDITIVE = constant(1), constant(2)  # from SOFTMAX on, exponentials of scores
GOLDEN, MIX_1, MIX_2 = constant(hashing.GOLDEN), constant(hashing.MIX_1), constant(hashing.MIX_2)


@jit
def vectors(array, row, by_row, head, by_head, there, size, SIZE: tl.constexpr):
    """Vectors of rows ``[n]`` and heads ``[HEADS]``: ``[n, HEADS, SIZE]``, zero where ``there [n, HEADS]`` is false.

    Half precision becomes float32.
    """
    lane = tl.arange(0, SIZE)
    at = row[:, None, None] * by_row + head[None, :, None] * by_head + lane[None, None, :]
    found = tl.load(array + at, mask=there[:, :, None] & (lane < size)[None, None, :], other=0.0)
    return found if found.dtype == tl.float64 else found.to(tl.float32)


@jit
def edge_vectors(edge, of_pair, pair, inside, head, there, heads, width, WIDTH: tl.constexpr):
    """Vectors of the edges of pairs, as `vectors`."""
    number = tl.load(of_pair + pair, mask=inside, other=0).to(tl.int64)
    return vectors(edge, number, heads * width, head, width, there, width, WIDTH)


@jit
def numbers(array, row, by_row, head, by_head, there):
    """One number for each row ``[n]`` and head ``[HEADS]``: ``[n, HEADS]``, zero where ``there`` is false."""
    return tl.load(array + row[:, None] * by_row + head[None, :] * by_head, mask=there, other=0.0)


@jit
def piece(row_ptr, row_of_pair, rows, cuts, CUT: tl.constexpr):
    """The program's row, its first pair and last pair + 1, and the place of its sums in ``parts``; −1 for a whole row.

    The first programs have one row each, up to the first cut. Program ``rows + i`` has the pairs from the place ``CUT *
    (i + 1)`` to the end of their row or the next cut, unless a row begins there or is whole; its sums are part ``i``.
    Part ``cuts + i`` is the begin of the row with this cut.
    """
    program = tl.program_id(0).to(tl.int64)
    more = program >= rows
    cut = tl.where(more, (program - rows + 1) * CUT, 0)
    row = tl.where(more, tl.load(row_of_pair + cut, mask=more, other=0), program)
    begin, end = tl.load(row_ptr + row), tl.load(row_ptr + row + 1)
    whole = (end - begin <= CUT) | (cuts == 0)
    first = tl.maximum(begin, cut)
    last = tl.where(whole, end, tl.minimum(end, (first // CUT + 1) * CUT))
    part = tl.where(more, program - rows, tl.where(last < end, cuts + first // CUT, -1))
    return row, first, tl.where(more & (whole | (begin == cut)), first, last), part


@jit
def store_sum(array, parts, row, part, head, heads, sum, size, SIZE: tl.constexpr):
    """Store ``sum [HEADS, SIZE]`` as part, or, if it is that of a whole row, in ``array [rows, heads, size]``."""
    lane = tl.arange(0, SIZE)
    at = head[:, None] * size + lane[None, :]
    there = (head < heads)[:, None] & (lane < size)[None, :]
    if part < 0:
        tl.store(array + row * heads * size + at, sum, mask=there)
    else:
        tl.store(parts + part * heads * size + at, sum, mask=there)


@launched
def combine(
    array, parts, tops, part_tops, row_ptr, row_of_pair, cuts, heads, size,
    CUT: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add the parts of a row that is cut, in their order. If there are ``tops``, each is relative to its own one."""
    cut = tl.program_id(0).to(tl.int64)
    head, lane = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, SIZE)
    at, there = head[:, None] * size + lane[None, :], (head < heads)[:, None] & (lane < size)[None, :]
    row = tl.load(row_of_pair + (cut + 1) * CUT).to(tl.int64)
    begin, end = tl.load(row_ptr + row), tl.load(row_ptr + row + 1)
    if (begin // CUT == cut) & (end - begin > CUT):  # the first cut of the row
        total = tl.load(parts + (cuts + cut) * heads * size + at, mask=there)
        if tops is not None:
            top = tl.load(part_tops + (cuts + cut) * heads + head, mask=head < heads)
        part = cut
        for _ in range((cut + 1) * CUT, end, CUT):
            sum = tl.load(parts + part * heads * size + at, mask=there)
            if tops is not None:
                own = tl.load(part_tops + part * heads + head, mask=head < heads)
                before, top = top, tl.maximum(top, own)
                total *= tl.exp(before - finite(top))[:, None]
                sum *= tl.exp(own - finite(top))[:, None]
            total += sum
            part += 1
        tl.store(array + row * heads * size + at, total, mask=there)
        if tops is not None:
            tl.store(tops + row * heads + head, top, mask=head < heads)


@jit
def store_numbers(array, x, pair, by_pair, head, by_head, there, num_pairs, SHARED: tl.constexpr):
    """Store ``x [n, HEADS]``, or its sums over these heads if all heads share the numbers."""
    if SHARED:
        here = tl.max(there.to(tl.int32), axis=1) > 0
        tl.store(
            array + tl.program_id(1).to(tl.int64) * num_pairs + pair, tl.sum(tl.where(there, x, 0.0), axis=1), mask=here
        )
    else:
        tl.store(array + pair[:, None] * by_pair + head[None, :] * by_head, x, mask=there)


@jit
def bent(score, SLOPE: tl.constexpr):
    """Slope of the leaky ReLU at each score."""
    one = tl.full(score.shape, 1, score.dtype)
    return tl.where(score > 0, one, one * SLOPE)


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
def keep_factors(pair, head, heads, seed, like, DROPPED: tl.constexpr, SCALE: tl.constexpr):
    """The factors of ``hashing.keep_factors`` for the numbers ``pair * heads + head``, with the type of ``like``."""
    kept = tl.full(like.shape, 1, like.dtype)
    if DROPPED:
        z = (pair[:, None] * heads + head[None, :]) * GOLDEN + tl.load(seed)
        z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX_1
        z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * MIX_2
        z = z ^ ((z >> 31) & 0x1FFFFFFFF)
        kept = ((z & 0xFFFFFFFF) >= DROPPED).to(like.dtype) * SCALE
    return kept


@jit
def row_gradients(grad, row, head, there, heads, channels, CHANNELS: tl.constexpr):
    """Gradients of rows ``[n]``: of the numerator ``[n, HEADS, CHANNELS]``, and of the size ``[n, HEADS]``."""
    columns = channels + 1
    of_sum = vectors(grad, row, heads * columns, head, columns, there, channels, CHANNELS)
    return of_sum, numbers(grad + channels, row, heads * columns, head, columns, there)


@jit
def pair_gradients(
    query, key, value, grad, of_size, top, entry, bound, kept, SLOPE: tl.constexpr, KERNEL: tl.constexpr
):
    """Kernel of pairs, and the gradients of weights and of inner products, all ``[n, HEADS]``.

    The arguments have the shape ``[n or 1, HEADS]``, and vectors ``[n or 1, HEADS, *]``.
    """
    product = tl.sum(query * key, axis=2)
    kernel = product
    if KERNEL == ADDITIVE:
        kernel *= bent(product, SLOPE)
    if KERNEL >= SOFTMAX:
        kernel = exponentials(kernel, top)
    of_weight = tl.sum(grad * value, axis=2) * kept
    of_product = entry * of_weight + bound * of_size
    if KERNEL >= SOFTMAX:
        of_product *= kernel
    if KERNEL == ADDITIVE:
        of_product *= bent(product, SLOPE)
    return kernel, of_weight, of_product


@launched
def forward(
    q, k, v, entry, bound, edge, of_pair, seed, row_ptr, row_of_pair, col, sums, parts, tops, part_tops,
    q_row, q_head, k_row, k_head, v_row, v_head, entry_pair, entry_head, bound_pair, bound_head,
    heads, width, channels, num_pairs, rows, cuts,
    KERNEL: tl.constexpr, SLOPE: tl.constexpr, DROPPED: tl.constexpr, SCALE: tl.constexpr, CUT: tl.constexpr,
    PAIRS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sums of one row, ``[heads, channels + 1]``, and its largest scores so far, to which exponentials are relative."""
    row, first, last, part = piece(row_ptr, row_of_pair, rows, cuts, CUT)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    own, own_there = row + tl.zeros((1,), tl.int64), (head < heads)[None, :]
    query = vectors(q, own, q_row, head, q_head, own_there, width, WIDTH)
    top = tl.full((HEADS,), -float("inf") if KERNEL >= SOFTMAX else 0.0, query.dtype)
    numerator = tl.zeros((HEADS, CHANNELS), query.dtype)
    size = tl.zeros((HEADS,), query.dtype)
    for start in range(first, last, PAIRS):
        pair = (start + tl.arange(0, PAIRS)).to(tl.int64)
        there = (pair < last)[:, None] & own_there
        sender = tl.load(col + pair, mask=pair < last, other=0).to(tl.int64)
        key = vectors(k, sender, k_row, head, k_head, there, width, WIDTH)
        if edge is not None:
            key *= edge_vectors(edge, of_pair, pair, pair < last, head, there, heads, width, WIDTH)
        entries = numbers(entry, pair, entry_pair, head, entry_head, there)
        bounds = numbers(bound, pair, bound_pair, head, bound_head, there)
        kernel = tl.sum(query * key, axis=2)
        if KERNEL == ADDITIVE:
            kernel *= bent(kernel, SLOPE)
        if KERNEL >= SOFTMAX:
            largest = tl.max(tl.where(there & (bounds != 0), kernel, -float("inf")), axis=0)
            before, top = top, tl.maximum(top, largest)
            kernel = exponentials(kernel, top[None, :])
            shrink = tl.exp(before - finite(top))
            numerator, size = numerator * shrink[:, None], size * shrink
        weight = entries * kernel
        size += tl.sum(bounds * kernel, axis=0)
        weight *= keep_factors(pair, head, heads, seed, weight, DROPPED, SCALE)
        value = vectors(v, sender, v_row, head, v_head, there, channels, CHANNELS)
        numerator += tl.sum(weight[:, :, None] * value, axis=0)
    if part >= 0:
        row, sums, tops = part, parts, part_tops
    lane = tl.arange(0, CHANNELS)
    target = sums + (row * heads + head) * (channels + 1)
    there = head < heads
    tl.store(target[:, None] + lane[None, :], numerator, mask=there[:, None] & (lane < channels)[None, :])
    tl.store(target + channels, size, mask=there)
    tl.store(tops + row * heads + head, top, mask=there)


@launched
def backward_rows(
    q, k, v, entry, bound, edge, of_pair, seed, row_ptr, row_of_pair, col,
    grad, tops, grad_entry, grad_bound, grad_q, parts,
    q_row, q_head, k_row, k_head, v_row, v_head, entry_pair, entry_head, bound_pair, bound_head,
    heads, width, channels, num_pairs, rows, cuts,
    HAS_BOUND: tl.constexpr, SHARED_ENTRY: tl.constexpr, SHARED_BOUND: tl.constexpr,
    KERNEL: tl.constexpr, SLOPE: tl.constexpr, DROPPED: tl.constexpr, SCALE: tl.constexpr, CUT: tl.constexpr,
    PAIRS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradients of one row's query, and of the entries and bounds of its pairs."""
    row, first, last, part = piece(row_ptr, row_of_pair, rows, cuts, CUT)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    own, own_there = row + tl.zeros((1,), tl.int64), (head < heads)[None, :]
    query = vectors(q, own, q_row, head, q_head, own_there, width, WIDTH)
    of_sum, of_size = row_gradients(grad, own, head, own_there, heads, channels, CHANNELS)
    top = numbers(tops, own, heads, head, 1, own_there)
    of_query = tl.zeros((HEADS, WIDTH), query.dtype)
    for start in range(first, last, PAIRS):
        pair = (start + tl.arange(0, PAIRS)).to(tl.int64)
        there = (pair < last)[:, None] & own_there
        sender = tl.load(col + pair, mask=pair < last, other=0).to(tl.int64)
        key = vectors(k, sender, k_row, head, k_head, there, width, WIDTH)
        if edge is not None:
            key *= edge_vectors(edge, of_pair, pair, pair < last, head, there, heads, width, WIDTH)
        value = vectors(v, sender, v_row, head, v_head, there, channels, CHANNELS)
        entries = numbers(entry, pair, entry_pair, head, entry_head, there)
        bounds = numbers(bound, pair, bound_pair, head, bound_head, there)
        kept = keep_factors(pair, head, heads, seed, entries, DROPPED, SCALE)
        kernel, of_weight, of_product = pair_gradients(
            query, key, value, of_sum, of_size, top, entries, bounds, kept, SLOPE, KERNEL
        )
        of_query += tl.sum(of_product[:, :, None] * key, axis=0)
        if grad_entry is not None:
            of_entry = kernel * of_weight
            if not HAS_BOUND:
                of_entry += of_size * kernel
            store_numbers(grad_entry, of_entry, pair, entry_pair, head, entry_head, there, num_pairs, SHARED_ENTRY)
        if grad_bound is not None:
            of_bound = of_size * kernel
            store_numbers(grad_bound, of_bound, pair, bound_pair, head, bound_head, there, num_pairs, SHARED_BOUND)
    store_sum(grad_q, parts, row, part, head, heads, of_query, width, WIDTH)


@launched
def backward_columns(
    q, k, v, entry, bound, edge, of_pair, seed, column_ptr, column_of_place, order, row_of_pair, col,
    grad, tops, grad_k, parts, grad_v, parts_v,
    q_row, q_head, k_row, k_head, v_row, v_head, entry_pair, entry_head, bound_pair, bound_head,
    heads, width, channels, num_pairs, columns, cuts,
    KERNEL: tl.constexpr, SLOPE: tl.constexpr, DROPPED: tl.constexpr, SCALE: tl.constexpr, CUT: tl.constexpr,
    PAIRS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, OF_EDGE: tl.constexpr,
):  # fmt: skip
    """Gradients of the key and the value of one column, whose pairs are ``order[column_ptr[j]:column_ptr[j + 1]]``.

    If ``OF_EDGE``, the pairs of a "column" have an edge vector in common, and the gradient is that of the vector.
    """
    column, first, last, part = piece(column_ptr, column_of_place, columns, cuts, CUT)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)).to(tl.int64)
    own, own_there = column + tl.zeros((1,), tl.int64), (head < heads)[None, :]
    if OF_EDGE:
        key = vectors(edge, own, heads * width, head, width, own_there, width, WIDTH)
    else:
        key = vectors(k, own, k_row, head, k_head, own_there, width, WIDTH)
        value = vectors(v, own, v_row, head, v_head, own_there, channels, CHANNELS)
    of_key, of_value = tl.zeros((HEADS, WIDTH), key.dtype), tl.zeros((HEADS, CHANNELS), key.dtype)
    for start in range(first, last, PAIRS):
        place = start + tl.arange(0, PAIRS)
        there = (place < last)[:, None] & own_there
        pair = tl.load(order + place, mask=place < last, other=0).to(tl.int64)
        receiver = tl.load(row_of_pair + pair, mask=place < last, other=0).to(tl.int64)
        query = vectors(q, receiver, q_row, head, q_head, there, width, WIDTH)
        if OF_EDGE:
            sender = tl.load(col + pair, mask=place < last, other=0).to(tl.int64)
            query *= vectors(k, sender, k_row, head, k_head, there, width, WIDTH)
            value = vectors(v, sender, v_row, head, v_head, there, channels, CHANNELS)
        elif edge is not None:
            query *= edge_vectors(edge, of_pair, pair, place < last, head, there, heads, width, WIDTH)
        of_sum, of_size = row_gradients(grad, receiver, head, there, heads, channels, CHANNELS)
        top = numbers(tops, receiver, heads, head, 1, there)
        entries = numbers(entry, pair, entry_pair, head, entry_head, there)
        bounds = numbers(bound, pair, bound_pair, head, bound_head, there)
        kept = keep_factors(pair, head, heads, seed, entries, DROPPED, SCALE)
        kernel, _, of_product = pair_gradients(
            query, key, value, of_sum, of_size, top, entries, bounds, kept, SLOPE, KERNEL
        )
        of_key += tl.sum(of_product[:, :, None] * query, axis=0)
        if not OF_EDGE:
            of_value += tl.sum((entries * kernel * kept)[:, :, None] * of_sum, axis=0)
    store_sum(grad_k, parts, column, part, head, heads, of_key, width, WIDTH)
    if not OF_EDGE:
        store_sum(grad_v, parts_v, column, part, head, heads, of_value, channels, CHANNELS)
