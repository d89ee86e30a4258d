// The graph that walkers move on, from edges in any order: as `to_csr`, `sym_normalize` and `walk_graph` of plain torch.

#pragma once

#include <cmath>

#include "walkers.h"

namespace {

enum { EDGES, WEIGHT, PTR, DRAWS, MADE_ROWPTR, MADE_COL, MADE_FACTOR, MADE_STREAM, EDGE_ARRAYS };
enum { SEED, EPOCH, GOES_ON, IMPORTANCE, EDGE_NUMBERS };

// Returns the number of distinct edges of nonzero weight, or -3 if the weights of a node add up to a negative number.
template <class T>
int64_t walk_graph(const Call& call) {
    const int64_t edges = call.size(EDGES, 1), nodes = call.size(MADE_ROWPTR, 0) - 1, graphs = call.size(PTR, 0) - 1;
    const int64_t *from = call.dense<const int64_t>(EDGES, {2, edges}), *to = from + edges;
    const int64_t *ptr = call.dense<const int64_t>(PTR, {graphs + 1}), *draws = call.optional<const int64_t>(DRAWS, {graphs});
    const double* weight = call.optional<const double>(WEIGHT, {edges});
    int64_t *rowptr = call.dense<int64_t>(MADE_ROWPTR, {nodes + 1}), *col = call.dense<int64_t>(MADE_COL, {edges});
    int64_t* stream = call.dense<int64_t>(MADE_STREAM, {nodes});
    T* factor = call.dense<T>(MADE_FACTOR, {edges});
    std::vector<uint32_t> order(edges), last(nodes + 1);  // edges by row, and the end of each row
    for (int64_t e = 0; e < edges; ++e) ++last[from[e] + 1];
    for (int64_t node = 0; node < nodes; ++node) last[node + 1] += last[node];
    for (int64_t e = 0; e < edges; ++e) order[last[from[e]]++] = e;
    std::vector<double> sum(edges), root(nodes, 1.0);
    int64_t count = 0;
    for (int64_t node = 0, i = 0; node < nodes; ++node) {
        double top = 0, strength = 0;  // the largest weight, and their sum relative to it
        std::stable_sort(order.data() + i, order.data() + last[node], [&](uint32_t a, uint32_t b) { return to[a] < to[b]; });
        for (rowptr[node] = count; i < last[node]; count += sum[count] != 0) {
            col[count] = to[order[i]];
            for (sum[count] = 0; i < last[node] && to[order[i]] == col[count]; ++i) sum[count] += weight ? weight[order[i]] : 1;
            top = std::max(top, std::abs(sum[count]));
        }
        for (int64_t e = rowptr[node]; e < count; ++e) strength += sum[e] / top;
        if (strength < 0) return -3;
        if (strength > 0) root[node] = std::sqrt(top) * std::sqrt(strength);
    }
    rowptr[nodes] = count;
    for (int64_t g = 0; g < graphs; ++g) {
        const int64_t size = ptr[g + 1] - ptr[g];
        uint64_t hash = 0;
        for (int64_t row = 0; row < size; ++row) {
            const int64_t *own = rowptr + ptr[g] + row, degree = own[1] - own[0];
            for (int64_t e = own[0]; e < own[1]; ++e) {
                const double normalized = sum[e] / root[ptr[g] + row] / root[col[e]];
                factor[e] = call.integer(IMPORTANCE) ? T(normalized) * T(degree / call.real(GOES_ON)) : T(1);
                hash += mix((row * size + col[e] - ptr[g] + 1) * GOLDEN);
            }
        }
        for (const int64_t value : {call.integer(SEED), call.integer(EPOCH), size})
            hash = mix(hash * 0xBF58476D1CE4E5B9 + value + GOLDEN);
        if (draws) hash = draws[g];
        for (int64_t row = 0; row < size; ++row) stream[ptr[g] + row] = mix(row * GOLDEN + hash + GOLDEN);
    }
    return count;
}

}  // namespace
