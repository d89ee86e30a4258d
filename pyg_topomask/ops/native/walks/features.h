// The sparse features of nodes that are compared by the random walks graph-nodes kernel: visits of a node at any step
// are merged, and each row is divided by a power of its norm.

#pragma once

#include <cmath>

#include "pair_table.h"

namespace {

// DECAY: of each length. FEATURE_COL, FEATURE_VALUE: of each walk, though fewer may be written.
enum { VISITS, DECAY = VISITS + 4, FEATURE_ROWPTR, FEATURE_COL, FEATURE_VALUE, FEATURE_ARRAYS };

// -3 if a walk has nodes or lengths that do not exist, -4 if the walks are not sorted by start and visited node.
template <class T>
int64_t walk_features(const Call& call) {
    const Table<T> w(call, VISITS);
    const int64_t nodes = call.size(FEATURE_ROWPTR, 0) - 1, lengths = call.size(DECAY, 0);
    const double *decay = call.dense<const double>(DECAY, {lengths}), exponent = call.real(0);  // of the squared norm
    int32_t *rowptr = call.dense<int32_t>(FEATURE_ROWPTR, {ANY}), *col = call.dense<int32_t>(FEATURE_COL, {w.count});
    T* value = call.dense<T>(FEATURE_VALUE, {w.count});
    if (!within(w, nodes, lengths)) return -3;
    int64_t e = 0, n = 0;
    rowptr[0] = 0;
    for (int64_t i = 0; i < nodes; ++i) {
        const int64_t first = n;
        double squares = 0;
        while (e < w.count && w.start[e] == i) {
            const int64_t visited = w.visited[e];
            if (n > first && visited < col[n - 1]) return -4;
            double sum = 0;
            for (; e < w.count && w.start[e] == i && w.visited[e] == visited; ++e) sum += decay[w.length[e]] * double(w.load[e]);
            col[n] = visited, value[n++] = sum;
            squares += sum * sum;
        }
        const double scale = std::pow(squares, exponent);
        for (int64_t p = first; p < n; ++p) value[p] *= scale;
        rowptr[i + 1] = n;
    }
    return e == w.count ? 0 : -4;
}

}  // namespace
