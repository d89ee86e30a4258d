// What both kinds of products with masks of a forest share.

#pragma once

#include "../array.h"

namespace {

enum { X, WEIGHT, ORDER, ABOVE, Y, GRAD, GRAD_X, GRAD_WEIGHT, ARRAYS };
enum { BY_HOP, BLOCK, NUMBERS };

template <class T>
struct Product {
    const Call& call;
    const bool by_hop = call.integer(BY_HOP);
    const int64_t threads = call.threads(), block = call.integer(BLOCK);  // block: columns of a task
    const int64_t nodes = call.size(X, 0), heads = call.size(X, 1), channels = call.size(X, 2);
    const int64_t hops = by_hop ? call.size(WEIGHT, 1) - 1 : 0;  // K, 0 if there are weights
    const int64_t weight_heads = call.size(WEIGHT, by_hop ? 0 : 1);
    const int64_t* order = call.dense<const int64_t>(ORDER, {nodes});  // node at each position
    const int64_t* above = call.dense<const int64_t>(ABOVE, {nodes});  // position of its parent, -1 for a root
    const T* x = call.dense<const T>(X, {nodes, heads, channels});
    // Weights g of nodes, or f of hops.
    const T* weight = call.dense<const T>(WEIGHT, {by_hop ? weight_heads : nodes, by_hop ? hops + 1 : weight_heads});
    T* y = call.optional<T>(Y, {nodes, heads, channels});
    const T* grad = call.optional<const T>(GRAD, {nodes, heads, channels});  // of y; null in the forward pass
    T* grad_x = call.optional<T>(GRAD_X, {nodes, heads, channels});
    T* grad_weight = call.optional<T>(GRAD_WEIGHT, {heads, ANY, by_hop ? hops + 1 : nodes});  // of each task or part

    explicit Product(const Call& call) : call(call) {
        if ((weight_heads != 1 && weight_heads != heads) || (by_hop && hops == 0)) throw Misfit{WEIGHT};
    }
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
