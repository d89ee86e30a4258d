// What both kinds of products with masks of a forest share.

#pragma once

#include "../parallel.h"

namespace {

// The fields and their order are those of `_Call` in paths.py.
struct Call {
    int64_t nodes, heads, channels, block, threads;  // block: columns of a task
    int64_t hops, weight_heads;                      // K, 0 if there are weights; 1 or `heads`
    const int64_t *order, *above;  // node at each position, and position of its parent, -1 for a root
    const void *x, *weight;        // [N, H, C]; g [N, weight_heads], or f [weight_heads, K + 1]
    void* y;
    const void* grad;              // of y; null in the forward pass
    void *grad_x, *grad_weight;    // of g [tasks, N], of f [parts, K + 1]; null if not wanted
};

// Numbers of node i in the block of columns from `first` on.
template <class X>
inline X* row(const Call& c, X* x, int64_t head, int64_t first, int64_t i) {
    return x + (c.order[i] * c.heads + head) * c.channels + first;
}

template <class T>
inline T dot(const T* a, const T* b, int64_t count) {
    T sum = 0;
    for (int64_t j = 0; j < count; ++j) sum += a[j] * b[j];
    return sum;
}

}  // namespace
