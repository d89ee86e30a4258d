"""The Triton kernels of ``engines/blocks_triton.py``; they do what ``native/blocks/`` does on CPU.

A program works on one head and ``TILE`` nodes of one graph, and reads as many other nodes of the graph at a time. A
row of ``tiles`` says, for each program: first node and nodes of the graph, first entry and width of its block, first
node of the tile within the graph, and first entry of the gradient of its block. Each program writes numbers of its own:
there are no atomic additions, and the order of the terms is always the same.

Arguments that several kernels share:

- ``entry``, ``bound``: blocks (senders, receivers); the mask bounds itself if there is no bound;
- ``<array>_row``, ``<array>_head``: strides;
- ``WIDTH``, ``CHANNELS``: powers of two, at least as large as their names in small letters.
"""

# mypy: disable-error-code="no-untyped-def"

from pyg_topomask.ops.attention.triton_kernels import exponentials, finite, jit, tl

# Otherwise, each kernel is compiled again for batches with numbers that are multiples of 16, and for others.
launched = jit if tl is None else jit(do_not_specialize=("entry_head", "grad_head"))


@jit
def tile_of(tiles, TILE: tl.constexpr):
    """The numbers of the program's row of ``tiles``, and its head."""
    row = tiles + 6 * tl.program_id(0).to(tl.int64)
    node, nodes, start, stride = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    own = tl.load(row + 4) + tl.arange(0, TILE)
    return node, nodes, start, stride, own, tl.load(row + 5), tl.program_id(1).to(tl.int64)


@jit
def vectors(array, row, by_row, there, size, SIZE: tl.constexpr):
    """Vectors ``[TILE, SIZE]`` of rows, zero where ``there`` is false."""
    lane = tl.arange(0, SIZE)[None, :]
    return tl.load(array + row[:, None] * by_row + lane, mask=there[:, None] & (lane < size), other=0.0)


@jit
def store(array, row, by_row, there, size, x, SIZE: tl.constexpr):
    """Store ``x`` as `vectors`."""
    lane = tl.arange(0, SIZE)[None, :]
    tl.store(array + row[:, None] * by_row + lane, x, mask=there[:, None] & (lane < size))


@jit
def weights(entry, bound, at, there):
    """Entries and bounds of pairs."""
    entries = tl.load(entry + at, mask=there, other=0.0)
    return entries, entries if bound is None else tl.load(bound + at, mask=there, other=0.0)


@jit
def product(x, y):
    """Inner products of the vectors of two tiles."""
    return tl.dot(x, tl.trans(y), input_precision="ieee", out_dtype=x.dtype)


@jit
def reciprocals(size, row, there):
    """Reciprocals of the denominators of receivers, 0 where they vanish."""
    total = tl.load(size + row, mask=there, other=0.0)
    return tl.where(total == 0.0, 0.0, 1.0 / tl.where(total == 0.0, 1.0, total))


@launched
def forward(
    q,
    k,
    v,
    entry,
    bound,
    errors,
    tiles,
    out,
    size,
    tops,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    entry_head,
    error_row,
    error_head,
    heads,
    width,
    channels,
    SOFTMAX: tl.constexpr,
    LEAST: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Means of a tile of receivers by the rules of `Problem.finish`, their denominators, and their largest scores.

    Denominators up to ``LEAST`` vanish.
    """
    node, nodes, start, stride, own, _, head = tile_of(tiles, TILE)
    inside = own < nodes
    query = vectors(q + head * q_head, node + own, q_row, inside, width, WIDTH)
    top = tl.full((TILE,), -float("inf") if SOFTMAX else 0.0, query.dtype)
    total, squares = tl.zeros((TILE,), query.dtype), tl.zeros((TILE,), query.dtype)
    sum, largest = tl.zeros((TILE, CHANNELS), query.dtype), tl.zeros((CHANNELS,), query.dtype)
    for begin in range(0, nodes.to(tl.int32), TILE):
        sender = begin + tl.arange(0, TILE)
        there = sender < nodes
        key = vectors(k + head * k_head, node + sender, k_row, there, width, WIDTH)
        value = vectors(v + head * v_head, node + sender, v_row, there, channels, CHANNELS)
        at = start + head * entry_head + sender[None, :] * stride + own[:, None]
        entries, bounds = weights(entry, bound, at, inside[:, None] & there[None, :])
        kernel = product(query, key)
        if SOFTMAX:
            before, top = top, tl.maximum(top, tl.max(tl.where(bounds != 0, kernel, -float("inf")), axis=1))
            kernel = exponentials(kernel, top[:, None])
            shrink = tl.exp(before - finite(top))
            sum, total, squares = sum * shrink[:, None], total * shrink, squares * shrink * shrink
        sum += tl.dot(entries * kernel, value, input_precision="ieee", out_dtype=query.dtype)
        total += tl.sum(bounds * kernel, axis=1)
        if errors is not None:
            squares += tl.sum(tl.where(bounds != 0, kernel * kernel, 0.0), axis=1)
            largest = tl.maximum(largest, tl.max(tl.abs(value), axis=0))
    row = (node + own) * heads + head
    vanished = total <= LEAST
    if errors is not None:
        error = tl.load(errors + (node + own) * error_row + head * error_head, mask=inside, other=0.0)
        vanished = vanished | (total <= tl.sqrt(squares) * error)
    mean = tl.where(vanished[:, None], 0.0, sum / tl.where(vanished, 1.0, total)[:, None])
    if errors is not None:  # NaN stays
        mean = tl.where(mean > largest[None, :], largest[None, :], mean)
        mean = tl.where(mean < -largest[None, :], -largest[None, :], mean)
    store(out, row, channels, inside, channels, mean, CHANNELS)
    tl.store(size + row, tl.where(vanished, 0.0, total), mask=inside)
    if SOFTMAX:
        tl.store(tops + row, top, mask=inside)


@launched
def backward_receivers(
    q,
    k,
    v,
    entry,
    bound,
    tiles,
    out,
    size,
    tops,
    grad,
    grad_size,
    of_size,
    grad_q,
    grad_entry,
    grad_bound,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    entry_head,
    grad_head,
    heads,
    width,
    channels,
    SOFTMAX: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Gradients of a tile of queries, of the denominators (``of_size``), and of the entries and bounds of their pairs.

    Gradients of entries have ``grad_head`` numbers for each head, whether or not heads or graphs share them.
    """
    node, nodes, start, stride, own, grad_start, head = tile_of(tiles, TILE)
    inside, row = own < nodes, (node + own) * heads + head
    query = vectors(q + head * q_head, node + own, q_row, inside, width, WIDTH)
    of_mean, inverse = vectors(grad, row, channels, inside, channels, CHANNELS), reciprocals(size, row, inside)
    of_total = tl.sum(of_mean * vectors(out, row, channels, inside, channels, CHANNELS), axis=1)
    of_total = tl.where(inverse == 0.0, 0.0, tl.load(grad_size + row, mask=inside, other=0.0) - of_total * inverse)
    tl.store(of_size + row, of_total, mask=inside)
    of_sum, of_query = of_mean * inverse[:, None], tl.zeros((TILE, WIDTH), query.dtype)
    if SOFTMAX:
        top = tl.load(tops + row, mask=inside, other=0.0)
    for begin in range(0, nodes.to(tl.int32), TILE):
        sender = begin + tl.arange(0, TILE)
        there = sender < nodes
        key = vectors(k + head * k_head, node + sender, k_row, there, width, WIDTH)
        value = vectors(v + head * v_head, node + sender, v_row, there, channels, CHANNELS)
        at, both = sender[None, :] * stride + own[:, None], inside[:, None] & there[None, :]
        entries, bounds = weights(entry, bound, start + head * entry_head + at, both)
        kernel, of_weight = product(query, key), product(of_sum, value)
        if SOFTMAX:
            kernel = exponentials(kernel, top[:, None])
        at += grad_start + head * grad_head
        if grad_entry is not None:
            of_entry = of_weight + of_total[:, None] if bound is None else of_weight
            tl.store(grad_entry + at, kernel * of_entry, mask=both)
        if grad_bound is not None:
            tl.store(grad_bound + at, kernel * of_total[:, None], mask=both)
        of_score = entries * of_weight + bounds * of_total[:, None]
        of_score = of_score * kernel if SOFTMAX else of_score
        of_query += tl.dot(of_score, key, input_precision="ieee", out_dtype=query.dtype)
    store(grad_q, row, width, inside, width, of_query, WIDTH)


@launched
def backward_senders(
    q,
    k,
    v,
    entry,
    bound,
    tiles,
    size,
    tops,
    grad,
    of_size,
    grad_k,
    grad_v,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    entry_head,
    heads,
    width,
    channels,
    SOFTMAX: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Gradients of the keys and values of a tile of senders, from what `backward_receivers` has stored."""
    node, nodes, start, stride, own, _, head = tile_of(tiles, TILE)
    inside = own < nodes
    key = vectors(k + head * k_head, node + own, k_row, inside, width, WIDTH)
    value = vectors(v + head * v_head, node + own, v_row, inside, channels, CHANNELS)
    of_key, of_value = tl.zeros((TILE, WIDTH), key.dtype), tl.zeros((TILE, CHANNELS), key.dtype)
    for begin in range(0, nodes.to(tl.int32), TILE):
        receiver = begin + tl.arange(0, TILE)
        there, row = receiver < nodes, (node + receiver) * heads + head
        query = vectors(q + head * q_head, node + receiver, q_row, there, width, WIDTH)
        of_sum = vectors(grad, row, channels, there, channels, CHANNELS) * reciprocals(size, row, there)[:, None]
        of_total = tl.load(of_size + row, mask=there, other=0.0)
        at = start + head * entry_head + own[:, None] * stride + receiver[None, :]
        entries, bounds = weights(entry, bound, at, inside[:, None] & there[None, :])
        kernel, of_weight = product(key, query), product(value, of_sum)
        of_score = entries * of_weight + bounds * of_total[None, :]
        if SOFTMAX:
            kernel = exponentials(kernel, tl.load(tops + row, mask=there, other=0.0)[None, :])
            of_score *= kernel
        of_key += tl.dot(of_score, query, input_precision="ieee", out_dtype=key.dtype)
        of_value += tl.dot(entries * kernel, of_sum, input_precision="ieee", out_dtype=key.dtype)
    row = (node + own) * heads + head
    store(grad_k, row, width, inside, width, of_key, WIDTH)
    store(grad_v, row, channels, inside, channels, of_value, CHANNELS)
