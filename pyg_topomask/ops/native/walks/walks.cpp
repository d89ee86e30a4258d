// Random walks, their pair tables and merged visits: what compiled.py calls.

#include "pair_table.h"
#include "walkers.h"

namespace {

// The graph that walkers move on, from edges in any order: as `to_csr`, `sym_normalize` and `walk_graph` of plain torch.
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

// -3 if a walk has nodes or lengths that do not exist.
EXPORTED int64_t pair_table(const int64_t* block) {
    return for_dtype(block, PAIR_ARRAYS, 1, LEFT + 3, [](const Call& call, auto zero) {
        const PairCall<decltype(zero)> c{call};
        if (!within(c.left, c.nodes, c.lengths) || !within(c.right, c.nodes, c.lengths)) return -3;
        Pairs<decltype(zero)> pairs(c);
        c.row ? pairs.fill() : pairs.count();
        return 0;
    });
}

EXPORTED int64_t walk_features(const int64_t* block) {
    const auto run = [](const Call& call, auto zero) { return walk_features<decltype(zero)>(call); };
    return for_dtype(block, FEATURE_ARRAYS, 1, VISITS + 3, run);
}

EXPORTED int64_t walk_graph(const int64_t* block) {
    const auto run = [](const Call& call, auto zero) { return walk_graph<decltype(zero)>(call); };
    return for_dtype(block, EDGE_ARRAYS, EDGE_NUMBERS, MADE_FACTOR, run);
}

// Makes tables, which `write_walks` copies and `release_walks` deletes, and counts the entries of each.
EXPORTED int64_t walk_tables(const int64_t* block) {
    return for_dtype(block, WALK_ARRAYS, WALK_NUMBERS, FACTOR, [](const Call& call, auto zero) {
        const WalkCall<decltype(zero)> c(call);
        int64_t *totals = call.dense<int64_t>(TOTALS, {c.tables}), *address = call.dense<int64_t>(MADE, {1});
        auto made = std::make_unique<WalkTables<decltype(zero)>>(c);
        made->count(totals);
        *address = reinterpret_cast<int64_t>(made.release());
    });
}

// Writes one of the tables that were made: index, length, load, count and, if wanted, the products of blocks.
EXPORTED int64_t write_walks(const int64_t* block) {
    return for_dtype(block, 5, 2, 2, [](const Call& call, auto zero) {
        using T = decltype(zero);
        const int64_t total = call.size(1, 0);
        int64_t* index = call.dense<int64_t>(0, {2, total});
        reinterpret_cast<WalkTables<T>*>(call.integer(0))
            ->write(call.integer(1), index, index + total, call.dense<int64_t>(1, {total}), call.dense<T>(2, {total}),
                    call.dense<T>(3, {total}), call.optional<T>(4, {ANY, ANY}));
    });
}

EXPORTED int64_t release_walks(const int64_t* block) {
    return for_dtype(block, 1, 1, 0, [](const Call& call, auto zero) {
        delete reinterpret_cast<WalkTables<decltype(zero)>*>(call.integer(0));
    });
}
