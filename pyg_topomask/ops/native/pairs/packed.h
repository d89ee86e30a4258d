// What all heads of a call share, the keys and values of one head in vectors that lie side by side, and rows that a thread
// works on together.

#pragma once

#include "../array.h"
#include "vector.h"

namespace {

enum Kernel { LINEAR = 0, SOFTMAX = 1, ADDITIVE = 2 };

// Arrays and numbers of the call, in the order of `PairMeans` in pairs_cpp.py.
enum {
    Q, K, V, ENTRY, BOUND, EDGE, ROWPTR, COL, EDGE_OF_PAIR, SEED, ORDER, COEFFS, BOUND_COEFFS, LOW, HIGH, OUT,
    SIZE, GRAD, GRAD_SIZE, GRAD_Q, GRAD_K, GRAD_V, GRAD_ENTRY, GRAD_BOUND, GRAD_EDGE, ARRAYS
};
enum { KERNEL, SLOPE, DROPOUT, COMMON, NUMBERS };

// Entries or bounds of the mask: those of each head (or one that all share) and pair (or one number). If there are
// coefficients C, the numbers are weights w of a head, and an entry is the sum of w_t C_tp.
template <class T>
class Entries {
   public:
    const int64_t pairs;
    const T *numbers, *coeffs;  // coeffs: [terms, P], or null
    T* grad;                    // null where it is not wanted
    const int64_t terms, by_pair, by_head;

    Entries(const Call& c, int64_t array, int64_t table, int64_t of_grad)
        : pairs(c.size(COL, 0)), numbers(c.optional<const T>(array, {ANY, ANY})),
          coeffs(c.optional<const T>(table, {ANY, pairs})),
          grad(c.optional<T>(of_grad, {c.size(array, 0), c.size(array, 1)})), terms(coeffs ? c.size(table, 0) : 1),
          by_pair(!coeffs && c.size(array, 1) == pairs), by_head(c.size(array, 0) > 1 ? c.size(array, 1) : 0) {
        const int64_t lines = c.size(array, 0), wanted = by_pair ? pairs : terms;
        const bool fits = c.size(array, 1) == wanted && (lines == 1 || lines == c.size(Q, 1));
        if (!fits && (numbers || array == ENTRY)) throw Misfit{array};
    }

    // The sums of `count` pairs from pair `p` on; writes whole blocks. `last` is memory that may be used.
    void evaluate(int64_t head, int64_t p, int64_t count, T* to, Array<T>& last) const {
        const Block block = find(p, count, last);
        for (int64_t i = 0; i < count; i += BLOCK) {
            // Those of later pairs: the first level holds no second window.
            for (int64_t t = 0; t < terms; ++t) fetch<0, 2>(block.from + t * block.step + i + count, BLOCK);
            const auto term = [&](int64_t t) { return block.from + t * block.step + i; };
            sum_rows<4>(numbers + head * by_head, term, terms, 4, 3 * L, to + i);
        }
    }

    // sums[t] += sum of grad[i] * C[t, p + i], where grad is 0 in the rest of its last block. A sum of `count` numbers has
    // the precision of T.
    void add_gradients(int64_t p, int64_t count, const T* grad, Array<T>& last, Array<T>& lanes, double* sums) const {
        const Block block = find(p, count, last);
        lanes.assign(terms * L, T(0));
        for (int64_t i = 0; i < count; i += BLOCK) {
            typename Vec<T>::type x[4];
            for (int v = 0; v < 4; ++v) x[v] = Vec<T>::load(grad + i + v * L);
            for (int64_t t = 0; t < terms; ++t) {
                const T* from = block.from + t * block.step + i;
                typename Vec<T>::type sum = Vec<T>::load(&lanes[t * L]);
                for (int v = 0; v < 4; ++v) sum += x[v] * Vec<T>::load(from + v * L);
                Vec<T>::store(sum, &lanes[t * L]);
            }
        }
        for (int64_t i = 0; i < terms * L; ++i) sums[i / L] += double(lanes[i]);
    }

   private:
    static constexpr int64_t L = Vec<T>::L, BLOCK = 4 * L;  // pairs
    struct Block {
        const T* from;
        int64_t step;  // from term to term
    };

    // The coefficients of whole blocks of pairs; a copy where these blocks exceed the array.
    Block find(int64_t p, int64_t count, Array<T>& last) const {
        const int64_t whole = (count + BLOCK - 1) / BLOCK * BLOCK;
        if (p + whole <= pairs) return {coeffs + p, pairs};
        last.assign(terms * whole, T(0));
        for (int64_t t = 0; t < terms; ++t) std::copy_n(coeffs + t * pairs + p, count, &last[t * whole]);
        return {last.data(), whole};
    }
};

template <class T>
struct Problem {
    const Call& call;
    const int64_t threads = call.threads(), kernel = call.integer(KERNEL), common_edges = call.integer(COMMON);
    const int64_t rows = call.size(Q, 0), columns = call.size(K, 0), pairs = call.size(COL, 0);
    const int64_t heads = call.size(Q, 1), width = call.size(Q, 2), channels = call.size(V, 2);
    const double negative_slope = call.real(SLOPE);  // of the leaky ReLU of additive scores
    const double dropout = call.real(DROPOUT);       // probability of zeroing a weight
    const int32_t *rowptr = call.dense<const int32_t>(ROWPTR, {rows + 1}), *col = call.dense<const int32_t>(COL, {pairs});
    const int64_t* order = call.optional<const int64_t>(ORDER, {rows});  // node of each row and column, or null
    const int64_t* seed = call.optional<const int64_t>(SEED, {1});       // of the dropout
    // The smallest and the largest column of each row, or null if they are to be found.
    const int32_t *low = call.optional<const int32_t>(LOW, {rows}), *high = call.optional<const int32_t>(HIGH, {rows});
    const Rows<const T> q = call.rows<const T>(Q, {rows, heads, width}), k = call.rows<const T>(K, {columns, heads, width});
    const Rows<const T> v = call.rows<const T>(V, {columns, heads, channels});
    const Entries<T> masks[2] = {{call, ENTRY, COEFFS, GRAD_ENTRY}, {call, BOUND, BOUND_COEFFS, GRAD_BOUND}};
    const bool has_bound = masks[1].numbers;  // otherwise the mask bounds itself
    // Vectors that multiply the keys of pairs, [E, H, R], and the vector of each pair; null if there are none. The first
    // `common_edges` ones belong to any number of pairs, each of the others to exactly one.
    const T* edge = call.optional<const T>(EDGE, {ANY, heads, width});
    const int32_t* edge_of_pair = call.optional<const int32_t>(EDGE_OF_PAIR, {pairs});
    T* out = call.dense<T>(OUT, {rows, heads, channels});
    T* size = call.dense<T>(SIZE, {rows, heads});  // denominators, 0 where they vanish
    const T* grad = call.optional<const T>(GRAD, {rows, heads, channels});  // of the outputs; null in the forward pass
    const T* grad_size = call.optional<const T>(GRAD_SIZE, {rows, heads});
    T *grad_q = call.optional<T>(GRAD_Q, {rows, heads, width}), *grad_k = call.optional<T>(GRAD_K, {columns, heads, width});
    T *grad_v = call.optional<T>(GRAD_V, {columns, heads, channels});
    T *grad_edge = call.optional<T>(GRAD_EDGE, {call.size(EDGE, 0), heads, width});

    bool backward() const { return grad; }
    bool exponential() const { return kernel != LINEAR; }
    int64_t node(int64_t i) const { return order ? order[i] : i; }
};

// Keys and values of one head side by side, each filling whole vectors, and their gradients: of all columns, or of some
// from `first` on.
template <class T>
struct Packed {
    Array<T> numbers, grads;
    int64_t first = 0;
    static constexpr int64_t AHEAD = 48;  // columns

    void read(const Problem<T>& c, int64_t head, int64_t keys, int64_t stride, int64_t a, int64_t b) {
        T* to = &numbers[(a - first) * stride];
        for (int64_t j = a; j < b; ++j, to += stride) {
            const int64_t node = c.node(j), later = c.node(std::min(j + AHEAD, c.columns - 1));
            fetch<0>(c.k(later, head), c.width), fetch<0>(c.v(later, head), c.channels);
            copy(c.k(node, head), c.width, to);
            copy(c.v(node, head), c.channels, to + keys);
        }
    }

    // Writes the gradients of columns `a` to `b`, or adds them to those that are there.
    template <bool ADD>
    static void write_grads(const Problem<T>& c, int64_t head, int64_t keys, int64_t stride, int64_t a, int64_t b,
                            const T* from) {
        for (int64_t j = a; j < b; ++j, from += stride) {
            const int64_t node = c.node(j), place = node * c.heads + head;
            const int64_t later = c.node(std::min(j + AHEAD, c.columns - 1)) * c.heads + head;
            if (c.grad_k) fetch<1>(c.grad_k + later * c.width, c.width);
            if (c.grad_v) fetch<1>(c.grad_v + later * c.channels, c.channels);
            if (c.grad_k) copy<ADD>(from, c.width, c.grad_k + place * c.width);
            if (c.grad_v) copy<ADD>(from + keys, c.channels, c.grad_v + place * c.channels);
        }
    }
};

// One row: its node, the number of node and head, and its pairs, of which the first is number `first` of the window.
struct Row {
    int64_t index, node, place, first, count;
    const int32_t* col;
};

// Consecutive rows and what a thread keeps of their pairs, in whole blocks, and of each row, in whole vectors. What lies
// behind the last pair or in the lanes behind the last feature does not count.
template <class T>
struct Window {
    int64_t from = 0, to = 0, first = 0, count = 0;  // rows, first pair and number of pairs
    const T *entry = nullptr, *bound = nullptr;
    Array<T> queries, grads;
    Array<T> entries, bounds;  // unless those that are given lie side by side
    Array<T> kernel, slope, kept, weight, pair_grad, entry_grad, size_grad;
    Array<T> edge, turned, keys, sum;  // of the row or edge at hand
    Array<T> last, lanes;  // of a table

    // The rows from `row` on which together have PAIRS pairs at most, or one row.
    void take(const Problem<T>& c, int64_t row, int64_t until) {
        from = row, to = row + 1, first = c.rowptr[row];
        while (to < until && to - from < ROWS && c.rowptr[to + 1] - first <= PAIRS) ++to;
        count = c.rowptr[to] - first;
    }

    // Number of pairs in whole blocks. Loops up to it have no rest, so they compute a pair in the same way wherever it lies.
    int64_t padded() const { return (count + BLOCK - 1) / BLOCK * BLOCK; }

    // Room for a number of each pair, and for a vector behind them.
    T* pairs(Array<T>& array) const {
        grow(array, padded() + Vec<T>::L);
        return array.data();
    }

    Row row(const Problem<T>& c, int64_t i, int64_t head) const {
        const int64_t node = c.node(i), begin = c.rowptr[i];
        return {i, node, node * c.heads + head, begin - first, c.rowptr[i + 1] - begin, c.col + begin};
    }

   private:
    static constexpr int64_t BLOCK = 64, PAIRS = 512, ROWS = 64;
};

}  // namespace
