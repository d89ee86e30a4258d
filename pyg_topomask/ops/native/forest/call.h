// What both kinds of products with masks of a forest share.

#pragma once

#include "../array.h"

namespace {

enum { X, WEIGHT, ORDER, ABOVE, Y, GRAD, GRAD_X, GRAD_WEIGHT, ARRAYS };
enum { BY_HOP, BLOCK, NUMBERS };

template <class T>
struct Product {
    explicit Product(const Call& call)
        : threads(call.threads()), nodes(call.size(X, 0)), heads(call.size(X, 1)), channels(call.size(X, 2)),
          block(call.integer(BLOCK)), by_hop(call.integer(BY_HOP)), hops(by_hop ? call.size(WEIGHT, 1) - 1 : 0),
          weight_heads(call.size(WEIGHT, by_hop ? 0 : 1)), order(call.dense<const int64_t>(ORDER, {nodes})),
          above(call.dense<const int64_t>(ABOVE, {nodes})), x(call.dense<const T>(X, {nodes, heads, channels})),
          weight(by_hop ? call.dense<const T>(WEIGHT, {weight_heads, hops + 1}) : call.dense<const T>(WEIGHT, {nodes, weight_heads})),
          y(call.optional<T>(Y, {nodes, heads, channels})), grad(call.optional<const T>(GRAD, {nodes, heads, channels})),
          grad_x(call.optional<T>(GRAD_X, {nodes, heads, channels})),
          grad_weight(call.optional<T>(GRAD_WEIGHT, {heads, ANY, by_hop ? hops + 1 : nodes})) {
        if ((weight_heads != 1 && weight_heads != heads) || (by_hop && hops == 0)) throw Misfit{WEIGHT};
    }
    const int64_t threads, nodes, heads, channels, block;  // block: columns of a task
    const bool by_hop;
    const int64_t hops, weight_heads;   // K, 0 if there are weights; 1 or `heads`
    const int64_t *order, *above;       // node at each position, and position of its parent, -1 for a root
    const T *x, *weight;                // [N, H, C]; g [N, weight_heads], or f [weight_heads, K + 1]
    T* y;
    const T* grad;                      // of y; null in the forward pass
    T *grad_x, *grad_weight;            // the second of g for each task, of f for each part; null if not wanted
};

// Numbers of node i in the block of columns from `first` on.
template <class T, class Number>
inline Number* row(const Product<T>& c, Number* x, int64_t head, int64_t first, int64_t i) {
    return x + (c.order[i] * c.heads + head) * c.channels + first;
}

template <class T>
inline T dot(const T* a, const T* b, int64_t count) {
    T sum = 0;
    for (int64_t j = 0; j < count; ++j) sum += a[j] * b[j];
    return sum;
}

}  // namespace
