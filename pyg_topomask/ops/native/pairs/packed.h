// What all heads of a call share, and the keys and values of one head in vectors that lie side by side.

#pragma once

#include "segments.h"
#include "vector.h"

namespace {

enum Kernel { LINEAR = 0, SIGNED_LINEAR = 1, SOFTMAX = 2, ADDITIVE = 3 };

// The fields and their order are those of `_Call` in compiled_pairs.py.
struct Call {
    // Without a bound of its own, the mask bounds itself.
    int64_t rows, columns, heads, width, channels, threads, kernel, signed_norm, has_bound;
    int64_t entry_by_pair, entry_by_head, bound_by_pair, bound_by_head;  // strides, which their gradients share
    int64_t q_by_row, q_by_head, k_by_row, k_by_head, v_by_row, v_by_head;  // strides; gradients have no gaps
    double negative_slope;  // of the leaky ReLU of additive scores
    double dropout;         // probability of zeroing a pair's weight in the numerator
    int64_t seed;           // of the dropout
    const int32_t *rowptr, *col;
    const int32_t *low, *high;   // smallest and largest column of each row
    const int64_t* order;        // node of each row and column, in whose order all arrays are; null if it is the same
    const void *q, *k, *v;       // [rows, H, R], [columns, H, R], [columns, H, D]
    const void *entry, *bound;   // of each pair; or the weights of a head, where there are coefficients
    const void *coeffs, *bound_coeffs;  // [terms, P], or null
    int64_t terms;
    // Vectors that multiply the keys of pairs, [E, H, R], and the vector of each pair; null if there are none. The first
    // `common_edges` ones belong to any number of pairs, each of the others to exactly one.
    const void* edge;
    const int32_t* edge_of_pair;
    int64_t common_edges, edge_by_row, edge_by_head;
    // Factors of keys, powers of two; queries then have the power of two of their own size. Null if there are none.
    const void* key_scale;
    int64_t scale_by_row, scale_by_head;
    // Rounding error of a denominator relative to the size: the result is then the mean. Null if it is the sums.
    const void* tolerance;
    int64_t tolerance_by_row;
    void* sums;          // the result: [rows, H, D] means, or [rows, H, D + 1 or D + 2] sums
    void* denominator;   // [rows, H] of means in the order of rows, 0 where it vanishes
    const void* grad;    // of the result
    // Null in the forward pass; those of entry and bound also where they are not wanted.
    void *grad_q, *grad_k, *grad_v, *grad_entry, *grad_bound, *grad_edge;

    bool backward() const { return grad_q || grad_k || grad_v; }
    bool exponential() const { return kernel == SOFTMAX || kernel == ADDITIVE; }
    bool has_size() const { return has_bound || kernel == SIGNED_LINEAR; }
    bool has_denominator() const { return signed_norm || !has_size(); }
    int64_t numbers() const { return tolerance ? channels : channels + has_size() + has_denominator(); }  // of the result
    int64_t node(int64_t i) const { return order ? order[i] : i; }
};

template <class T>
inline T key_scale(const Call& c, int64_t node, int64_t head) {
    return c.key_scale ? static_cast<const T*>(c.key_scale)[node * c.scale_by_row + head * c.scale_by_head] : T(1);
}

// Keys and values of one head side by side, each filling whole vectors, and their gradients: of all columns, or of some
// from `first` on.
template <class T>
struct Packed {
    Array<T> numbers, grads;
    int64_t first = 0;
    static constexpr int64_t AHEAD = 48;  // columns

    void read(const Call& c, int64_t head, int64_t keys, int64_t stride, int64_t a, int64_t b) {
        const T* k = static_cast<const T*>(c.k) + head * c.k_by_head;
        const T* v = static_cast<const T*>(c.v) + head * c.v_by_head;
        T* to = &numbers[(a - first) * stride];
        for (int64_t j = a; j < b; ++j, to += stride) {
            const int64_t node = c.node(j), later = c.node(std::min(j + AHEAD, c.columns - 1));
            fetch<0>(k + later * c.k_by_row, c.width), fetch<0>(v + later * c.v_by_row, c.channels);
            copy_scaled(key_scale<T>(c, node, head), k + node * c.k_by_row, c.width, to);
            copy(v + node * c.v_by_row, c.channels, to + keys);
        }
    }

    // Writes the gradients of columns `a` to `b`, or adds them to those that are there.
    template <bool ADD>
    static void write_grads(const Call& c, int64_t head, int64_t keys, int64_t stride, int64_t a, int64_t b, const T* from) {
        T *k = static_cast<T*>(c.grad_k), *v = static_cast<T*>(c.grad_v);
        for (int64_t j = a; j < b; ++j, from += stride) {
            const int64_t node = c.node(j), place = node * c.heads + head;
            const int64_t later = c.node(std::min(j + AHEAD, c.columns - 1)) * c.heads + head;
            fetch<1>(k + later * c.width, c.width), fetch<1>(v + later * c.channels, c.channels);
            copy_scaled<ADD>(key_scale<T>(c, node, head), from, c.width, k + place * c.width);
            copy_scaled<ADD>(T(1), from + keys, c.channels, v + place * c.channels);
        }
    }
};

}  // namespace
