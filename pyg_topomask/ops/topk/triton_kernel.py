"""The Triton kernel of ``triton.py``; it can only be used with Triton installed."""

try:
    import triton.language as tl
    from triton import jit
except ImportError:
    tl, jit = None, lambda function: function


@jit
def search_block(  # type: ignore[no-untyped-def]  # Triton reads the annotations: only constants have one
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
