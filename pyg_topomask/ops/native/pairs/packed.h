// What all heads of a call share, and the keys and values of one head in vectors that lie side by side.

#pragma once

#include "../array.h"
#include "segments.h"
#include "vector.h"

namespace {

enum Kernel { LINEAR = 0, SOFTMAX = 1, ADDITIVE = 2 };

// Arrays and numbers of the call, in the order of `PairMeans` in pairs_cpp.py.
enum {
    Q, K, V, ENTRY, BOUND, EDGE, ROWPTR, COL, EDGE_OF_PAIR, SEED, ORDER, COEFFS, BOUND_COEFFS, OUT, SIZE,
    GRAD, GRAD_Q, GRAD_K, GRAD_V, GRAD_ENTRY, GRAD_BOUND, GRAD_EDGE, ARRAYS
};
enum { KERNEL, SLOPE, DROPOUT, COMMON, NUMBERS };

template <class T>
struct Problem {
    const int64_t threads, rows, columns, heads, width, channels, pairs, kernel, common_edges;
    const double negative_slope, dropout;  // of the leaky ReLU of additive scores; probability of zeroing a weight
    const bool has_bound;                  // otherwise the mask bounds itself
    const int32_t *rowptr, *col;
    const int64_t *order, *seed;  // node of each row and column, or null; seed of the dropout
    const Rows<const T> q, k, v;  // [rows, H, R], [columns, H, R], [columns, H, D]
    // Of each head (or one that all share) and pair (or one number); or the weights of a head, where there are coefficients.
    const T *entry, *bound;
    const T *coeffs, *bound_coeffs;  // [terms, P], or null
    const int64_t terms;  // 1 where there are no coefficients
    // Vectors that multiply the keys of pairs, [E, H, R], and the vector of each pair; null if there are none. The first
    // `common_edges` ones belong to any number of pairs, each of the others to exactly one.
    const T* edge;
    const int32_t* edge_of_pair;
    T *out, *size;   // [rows, H, D], and the denominators in the order of rows, 0 where they vanish: [rows, H]
    const T* grad;   // of the outputs; null in the forward pass
    T *grad_q, *grad_k, *grad_v, *grad_entry, *grad_bound, *grad_edge;  // null where they are not wanted
    const int64_t entry_by_pair, entry_by_head, bound_by_pair, bound_by_head;

    explicit Problem(const Call& c)
        : threads(c.threads()), rows(c.size(Q, 0)), columns(c.size(K, 0)), heads(c.size(Q, 1)), width(c.size(Q, 2)),
          channels(c.size(V, 2)), pairs(c.size(COL, 0)), kernel(c.integer(KERNEL)), common_edges(c.integer(COMMON)),
          negative_slope(c.real(SLOPE)), dropout(c.real(DROPOUT)), has_bound(c.has(BOUND)),
          rowptr(c.dense<const int32_t>(ROWPTR, {rows + 1})), col(c.dense<const int32_t>(COL, {pairs})),
          order(c.optional<const int64_t>(ORDER, {rows})), seed(c.optional<const int64_t>(SEED, {1})),
          q(c.rows<const T>(Q, {rows, heads, width})), k(c.rows<const T>(K, {columns, heads, width})),
          v(c.rows<const T>(V, {columns, heads, channels})), entry(c.dense<const T>(ENTRY, {ANY, ANY})),
          bound(c.optional<const T>(BOUND, {ANY, ANY})), coeffs(c.optional<const T>(COEFFS, {ANY, pairs})),
          bound_coeffs(c.optional<const T>(BOUND_COEFFS, {ANY, pairs})),
          terms(coeffs ? c.size(COEFFS, 0) : bound_coeffs ? c.size(BOUND_COEFFS, 0) : 1),
          edge(c.optional<const T>(EDGE, {ANY, heads, width})), edge_of_pair(c.optional<const int32_t>(EDGE_OF_PAIR, {pairs})),
          out(c.dense<T>(OUT, {rows, heads, channels})), size(c.dense<T>(SIZE, {rows, heads})),
          grad(c.optional<const T>(GRAD, {rows, heads, channels})), grad_q(c.optional<T>(GRAD_Q, {rows, heads, width})),
          grad_k(c.optional<T>(GRAD_K, {columns, heads, width})), grad_v(c.optional<T>(GRAD_V, {columns, heads, channels})),
          grad_entry(c.optional<T>(GRAD_ENTRY, {c.size(ENTRY, 0), c.size(ENTRY, 1)})),
          grad_bound(c.optional<T>(GRAD_BOUND, {c.size(BOUND, 0), c.size(BOUND, 1)})),
          grad_edge(c.optional<T>(GRAD_EDGE, {c.size(EDGE, 0), heads, width})), entry_by_pair(by_pair(c, ENTRY, COEFFS)),
          entry_by_head(by_head(c, ENTRY)), bound_by_pair(by_pair(c, BOUND, BOUND_COEFFS)), bound_by_head(by_head(c, BOUND)) {}

    bool backward() const { return grad; }
    bool exponential() const { return kernel != LINEAR; }
    int64_t node(int64_t i) const { return order ? order[i] : i; }

   private:
    static int64_t by_head(const Call& c, int64_t array) { return c.size(array, 0) > 1 ? c.size(array, 1) : 0; }

    // Checks that there is one number for each head and pair, or for all of them.
    int64_t by_pair(const Call& c, int64_t array, int64_t table) const {
        const int64_t lines = c.size(array, 0), numbers = c.size(array, 1), wanted = c.has(table) ? terms : pairs;
        const bool one = numbers == 1 && terms == 1 && !c.has(table);
        const bool fits = (lines == 1 || lines == heads) && (numbers == wanted || one);
        if (c.has(array) && !fits) throw Misfit{array};
        return c.has(table) || numbers != pairs ? 0 : 1;
    }
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

}  // namespace
