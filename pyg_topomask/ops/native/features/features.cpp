// Sums of masked linear attention with many features over the pairs of a sparse pattern.
//
//   numerator_i = sum_p M_p K_p v_p,   denominator_i = sum_p M_p K_p,   size_i = sum_p B_p K_p
//
// over the pairs p = (i, j) of row i, with K_p = q_i . k_j and the bounding mask B >= |M|. A row of the result holds the
// numerator, the denominator if it is wanted, and the size unless the mask bounds itself. The backward pass computes K_p
// again; no array of one number per pair and head is formed.
//
// Row by row, each pair would read a whole key from memory. Here four rows that have many columns in common are a group,
// which reads each key once: it computes all pairs of its rows and of the columns that at least one of them has; entries of
// those that the pattern lacks are 0. Columns are taken in blocks whose keys stay in the cache of the second level.
//
// Rows are cut into parts, whose number does not depend on that of threads; each part has its own gradients of keys and
// values. So no result depends on the number of threads. Plain C++17 and its standard library.

#include "products.h"

namespace {

constexpr int64_t CACHE = 1 << 19;       // bytes for the keys of a block, and their gradients
constexpr int64_t PART_PAIRS = 1 << 17;  // at least
constexpr int64_t TASKS = 4;             // parts of all heads that may be computed together, at most
constexpr int64_t BLOCK = 512;           // columns that are packed by one task

// The fields and their order are those of `_Call` in feature_pairs.py.
struct Call {
    int64_t rows, columns, heads, width, channels, threads, signed_norm, has_bound;
    int64_t entry_by_pair, entry_by_head, bound_by_pair, bound_by_head;     // strides, which their gradients share
    int64_t q_by_row, q_by_head, k_by_row, k_by_head, v_by_row, v_by_head;  // strides; gradients have no gaps
    const int32_t *rowptr, *col;
    const void *q, *k, *v, *entry, *bound;  // q, k [rows, H, R], v [rows, H, D]
    void* sums;                             // [rows, H, D + 1 or D + 2]
    const void* grad;                       // of the sums
    void *grad_q, *grad_k, *grad_v, *grad_entry, *grad_bound;  // null in the forward pass; the last two if not wanted

    bool backward() const { return grad_q || grad_k; }  // one is null if there are no rows
    bool has_denominator() const { return signed_norm || !has_bound; }
    int64_t result() const { return channels + has_denominator() + has_bound; }
};

template <class T>
inline int64_t vectors(int64_t count) {
    return (count + Vec<T>::L - 1) / Vec<T>::L;
}

// Keys and values of one head side by side, each filling whole vectors, and their gradients. A one follows each value, so
// that the denominator is a channel.
template <class T>
struct Columns {
    Array<T> numbers;
    std::vector<Array<T>> grads;  // of each part of the rows
};

// Entries and bounds of a head in tiles; the latter are empty if the mask bounds itself.
template <class T>
struct Entries {
    Array<T> entry, bound;
    Entries(const Call& c, int64_t h, const Tiles& tiles)
        : entry(tiles.fill(static_cast<const T*>(c.entry) + h * c.entry_by_head, c.entry_by_pair)),
          bound(tiles.fill(c.has_bound ? static_cast<const T*>(c.bound) + h * c.bound_by_head : nullptr, c.bound_by_pair)) {}
};

// One head of some rows.
template <class T>
class Head {
   public:
    Head(const Call& call, int64_t head, const Tiles& tiles, const Entries<T>& entries, const T* columns, T* grads)
        : c(call), h(head), tiles(tiles), entries(entries), columns(columns), grads(grads), kn(vectors<T>(c.width)),
          vn(vectors<T>(c.channels + 1)), keys(kn * L), stride(keys + vn * L), query(GROUP * keys), query_grad(GROUP * keys),
          value(GROUP * vn * L) {}

    void forward() {
        for (const int32_t row : tiles.rows)
            if (row >= 0) std::fill_n(sums(row), c.result(), T(0));
        for (const Strip& strip : tiles.strips) {
            start(strip);
            std::fill(value.begin(), value.end(), T(0));
            in_chunks<T>(vn, [&](auto chunk, int64_t j) {
                add_to_rows<chunk()>(weight.data(), columns + keys, stride, tiles.col(strip), strip.count, j, vn, value.data());
            });
            T size[GROUP]{};
            for (int64_t i = 0; c.has_bound && i < strip.count * TILE; ++i)
                size[i % TILE / QUAD] += entries.bound[strip.first * TILE + i] * score[i];
            tiles.for_rows(strip, [&](int g, int64_t row) {
                T* to = sums(row);
                const int64_t channels = c.channels + c.has_denominator();
                for (int64_t d = 0; d < channels; ++d) to[d] += value[g * vn * L + d];
                if (c.has_bound) to[channels] += size[g];
            });
        }
    }

    void backward() {
        for (const int32_t row : tiles.rows)
            if (row >= 0) std::fill_n(query_grads(row), c.width, T(0));
        for (const Strip& strip : tiles.strips) {
            start(strip);
            pair_gradients(strip);
            const int32_t* col = tiles.col(strip);
            std::fill(query_grad.begin(), query_grad.end(), T(0));
            in_chunks<T>(kn, [&](auto chunk, int64_t j) {
                add_to_rows<chunk()>(pair_grad.data(), columns, stride, col, strip.count, j, kn, query_grad.data());
                add_to_columns<chunk()>(pair_grad.data(), query.data(), kn, j, col, strip.count, stride, grads);
            });
            in_chunks<T>(vn, [&](auto chunk, int64_t j) {
                add_to_columns<chunk()>(weight.data(), value.data(), vn, j, col, strip.count, stride, grads + keys);
            });
            tiles.for_rows(strip, [&](int g, int64_t row) {
                T* to = query_grads(row);
                for (int64_t r = 0; r < c.width; ++r) to[r] += query_grad[g * keys + r];
            });
        }
    }

   private:
    static constexpr int64_t L = Vec<T>::L;
    const Call& c;
    const int64_t h;
    const Tiles& tiles;
    const Entries<T>& entries;
    const T* columns;
    T* grads;
    const int64_t kn, vn, keys, stride;  // vectors of a key, and of a value with its one; numbers of a key, and of both
    Array<T> query, query_grad, value;   // of a group; `value` is the sum of values, or the gradient of this sum
    Array<T> score, weight, pair_grad;   // of a strip

    const T* queries(int64_t row) const { return static_cast<const T*>(c.q) + row * c.q_by_row + h * c.q_by_head; }
    T* sums(int64_t row) const { return static_cast<T*>(c.sums) + (row * c.heads + h) * c.result(); }
    T* query_grads(int64_t row) const { return static_cast<T*>(c.grad_q) + (row * c.heads + h) * c.width; }

    // Queries, scores and weights.
    void start(const Strip& strip) {
        fetch_next(strip);
        std::fill(query.begin(), query.end(), T(0));
        tiles.for_rows(strip, [&](int g, int64_t row) { std::copy_n(queries(row), c.width, &query[g * keys]); });
        const int64_t count = strip.count * TILE;
        for (Array<T>* x : {&score, &weight, &pair_grad}) x->resize(std::max<int64_t>(x->size(), count));
        dots(query.data(), kn, columns, stride, tiles.col(strip), strip.count, score.data());
        const T* entry = &entries.entry[strip.first * TILE];
        for (int64_t i = 0; i < count; ++i) weight[i] = entry[i] * score[i];
    }

    // Asks for the rows of the next strip.
    void fetch_next(const Strip& strip) const {
        if (&strip == &tiles.strips.back()) return;
        tiles.for_rows(*(&strip + 1), [&](int, int64_t row) {
            for (int64_t r = 0; r < c.width; r += 64 / sizeof(T)) {
                __builtin_prefetch(queries(row) + r);
                if (c.backward()) __builtin_prefetch(query_grads(row) + r, 1);
            }
        });
    }

    // Gradients of scores, in `pair_grad`; those of entries and bounds are added where they are wanted.
    void pair_gradients(const Strip& strip) {
        T size_grad[GROUP]{};  // the size is a constant of signed normalisers
        std::fill(value.begin(), value.end(), T(0));
        tiles.for_rows(strip, [&](int g, int64_t row) {
            const T* grad = static_cast<const T*>(c.grad) + (row * c.heads + h) * c.result();
            std::copy_n(grad, c.channels + c.has_denominator(), &value[g * vn * L]);
            if (c.has_bound && !c.signed_norm) size_grad[g] = grad[c.channels];
        });
        dots(value.data(), vn, columns + keys, stride, tiles.col(strip), strip.count, pair_grad.data());
        const int64_t first = strip.first * TILE, count = strip.count * TILE;
        for (int64_t i = 0; c.grad_entry && i < count; ++i)
            if (const int64_t pair = tiles.pairs[first + i]; pair >= 0)
                static_cast<T*>(c.grad_entry)[h * c.entry_by_head + pair * c.entry_by_pair] += score[i] * pair_grad[i];
        for (int64_t i = 0; c.grad_bound && i < count; ++i)
            if (const int64_t pair = tiles.pairs[first + i]; pair >= 0)
                static_cast<T*>(c.grad_bound)[h * c.bound_by_head + pair * c.bound_by_pair] +=
                    score[i] * size_grad[i % TILE / QUAD];
        for (int64_t i = 0; i < count; ++i) pair_grad[i] *= entries.entry[first + i];
        for (int64_t i = 0; c.has_bound && i < count; ++i)
            pair_grad[i] += entries.bound[first + i] * size_grad[i % TILE / QUAD];
    }
};

// All heads of all rows.
template <class T>
class Run {
   public:
    explicit Run(const Call& call)
        : c(call), keys(vectors<T>(c.width) * Vec<T>::L), stride(keys + vectors<T>(c.channels + 1) * Vec<T>::L),
          own_entries(c.entry_by_head || (c.has_bound && c.bound_by_head)) {
        // Heads that share the gradient of an entry follow each other.
        const bool alone = (c.grad_entry && !c.entry_by_head) || (c.grad_bound && !c.bound_by_head);
        make_parts(alone ? 1 : c.heads);
        if (!own_entries)
            for (const Tiles& part : parts) entries.emplace_back(c, 0, part);
        const int64_t together = alone ? 1 : std::min(c.threads, c.heads);
        packed.resize(together);
        for (int64_t h = 0; h < c.heads; h += together) heads(h, std::min(h + together, c.heads));
    }

   private:
    const Call& c;
    const int64_t keys, stride;
    const bool own_entries;  // of each head
    std::vector<Tiles> parts;
    std::vector<Entries<T>> entries;  // of each part, if all heads share them
    std::vector<Columns<T>> packed;   // of each head

    void make_parts(int64_t heads) {
        const int64_t pairs = c.rowptr[c.rows];
        const int64_t count = std::clamp<int64_t>(pairs / PART_PAIRS, 1, (TASKS - 1) / std::max<int64_t>(heads, 1) + 1);
        const int64_t block = std::max<int64_t>(CACHE / (stride * sizeof(T) * (c.backward() ? 2 : 1)), QUAD);
        const std::vector<int32_t> order = similar_rows(c.rows, c.rowptr, c.col);
        const int32_t *row = order.data(), *end = row + c.rows;
        for (int64_t part = 1, done = 0; part <= count; ++part) {
            const int32_t* begin = row;
            for (; row != end && (part == count || done * count < pairs * part); ++row)
                done += c.rowptr[*row + 1] - c.rowptr[*row];
            parts.emplace_back(begin, row, c.columns, block, c.rowptr, c.col);
        }
    }

    void heads(int64_t h, int64_t until) {
        const int64_t count = parts.size(), size = c.columns * stride;
        for (auto& head : packed) {
            head.numbers.resize(size);
            if (c.backward()) head.grads.assign(count, Array<T>(size));
        }
        in_blocks(h, until, [&](int64_t head, Columns<T>& p, int64_t j) { read(head, j, &p.numbers[j * stride]); });
        parallel(c.threads, (until - h) * count, [&](int64_t task, int64_t) {
            Columns<T>& p = packed[task / count];
            const int64_t head = h + task / count, part = task % count;
            const auto run = [&](const Entries<T>& numbers) {
                Head<T> some(c, head, parts[part], numbers, p.numbers.data(), c.backward() ? p.grads[part].data() : nullptr);
                c.backward() ? some.backward() : some.forward();
            };
            own_entries ? run(Entries<T>(c, head, parts[part])) : run(entries[part]);
        });
        if (c.backward())
            in_blocks(h, until, [&](int64_t head, Columns<T>& p, int64_t j) { write_grads(head, j, p.grads); });
    }

    // Calls run(head, its arrays, column).
    template <class F>
    void in_blocks(int64_t h, int64_t until, const F& run) {
        const int64_t blocks = (c.columns + BLOCK - 1) / BLOCK;
        parallel(c.threads, (until - h) * blocks, [&](int64_t task, int64_t) {
            const int64_t head = task / blocks, a = task % blocks * BLOCK;
            for (int64_t j = a; j < std::min(a + BLOCK, c.columns); ++j) run(h + head, packed[head], j);
        });
    }

    void read(int64_t head, int64_t j, T* to) const {
        std::copy_n(static_cast<const T*>(c.k) + j * c.k_by_row + head * c.k_by_head, c.width, to);
        std::copy_n(static_cast<const T*>(c.v) + j * c.v_by_row + head * c.v_by_head, c.channels, to + keys);
        to[keys + c.channels] = 1;
    }

    void write_grads(int64_t head, int64_t j, const std::vector<Array<T>>& grads) const {
        T* k = static_cast<T*>(c.grad_k) + (j * c.heads + head) * c.width;
        T* v = static_cast<T*>(c.grad_v) + (j * c.heads + head) * c.channels;
        std::fill_n(k, c.width, T(0)), std::fill_n(v, c.channels, T(0));
        for (const Array<T>& part : grads) {
            const T* from = &part[j * stride];
            for (int64_t r = 0; r < c.width; ++r) k[r] += from[r];
            for (int64_t d = 0; d < c.channels; ++d) v[d] += from[keys + d];
        }
    }
};

// 0 if all went well, -1 if memory is short, -2 at any other exception.
template <class T>
int run_safely(const Call& c) try {
    Run<T>{c};
    return 0;
} catch (...) {
    return error_code();
}

}  // namespace

extern "C" {

int feature_sums_float(const Call* call) { return run_safely<float>(*call); }

int feature_sums_double(const Call* call) { return run_safely<double>(*call); }
}
