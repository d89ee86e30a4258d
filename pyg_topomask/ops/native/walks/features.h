// The sparse features of nodes that are compared by the random walks graph-nodes kernel: visits of a node at any step
// are merged, and each row is divided by a power of its norm.

#pragma once

#include <cmath>

#include "pair_table.h"

namespace {

// The fields and their order are those of `_FeatureCall` in compiled.py.
struct FeatureCall {
    int64_t nodes, lengths;
    Table walks;
    const double* decay;  // of each length
    double exponent;      // of the squared norm
    int32_t *rowptr, *col;  // [nodes + 1]; of each walk, though fewer may be written
    void* value;
};

// False if the walks are not sorted by start and visited node.
template <class T>
bool walk_features(const FeatureCall& c) {
    const Table& w = c.walks;
    const T* load = static_cast<const T*>(w.load);
    T* value = static_cast<T*>(c.value);
    int64_t e = 0, n = 0;
    c.rowptr[0] = 0;
    for (int64_t i = 0; i < c.nodes; ++i) {
        const int64_t first = n;
        double squares = 0;
        while (e < w.count && w.start[e] == i) {
            const int64_t visited = w.visited[e];
            if (n > first && visited < c.col[n - 1]) return false;
            double sum = 0;
            for (; e < w.count && w.start[e] == i && w.visited[e] == visited; ++e) sum += c.decay[w.length[e]] * double(load[e]);
            c.col[n] = visited, value[n++] = sum;
            squares += sum * sum;
        }
        const double scale = std::pow(squares, c.exponent);
        for (int64_t p = first; p < n; ++p) value[p] *= scale;
        c.rowptr[i + 1] = n;
    }
    return e == w.count;
}

}  // namespace
